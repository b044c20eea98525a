"""Exercise: one function for each layer of a model, to put in its place."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import randn

SECTION = "pretrained#your-own-class-inside"
Layer = Callable[[Any], Any]


def patch_layers(layers: Iterable[Layer]) -> list[Layer]:
    return [lambda x, layer=layer: layer(x) for layer in layers]  # type: ignore[misc]


# --- what drives the learner's function; each is sent to its process as source -------------------------------------


class Multiplies:
    """A layer that multiplies by a number of its own, which can change, and counts its calls."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.calls = 0

    def __call__(self, x):  # type: ignore[no-untyped-def]
        self.calls += 1
        return x * self.factor


def called_once(patch):  # type: ignore[no-untyped-def]
    """Patch layers, and call each function once, in the order of the layers."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        functions = patch([Multiplies(factor) for factor in factors])
        return [function(x) for function in functions] if isinstance(functions, (list, tuple)) else functions

    return drive


def another_list(patch):  # type: ignore[no-untyped-def]
    """Say whether what comes back is the very list that was handed over."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        layers = [Multiplies(factor) for factor in factors]
        return patch(layers) is layers

    return drive


def called_backwards(patch):  # type: ignore[no-untyped-def]
    """Patch layers, and call the last function first."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        functions = patch([Multiplies(factor) for factor in factors])
        return [function(x) for function in functions[::-1]]

    return drive


def called_twice(patch):  # type: ignore[no-untyped-def]
    """Call each function with one input and then with another, twice as large."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        functions = patch([Multiplies(factor) for factor in factors])
        return [function(scale * x) for scale in (1, 2) for function in functions]

    return drive


def patched_twice(patch):  # type: ignore[no-untyped-def]
    """Patch one model and then another, and only then call the functions of the first."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        functions = patch([Multiplies(factor) for factor in factors])
        patch([Multiplies(10 * factor) for factor in factors])
        return [function(x) for function in functions]

    return drive


def one_layer_twice(patch):  # type: ignore[no-untyped-def]
    """Patch a model that has its first layer twice, as models with shared layers do."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        layers = [Multiplies(factor) for factor in factors]
        return [function(x) for function in patch([*layers, layers[0]])]

    return drive


def counted(patch):  # type: ignore[no-untyped-def]
    """Count how often each layer was called: before any function was, and after each function was called once."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        layers = [Multiplies(factor) for factor in factors]
        functions = patch(layers)
        before = [layer.calls for layer in layers]
        for function in functions:
            function(x)
        return [before, [layer.calls for layer in layers]]

    return drive


def trained_afterwards(patch):  # type: ignore[no-untyped-def]
    """Change the layers' own numbers, as training does, and then call the functions."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        layers = [Multiplies(factor) for factor in factors]
        functions = patch(layers)
        for layer in layers:
            layer.factor += 1
        return [function(x) for function in functions]

    return drive


