import re

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_rgb

from mha_course.figures import WEIGHTS, heatmap
from mha_course.figures.style import INK


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def texts(ax):
    return [text.get_text() for text in ax.texts]


def luminance(color):
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_queries_run_down_and_keys_run_across():
    heatmap(torch.tensor([[0.25, 0.0, 0.75], [0.0, 1.0, 0.0]]), ["sat", "mat"], ["The", "cat", "on"])
    ax = plt.gca()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["sat", "mat"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["The", "cat", "on"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    top, bottom = ax.transData.transform([(0, 0.5), (0, 1.5)])[:, 1]
    assert top > bottom  # the first query stands on top
    assert texts(ax) == [".25", "0", ".75", "0", "1", "0"]


def test_the_scale_is_fixed_whatever_the_weights():
    for largest in (0.01, 1.0):
        heatmap(torch.tensor([[0.0, largest]]), ["cat"], ["The", "mat"])
        cells = plt.gca().collections[0]
        assert cells.get_clim() == (0, 1)


def test_a_large_map_has_a_scale_instead_of_numbers():
    words = [f"word{number}" for number in range(11)]
    heatmap(torch.eye(11), words)
    axes = plt.gcf().axes
    assert texts(axes[0]) == []
    assert axes[1].get_ylabel() == "weight"


def test_a_map_in_a_given_place_makes_no_figure_of_its_own():
    figure, axes = plt.subplots(1, 2)
    heatmap(torch.eye(11), [str(number) for number in range(11)], title="left", ax=axes[0])
    assert plt.get_fignums() == [figure.number]
    assert len(figure.axes) == 2
    assert axes[0].get_title() == "left"


def test_labels_that_do_not_fit_are_refused():
    rule = "a map of 2 queries and 3 keys needs as many labels, but there are 2 and 2; label every row and column"
    with pytest.raises(ValueError, match=re.escape(rule)):
        heatmap(torch.ones(2, 3) / 3, ["cat", "sat"])


def test_weights_that_still_have_a_gradient_can_be_drawn():
    heatmap(torch.eye(2, requires_grad=True), ["cat", "sat"])


def test_every_number_can_be_read_on_its_cell():
    for percent in range(101):
        weight = percent / 100
        heatmap(torch.tensor([[weight]]), ["cat"])
        ink = plt.gca().texts[0].get_color()
        assert contrast(ink, WEIGHTS(weight)[:3]) > 4.5, weight
        plt.close("all")


def test_the_scale_reads_without_colour():
    shades = [luminance(WEIGHTS(step / 20)[:3]) for step in range(21)]
    assert shades == sorted(shades, reverse=True)


def test_the_ink_reads_on_a_light_and_on_a_dark_page():
    assert contrast(INK, "white") > 4
    assert contrast(INK, "#121212") > 4
