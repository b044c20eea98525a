"""The figure of chapter 7 calculates what the package's layers do, forwards and backwards, and follows mouse, keyboard and Python."""

import re

import pytest
import torch
import traitlets
from torch import nn

from live import computed, numbers
from mha_course.encoder import Encoder, EncoderLayer, PreNormEncoderLayer
from mha_course.figures import WORDS, tiny_vectors
from mha_course.figures.live.encoder import EncoderFlow

SETTINGS = [
    {"order": order, "residual": residual, "norms": norms}
    for order in ("post_norm", "pre_norm")
    for residual in (True, False)
    for norms in (True, False)
]
exactly = {"rtol": 1e-6, "atol": 1e-6}


class NoResidual(EncoderLayer):
    def forward(self, x, mask=None, cache=None):
        return self.norm2(self.ffn(self.norm1(self.self_attn(x, x, x))))


class PreNormNoResidual(EncoderLayer):
    def forward(self, x, mask=None, cache=None):
        normed = self.norm1(x)
        return self.ffn(self.norm2(self.self_attn(normed, normed, normed)))


KINDS = {
    ("post_norm", True): EncoderLayer,
    ("pre_norm", True): PreNormEncoderLayer,
    ("post_norm", False): NoResidual,
    ("pre_norm", False): PreNormNoResidual,
}


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def package_layer(weights, order, residual, norms):
    """A layer of the package, or one that lacks a part, with the figure's weights."""
    w1 = tensor(weights["w1"])
    layer = KINDS[order, residual](len(w1), weights["heads"], w1.size(1)).double()
    names = {"query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj"}
    names |= {"output": "self_attn.out_proj", "w1": "ffn.0", "w2": "ffn.2"}
    for name, module in names.items():
        linear = layer.get_submodule(module)
        linear.weight.data = tensor(weights[name]).T
        nn.init.zeros_(linear.bias)
    if not norms:
        layer.norm1, layer.norm2 = nn.Identity(), nn.Identity()
    return layer


def package_places(layer, x, order):
    """What goes into the layer's parts, and what comes out of them."""
    seen = {}
    for name in ("self_attn", "norm1", "ffn", "norm2"):
        part = layer.get_submodule(name)
        part.register_forward_hook(lambda _, given, out, name=name: seen.update({name: (given[0][0], out[0])}))
    output = layer(x[None])[0]
    pre = order == "pre_norm"
    return {
        "input": x,
        "attention": seen["self_attn"][1],
        "add_1": seen["norm2" if pre else "norm1"][0],
        "norm_1": seen["norm1"][1],
        "feed_forward": seen["ffn"][1],
        "add_2": output if pre else seen["norm2"][0],
        "norm_2": seen["norm2"][1],
    }


def package_stack(tokens, layers, signal, order, residual, norms):
    """Size, likeness and gradient after each layer, by the package and autograd."""
    width = tokens.size(1)
    encoder = Encoder(width, 1, width, 1, norm_first=order == "pre_norm" and norms).double()
    passed = [tokens[None].requires_grad_()]
    for weights in layers:
        passed.append(package_layer(weights, order, residual, norms)(passed[-1]))
    gradients = torch.autograd.grad(encoder.norm(passed[-1]), passed, signal[None])
    pairs = torch.triu_indices(len(tokens), len(tokens), 1)
    cosines = [nn.functional.cosine_similarity(x[0, pairs[0]], x[0, pairs[1]], dim=-1).mean().item() for x in passed]
    return {
        "size": [x.square().mean().sqrt().item() for x in passed],
        "gradient": [(gradient.norm() / signal.norm()).item() for gradient in gradients],
        "alike": cosines,
    }


@pytest.fixture(scope="module")
def small():
    return computed("encoder", ["smallLayer"])[0]


@pytest.fixture(scope="module")
def drawn():
    return computed("encoder", ["drawStack", EncoderFlow().seed])[0]


def random_layer(d_model, d_ff, heads):
    shapes = dict.fromkeys(("query", "key", "value", "output"), (d_model, d_model))
    shapes |= {"w1": (d_model, d_ff), "w2": (d_ff, d_model)}
    return {"heads": heads} | {name: (torch.randn(shape) / 3).tolist() for name, shape in shapes.items()}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_each_place_of_a_layer_is_as_in_the_package(small, settings):
    torch.manual_seed(0)
    given = [(tiny_vectors().tolist(), small), (torch.randn(7, 6).tolist(), random_layer(6, 11, heads=3))]
    results = computed("encoder", *(["encoderLayer", x, weights, settings] for x, weights in given))
    for (x, weights), got in zip(given, results, strict=True):
        wanted = package_places(package_layer(weights, **settings), tensor(x), settings["order"])
        assert got["places"].keys() == wanted.keys()
        for place, numbers_there in got["places"].items():
            torch.testing.assert_close(tensor(numbers_there), wanted[place], **exactly)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_sizes_and_gradients_in_a_stack_are_those_of_the_package_and_of_autograd(settings):
    torch.manual_seed(0)
    layers = [random_layer(6, 11, heads=3) for _ in range(5)]
    x, signal = torch.randn(7, 6).tolist(), torch.randn(7, 6).tolist()
    (got,) = computed("encoder", ["encoderStack", x, layers, settings, signal])
    wanted = package_stack(tensor(x), layers, tensor(signal), **settings)
    for name, values in wanted.items():
        torch.testing.assert_close(tensor(got[name]), tensor(values), **exactly)