def put_in_place(patch):  # type: ignore[no-untyped-def]
    """Put each function into the model's own list in place of its layer, and then run the model."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        layers = [Multiplies(factor) for factor in factors]
        for number, function in enumerate(list(patch(layers))):
            layers[number] = function
        return [layer(x) for layer in layers]

    return drive


def emptied(patch):  # type: ignore[no-untyped-def]
    """Empty the list that was handed over, and then call the functions."""

    def drive(x, factors):  # type: ignore[no-untyped-def]
        layers = [Multiplies(factor) for factor in factors]
        functions = patch(layers)
        layers.clear()
        return [function(x) for function in functions]

    return drive


def cases(rng: Generator) -> Iterator[Case]:
    for part, label, drive, count in (
        ("own layer", "three layers, each function called once", called_once, 3),
        ("own layer", "two layers", called_once, 2),
        ("own layer", "seven layers", called_once, 7),
        ("own layer", "a single layer", called_once, 1),
        ("own layer", "no layer at all", called_once, 0),
        ("own layer", "three layers, the last function called first", called_backwards, 3),
        ("own layer", "three layers, and the list that held them", another_list, 3),
        ("own layer", "three layers, of which the first comes again at the end", one_layer_twice, 3),
        ("own layer", "two models patched one after the other, then the first one's functions", patched_twice, 3),
        ("every call", "three layers, each function called with x and then with 2x", called_twice, 3),
        ("every call", "three layers whose numbers change after they were patched", trained_afterwards, 3),
        ("every call", "three layers that count how often they are called", counted, 3),
        ("in place", "three layers, each function put into the model's list in its layer's place", put_in_place, 3),
        ("in place", "three layers, the list emptied after patching", emptied, 3),
    ):
        x = randn(rng, 2, 3)
        factors = [float(number) for number in torch.randperm(11, generator=rng)[:count] + 2]
        holds = HOLDS.get(drive, ()) if count else ()
        yield Case(part, label, (Call((x, factors)),), through=given(drive, Multiplies), holds=holds)


def _all_alike(outputs: Sequence[Any]) -> str | None:
    first, *others = outputs[0]
    alike = others and all(torch.equal(first, other) for other in others)
    return f"all {len(outputs[0])} functions return the same" if alike else None


def _calls(outputs: Sequence[Any]) -> str | None:
    before, after = outputs[0]
    if any(before):
        return f"before any function was called, the layers had been called {before} times"
    return (
        None
        if set(after) == {1}
        else f"when each function had been called once, the layers had been called {after} times"
    )


def _handed_back(outputs: Sequence[Any]) -> str | None:
    return "the list that came in is handed back" if outputs[0] is True else None


new_list = Property("The functions stand in a list of their own.", _handed_back)
each_its_own = Property("Each function calls a layer of its own.", _all_alike)
called_when_asked = Property("A layer is called when its function is, each time, and never else.", _calls)
HOLDS: dict[Any, tuple[Property, ...]] = {
    another_list: (new_list,),
    called_once: (each_its_own,),
    counted: (called_when_asked,),
}


# --- wrong answers -------------------------------------------------------------------------------------------------


def last_layer(layers: Iterable[Layer]) -> list[Layer]:
    return [lambda x: layer(x) for layer in layers]  # noqa: B023, PLW0108 (the slip itself)


def number_looked_up(layers: Sequence[Layer]) -> list[Layer]:
    return [lambda x: layers[i](x) for i in range(len(layers))]  # noqa: B023, PLW0108 (the slip itself)


def last_of_all_calls() -> Callable[[Iterable[Layer]], list[Layer]]:
    kept: list[Layer] = []

    def patch(layers: Iterable[Layer]) -> list[Layer]:
        kept[:] = layers
        return [lambda x, i=i: kept[i](x) for i in range(len(kept))]  # type: ignore[misc]

    return patch


def one_after_another(layers: Iterable[Layer]) -> list[Layer]:
    functions: list[Layer] = []
    for layer in layers:
        below = functions[-1] if functions else lambda x: x
        functions.append(lambda x, layer=layer, below=below: layer(below(x)))  # type: ignore[misc]
    return functions


def one_for_all(layers: Sequence[Layer]) -> list[Layer]:
    def run(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    return [run for _ in layers]


def layer_not_called(layers: Iterable[Layer]) -> list[Layer]:
    return [lambda x, layer=layer: layer for layer in layers]  # type: ignore[misc]


def input_returned(layers: Iterable[Layer]) -> list[Layer]:
    def make(layer: Layer) -> Layer:
        def function(x: Any) -> Any:
            layer(x)
            return x

        return function

    return [make(layer) for layer in layers]


def nothing_returned(layers: Iterable[Layer]) -> list[Layer]:
    def make(layer: Layer) -> Layer:
        def function(x: Any) -> None:
            layer(x)

        return function

    return [make(layer) for layer in layers]


def reversed_order(layers: Iterable[Layer]) -> list[Layer]:
    return patch_layers(layers)[::-1]


def by_layer(layers: Iterable[Layer]) -> list[Layer]:
    return list({layer: functools.partial(layer) for layer in layers}.values())


def generated(layers: Iterable[Layer]) -> Any:
    return (lambda x: layer(x) for layer in layers)  # noqa: B023, PLW0108 (the slip itself)


def mapped(layers: Iterable[Layer]) -> Any:
    return map(functools.partial, layers)


def first_result_kept(layers: Iterable[Layer]) -> list[Layer]:
    def make(layer: Layer) -> Layer:
        kept: list[Any] = []

        def function(x: Any) -> Any:
            if not kept:
                kept.append(layer(x))
            return kept[0]

        return function

    return [make(layer) for layer in layers]


def copied(layers: Iterable[Layer]) -> list[Layer]:
    return patch_layers(map(copy.deepcopy, layers))


def tried_while_patching(layers: Iterable[Layer]) -> list[Layer]:
    layers = list(layers)
    for layer in layers:
        layer(torch.zeros(1))
    return patch_layers(layers)


def called_two_times(layers: Iterable[Layer]) -> list[Layer]:
    return [lambda x, layer=layer: (layer(x), layer(x))[1] for layer in layers]  # type: ignore[misc]


def looked_up_in_the_list(layers: Sequence[Layer]) -> list[Layer]:
    return [lambda x, i=i: layers[i](x) for i in range(len(layers))]  # type: ignore[misc]


def the_list_itself(layers: list[Layer]) -> list[Layer]:
    return layers


MISCONCEPTIONS = (
    Misconception(
        "kv_late_binding",
        "A function made in a loop doesn't keep the *value* that the loop's variable had when it was made. It keeps the "
        "variable, and looks into it when it is *called*. By then the loop is over, and the variable holds the last layer: "
        "so all functions call that one. With a single layer nothing can be seen of it. Each function has to be given its "
        "layer at the moment when it is made.",
        SECTION,
        (last_layer, number_looked_up),
        (
            "https://github.com/TrenTorch/TrenTorch/pull/141",
            "https://github.com/ml-explore/mlx-lm/pull/976",
        ),
    ),
    Misconception(
        "iterator_in_place_of_list",
        "Round brackets make a generator, and map(...) gives something alike: neither is a tuple or a list. The functions are "
        "made one at a time, when somebody asks for the next; there is no length, and no function number 2, and after one run "
        "there are none left: the second token would find no layers. A model needs a list.",
        SECTION,
        (generated, mapped),
        ("https://github.com/ml-explore/mlx-lm/pull/976", "https://github.com/wwrechard/pydlm/issues/16"),
    ),
    Misconception(
        "one_state_for_all_calls",
        "What the functions look into belongs to no single call of patch_layers: it's shared, like a global variable or a "
        "mutable default argument. When a second model is patched, the first one's functions run the second one's layers.",
        SECTION,
        (last_of_all_calls(),),
        (
            "https://github.com/Comfy-Org/ComfyUI/pull/12939",
            "https://github.com/rajveer43/VeloxQuant-MLX/issues/53",
        ),
    ),
    Misconception(
        "layers_chained",
        "Each function runs the layers before it as well. A model does that itself: it hands the result of one layer to the "
        "next. Each function stands for one layer.",
        SECTION,
        (one_after_another, one_for_all),
    ),
    Misconception(
        "layer_not_called",
        "The function returns the layer itself, in place of what the layer makes of x.",
        SECTION,
        (layer_not_called,),
    ),
    Misconception(
        "result_lost",
        "The layer is called, but what it returns is lost: the function returns its input, or nothing.",
        SECTION,
        (input_returned, nothing_returned),
    ),
    Misconception(
        "order_reversed",
        "The functions stand in reversed order. The first is to call the first layer.",
        SECTION,
        (reversed_order,),
    ),
    Misconception(
        "equal_layers_merged",
        "The functions are kept by their layer, in a dict or a set, so a layer that comes twice gets only one. Models that "
        "share a layer's numbers do have one layer in several places, and their list keeps its length.",
        SECTION,
        (by_layer,),
    ),
    Misconception(
        "first_result_kept",
        "Each function remembers its first result and returns it ever after, whatever comes in. What was computed for one "
        "sentence is then told of all.",
        SECTION,
        (first_result_kept,),
    ),
    Misconception(
        "layers_copied",
        "The functions call *copies* of the layers. As soon as the model is trained further, or other weights are loaded, the "
        "copies know nothing of it.",
        SECTION,
        (copied,),
    ),
    Misconception(
        "called_while_patching",
        "A layer is called while its function is made, or more often than its function. A layer may count, keep a cache or "
        "draw random numbers: calling it has effects.",
        SECTION,
        (tried_while_patching, called_two_times),
    ),
    Misconception(
        "looked_up_in_the_list",
        "Each function has its own number, but looks into the caller's list when it is called. Patching means that the "
        "functions are put into that very list: then function 0 finds itself at place 0, calls itself, and so on without "
        "end. What has to be kept is the layer, not the place where it stood.",
        SECTION,
        (looked_up_in_the_list,),
        ("https://github.com/neelsjain/NEFTune/issues/5",),
    ),
    Misconception(
        "the_list_itself",
        "The list that came in is handed back, with the layers themselves in it. There is one list then, with two names: whoever "
        "changes the model's list changes this one as well. And there is no place to write down what goes in and comes out.",
        SECTION,
        (the_list_itself,),
    ),
)

EXERCISE = Exercise(
    name="patch_layers",
    chapter="pretrained",
    kind="function",
    minutes=10,
    parts=(
        Part("own layer", 1, "return a new list of functions, in order, each of which calls its own layer", SECTION),
        Part("every call", 1, "call the layer itself, as it is then, whenever its function is called", SECTION),
        Part("in place", 1, "keep to the layers that it was given, when the list that held them changes", SECTION),
    ),
    hints=(
        "Make two functions in a loop and call them after it. Which value has the loop's variable at that moment?",
        "A function's arguments are its own. Two things are evaluated when a function is made, or called to make one: the "
        "default value of an argument, and the argument of a function that makes a function.",
        "Either give each function a second argument whose default value is the layer, or write a helper that takes one layer "
        "and returns a function of x, and call that helper in the loop.",
    ),
    cases=cases,
    reference=patch_layers,
    misconceptions=MISCONCEPTIONS,
)
