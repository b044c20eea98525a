import re

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.patches import Polygon, Rectangle

from mha_course.figures.self_attention import (
    draw_influence,
    draw_maps,
    draw_masks,
    draw_mixtures,
    draw_paths,
    draw_six_steps,
)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def sizes(ax):
    """Rows and columns that are written below each matrix."""
    return [
        tuple(map(int, found.groups())) for found in map(re.compile(r"(\d+) . (\d+)").fullmatch, texts(ax)) if found
    ]


def shapes(ax):
    """Width over height of each matrix that is drawn."""
    return [patch.get_width() / patch.get_height() for patch in ax.patches if isinstance(patch, Rectangle)]


def test_the_matrices_of_the_six_steps_have_their_shapes():
    draw_six_steps(length=13, d_model=101, d_head=29)
    top, bottom = plt.gcf().axes
    assert sizes(top) == [(13, 101), (101, 29), (13, 29), (13, 29), (13, 29)]
    assert sizes(bottom) == [(13, 29), (29, 13), (13, 13), (13, 29), (13, 29)]
    wide = 29 / 13
    assert shapes(top) == pytest.approx([101 / 13, *[29 / 101] * 3, wide, wide, wide])
    assert shapes(bottom) == pytest.approx([wide, 1 / wide, 1, wide, wide])


def test_mixtures_stand_where_they_lie_in_the_area_between_the_values():
    values = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 5.0], [1.0, 1.0], [3.0, 0.0]])
    mixture = torch.tensor([0.5, 2.0])
    draw_mixtures(values, ["a", "b", "c", "d", "e"], {"asked": mixture}, ("east", "north"))
    ax = plt.gca()
    area = next(patch for patch in ax.patches if isinstance(patch, Polygon))
    corners = {tuple(corner) for corner in area.get_xy().round(6).tolist()}
    assert corners == {(0, 0), (3, 0), (0, 5)}  # (1, 1) lies inside
    assert "b, e" in texts(ax)
    shown = {line.get_label(): line.get_xydata()[0].tolist() for line in ax.lines}
    assert shown["asked"] == mixture.tolist()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("east", "north")


def test_each_map_has_labels_of_its_own():
    one, other = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.25, 0.5]]), torch.tensor([[0.0, 1.0]])
    draw_maps({"one": (one, "xy", "abc"), "other": (other, "z", "de")})
    panels = plt.gcf().axes
    assert [ax.get_title() for ax in panels] == ["one", "other"]
    assert [[label.get_text() for label in ax.get_yticklabels()] for ax in panels] == [["x", "y"], ["z"]]
    assert [[label.get_text() for label in ax.get_xticklabels()] for ax in panels] == [["a", "b", "c"], ["d", "e"]]
    assert [texts(ax) for ax in panels] == [["1", "0", "0", ".25", ".25", ".50"], ["0", "1"]]


def test_nothing_of_one_map_stands_in_the_next():
    draw_maps(dict.fromkeys(("one", "other"), (torch.ones(3, 6) / 6, "xyz", "abcdef")))
    figure = plt.gcf()
    figure.canvas.draw()
    upper, lower = figure.axes
    height_of_a_title = lower.title.get_window_extent().height
    assert upper.xaxis.label.get_window_extent().y0 > lower.title.get_window_extent().y1 + 0.9 * height_of_a_title


def test_the_line_of_self_attention_is_solid_and_all_others_are_not():
    draw_influence([2, 5], {"RNN": [0.5, 1e-3], "self-attention": [0.5, 0.2], "GRU": [0.5, 1e-2]})
    lines = plt.gca().lines
    assert [line.get_linestyle() for line in lines] == ["--", "-", "--"]
    assert [line.get_ydata()[-1] for line in lines] == [1e-3, 0.2, 1e-2]
    assert len({line.get_marker() for line in lines}) == 3
    assert [label.get_text() for label in plt.gca().get_xticklabels()] == ["2", "5"]


def test_a_mask_is_hatched_where_a_query_may_not_attend():
    mask = torch.tensor([[True, False, True], [True, True, False], [False, False, True]])
    draw_masks({"one": mask, "all": torch.ones(3, 3, dtype=torch.bool), "none": ~mask}, ["x", "y", "z"])
    one, everything, none, left_over = plt.gcf().axes
    for ax, expected in ((one, mask), (everything, mask | ~mask), (none, ~mask)):
        cells = {patch.get_xy(): not patch.get_hatch() for patch in ax.patches}
        assert cells == {(key, query): bool(expected[query, key]) for query in range(3) for key in range(3)}
        assert ax.yaxis_inverted()
    assert [label.get_text() for label in none.get_xticklabels()] == ["x", "y", "z"]
    assert [label.get_text() for label in one.get_yticklabels()] == ["x", "y", "z"]
    assert one.get_title() == "one"
    assert not left_over.axison


def test_the_way_through_a_recurrent_network_has_one_step_less_than_there_are_words():
    draw_paths(["a", "b", "c", "d", "e"])
    upper, lower = plt.gcf().axes
    assert upper.get_title(loc="left") == "recurrent network: 4 steps"
    assert [text for text in texts(upper) if text.isdigit()] == ["1", "2", "3", "4"]
    straight = [text.xyann[0] for text in lower.texts if getattr(text, "arrow_patch", None)]
    assert straight == [0, 1, 2, 3, 4]  # every word reaches the last, itself included
