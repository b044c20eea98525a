"""Exercise, to be repaired: collect what is on the residual path before, between and after the sublayers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Given, Misconception, Part, Property, given
from mha_course.exercises.properties import close, randn

PATH, SLIPS = "encoder#residual-path", "encoder#slips-around-a-norm"
Sublayers = Sequence[Callable[[Tensor], Tensor]]


def cases(rng: Generator) -> Iterator[Case]:
    for batch, length, d_model, number in ((1, 2, 3, 1), (1, 1, 2, 3), (2, 3, 5, 2), (3, 5, 7, 5)):
        x = randn(rng, batch, length, d_model)
        call = Call((x, sublayers(number)))
        yield Case("states", describe(x, number), (call,), holds=(each_its_own,))
    x = randn(rng, 2, 3, 5)
    yield Case("states", describe(x, 0), (Call((x, sublayers(0))),))
    yield Case("states", f"{describe(x, 2)}, float64", (Call((x.double(), sublayers(2))),), tolerance=1e-9)
    calls = Call((x, sublayers(3))), Call((x[:, :2], sublayers(1)))
    yield Case("states", f"{describe(x, 3)}, then 2 tokens and 1 sublayer", calls)
    for number in (1, 3):
        label = f"{describe(x, number)}, with gradients"
        yield Case("gradients", label, (Call((x, sublayers(number)), backward=True),))


def sublayers(number: int) -> Given:
    return given(make_sublayers, args=(number,))


def make_sublayers(number: int) -> list[Callable[[Tensor], Tensor]]:
    return [lambda tokens, i=i: torch.tanh(2 * tokens.roll(1, dims=-1)) + 0.5 * i + 0.5 for i in range(number)]  # type: ignore[misc]


def describe(x: Tensor, number: int) -> str:
    return f"x {tuple(x.shape)}, {number} sublayer{'s' * (number != 1)}"


def _same(outputs: Sequence[Any]) -> str | None:
    states = outputs[0]
    alike = [number for number in range(1, len(states)) if close(states[number], states[number - 1], 1e-6)]
    if not alike:
        return None
    first = alike[0]
    return f"entries {first - 1} and {first} are equal, though sublayer {first - 1} (counted from 0) adds something to every feature"


each_its_own = Property("Each entry holds what was on the residual path at its own time.", _same)


# --- answers, a right one and wrong ones ---------------------------------------------------------------------------


def hidden_states(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x]
    for sublayer in sublayers:
        x = x + sublayer(x)
        states.append(x)
    return states


def as_handed_out(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x]
    for sublayer in sublayers:
        x += sublayer(x)
        states.append(x)
    return states


def input_copied(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x]
    x = x.clone()
    for sublayer in sublayers:
        x += sublayer(x)
        states.append(x)
    return states


def input_copied_first(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    return as_handed_out(x.clone(), sublayers)


def states_copied(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x.clone()]
    for sublayer in sublayers:
        x += sublayer(x)
        states.append(x.clone())
    return states


def without_a_graph(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x]
    for sublayer in sublayers:
        x = (x + sublayer(x)).detach()
        states.append(x)
    return states


def collected_without_a_graph(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    return [x, *(state.detach() for state in hidden_states(x, sublayers)[1:])]


def first_without_a_graph(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    return [x.detach().clone(), *hidden_states(x, sublayers)[1:]]


def path_without_a_graph(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x]
    for sublayer in sublayers:
        x = x.detach() + sublayer(x)
        states.append(x)
    return states


def what_is_added(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x]
    for sublayer in sublayers:
        states.append(sublayer(x))
        x = x + states[-1]
    return states


def path_left_out(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x]
    for sublayer in sublayers:
        x = sublayer(x)
        states.append(x)
    return states


def input_read_by_all(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x]
    for sublayer in sublayers:
        states.append(states[-1] + sublayer(x))
    return states


def path_from_the_input(x: Tensor, sublayers: Sublayers) -> list[Tensor]:
    states = [x]
    for sublayer in sublayers:
        states.append(x + sublayer(states[-1]))
    return states


MISCONCEPTIONS = (
    Misconception(
        "added_in_place",
        "x += ... writes the sum into the tensor that x names. The list holds that same tensor, again and again, and the caller "
        "has it too. x = x + ... makes a new one.",
        SLIPS,
        (as_handed_out,),
        (
            "https://github.com/vllm-project/vllm/pull/24500",
            "https://github.com/pytorch/pytorch/issues/15428",
            "https://github.com/iMED-Lab/ER-Net/pull/3",
        ),
    ),
    Misconception(
        "copied_once",
        "One copy at the start saves the caller's tensor, but all that follows is still written into a single tensor, which the "
        "list holds several times. It is the addition that has to make a new one each time.",
        SLIPS,
        (input_copied, input_copied_first),
    ),
    Misconception(
        "copies_in_the_list",
        "The list holds copies now, and they are right. But the sum is still written into the tensor that the caller gave, who may "
        "need it as it was.",
        SLIPS,
        (states_copied,),
    ),
    Misconception(
        "gradient_cut_off",
        "The entries have the right values, but no gradient comes back through them (detach, .data, no_grad). That hides the error that "
        "the slip raised in training, and the layers below no longer learn.",
        PATH,
        (without_a_graph, collected_without_a_graph, path_without_a_graph, first_without_a_graph),
    ),
    Misconception(
        "what_is_added",
        "The entries are what each sublayer adds. Asked for is what is on the residual path after the sum.",
        PATH,
        (what_is_added,),
    ),
    Misconception(
        "residual_path_left_out",
        "What a sublayer gives takes the place of the tokens. It is to be added to them.",
        PATH,
        (path_left_out,),
    ),
    Misconception(
        "sublayers_read_the_input",
        "Every sublayer is given the first tokens, or its result is added to them. Each one reads what is on the path when its turn "
        "comes, and adds to that.",
        PATH,
        (input_read_by_all, path_from_the_input),
        ("https://github.com/Atcold/NYU-DLSP20/issues/270",),
    ),
    Misconception(
        "one_entry_too_few",
        "There is an entry for x as it came, and one after each sublayer: one more than there are sublayers.",
        PATH,
        (
            lambda x, sublayers: hidden_states(x, sublayers)[1:],
            lambda x, sublayers: hidden_states(x, sublayers)[:-1],
        ),
    ),
    Misconception(
        "not_a_list",
        "A list of tensors is asked for, not one tensor with an axis more, and not the last entry alone.",
        PATH,
        (
            lambda x, sublayers: torch.stack(hidden_states(x, sublayers)),
            lambda x, sublayers: hidden_states(x, sublayers)[-1],
        ),
    ),
)

EXERCISE = Exercise(
    name="hidden_states",
    chapter="encoder",
    kind="function",
    minutes=10,
    task="repair",
    parts=(
        Part("states", 1, "keep what was on the residual path before, between and after the sublayers", SLIPS),
        Part("gradients", 1, "let the gradient of each entry come back to x", PATH),
    ),
    hints=(
        "Print id(state) for each entry of the list that you get back. How many tensors are there?",
        "Which line changes a tensor, and which lines only give a name to one? The chapter shows the difference, where it asks "
        "whether the residual is changed too.",
        "One line writes into the tensor that is in the list already. Let it make a new tensor for the sum, and let x be the name of "
        "that one. No copies are needed.",
    ),
    cases=cases,
    reference=hidden_states,
    misconceptions=MISCONCEPTIONS,
)
