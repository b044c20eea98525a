import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.patches import Rectangle

from mha_course.figures.pretrained import (
    draw_bert_layer,
    draw_by_layer,
    draw_mask_forms,
    draw_role_scores,
    draw_similarities,
)
from mha_course.pretrained import LAYER_NAMES


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_the_layer_is_drawn_with_the_name_in_the_file_and_ours_in_one_box():
    draw_bert_layer()
    places = {text.get_text().strip(): text.get_position() for text in plt.gca().texts}
    for ours, theirs in list(LAYER_NAMES.items())[:5]:  # the attention and its norm
        (x, above), (below_x, below) = places[theirs.split(".")[-1]], places[ours.split(".")[-1]]
        assert x == below_x
        assert 0 < above - below < 0.6  # half a box


def test_each_form_of_a_mask_says_padding_in_its_own_way():
    mask = torch.tensor([[True, True, True], [True, False, False]])
    draw_mask_forms([["[CLS]", "cat", "[SEP]"], ["[CLS]", "[PAD]", "[PAD]"]], mask)
    shown = [texts(ax) for ax in plt.gcf().axes]
    assert shown == [
        ["[CLS]", "cat", "[SEP]", "[CLS]", "[PAD]", "[PAD]"],
        ["1", "1", "1", "1", "0", "0"],
        ["True", "True", "True", "True", "False", "False"],
        ["0", "0", "0", "0", "lowest", "lowest"],
    ]
    for ax in plt.gcf().axes:
        hatched = [patch.get_xy() for patch in ax.patches if patch.get_hatch()]
        assert hatched == [(1, 1), (2, 1)]


def test_groups_of_sentences_are_framed_and_the_scale_is_fixed():
    draw_similarities(torch.rand(6, 6) / 2, ["pets", "money", "travel"], title="how similar")
    ax = plt.gcf().axes[0]
    frames = [patch for patch in ax.patches if type(patch) is Rectangle]
    assert [(frame.get_xy(), frame.get_width()) for frame in frames] == [
        ((-0.5, -0.5), 2),
        ((1.5, 1.5), 2),
        ((3.5, 3.5), 2),
    ]
    assert ax.images[0].get_clim() == (0, 1)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["pets", "money", "travel"]


def test_similarities_drawn_in_a_given_place_make_no_figure_of_their_own_and_have_a_scale():
    figure, axes = plt.subplots(2, 1)
    draw_similarities(torch.eye(2), ["one", "other"], ax=axes[1])
    assert len(plt.get_fignums()) == 1
    assert len(axes[1].images) == 1
    assert [ax.get_ylabel() for ax in figure.axes] == ["", "", "similarity"]


@pytest.mark.parametrize("groups", [[], ["one", "other"]])
def test_groups_of_unequal_size_are_refused(groups):
    with pytest.raises(ValueError, match=f"there are 5 sentences for {len(groups)} groups"):
        draw_similarities(torch.eye(5), groups)


def test_every_score_is_written_at_its_layer_and_head_and_can_be_read_on_its_shade():
    scores = torch.zeros(3, 5)
    scores[1, 4], scores[2, 0], scores[0, 2] = 0.5, 0.9, 0.2
    draw_role_scores({"next token": scores, "[CLS]": 0 * scores + 1})
    first, second = plt.gcf().axes
    places = {text.get_position(): text for text in first.texts}
    assert len(places) == 15
    assert [places[head, layer].get_text() for head, layer in ((4, 1), (0, 2), (2, 0), (3, 2))] == [
        ".50",
        ".90",
        ".20",
        ".00",
    ]
    assert [places[head, layer].get_color() for head, layer in ((4, 1), (0, 2))] == ["black", "white"]
    assert set(texts(second)) == {"1.00"}
    assert (first.get_title(), second.get_title()) == ("next token", "[CLS]")


def test_lines_over_the_layers_differ_without_colour():
    draw_by_layer({"one": [0.1, 0.2], "other": [0.3, 0.4], "third": [0.5, 0.6]}, ["before", "L0"], "similarity")
    ax = plt.gca()
    assert len({line.get_marker() for line in ax.lines}) == 3
    assert [line.get_ydata()[1] for line in ax.lines] == [0.2, 0.4, 0.6]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "other", "third"]
