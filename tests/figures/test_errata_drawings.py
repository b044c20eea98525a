import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.patches import FancyBboxPatch, Rectangle

from mha_course.decoder import DecoderLayer
from mha_course.encoder import EncoderLayer
from mha_course.figures.errata import (
    draw_left_out,
    draw_moved,
    draw_on_padding,
    draw_row_sums,
    draw_sums_over,
    draw_weightings,
)
from mha_course.multi_head import MultiHeadAttention


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_the_axis_that_is_summed_over_is_gone_from_the_result():
    draw_sums_over(length=13, d_head=5)
    features, tokens = plt.gcf().axes
    for ax, wanted in ((features, [(13, 5), (5, 13), (13, 13)]), (tokens, [(5, 13), (13, 5), (5, 5)])):
        written = [text for text in texts(ax) if text[0].isdigit()]
        assert written == [f"{rows} \N{MULTIPLICATION SIGN} {columns}" for rows, columns in wanted]
        drawn = [patch.get_height() / patch.get_width() for patch in ax.patches]
        assert drawn == pytest.approx([rows / columns for rows, columns in wanted])
    assert "scores" in texts(features)
    assert "no scores" in texts(tokens)
    assert (features.get_title("left"), tokens.get_title("left")) == (
        "summed over the 5 features",
        "summed over the 13 tokens",
    )


def test_the_features_that_move_are_counted_and_drawn_at_their_size():
    moved = torch.zeros(6)
    moved[2:4] = torch.tensor([0.5, 2.0])
    draw_moved({"one": moved, "other": moved + 1}, num_heads=3)
    one, other = plt.gcf().axes
    assert one.get_title("left") == "one: 2 of 6 features move"
    assert other.get_title("left") == "other: 6 of 6 features move"
    heights = one.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == 2
    assert [line.get_xdata()[0] for line in one.lines] == [1.5, 3.5]  # between the heads


def test_what_the_drawing_has_and_what_it_calls_left_out_make_a_whole_layer():
    draw_left_out()
    for ax, layer in zip(plt.gcf().axes, (EncoderLayer(6, 2, 7), DecoderLayer(6, 2, 7)), strict=True):
        names = [text.removesuffix(" *") for text in texts(ax)]
        attentions = [name for name in names if name.endswith("-attention")]
        assert len(attentions) == sum(isinstance(part, MultiHeadAttention) for part in layer.modules())
        assert names.count("add & norm") == sum(isinstance(part, torch.nn.LayerNorm) for part in layer.modules())
        assert names.count("feed-forward") == 1


def test_what_is_left_out_is_dashed_and_has_a_star_and_what_is_told_has_neither():
    draw_left_out()
    for ax, left_out in zip(plt.gcf().axes, (1, 5), strict=True):
        boxes = [patch for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
        named = [text for text in ax.texts if text.get_text() not in ("", "tokens + positions")]
        named = [text for text in named if not text.get_text().startswith("*")]
        assert len(boxes) == len(named)
        stars = [text.get_text().endswith("*") for text in named]
        assert [patch.get_linestyle() != "-" for patch in boxes] == stars
        assert sum(stars) == left_out
        extents = [patch.get_extents() for patch in boxes]
        assert not any(one.overlaps(other) for i, one in enumerate(extents) for other in extents[:i])


def test_the_share_on_padding_is_that_of_real_queries_and_its_columns_are_framed():
    weights = torch.tensor([[0.5, 0.2, 0.3], [0.5, 0.4, 0.1], [0.0, 0.0, 1.0]])
    draw_on_padding({"one": weights, "other": 0 * weights, "third": weights}, "abc", torch.tensor([True, True, False]))
    axes = plt.gcf().axes
    assert [ax.get_title() for ax in axes] == [
        "one:\n20% on padding",
        "other:\n0% on padding",
        "third:\n20% on padding",
        "",
    ]
    (frame,) = [patch for patch in axes[0].patches if type(patch) is Rectangle]
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((1.5, -0.5), 1, 3)
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in axes[::2]] == [("", "query"), ("key", "query")]
    assert all(ax.images[0].get_clim() == (0, 1) for ax in axes[:3])
    assert not axes[3].axison


def test_ways_to_weight_are_drawn_on_one_scale_with_their_numbers():
    draw_weightings({"one": torch.tensor([2.0, -1.0]), "other": torch.tensor([0.25, 0.75])}, ["a", "b"])
    one, other = plt.gcf().axes
    assert [bar.get_height() for bar in one.patches] == [2, -1]
    assert [bar.get_height() for bar in other.patches] == [0.25, 0.75]
    assert texts(one) == ["2.00", "\N{MINUS SIGN}1.00"]
    assert one.get_ylim() == other.get_ylim()
    assert [label.get_text() for label in one.get_xticklabels()] == ["a", "b"]


def test_every_row_is_counted_among_the_sums_and_a_line_stands_at_one():
    draw_row_sums(torch.tensor([0.5, 1.1, 1.1, 1.0, 0.8]))
    ax = plt.gca()
    assert sum(bar.get_height() for bar in ax.patches) == 5
    assert ax.patches[-1].get_height() == 2
    assert list(ax.lines[0].get_xdata()) == [1, 1]
