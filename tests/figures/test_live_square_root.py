"""The figure on the scale measures what PyTorch does, and follows slider, buttons and Python."""

import math
import statistics

import numpy as np
import pytest
import torch
import traitlets

from live import computed, numbers
from mha_course.figures.live.square_root import SquareRoot
from mha_course.soft_addressing import dot, scaled_dot, softmax


def gradients(scores):
    """Size of the softmax's gradient at each row of scores, by PyTorch."""
    # The weights of all rows in one sum: a score moves those of its own row alone.
    slopes = torch.autograd.functional.jacobian(lambda x: softmax(x, dim=-1).sum(dim=0), scores)
    return slopes.norm(dim=(0, 2)).tolist()


def test_the_gradient_is_the_norm_of_pytorchs_jacobian():
    torch.manual_seed(0)
    scores = torch.randn(4, 7, dtype=torch.float64) * torch.tensor([[0.01], [1], [5], [300]])
    got = computed("square_root", *(["slopes", weights.tolist()] for weights in softmax(scores, dim=-1)))
    assert got == pytest.approx(gradients(scores), abs=1e-9)


def test_scores_at_each_width_are_those_of_vectors_cut_short():
    torch.manual_seed(1)
    vectors = torch.randn(2, 2, 3, 13, dtype=torch.float64)  # two sentences, queries and keys, three of each
    (got,) = computed("square_root", ["scoresAtWidths", vectors.flatten(0, 2).tolist(), 3, [1, 5, 13]])
    for width, scores in zip((1, 5, 13), got, strict=True):
        wanted = dot(vectors[:, 0, :, :width], vectors[:, 1, :, :width])
        torch.testing.assert_close(torch.tensor(scores, dtype=torch.float64), wanted.flatten(0, 1))


def test_what_is_measured_agrees_with_pytorch():
    torch.manual_seed(2)
    for queries in (5, 6):  # a middle one, and none
        scores = 2 * torch.randn(queries, 7, dtype=torch.float64)
        (got,) = computed("square_root", ["measure", scores.tolist()])
        assert got == pytest.approx(measured(scores), abs=1e-9)


def test_a_histogram_keeps_in_its_last_bars_what_lies_beyond():
    (got,) = computed("square_root", ["histogram", [[-700, -20, -0.5, 0, 0.9], [19.99, 20, 3000, 1, 2]]])
    wanted = {0: 0.2, 19: 0.1, 20: 0.2, 21: 0.1, 22: 0.1, 39: 0.3}
    assert got == pytest.approx([wanted.get(bar, 0) for bar in range(40)])


def measured(scores):
    return {
        "deviation": scores.std(correction=0).item(),
        "largest": statistics.median(softmax(scores, dim=-1).amax(dim=-1).tolist()),
        "gradient": statistics.median(gradients(scores)),
    }


def expected(vectors, figure):
    """Standard deviation, largest weight and gradient, plain and divided, by PyTorch; then the scores of one query."""
    cut = vectors[..., : figure.width]
    plain = dot(cut[:, 0], cut[:, 1]).flatten(0, 1)
    divided = scaled_dot(cut[:, 0], cut[:, 1]).flatten(0, 1)
    if figure.divisor == "width":
        divided = divided / math.sqrt(figure.width)
    return measured(plain), measured(divided), plain[0], divided[0]


def shown(page, caption):
    rows = page.locator("table", has=page.get_by_text(caption)).locator("tbody tr").all()
    return [[numbers(cell)[0] for cell in row.locator("td").all_inner_texts()] for row in rows]


