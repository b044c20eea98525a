import io

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from mha_course.figures import HEADS, WORDS, draw_split, draw_three_steps, tiny_vectors


def numbers_and_colors(ax):
    """The cells of one panel, row by row: the number in each, and the colour behind it."""
    colors = {patch.get_xy(): to_hex(patch.get_facecolor()).upper() for patch in ax.patches if type(patch) is Rectangle}
    numbers = {}
    for text in ax.texts:
        if text.get_text().isdigit():
            x, y = text.get_position()
            numbers[x - 0.5, y - 0.5] = int(text.get_text())
    return [(numbers[place], colors[place]) for place in sorted(numbers, key=lambda place: (place[1], place[0]))]


def test_a_split_is_drawn_from_the_numbers_themselves():
    x = 10 * torch.arange(3.0)[:, None] + torch.arange(4.0)
    draw_split(x[None], num_heads=2)
    memory, right, wrong = (numbers_and_colors(ax) for ax in plt.gcf().axes)
    assert [number for number, _ in memory] == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    # Row by row, head 0 beside head 1.
    assert [number for number, _ in right] == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert [number for number, _ in wrong] == [0, 1, 12, 13, 2, 3, 20, 21, 10, 11, 22, 23]
    for panel in (memory, right, wrong):
        for number, color in panel:
            assert color == HEADS[number % 10 // 2], f"the colour of {number} must say whose it is"


def test_the_three_steps_are_named_as_in_the_code():
    draw_three_steps()
    shown = {text.get_text() for text in plt.gca().texts}
    assert {"query", "key", "value", "q_proj", "k_proj", "v_proj", "out_proj"} <= shown


def test_a_figure_is_transparent_and_the_same_in_every_run():
    stored = []
    for _ in range(2):
        draw_three_steps()
        file = io.BytesIO()
        plt.savefig(file, format="svg", metadata={"Date": None})
        stored.append(file.getvalue())
        plt.close("all")
    assert stored[0] == stored[1]
    assert plt.figure().get_facecolor() == (0, 0, 0, 0)


def test_there_is_a_vector_for_every_word_of_the_sentence():
    assert tiny_vectors().shape == (len(WORDS), 4)
    assert torch.equal(tiny_vectors()[WORDS.index("The")], tiny_vectors()[WORDS.index("the")])
