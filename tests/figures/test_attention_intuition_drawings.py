import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from mha_course.figures.attention_intuition import (
    coverage,
    draw_attention,
    draw_glimpse,
    draw_hiding,
    draw_meanings,
    draw_mixture,
    draw_progress,
    draw_shares,
    draw_timeline,
)
from mha_course.figures.style import KEY, QUERY


def texts(ax=None):
    return [text.get_text() for text in (ax or plt.gca()).texts]


def shown(ax):
    """A picture's colours, one a pixel."""
    return ax.images[0].get_array()[4::8, 4::8]


def test_a_mixture_is_drawn_with_its_weights_and_below_what_comes_out():
    draw_mixture(
        torch.tensor([0.25, 0.75]), torch.tensor([[4.0, 0.0], [0.0, 8.0]]), ["a", "b"], ["one", "two"], "mixed"
    )
    found = texts()
    assert found.index("0.25") < found.index("0.75")
    assert found[found.index("0.75") + 1 : found.index("mixed")] == ["0", "8", "1", "6"]  # 0.25 * 4 and 0.75 * 8
    bars = [patch for patch in plt.gca().patches if patch.get_x() == pytest.approx(-2.3)]
    assert bars[1].get_width() / bars[0].get_width() == pytest.approx(3)
    assert bars[0].get_y() < bars[1].get_y()
    assert plt.gca().yaxis_inverted()


def test_a_glimpse_is_drawn_from_the_picture_over_patches_and_rows_to_their_mixture():
    picture = torch.tensor([[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]])
    draw_glimpse(picture, torch.stack([picture[:, :2], picture[:, 2:]]), torch.tensor([0.25, 0.75]))
    found = [text for text in texts() if text and "place" not in text]  # an arrow has an empty text
    assert found[:8] == ["0", "0", "1", "1", "1", "0", "1", "0"]
    assert found[8:17] == ["0", "0", "1", "0"] * 2 + ["0.25"]
    assert found[17:26] == ["1", "1", "1", "0"] * 2 + ["0.75"]
    assert found[26:34] == ["0.75", "0.75", "1", "0"] * 2  # 0.25 of the first and 0.75 of the second
    frames = [patch for patch in plt.gca().patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    assert [(frame.get_x(), frame.get_width(), frame.get_height()) for frame in frames] == [(0, 2, 2), (2, 2, 2)]


def test_the_hidden_digit_is_framed_at_its_place():
    picture = torch.zeros(28, 28)
    picture[8:16, 20:28] = 1.0
    draw_hiding(torch.ones(8, 8), picture, (2, 5))
    digit, hidden, places = plt.gcf().axes
    assert shown(digit).shape == (8, 8, 3)
    assert np.allclose(shown(hidden)[8:16, 20:28], to_rgb("#1a1a1a"))
    assert not np.allclose(shown(hidden)[7, 20], to_rgb("#1a1a1a"))
    (frame,) = (patch for patch in places.patches if isinstance(patch, Rectangle))
    assert (*frame.get_xy(), frame.get_width(), frame.get_height()) == (19.5, 7.5, 8, 8)
    across, down = places.lines[0].get_data()
    assert len(across) == 36
    assert (min(across), max(across), min(down), max(down)) == (3.5, 23.5, 3.5, 23.5)


def test_attention_is_laid_over_the_pixels_that_its_patches_hold():
    weights = torch.zeros(1, 6, 6)
    weights[0, 1, 2], weights[0, 1, 3] = 0.75, 0.25
    covered = coverage(weights)[0]
    assert covered.sum() == pytest.approx(64)
    assert covered[4, 8].item() == pytest.approx(0.75)
    assert covered[11, 12].item() == pytest.approx(1.0)  # here both patches lie
    assert covered[4, 19].item() == pytest.approx(0.25)
    assert covered[3].sum() == 0
    assert covered[12].sum() == 0


def test_each_column_shows_where_was_looked_what_was_seen_and_what_was_read():
    pictures = torch.zeros(2, 28, 28)
    weights = torch.zeros(2, 6, 6)
    weights[0, 0, 0] = weights[1, 5, 5] = 1.0
    even = torch.full((2, 6, 6), 1 / 36)
    seen = torch.stack([torch.zeros(8, 8), torch.ones(8, 8)])
    draw_attention(pictures, {"even": (seen, even), "late": (seen, weights)}, {"even": ["1", "2"], "late": ["3", "4"]})
    axes = np.array(plt.gcf().axes).reshape(4, 2)
    assert [ax.get_title() for ax in axes[0]] == ["even", "late"]
    assert [ax.get_xlabel() for ax in axes[1]] == ["1", "3"]
    assert [ax.get_xlabel() for ax in axes[3]] == ["2", "4"]
    first, second = shown(axes[0, 1]), shown(axes[2, 1])
    assert first[0, 0].sum() < first[27, 27].sum()  # darker where the attention lies
    assert second[27, 27].sum() < second[0, 0].sum()
    assert np.allclose(shown(axes[3, 0]), to_rgb("#1a1a1a"))


def test_progress_has_a_line_and_a_marker_for_each_series_on_a_scale_from_0_to_1():
    draw_progress([0, 5, 9], {"one": [0.1, 0.2, 0.9], "two": [0.0, 0.0, 0.1]})
    ax = plt.gca()
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.1, 0.2, 0.9], [0.0, 0.0, 0.1]]
    assert len({line.get_marker() for line in ax.lines}) == 2
    assert ax.get_ylim() == (-0.02, 1.02)
    assert [text.get_text() for text in ax.get_legend().texts] == ["one", "two"]


