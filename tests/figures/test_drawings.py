import io

import matplotlib.pyplot as plt
import torch

from mha_course.figures import WORDS, draw_three_steps, tiny_vectors
from mha_course.figures.multi_head import draw_groups


def test_the_three_steps_are_named_as_in_the_code():
    draw_three_steps()
    shown = {text.get_text() for text in plt.gca().texts}
    assert {"query", "key", "value", "q_proj", "k_proj", "v_proj", "out_proj"} <= shown


def test_each_head_stands_above_the_keys_and_values_of_its_group():
    draw_groups(6, [(3, "in pairs"), (1, "all together")])
    place = {(text.get_text(), text.get_position()[1] > -3.1): text.get_position()[0] for text in plt.gca().texts}
    pairs = {name: [place[f"{name}{group}", True] for group in range(3)] for name in "KV"}
    assert pairs == {"K": [1, 3, 5], "V": [1, 3, 5]}
    assert [place[f"Q{head}", row] for row in (True, False) for head in range(6)] == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5] * 2
    assert place["K0", False] == place["V0", False] == 3
    assert ("K1", False) not in place


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
