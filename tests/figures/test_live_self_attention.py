"""The step-by-step figure of chapter 3 calculates what the package does, and follows mouse, keyboard and Python."""

import re

import pytest
import torch

from live import computed, numbers
from mha_course.figures import tiny_vectors
from mha_course.figures.live.self_attention import AttentionSteps
from mha_course.self_attention import SelfAttention, causal_mask

SAT, CAT = 2, 1
STATE = ("tokens", "query_matrix", "key_matrix", "value_matrix", "real", "causal")


def expected(state):
    """Weights and output of this state, by the package's layer."""
    tokens, *matrices = (torch.tensor(state[name], dtype=torch.float64) for name in STATE[:4])
    d_model, d_head = matrices[0].shape
    layer = SelfAttention(d_model, d_head, matrices[2].size(1)).double()
    mask = torch.tensor(state["real"])[None] & (causal_mask(len(tokens)) | (not state["causal"]))
    with torch.no_grad():
        for projection, matrix in zip((layer.q_proj, layer.k_proj, layer.v_proj), matrices, strict=True):
            projection.weight.copy_(matrix.T)
        output, weights = layer.with_weights(tokens[None], mask)
    return weights[0], output[0]


def of(figure):
    return {name: getattr(figure, name) for name in STATE}


@pytest.mark.parametrize("causal", [False, True])
def test_its_function_agrees_with_the_package(causal):
    torch.manual_seed(0)
    states = []
    for real in ([True] * 7, [False, False, True, False, True, True, True], [False] * 7):
        tokens, query, key, value = (torch.randn(n, m) for n, m in ((7, 5), (5, 3), (5, 3), (5, 2)))
        drawn = [matrix.tolist() for matrix in (tokens, query, key, value)]
        states.append(dict(zip(STATE, [*drawn, real, causal], strict=True)))
    for got, state in zip(computed("self_attention", *(["attend", state] for state in states)), states, strict=True):
        weights, output = expected(state)
        torch.testing.assert_close(torch.tensor(got["weights"], dtype=torch.float64), weights, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(torch.tensor(got["output"], dtype=torch.float64), output, rtol=1e-6, atol=1e-6)


def test_a_weight_is_written_out_with_powers_that_can_be_read():
    seen = [True, True, False]
    plain, large, below = computed(
        "self_attention",
        ["weightInWords", [1, 0, 5], seen, 0],
        ["weightInWords", [998, 1000, 2000], seen, 0],
        ["weightInWords", [-900, -902, 0], seen, 0],
    )
    assert plain == "e^1 / (e^1 + e^0) = 2.718 / 3.718 = 0.731"
    subtracted = "the largest score, {}, is subtracted from all, then e^{} / (e^{} + e^{}) = {}"
    assert large == subtracted.format("1000", "(−2)", "(−2)", "0", "0.135 / 1.135 = 0.119")
    assert below == subtracted.format("−900", "0", "0", "(−2)", "1 / 1.135 = 0.881")


def shown(page, caption):
    """The numbers of the table with this caption in the step that is seen."""
    rows = page.locator("[data-now] table", has=page.get_by_text(caption)).locator("tbody tr").all()
    return torch.tensor([[numbers(cell)[0] for cell in row.locator("td").all_inner_texts()] for row in rows])


def said(page):
    return page.locator(".mha-sentence").inner_text()


def test_it_starts_from_the_numbers_of_the_chapter_and_ends_at_the_packages(opened):
    figure = AttentionSteps()
    assert torch.equal(torch.tensor(figure.tokens, dtype=torch.float32), tiny_vectors())
    page = opened(figure)
    forward = page.get_by_role("button", name="Next")
    explained = []
    for _ in range(6):
        forward.press("Enter")
        explained.append(said(page))
    assert explained[:4] == [
        "“sat”, query, entry 0: 0 · 0 + 0 · 0 + 2 · 2 + 0 · 0 = 4.",
        "“sat” asks “cat”, query (4, 0) times key (2, 0): 4 · 2 + 0 · 0 = 8.",
        "“sat” asks “cat”: 8 / √2 = 5.657.",
        "“sat” may attend to “cat”: the score stays.",
    ]
    assert explained[4].startswith("“sat” gives “cat”: e^5.657 / (e^0 + e^5.657 + e^0 + e^0 + e^0 + e^0) = 286.2")
    weights, output = expected(of(figure))
    torch.testing.assert_close(shown(page, "Weights").double(), weights, rtol=0, atol=0.0051)
    torch.testing.assert_close(shown(page, "Output").double(), output, rtol=0, atol=0.0051)
    assert numbers(explained[5])[-1] == pytest.approx(output[SAT, 0].item(), abs=0.00051)
    forward.press("Enter")  # the last step stays
    assert said(page) == explained[5]


def test_a_changed_number_changes_all_that_follows(opened):
    figure = AttentionSteps()
    page = opened(figure)
    page.get_by_label("Words X, cat animal").fill("1.5")
    page.get_by_label("Query matrix, little word 1").fill("-3")
    page.get_by_label("Value matrix, action 1").fill("-2")
    figure.tokens = [[1.5, 0, 0, 0] if i == CAT else row for i, row in enumerate(figure.tokens)]
    figure.query_matrix = [[0, 0], [0, 0], [2, 0], [0, -3]]
    figure.value_matrix = [[1, 0], [0, 1], [0, -2], [0, 0]]
    for step, caption, which in ((5, "Weights:", 0), (6, "Output", 1)):
        page.get_by_role("button", name=f"Step {step}:").click()
        torch.testing.assert_close(shown(page, caption).double(), expected(of(figure))[which], rtol=0, atol=0.0051)
    page.get_by_text("Change the inputs").click()  # and at a later step too
    page.locator("details").get_by_label("Key matrix, animal 0").fill("0.5")
    figure.key_matrix = [[0.5, 0], [0, 1], [0, 0], [0, 0]]
    torch.testing.assert_close(shown(page, "Output").double(), expected(of(figure))[1], rtol=0, atol=0.0051)
    page.locator("details").get_by_role("button", name="Reset").click()
    torch.testing.assert_close(shown(page, "Output").double(), expected(of(AttentionSteps()))[1], rtol=0, atol=0.0051)
    page.get_by_role("button", name="Step 1:").click()
    assert page.locator("details").get_attribute("open") is None  # hidden, and takes no room


def test_a_number_too_large_for_the_tables_becomes_the_largest_and_is_shown_so_at_once(opened):
    page = opened(AttentionSteps(row=CAT, projection="value"))
    field = page.get_by_label("Value matrix, animal 0")
    for typed, kept in (("100", 99), ("500", 99), ("-120", -99)):
        page.get_by_role("button", name="Step 1:").click()
        field.press("ControlOrMeta+a")
        field.press_sequentially(typed)
        assert field.input_value() == str(kept)
        page.get_by_role("button", name="Step 2:").click()
        assert numbers(said(page))[-1] == 2 * kept


def test_the_steps_have_the_numbers_of_the_chapter(opened):
    page = opened(AttentionSteps())
    titles = []
    for shown_number in ("1", "2", "3", "4", "4b", "5", "6"):
        page.get_by_role("button", name=f"Step {shown_number}:").click()
        assert page.locator("[aria-current=step]").inner_text() == shown_number
        titles.append(page.locator("[data-now] > .mha-title").inner_text())
    words = ("1. Inputs", "2. Project", "3. Score", "4. Scale", "4b. Mask", "5. Softmax", "6. Weighted sum")
    assert [title.split(":")[0] for title in titles] == list(words)


def test_a_number_is_chosen_by_pointer_or_arrow_keys_and_explained(opened):
    page = opened(AttentionSteps(step=2))
    cell = page.locator("[data-now] [aria-selected=true]")
    page.locator("[data-now] [role=grid] tbody tr").nth(SAT).locator("td").nth(3).click()
    assert said(page).startswith("“sat” asks “on”, query (4, 0) times key (0, 1)")
    cell.press("ArrowUp")
    cell.press("ArrowLeft")
    cell.press("ArrowLeft")
    assert said(page) == "“cat” asks “cat”, query (0, 0) times key (2, 0): 0 · 2 + 0 · 0 = 0."
    for _ in range(7):
        cell.press("ArrowDown")
    assert said(page).startswith("“mat” asks “cat”")
    cell.press("End")
    assert said(page).startswith("“mat” asks “mat”")
    cell.press("Home")
    assert said(page).startswith("“mat” asks “The”")
    cell.press("Control+End")  # the browser's own
    assert said(page).startswith("“mat” asks “The”")
    page.get_by_role("button", name="Step 2:").click()
    page.get_by_role("radio", name="values").check()
    cell.press("ArrowRight")
    assert said(page) == "“mat”, value, entry 1: 0 · 0 + 2 · 1 + 0 · 0 + 0 · 0 = 2."


def test_masked_scores_are_struck_out_and_a_word_that_may_see_nothing_gets_zeros(opened):
    figure = AttentionSteps(step=4, row=0, column=2)
    page = opened(figure)
    page.locator("[data-now]").get_by_label("causal mask").press("Space")
    assert said(page) == "“The” may not attend to “sat”: it comes later, and the mask is causal."
    page.locator("[data-now]").get_by_label("The", exact=True).press("Space")
    assert said(page) == "“The” may attend to nothing: all its weights are 0, and it receives zeros."
    figure.causal, figure.real = True, [False, *[True] * 5]
    struck = page.locator("[data-now] [role=grid] tbody td").evaluate_all(
        "cells => cells.map(cell => getComputedStyle(cell).textDecorationLine === 'line-through')"
    )
    weights, output = expected(of(figure))
    assert torch.equal(torch.tensor(struck).view(6, 6), weights == 0)
    for step, caption, wanted in ((5, "Weights:", weights), (6, "Output", output)):
        page.get_by_role("button", name=f"Step {step}:").click()
        torch.testing.assert_close(shown(page, caption).double(), wanted, rtol=0, atol=0.0051)
    assert shown(page, "Output")[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"real": [True] * 5}, "real must be a list of 6 booleans, True for a real word, but it is"),
        ({"real": [1] * 6}, "real must be a list of 6 booleans, True for a real word, but it is"),
        ({"tokens": torch.full((6, 4), 100.0)}, "tokens must hold numbers from -99 to 99, but one is 100"),
        ({"key_matrix": [[1.0]]}, "key_matrix must be the matrix that makes the keys, 4 rows of 2 numbers, but it is"),
    ],
)
def test_state_that_makes_no_sense_is_refused_in_one_sentence(state, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        AttentionSteps(**state)