def test_each_bar_has_its_name_and_its_number_and_guessing_is_marked():
    draw_shares({"without": 0.25, "with": 0.93}, chance=0.1)
    ax = plt.gca()
    assert [bar.get_width() for bar in ax.patches] == [0.25, 0.93]
    assert texts() == ["0.25", "without", "0.93", "with", "guessing"]
    assert ax.lines[0].get_xdata()[0] == 0.1


def test_the_years_of_the_timeline_go_down_the_page():
    draw_timeline()
    ax = plt.gca()
    dated = [(int(text.get_text()[:4]), text.get_position()[1]) for text in ax.texts if text.get_text()[:1].isdigit()]
    assert len(dated) == 7
    assert dated == sorted(dated)
    assert ax.yaxis_inverted()
    assert [text for text in texts() if not text[:1].isdigit()] == ["people", "pictures", "words"]


def test_meanings_have_a_marker_and_a_colour_each_and_a_label_for_each_sentence():
    points = torch.tensor([[1.0, 2.0], [1.5, 2.5], [-3.0, 0.0]])
    draw_meanings(points, [("one", ["a", "b"]), ("other", ["c"])])
    ax = plt.gca()
    assert [text.get_text() for text in ax.texts] == ["a", "b", "c"]
    assert [text.xy for text in ax.texts] == [(1.0, 2.0), (1.5, 2.5), (-3.0, 0.0)]
    assert [line.get_color() for line in ax.lines] == [QUERY, KEY]
    assert len({line.get_marker() for line in ax.lines}) == 2
    assert [text.get_text() for text in ax.get_legend().texts] == ["one", "other"]


def test_no_label_of_a_meaning_touches_the_frame():
    # Two pairs of spots side by side: the freest side of the outer ones is the one towards the frame.
    after = torch.tensor([[-3.0, 0.0], [-2.6, 0.0], [0.0, -2.0], [2.6, 0.5], [3.0, 0.5]])
    groups = [("one", ["hand", "glove"]), ("other", ["well", "storm", "dates"])]
    draw_meanings(after, groups)
    figure = plt.gcf()
    figure.canvas.draw()
    panel = figure.axes[0].get_window_extent()
    assert len(figure.axes[0].texts) == 5
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert panel.x0 < box.x0
        assert box.x1 < panel.x1
        assert panel.y0 < box.y0
        assert box.y1 < panel.y1
