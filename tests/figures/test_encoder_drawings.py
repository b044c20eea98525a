import matplotlib.pyplot as plt
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch, Rectangle

from mha_course.figures import HEADS
from mha_course.figures.encoder import (
    STREAM,
    draw_curves,
    draw_layers,
    draw_norm_steps,
    draw_normalised_over,
    draw_reach,
)


def downwards(ax):
    """What is written in a panel, from top to bottom."""
    return [text.get_text().replace("-\n", "-") for text in sorted(ax.texts, key=lambda text: -text.get_position()[1])]


def test_the_two_orders_are_drawn_as_the_layers_compute_them():
    draw_layers()
    post, pre = plt.gcf().axes
    assert (post.get_title(), pre.get_title()) == ("post-norm", "pre-norm")
    shown = [[text for text in downwards(ax) if text] for ax in (post, pre)]
    assert shown[0] == ["x", "attention", "+", "norm", "feed-forward", "+", "norm"]
    assert shown[1] == ["x", "norm", "attention", "+", "norm", "feed-forward", "+"]


def test_norms_stand_on_the_residual_path_in_post_norm_alone():
    draw_layers()
    for ax, on_the_path in zip(plt.gcf().axes, (True, False), strict=True):
        norms = [text.get_position()[0] for text in ax.texts if text.get_text() == "norm"]
        assert [x == STREAM for x in norms] == [on_the_path, on_the_path]


def test_each_name_stands_in_a_box_of_its_own():
    draw_layers()
    for ax in plt.gcf().axes:
        boxes = [patch.get_extents() for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
        assert len(boxes) == 4
        assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_the_steps_of_layer_norm_are_those_worked_out_by_hand():
    # mean 4, squares of the deviations 9, 1, 1, 0, 4, 9: variance 4
    draw_norm_steps(torch.tensor([1.0, 3.0, 3.0, 4.0, 6.0, 7.0]))
    heights = [[bar.get_height() for bar in ax.patches] for ax in plt.gcf().axes]
    assert heights == [[1, 3, 3, 4, 6, 7], [-3, -1, -1, 0, 2, 3], [-1.5, -0.5, -0.5, 0, 1, 1.5]]
    assert [ax.get_title() for ax in plt.gcf().axes] == [
        "as given: mean 4",
        "minus the mean: mean 0",
        "divided by 2: mean 0, variance 1",
    ]


def test_layer_norm_shares_a_mean_along_a_row_and_batch_norm_along_a_column_with_padding():
    draw_normalised_over(lengths=[3, 1], length=3, d_model=5)
    layer, batch = ([patch for patch in ax.patches if type(patch) is Rectangle] for ax in plt.gcf().axes)
    shaded = [
        {cell.get_xy() for cell in cells if to_rgb(cell.get_facecolor()) == to_rgb(HEADS[0])}
        for cells in (layer, batch)
    ]
    assert shaded[0] == {(feature, 1) for feature in range(5)}
    assert shaded[1] == {(1, token) for token in range(6)}
    for cells in (layer, batch):
        assert {cell.get_xy()[1] for cell in cells if cell.get_hatch()} == {4, 5}


def test_a_dot_marks_the_output_in_its_row_and_the_changed_input_in_its_column():
    moved = torch.zeros(3, 3, dtype=torch.bool)
    moved[2, 0] = True  # output 2 moves when input 0 is changed
    draw_reach({"one": moved, "other": ~moved}, ["a", "b", "c"])
    one, other = plt.gcf().axes
    assert [line.get_xydata().tolist() for line in one.lines] == [[[0.5, 2.5]]]
    assert len(other.lines) == 8
    assert (one.get_xlabel(), one.get_ylabel()) == ("changed input", "output that moves")
    top, bottom = one.transData.transform([(0, 0.5), (0, 2.5)])[:, 1]
    assert top > bottom


def test_curves_differ_without_colour_and_few_places_are_all_marked():
    draw_curves({"one": [1.0, 2.0, 4.0], "other": [3.0, 2.0, 1.0]}, [1, 8, 32], "depth", "gradient", xlog=True)
    ax = plt.gca()
    assert len({line.get_marker() for line in ax.lines}) == len({line.get_linestyle() for line in ax.lines}) == 2
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "8", "32"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "other"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("depth", "gradient")
    assert ax.lines[1].get_xydata().tolist() == [[1, 3], [8, 2], [32, 1]]


def test_one_curve_alone_needs_no_legend_and_many_places_are_not_all_marked():
    draw_curves({"only": [float(i) for i in range(1, 24)]}, range(1, 24), "layers", "size", ylog=True)
    ax = plt.gca()
    assert ax.get_legend() is None
    assert ax.get_yscale() == "log"
    assert len(ax.get_xticks()) < 23
    assert ax.lines[0].get_markevery() > 1


def test_powers_of_ten_are_written_as_in_the_text():
    draw_curves({"only": [1e-6] * 23}, [10.0 ** (place / 4 - 4) for place in range(23)], "deviation", "size", xlog=True)
    ax = plt.gca()
    written = [ax.xaxis.get_major_formatter()(place, 0) for place in (1e-4, 1e-3, 0.01, 1.0, 10.0)]
    assert written == ["1e-4", "1e-3", "0.01", "1", "10"]


def test_of_curves_that_lie_on_one_another_the_earlier_one_has_larger_marks():
    draw_curves({"one": [1.0, 1.0], "other": [1.0, 1.0]}, [0, 1], "padding", "cosine")
    one, other = plt.gca().lines
    assert one.get_markersize() > other.get_markersize() + 0.5
    assert one.get_zorder() <= other.get_zorder()
