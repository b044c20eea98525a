import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from mha_course.figures.soft_addressing import draw_level_lines, draw_lookup, draw_swatches
from mha_course.soft_addressing import cosine, dot, gaussian_kernel


def texts():
    return [text.get_text() for text in plt.gca().texts]


def test_a_lookup_is_drawn_with_scores_weights_and_their_mixture():
    # scores 0, ln 3 and 0: weights 1/5, 3/5, 1/5
    keys = torch.tensor([[0.0, 7.0], [1.0986123, 0.0], [0.0, 0.0]])
    values = torch.tensor([[5.0], [10.0], [15.0]])
    draw_lookup(torch.tensor([1.0, 0.0]), keys, values, ["a", "b", "c"], asked="q")
    shown = texts()
    assert "query: q (1, 0)" in shown
    assert [text for text in shown if text in ("0.20", "0.60")] == ["0.20", "0.60", "0.20"]
    assert "(10)" in shown
    assert shown[-1] == "sum of weight times value: (10.00)"
    bars = [patch.get_width() for patch in plt.gca().patches if type(patch) is Rectangle]
    assert bars[1] / bars[0] == pytest.approx(3, abs=1e-4)


@pytest.mark.parametrize(
    ("similarity", "one", "other", "lower"),
    [
        (dot, (1.0, 1.0), (1.0, -2.0), (0.5, 1.0)),  # straight lines across the arrow
        (cosine, (0.5, 0.5), (3.0, 3.0), (0.5, 1.0)),  # rays: the length of a key does not count
        (gaussian_kernel, (0.0, 0.0), (2.0, 2.0), (-1.0, 0.0)),  # circles around its tip
    ],
)
def test_level_lines_join_keys_of_equal_score(similarity, one, other, lower, monkeypatch):
    drawn = []
    monkeypatch.setattr(mpl.axes.Axes, "contour", lambda self, x, y, scores, **_: drawn.append((x, y, scores)))
    draw_level_lines(torch.tensor([2.0, 0.0]), {"one": similarity})
    x, y, scores = drawn[0]

    def at(place):
        return scores[np.abs(y.numpy() - place[1]).argmin(), np.abs(x.numpy() - place[0]).argmin()]

    assert at(one) == pytest.approx(at(other), abs=1e-4)
    assert at(lower) < at(one) - 0.2


def test_each_similarity_has_a_panel_and_no_panel_is_left_over():
    draw_level_lines(torch.tensor([1.0, 2.0]), {"one": dot, "two": cosine, "three": dot})
    panels = [ax for ax in plt.gcf().axes if ax.axison]
    assert [ax.get_title() for ax in panels] == ["one", "two", "three"]


def test_swatches_show_the_colours_given_row_by_row():
    true, found = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(1))
    draw_swatches(["a", "b", "c"], {"true": true, "found": found})
    ax = plt.gca()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["true", "found"]
    top, bottom = ax.transData.transform([(0, 0.44), (0, 2.44)])[:, 1]
    assert top > bottom  # the first name stands on top
    shown = {patch.get_xy(): to_rgb(patch.get_facecolor()) for patch in ax.patches}
    assert shown[1, 2] == pytest.approx(found[2].tolist())
    assert shown[0, 1] == pytest.approx(true[1].tolist())