def test_a_vector_of_equal_features_is_normalised_to_zeros():
    (got,) = computed("encoder", ["layerNorm", [[3, 3, 3, 3], [1, 3, 1, 3]]])
    assert got["output"][0] == [0, 0, 0, 0]
    assert got["output"][1] == pytest.approx([-1, 1, -1, 1], abs=1e-5)


def test_the_layer_in_numbers_asks_the_questions_of_chapter_four(small):
    post, pre = [settings for settings in SETTINGS if settings["residual"] and settings["norms"]]
    got, in_pre_norm = computed(
        "encoder", *(["encoderLayer", tiny_vectors().tolist(), small, kind] for kind in (post, pre))
    )
    sat = WORDS.index("sat")
    assert got["places"]["add_1"][sat] == pytest.approx([1.97, 1.93, 2, 0], abs=0.005)  # as printed in the chapter
    assert got["places"]["norm_1"][sat] == pytest.approx([0.58, 0.53, 0.62, -1.73], abs=0.005)
    action = 2
    assert got["places"]["norm_2"][sat][action] == pytest.approx(0.76, abs=0.005)
    assert in_pre_norm["places"]["feed_forward"][sat][action] == pytest.approx(0.77, abs=0.005)
    assert in_pre_norm["places"]["add_2"][sat][action] == pytest.approx(2.77, abs=0.005)


def test_the_first_draw_has_the_numbers_that_the_chapter_names(drawn):
    tokens, signal = tensor(tiny_vectors().tolist()) @ tensor(drawn["widen"]), tensor(drawn["signal"])

    def stack(num_layers=24, **settings):
        wanted = {"order": "pre_norm", "residual": True, "norms": True} | settings
        return package_stack(tokens, drawn["layers"][:num_layers], signal, **wanted)

    pre, post, paths_alone, nothing = (
        stack(),
        stack(order="post_norm"),
        stack(norms=False),
        stack(residual=False, norms=False),
    )
    assert [pre["size"][24], pre["gradient"][23]] == pytest.approx([4.2, 0.24], abs=0.05)
    depths = [stack(num_layers) for num_layers in range(1, 25)]
    products = [found["size"][n] * found["gradient"][n - 1] for n, found in enumerate(depths, 1)]
    assert 0.9 < min(products) < 0.95
    assert 1.25 < max(products) < 1.35
    assert [pre["alike"][24], post["alike"][12]] == pytest.approx([0.76, 1], abs=0.005)
    assert [paths_alone["alike"][8], paths_alone["alike"][18]] == pytest.approx([0.98, 1], abs=0.005)
    assert max(nothing["size"][24], nothing["gradient"][0]) < 1e-6


@pytest.mark.parametrize(("cat", "said"), [(5.0, "0.0032, is (0.00"), (5.01, "0.0054, is (−0.47")])
def test_where_epsilon_can_be_seen_it_is_named(small, cat, said):
    x = [[5.0, 5.0, 5.0, cat]] * 6
    settings = SETTINGS[4]
    (layer,) = computed("encoder", ["encoderLayer", x, small, settings])
    (told,) = computed("encoder", ["account", "norm_1", layer | {"back": None}, settings])
    assert f"divided by √(variance + ε) = {said}" in told


def test_tokens_without_a_direction_are_not_said_to_be_alike():
    assert computed("encoder", ["likeness", [[0, 0], [0, 0]]], ["likeness", [[1, 0], [2, 0]]]) == [None, 1]


def table(page, number, columns):
    """The numbers of a table, row by row."""
    cells = page.locator(f"table >> nth={number}").locator("tbody td").all_inner_texts()
    read = [float(cell.replace("−", "-")) if numbers(cell) else None for cell in cells]
    return [read[start : start + columns] for start in range(0, len(read), columns)]


def chosen(figure):
    return {name: getattr(figure, name) for name in ("order", "residual", "norms")}


def layer_agrees(page, figure, small):
    """Compare the table of the place that is chosen with the package."""
    places = package_places(package_layer(small, **chosen(figure)), tensor(figure.x), figure.order)
    there = places[figure.place].detach()
    wanted = torch.cat([there, there.mean(-1, keepdim=True), there.std(-1, correction=0, keepdim=True)], dim=1)
    torch.testing.assert_close(tensor(table(page, 0, 6)), wanted, rtol=0, atol=0.0051)


def stack_agrees(page, figure, drawn):
    """Compare the table of the stack with the package, both orders."""
    layers, signal = drawn["layers"][: figure.num_layers], tensor(drawn["signal"])
    tokens = tensor(figure.x) @ tensor(drawn["widen"])
    stacks = [
        package_stack(tokens, layers, signal, **(chosen(figure) | {"order": order}))
        for order in ("post_norm", "pre_norm")
    ]
    shown = iter(table(page, -1, 8))
    for measure in ("size", "gradient", "alike"):
        for stack in stacks:
            by_layer = dict(enumerate(stack[measure]))
            wanted = [by_layer.get(passed) for passed in (0, 1, 2, 4, 8, 12, 18, 24)]
            assert next(shown) == [None if value is None else as_shown(value, measure) for value in wanted]


