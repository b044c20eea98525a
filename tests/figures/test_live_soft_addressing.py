"""The figure of chapter 2 calculates what the package does, and follows mouse, keyboard and Python."""

import pytest
import torch

from live import computed, drag, numbers
from mha_course import soft_addressing
from mha_course.figures.live.soft_addressing import SoftAddressing
from mha_course.soft_addressing import hard_lookup, soft_lookup, softmax


def expected(figure):
    """The weights and the answer, by the package."""
    query, keys, values = (torch.tensor(x) for x in (figure.query, figure.key_vectors, figure.value_vectors))
    similarity = getattr(soft_addressing, figure.similarity)
    weights = softmax(similarity(query[None], keys)[0] / figure.temperature, dim=0)
    if figure.hard:
        return hard_lookup(query, keys, torch.eye(3), similarity), hard_lookup(query, keys, values, similarity)
    return weights, soft_lookup(query, keys, values, figure.temperature, similarity)


@pytest.mark.parametrize("similarity", ["dot", "scaled_dot", "cosine", "gaussian_kernel"])
@pytest.mark.parametrize("hard", [False, True])
def test_its_function_agrees_with_the_package(similarity, hard):
    torch.manual_seed(0)
    calls, wanted = [], []
    for temperature in (0.05, 0.7, 20.0):
        query, keys, values = torch.randn(3), torch.randn(5, 3), torch.randn(5, 2)
        given = {"query": query.tolist(), "keys": keys.tolist(), "values": values.tolist()}
        calls.append(["lookUp", given | {"temperature": temperature, "similarity": similarity, "hard": hard}])
        score = getattr(soft_addressing, similarity)
        query, keys, values = query.double(), keys.double(), values.double()
        wanted.append(
            hard_lookup(query, keys, values, score) if hard else soft_lookup(query, keys, values, temperature, score)
        )
    for got, want in zip(computed("soft_addressing", *calls), wanted, strict=True):
        torch.testing.assert_close(torch.tensor(got["answer"], dtype=torch.float64), want, rtol=1e-6, atol=1e-6)


def test_equal_scores_share_a_hard_look_up():
    given = {"query": [0, 1], "keys": [[1, 1], [2, 1], [0, 0]], "values": [[1], [3], [8]], "temperature": 1}
    (got,) = computed("soft_addressing", ["lookUp", given | {"similarity": "dot", "hard": True}])
    assert got["answer"] == [2]


def shown(page):
    """The weights and the answer as they stand in the table."""
    cells = page.locator("table td").all_inner_texts()[1:]
    return [numbers(cell)[0] for cell in cells[1:9:3]], numbers(cells[11])


def agrees(page, figure):
    weights, answer = expected(figure)
    assert shown(page)[0] == pytest.approx(weights.tolist(), abs=0.0051)
    assert shown(page)[1] == pytest.approx(answer.tolist(), abs=0.0051)


def test_dragging_a_point_changes_the_answer(opened):
    figure = SoftAddressing()
    page = opened(figure)
    agrees(page, figure)
    handle = page.get_by_role("slider", name="query", exact=True)
    figure.query = drag(page, handle, -80, 40)
    assert figure.query[0] < 0 < figure.query[1]
    agrees(page, figure)


def test_of_points_at_one_place_a_key_is_taken_and_alike_answers_are_told(opened):
    figure = SoftAddressing(query=[1.5, 0.25], key_vectors=[[1.5, 0.25], [1.5, 0.25], [-1.5, 0.0]])
    page = opened(figure)
    assert "cat and sat answer alike, with a weight of 0.50." in page.locator(".mha-sentence").inner_text()
    drag(page, page.get_by_role("slider", name="query", exact=True), -90, 0)
    figure.key_vectors = [
        numbers(page.get_by_role("slider", name=f"key of {word}").get_attribute("aria-valuetext"))
        for word in ("cat", "sat", "mat")
    ]
    assert figure.key_vectors[0][0] < 0.1
    agrees(page, figure)
    page.get_by_role("slider", name="query", exact=True).press("Home")
    page.get_by_role("slider", name="query", exact=True).press("PageUp")
    figure.query = [-2.0, 2.0]
    agrees(page, figure)


def test_a_finger_drags_a_point_and_does_not_scroll_the_page(opened):
    figure = SoftAddressing()
    page = opened(figure, width=390, has_touch=True)
    page.set_viewport_size({"width": 390, "height": 500})
    handle = page.get_by_role("slider", name="query", exact=True)
    handle.scroll_into_view_if_needed()
    box, scrolled = handle.locator("path").bounding_box(), page.evaluate("scrollY")
    finger = page.context.new_cdp_session(page)
    for kind, far in [("touchStart", 0), *(("touchMove", 15 * i) for i in range(1, 5)), ("touchEnd", None)]:
        points = [] if far is None else [{"x": box["x"] + 8, "y": box["y"] + 8 + far}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.wait_for_function("document.querySelector('.mha-query').getAttribute('aria-valuetext').includes('−')")
    figure.query = numbers(handle.get_attribute("aria-valuetext"))
    assert figure.query[1] < 0
    assert page.evaluate("scrollY") == scrolled
    agrees(page, figure)


def test_arrow_keys_move_a_point_and_no_further_than_the_edge(opened):
    figure = SoftAddressing()
    page = opened(figure)
    handle = page.get_by_role("slider", name="key of mat")
    handle.press("ArrowRight")
    handle.press("Shift+ArrowUp")
    figure.key_vectors = [*figure.key_vectors[:2], [0.6, -1.0]]
    assert handle.get_attribute("aria-valuetext") == "0.60, −1.00"
    agrees(page, figure)
    for _ in range(5):
        handle.press("Shift+ArrowRight")
    assert handle.get_attribute("aria-valuetext") == "2.00, −1.00"


def test_temperature_similarity_and_hardness_are_set_by_the_keyboard(opened):
    figure = SoftAddressing()
    page = opened(figure)
    page.get_by_role("slider", name="temperature").press("Home")
    figure.temperature = 0.0501
    agrees(page, figure)
    page.get_by_role("radio", name="dot product", exact=True).press("ArrowRight")
    figure.similarity = "scaled_dot"
    agrees(page, figure)
    page.get_by_role("checkbox").press("Space")
    figure.hard = True
    agrees(page, figure)
    said = "A hard look-up by scaled dot product: cat answers most, with a weight of 1.00."
    assert page.locator(".mha-sentence").inner_text().startswith(said)
    page.wait_for_function("said => document.querySelector('[role=status]').textContent.startsWith(said)", arg=said)
    assert page.get_by_role("slider", name="temperature").is_disabled()
