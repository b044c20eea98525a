import matplotlib.pyplot as plt
import pytest
import torch

from mha_course.figures.transformer import (
    draw_choices,
    draw_curves,
    draw_decoder_layer,
    draw_maps,
    draw_shifts,
    draw_transformer,
    draw_tree,
)


def texts(ax=None):
    return [text.get_text() for text in (ax or plt.gca()).texts if text.get_text()]


def height(word):
    """How far above the bottom of the picture a text stands."""
    text = next(text for text in plt.gca().texts if text.get_text().startswith(word))
    return plt.gca().transData.transform(text.get_position())[1]


def test_a_decoder_layer_has_three_sublayers_each_with_its_own_norm_in_order():
    draw_decoder_layer()
    parts = ["masked self", "Add & Norm\nnorm1", "cross", "Add & Norm\nnorm2", "feed", "Add & Norm\nnorm3", "output"]
    heights = [height(part) for part in parts]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == len(parts)
    assert height("cross-attention") > height("memory") - 5  # the memory stands beside cross-attention
    assert {"query", "key", "value"} <= set(texts())


def test_a_transformer_is_drawn_with_its_texts_and_its_number_of_layers():
    draw_transformer(3, "one two", "<begin> eins", "eins <end>")
    assert {"one two", "<begin> eins", "eins <end>"} <= set(texts())
    assert any(text.startswith("3 encoder layers") for text in texts())
    assert any(text.startswith("3 decoder layers") for text in texts())


def test_each_word_read_stands_above_the_one_to_be_said():
    draw_shifts({"right": (["<begin>", "eins"], ["eins", "<end>"]), "twice": (["<begin>", "eins"], ["<end>", ""])})
    first, second = plt.gcf().axes
    assert texts(first) == ["<begin>", "eins", "eins", "<end>", "reads", "says"]
    assert texts(second) == ["<begin>", "<end>", "eins", "reads", "says"]
    places = {text.get_text(): text.get_position() for text in second.texts}
    assert places["<begin>"][0] == places["<end>"][0]
    assert places["<begin>"][1] < places["<end>"][1]
    assert first.yaxis_inverted()


def test_curves_differ_in_colour_dash_and_mark():
    draw_curves({name: [3.0, 2.0, 1.0] for name in "abcde"}, "step", "loss", log=True)
    lines = plt.gca().lines
    for look in ("get_color", "get_linestyle", "get_marker"):
        looks = {str(getattr(line, look)()) for line in lines}
        assert len(looks) >= (5 if look != "get_linestyle" else 4)
    assert lines[0].get_xdata().tolist() == [1, 2, 3]
    assert plt.gca().get_yscale() == "log"
    assert [text.get_text() for text in plt.gca().get_legend().texts] == list("abcde")


def test_a_single_curve_needs_no_legend_and_stands_where_it_is_told():
    draw_curves({"only": [1.0, 2.0]}, "step", "share", at=[0, 10])
    assert plt.gca().get_legend() is None
    assert plt.gca().lines[0].get_xdata().tolist() == [0, 10]


def test_small_maps_have_one_scale_and_rows_that_go_down():
    maps = {name: torch.rand(2, 3, generator=torch.Generator().manual_seed(1)) for name in "abc"}
    draw_maps(maps, ["x", "y"], ["p", "q", "r"])
    drawn = [ax for ax in plt.gcf().axes if ax.axison]
    assert [ax.get_title() for ax in drawn] == ["a", "b", "c"]
    for ax, weights in zip(drawn, maps.values(), strict=True):
        assert ax.images[0].get_clim() == (0, 1)
        assert torch.equal(torch.as_tensor(ax.images[0].get_array()), weights)
        top, bottom = ax.transData.transform([(0, 0), (0, 1)])[:, 1]
        assert top > bottom
    assert [label.get_text() for label in drawn[0].get_yticklabels()] == ["x", "y"]
    assert [label.get_text() for label in drawn[2].get_xticklabels()] == ["p", "q", "r"]


def test_a_tree_shows_the_probability_of_every_text_and_who_found_it():
    branches = {(): {"a": 0.6, "b": 0.4}, ("a",): {"c": 0.5, "d": 0.5}, ("b",): {"e": 1.0}}
    draw_tree(branches, {"greedy": (("a", "c"), "--"), "beam": (("b", "e"), "-")})
    shown = texts()
    assert {"0.300  greedy", "0.300", "0.400  beam"} <= set(shown)
    assert {"begin", "a", "b", "c", "d", "e", "0.60", "0.40", "1.00"} <= set(shown)
    bold = [line for line in plt.gca().lines if line.get_linewidth() > 2]
    assert len(bold) == 4  # two steps each
    assert {line.get_linestyle() for line in bold} == {"--", "-"}


def test_choices_say_what_is_ruled_out():
    draw_choices({"all": torch.tensor([0.7, 0.3]), "best": torch.tensor([1.0, 0.0])}, ["mat", "moon"])
    first, second = plt.gcf().axes
    assert texts(first) == ["0.70", "0.30"]
    assert texts(second) == ["1.00", "ruled out"]
    assert [bar.get_width() for bar in first.patches] == pytest.approx([0.7, 0.3])
    assert first.yaxis_inverted()