def agrees(page, figure, vectors):
    plain, divided, scores, smaller = expected(vectors, figure)
    for row, name in zip(shown(page, "128 queries"), ("largest", "gradient", "deviation"), strict=True):
        least, places = (0.0001, 0.000051) if name == "gradient" else (0, 0.0051)
        wanted = [max(measure[name], least) for measure in (plain, divided)]  # what is less is shown as "< 0.0001"
        assert row == pytest.approx(wanted, abs=places), name
    columns = torch.tensor(shown(page, "One of them"), dtype=torch.float64).T
    for got, wanted in zip(columns, (scores, softmax(scores, dim=0), smaller, softmax(smaller, dim=0)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0.0051)


def drawn(seed, sentences=16, words=8, width=1024):
    """The vectors of a seed, as (sentence, query or key, which of them, entry): mulberry32, then Box and Muller's way."""
    count = 2 * sentences * words * width
    low = np.uint64(0xFFFFFFFF)
    state = (np.uint64(seed) + np.uint64(0x6D2B79F5) * np.arange(1, 2 * count + 1, dtype=np.uint64)) & low
    bits = (state ^ state >> np.uint64(15)) * (state | np.uint64(1)) & low
    bits ^= bits + (bits ^ bits >> np.uint64(7)) * (bits | np.uint64(61)) & low
    uniform = ((bits ^ bits >> np.uint64(14)) & low) / 2**32
    numbers = np.sqrt(-2 * np.log(1 - uniform[0::2])) * np.cos(2 * np.pi * uniform[1::2])
    return torch.from_numpy(numbers).view(sentences, 2, words, width)


def test_slider_divisor_and_a_new_draw_show_what_pytorch_measures(opened):
    figure, first, second = SquareRoot(seed=4), drawn(4), drawn(5)
    page = opened(figure)
    agrees(page, figure, first)
    slider = page.get_by_role("slider", name="width")
    slider.press("End")
    figure.width = 1024
    agrees(page, figure, first)
    said = page.locator(".mha-sentence").inner_text()
    assert "gives 1.00 of its weight to one key, and the middle gradient is < 0.0001." in said
    assert page.get_by_role("cell", name="< 0.0001").count() == 1
    slider.press("ArrowLeft")
    figure.width = 512
    page.get_by_role("radio", name="width", exact=True).check()
    figure.divisor = "width"
    agrees(page, figure, first)
    page.get_by_role("button", name="Draw others").press("Enter")
    agrees(page, figure, second)
    slider.press("Home")
    figure.width = 1
    agrees(page, figure, second)


def test_what_the_chapter_says_holds_for_other_draws():
    first = SquareRoot().seed
    for vectors in map(drawn, range(first, first + 12)):
        at = {width: expected(vectors, SquareRoot(width=width))[:2] for width in (1, 4, 16, 64, 1024)}
        plain, divided = ({width: both[which] for width, both in at.items()} for which in (0, 1))
        assert plain[1]["gradient"] == pytest.approx(0.35, abs=0.015)
        assert plain[64]["gradient"] < 0.35 / 2 and plain[64]["largest"] > 0.9
        assert plain[1024]["gradient"] < 0.001
        for measure in list(divided.values())[1:]:
            assert list(measure.values()) == pytest.approx([1, 1 / 3, 0.36], abs=0.15)
            assert measure["largest"] == pytest.approx(1 / 3, abs=0.07)
            assert measure["gradient"] == pytest.approx(0.36, abs=0.015)
        narrowed = expected(vectors, SquareRoot(width=1024, divisor="width"))[1]
        assert narrowed["largest"] == pytest.approx(1 / 8, abs=0.01)
    plain = expected(drawn(first), SquareRoot(width=64))[0]
    assert plain["gradient"] == pytest.approx(0.35 / 7, abs=0.004)


def test_the_points_of_the_curve_are_the_gradients(opened):
    page = opened(SquareRoot(seed=4))
    bottom, top = (float(page.locator("svg line[stroke='var(--ink)']").get_attribute(end)) for end in ("y1", "y2"))
    marks = page.locator("svg[role=img] path[fill='var(--second)'][transform]").all()
    heights = [numbers(mark.get_attribute("transform"))[1] for mark in marks]
    wanted = [expected(drawn(4), SquareRoot(width=2**power))[0]["gradient"] for power in (0, 4, 10)]
    got = [0.5 * (bottom - heights[power]) / (bottom - top) for power in (0, 4, 10)]
    assert got == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("state", [{"width": 100}, {"divisor": "half"}, {"seed": -1}])
def test_state_that_makes_no_sense_is_refused_in_one_sentence(state):
    (name,) = state
    with pytest.raises(traitlets.TraitError, match=f"'{name}' trait of a SquareRoot instance"):
        SquareRoot(**state)