def as_shown(value, measure):
    """Numbers are rounded to two decimals; very large and very small ones to one digit and a power of ten."""
    plain = measure == "alike" or 0.005 <= value < 99.5
    return pytest.approx(value, abs=0.0051) if plain else pytest.approx(value, rel=0.5)


def test_boxes_and_switches_are_worked_by_mouse_and_keyboard(opened, small, drawn):
    figure = EncoderFlow()
    page = opened(figure)
    layer_agrees(page, figure, small)
    stack_agrees(page, figure, drawn)

    page.get_by_role("button", name="norm 1").click()
    figure.place = "norm_1"
    layer_agrees(page, figure, small)
    assert numbers(page.locator(".mha-sentence >> nth=0").inner_text())[-4:] == [0.58, 0.53, 0.62, -1.73]

    page.get_by_role("radio", name="post-norm").press("ArrowRight")
    figure.order = "pre_norm"
    layer_agrees(page, figure, small)
    page.get_by_role("button", name="norm 1").focus()
    page.keyboard.press("Tab")  # in pre-norm attention follows the first norm
    page.keyboard.press("Enter")
    assert page.locator("[aria-pressed=true]").get_attribute("aria-label") == "What attention finds"
    figure.place = "attention"
    layer_agrees(page, figure, small)

    page.get_by_role("spinbutton", name="cat place").fill("-1.5")
    figure.x = [*figure.x[:1], [2, -1.5, 0, 0], *figure.x[2:]]
    layer_agrees(page, figure, small)
    for switch in ("residual paths", "norms"):
        page.get_by_role("checkbox", name=switch).last.press("Space")
        assert not page.get_by_role("checkbox", name=switch).first.is_checked()
    figure.residual = figure.norms = False
    layer_agrees(page, figure, small)
    page.get_by_role("slider", name="layers").press("PageDown")
    figure.num_layers = int(page.get_by_role("slider", name="layers").input_value())
    assert figure.num_layers < 24
    stack_agrees(page, figure, drawn)


def test_the_stack_is_said_drawn_and_drawn_anew_and_set_back(opened):
    page = opened(EncoderFlow())
    said = page.locator(".mha-sentence >> nth=1")
    size_post, size_pre, last_post, last_pre, first_post, first_pre = numbers(said.inner_text())[1:]
    assert (size_post, 3 < size_pre < 6) == (1, True)
    assert last_pre == pytest.approx(1 / size_pre, rel=0.1)  # the last norm divides by the size
    assert last_post > 3 * last_pre
    assert 0.1 < first_post < 10 and 0.1 < first_pre < 10
    marks = page.locator("svg[role=img] path[fill^='var']")
    assert [len(re.findall("M", mark.get_attribute("d"))) for mark in marks.all()] == [25, 25, 25, 25]

    page.get_by_role("button", name="Other weights").press("Enter")
    assert numbers(said.inner_text())[1:] != [size_post, size_pre, last_post, last_pre, first_post, first_pre]

    page.get_by_role("button", name="First weights").click()
    assert numbers(said.inner_text())[1:] == [size_post, size_pre, last_post, last_pre, first_post, first_pre]

    field = page.get_by_role("spinbutton", name="sat action")
    field.fill("1.5")
    field.fill("15")  # too large to be taken over
    field.blur()
    assert field.input_value() == "1.5"
    for field in page.get_by_role("spinbutton").all():
        field.fill("0")
    assert "All tokens are 0 and stay 0" in said.inner_text()
    assert page.get_by_role("row", name="alike, post-norm").inner_text().count("\t\N{EN DASH}") == 8
    page.get_by_role("button", name="Set x back").click()
    assert page.get_by_role("spinbutton", name="sat action").input_value() == "2"
    assert numbers(said.inner_text())[1:] == [size_post, size_pre, last_post, last_pre, first_post, first_pre]

    page.get_by_role("checkbox", name="norms").first.uncheck()
    captions = page.locator("caption").all_inner_texts()  # they say it in print too
    assert captions[0] == "After the first sum (post-norm, without norms)"
    assert captions[-1].startswith("The stack, without norms")


def test_state_that_makes_no_sense_is_refused():
    with pytest.raises(
        ValueError, match=r"x must be the words' vectors that come in, 6 rows of 4 numbers, but it is 3"
    ):
        EncoderFlow(x=3)
    with pytest.raises(ValueError, match=r"x must lie between -10 and 10, .* but it holds -11\.0"):
        EncoderFlow(x=[[-11.0] * 4] * 6)
    with pytest.raises(traitlets.TraitError, match="order"):
        EncoderFlow(order="mid_norm")
    with pytest.raises(traitlets.TraitError, match="num_layers"):
        EncoderFlow(num_layers=25)
