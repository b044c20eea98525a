import io

import matplotlib.pyplot as plt
import torch

from mha_course.figures import WORDS, draw_three_steps, tiny_vectors


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
