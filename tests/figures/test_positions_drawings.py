import io
import math

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex

from mha_course.figures.positions import (
    SCHEMES,
    draw_by_length,
    draw_clocks,
    draw_one_hot,
    draw_positions,
    draw_turned,
)


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_look_up_is_drawn_as_a_product_with_its_result():
    one_hot = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    draw_one_hot(["b", "B", "a"], ["a", "b"], one_hot, torch.tensor([[3.0, 0.0, 5.0], [0.0, 7.0, 0.0]]))
    left, middle, right = plt.gcf().axes
    shown = [[text.get_text() for text in ax.texts] for ax in (left, middle, right)]
    assert shown[0] == ["0", "1", "0", "1", "1", "0"]
    assert shown[1] == ["3", "0", "5", "0", "7", "0"]
    assert shown[2] == ["0", "7", "0", "0", "7", "0", "3", "0", "5"]
    assert labels(left.xaxis) == labels(middle.yaxis) == ["a", "b"]
    assert labels(left.yaxis) == labels(right.yaxis) == ["b", "B", "a"]
    for ax in (left, middle, right):
        top, bottom = ax.transData.transform([(0, 0.5), (0, 1.5)])[:, 1]
        assert top > bottom  # row 0 stands on top, and a row is as high in every panel
        assert ax.get_ylim() == (3, 0)


def test_each_table_of_positions_has_a_panel_with_its_own_numbers_on_the_scale_of_all():
    tables = {"one": torch.arange(6.0).view(2, 3), "two": -torch.ones(2, 5)}
    draw_positions(tables, xlabel="another position")
    panels = [ax for ax in plt.gcf().axes if ax.get_title()]
    assert [ax.get_title() for ax in panels] == ["one", "two"]
    for ax, values in zip(panels, tables.values(), strict=True):
        assert ax.images[0].get_array().tolist() == values.tolist()
        assert ax.images[0].get_clim() == (-1, 5)
        assert ax.get_xlabel() == "another position"
    assert panels[0].get_ylabel() == "position"


def test_hands_turn_clockwise_from_the_top_by_the_angle_of_their_pair():
    # Pair 0 turns by a quarter a step, pair 1 by a twelfth: the hands of places 0, 1 and 3.
    angles = torch.arange(4.0)[:, None] * torch.tensor([math.pi / 2, math.pi / 6])
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    draw_clocks(table, positions=(0, 1, 3))
    hands = [(ax.lines[0].get_xdata()[1], ax.lines[0].get_ydata()[1]) for ax in plt.gcf().axes]
    right = [(0, 1), (1, 0), (-1, 0), (0, 1), (0.5, math.sqrt(3) / 2), (1, 0)]
    assert [pytest.approx(place, abs=1e-6) for place in right] == hands
    assert [ax.get_title() for ax in plt.gcf().axes[:3]] == ["0", "1", "3"]


def test_an_arrow_points_where_its_vector_does_in_the_colour_of_its_role():
    draw_turned({"score -0.5": (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))})
    ax = plt.gca()
    assert ax.get_title() == "score −0.5"
    query, key = (text for text in ax.texts if not text.get_text())
    assert (query.xy, key.xy) == ((1.0, 0.0), (0.0, 1.0))
    assert to_hex(query.arrow_patch.get_edgecolor()).upper() == "#0072B2"
    assert to_hex(key.arrow_patch.get_edgecolor()).upper() == "#D55E00"
    assert [text.get_text() for text in ax.texts if text.get_text()] == ["q", "k"]


def test_accuracy_is_drawn_by_length_with_the_trained_one_and_chance_marked():
    shares = {"rotary": [1.0, 0.5, 0.25], "none": [0.1, 0.2, 0.3]}
    draw_by_length(shares, [16, 32, 64], trained=16, chance=0.125, title="a task")
    ax = plt.gca()
    lines = {line.get_label(): line for line in ax.lines}
    for name, values in shares.items():
        assert list(lines[name].get_xdata()) == [16, 32, 64]
        assert list(lines[name].get_ydata()) == values
        assert (lines[name].get_color(), lines[name].get_marker()) == SCHEMES[name]
    others = [(set(line.get_xdata()), set(line.get_ydata())) for line in ax.lines if line.get_label() not in shares]
    assert others == [({16}, {0, 1}), ({0, 1}, {0.125})]
    assert labels(ax.xaxis) == ["16", "32", "64"]
    assert ax.get_title() == "a task"


def test_no_two_schemes_share_a_marker_or_a_colour():
    colors, markers = zip(*SCHEMES.values(), strict=True)
    assert len(set(colors)) == len(set(markers)) == len(SCHEMES)


def test_a_drawing_is_the_same_in_every_run():
    stored = []
    for _ in range(2):
        draw_clocks(torch.eye(4)[:, :4], positions=(0, 3))
        file = io.BytesIO()
        plt.savefig(file, format="svg", metadata={"Date": None})
        stored.append(file.getvalue())
        plt.close("all")
    assert stored[0] == stored[1]
