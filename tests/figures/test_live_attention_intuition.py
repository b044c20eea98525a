"""The figure of chapter 1 runs the digit finder with weights that it really learned, on pictures that it never learned from."""

import base64
import re
from functools import cache
from io import BytesIO

import matplotlib.pyplot as plt
import pytest
import torch

from live import computed, numbers
from mha_course.attention_intuition import DigitFinder, cut_into_patches, glimpse, hide_digits
from mha_course.figures import attention_intuition as drawings
from mha_course.figures.live import bundle
from mha_course.figures.live.attention_intuition import WhereItLooks

STORED = (bundle.HERE / "attention_intuition_weights.mjs").read_text("utf-8")
# Which of the chapter's pictures for the test the figure holds.
SHOWN = [22, 5, 14, 24, 19, 15, 16, 45, 18, 2, 571, 348]


@pytest.fixture(scope="module")
def finder():
    """The chapter's model, in double precision, with what the figure has stored."""
    model = DigitFinder().double().requires_grad_(requires_grad=False)
    layers = re.findall(r'\[([\d.e-]+), "([^"]+)"\]', STORED)
    for parameter, (scale, data) in zip(model.parameters(), layers, strict=True):
        whole = torch.frombuffer(bytearray(base64.b64decode(data)), dtype=torch.int8)
        parameter.copy_(whole.view_as(parameter).double() * float(scale))
    return model


def unpacked(letters):
    """Ink from 0 to 1 for each pixel."""
    lengths = re.sub("[a-z]", lambda run: "@" * (ord(run[0]) - 96), letters)
    return torch.tensor([(ord(letter) - 64) / 16 for letter in lengths], dtype=torch.float64)


@cache
def stored_pictures():
    """The digit, its place, its ink and the clutter of each picture."""
    found = re.findall(r'digit: (\d), place: \[(\d), (\d)\], ink: "(\w+)",\s+clutter: "(\w+)"', STORED)
    return [
        (int(digit), [int(row), int(column)], unpacked(ink).view(8, 8), unpacked(clutter).view(28, 28))
        for digit, row, column, ink, clutter in found
    ]


def picture_of(figure):
    _, place, ink, clutter = stored_pictures()[figure.picture]
    picture = clutter.clone()
    if not figure.without_digit:
        top, left = (4 * line for line in figure.digit_place or place)
        picture[top : top + 8, left : left + 8] = ink
    return picture


def expected(figure, finder):
    """The scores, the weights, and how likely each digit is, by the package."""
    patches = cut_into_patches(picture_of(figure)[None])
    scores = finder.score(patches.flatten(3)).squeeze(-1)
    counted = scores
    if figure.look == "everywhere":
        counted = torch.zeros_like(scores)
    elif figure.look == "window":
        counted = torch.full_like(scores, -torch.inf)
        counted[0, figure.window[0], figure.window[1]] = 0
    seen, weights = glimpse(counted, patches)
    return scores[0], weights[0], finder.read(seen.flatten(1)).softmax(dim=-1)[0]


def test_its_functions_agree_with_the_package_on_random_and_on_stored_pictures(finder):
    torch.manual_seed(0)
    pictures = torch.stack([*torch.rand(5, 28, 28).double(), *(picture_of(WhereItLooks(picture=i)) for i in range(12))])
    found = computed("attention_intuition", *(["lookAt", picture] for picture in pictures.tolist()))
    seen, weights = finder.look(pictures)
    for name, right in {
        "scores": finder.score(cut_into_patches(pictures).flatten(3)),
        "weights": weights,
        "glimpse": seen,
        "likely": finder(pictures).softmax(dim=-1),
    }.items():
        got = torch.tensor([each[name] for each in found], dtype=torch.float64)
        torch.testing.assert_close(got, right.flatten(1), rtol=1e-6, atol=1e-6)


def test_a_digit_lies_where_it_is_put_and_the_clutter_everywhere_else():
    calls = [["pictureWith", i, place] for i in range(12) for place in ([0, 5], [3, 1], None)]
    states = [WhereItLooks(picture=i, digit_place=place, without_digit=place is None) for _, i, place in calls]
    got = torch.tensor(computed("attention_intuition", *calls), dtype=torch.float64)
    assert torch.equal(got, torch.stack([picture_of(state) for state in states]))


def test_blue_lies_where_the_books_drawing_has_it():
    weights = torch.rand(36, generator=torch.Generator().manual_seed(3)).softmax(dim=0)
    (got,) = computed("attention_intuition", ["coverage", weights.tolist()])
    right = drawings.coverage(weights.view(1, 6, 6))[0]
    torch.testing.assert_close(torch.tensor(got).repeat_interleave(4, 0).repeat_interleave(4, 1), right)


def test_attention_follows_the_digit_to_each_place_and_reads_the_same_there(finder):
    for index in range(11):  # the last has something in its clutter that looks like a digit
        states = [WhereItLooks(picture=index, digit_place=[i // 6, i % 6]) for i in range(36)]
        pictures = torch.stack([picture_of(state) for state in states])
        _, weights = finder.look(pictures)
        assert (weights.flatten(1).diagonal() > 0.5).all()
        assert len(finder(pictures).argmax(dim=1).unique()) == 1


def test_the_chapter_says_rightly_what_is_seen_in_the_pictures(finder):
    others, low = 0, 0
    for index, (digit, (row, column), _, _) in enumerate(stored_pictures()):
        figure = WhereItLooks(picture=index, window=[row, column])
        scores, weights, likely = expected(figure, finder)
        elsewhere = torch.cat([scores.flatten()[: row * 6 + column], scores.flatten()[row * 6 + column + 1 :]])
        if index < 11:
            assert scores[row, column] >= 13
            assert elsewhere.max() < 8.35
            assert weights[row, column] > 0.99
            others, low = others + 35, low + (elsewhere < 0).sum().item()
        figure.look = "window"
        shown_it = expected(figure, finder)[2].argmax().item()
        figure.look = "everywhere"
        assert expected(figure, finder)[2].argmax() == 4
        said = (likely.argmax().item(), shown_it)
        assert said == {10: (1, 1), 11: (9, 5)}.get(index, (digit, digit))
    assert low / others == pytest.approx(0.8, abs=0.02)
    assert elsewhere.max().item() == pytest.approx(9.92, abs=0.005)
    assert scores[0, 5].item() == pytest.approx(6.96, abs=0.005)
    assert weights.max() / weights[0, 5] == pytest.approx(19, abs=0.5)


@pytest.fixture(scope="module")
def digits():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn, which brings the digits, is not installed")
    data = datasets.load_digits()
    return torch.tensor(data.images / 16, dtype=torch.float32)[1200:], torch.tensor(data.target)[1200:]


def test_its_pictures_are_those_of_the_chapter(digits):
    images, names = digits
    pictures, chosen, places = hide_digits(images, count=1000, seed=1)
    for index, (shown, (digit, place, _, _)) in enumerate(zip(SHOWN, stored_pictures(), strict=True)):
        assert torch.equal(picture_of(WhereItLooks(picture=index)).float(), pictures[shown])
        assert (digit, place) == (names[chosen[shown]].item(), places[shown].tolist())


@pytest.mark.parametrize("seed", [1, 7])
def test_with_its_rounded_weights_the_model_is_as_good_as_the_chapter_says(finder, digits, seed):
    images, names = digits
    pictures, chosen, places = hide_digits(images, count=1000, seed=seed)
    _, weights = finder.look(pictures.double())
    assert weights[torch.arange(1000), *places.T].mean() > 0.96
    assert (finder(pictures.double()).argmax(dim=1) == names[chosen]).double().mean() > 0.89


def agrees(page, figure, finder):
    """Compare what is shown with the package: the window, all scores and weights, and what is read."""
    scores, weights, likely = expected(figure, finder)
    row, column = figure.window
    said = page.get_by_role("slider", name="window").get_attribute("aria-valuetext")
    score = [scores[row, column].item()] if figure.look == "model" else []  # it plays no part in other weights
    assert numbers(said) == pytest.approx([row, column, *score, weights[row, column].item()], abs=0.051)
    assert ("not used" in said) == (figure.look != "model")
    assert numbers(page.locator(".mha-attention-intuition-small p").nth(1).inner_text()) == numbers(said)
    read, score_cells, weight_cells = (
        [numbers(cell)[0] for cell in page.locator("table").nth(i).locator("tbody td").all_text_contents()]
        for i in range(3)
    )
    assert read == pytest.approx(likely.tolist(), abs=0.0051)
    assert score_cells == pytest.approx(scores.flatten().tolist(), abs=0.051)
    assert weight_cells == pytest.approx(weights.flatten().tolist(), abs=0.0051)
    digit = stored_pictures()[figure.picture][0]
    verdict = "all the same" if figure.without_digit else ", rightly" if likely.argmax() == digit else f"it is {digit}"
    sentence = page.locator(".mha-sentence").inner_text()
    assert f"It reads {likely.argmax()} ({likely.max():.2f})" in sentence
    assert sentence.endswith(f"{verdict}.")


def test_the_window_is_dragged_and_the_digit_follows_it(opened, finder):
    figure = WhereItLooks()
    page = opened(figure)
    agrees(page, figure, finder)
    assert "is at row 2, column 4, where the digit lies." in page.locator(".mha-sentence").inner_text()
    box = page.locator(".mha svg").first.bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 80)  # the middle of row 1, column 1
    page.mouse.down()
    page.mouse.move(box["x"] + 180, box["y"] + 130, steps=3)
    page.mouse.move(box["x"] + 210, box["y"] + 165, steps=3)
    page.mouse.up()
    figure.window = [3, 4]
    agrees(page, figure, finder)
    page.mouse.click(box["x"] + 2, box["y"] + 278)
    figure.window = [5, 0]
    agrees(page, figure, finder)
    page.get_by_role("button", name="Lay the digit here").click()
    figure.digit_place = [5, 0]
    agrees(page, figure, finder)
    assert "is at row 5, column 0, where the digit lies." in page.locator(".mha-sentence").inner_text()
    page.get_by_label("take it out").check()
    figure.without_digit = True
    agrees(page, figure, finder)
    page.get_by_role("button", name="Next").click()
    agrees(page, WhereItLooks(picture=1, window=[5, 0]), finder)


def test_by_the_keyboard_the_reader_shows_the_model_the_right_place(opened, finder):
    figure = WhereItLooks(picture=11)
    page = opened(figure)
    agrees(page, figure, finder)
    assert "; the digit lies at row 0, column 5. It reads 9" in page.locator(".mha-sentence").inner_text()
    page.get_by_role("radio", name="own").press("ArrowRight")
    figure.look = "everywhere"
    agrees(page, figure, finder)
    page.get_by_role("radio", name="the same everywhere").press("ArrowRight")
    figure.look = "window"
    agrees(page, figure, finder)
    handle = page.get_by_role("slider", name="window")
    for key in ["ArrowUp"] * 3 + ["ArrowRight"] * 5:  # one further than the edge
        handle.press(key)
    figure.window = [0, 5]
    agrees(page, figure, finder)
    assert "It reads 5" in page.locator(".mha-sentence").inner_text()
    for key, place in [("Home", [0, 0]), ("PageDown", [5, 0]), ("End", [5, 5]), ("PageUp", [0, 5])]:
        handle.press(key)
        figure.window = place
        agrees(page, figure, finder)
        assert page.evaluate("scrollY") == 0
    page.wait_for_function("document.querySelector('[role=status]').textContent.includes('It reads 5')")


def test_on_a_narrow_screen_previous_and_next_stand_in_one_line_and_no_choice_moves_what_follows(opened):
    page = opened(WhereItLooks(), width=344)  # as wide as the book leaves it on a screen of 360 px
    previous, following = (page.get_by_role("button", name=name) for name in ("Previous", "Next"))
    heights = set()
    for _ in range(4):
        assert previous.bounding_box()["y"] == following.bounding_box()["y"]
        for look in ("own", "the same everywhere", "all at my window"):
            page.get_by_role("radio", name=look).check()
            heights.add(page.locator(".mha").bounding_box()["height"])
        previous.click()
    assert len(heights) == 1


def test_with_forced_colours_the_bars_are_seen(opened):
    page = opened(WhereItLooks())
    page.emulate_media(forced_colors="active")
    bar = page.locator(".mha-attention-intuition-bar span").nth(5)
    middle = plt.imread(BytesIO(bar.screenshot()))[5, 20, :3]
    assert middle.sum() < 1.5  # dark, on white


def test_a_finger_on_the_window_drags_it_and_does_not_scroll_the_page(opened, finder):
    figure = WhereItLooks(window=[3, 3])
    page = opened(figure, width=390, has_touch=True)
    page.set_viewport_size({"width": 390, "height": 600})
    handle = page.get_by_role("slider", name="window")
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    x, y, scrolled = box["x"] + 40, box["y"] + 40, page.evaluate("scrollY")
    finger = page.context.new_cdp_session(page)
    for kind, far in [("touchStart", 0), *(("touchMove", 20 * i) for i in range(1, 5)), ("touchEnd", None)]:
        points = [] if far is None else [{"x": x, "y": y - far}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    figure.window = [1, 3]
    page.wait_for_function("document.querySelector('.mha [role=slider]').getAttribute('aria-valuenow') === '9'")
    agrees(page, figure, finder)
    assert page.evaluate("scrollY") == scrolled
    page.touchscreen.tap(x - 120, y)
    figure.window = [3, 0]
    agrees(page, figure, finder)


@pytest.mark.parametrize("wrong", [[6, 0], [0, -1], [1.5, 2], [True, 0], [1], None, "here"])
def test_what_is_not_a_place_is_refused(wrong):
    with pytest.raises(
        ValueError, match=r"^window must be a place, a row and a column from 0 to 5, but it is [^.]*(1\.5)?[^.]*$"
    ):
        WhereItLooks(window=wrong)


def test_a_place_may_be_a_tensor():
    assert WhereItLooks(window=torch.tensor([2, 3])).window == [2, 3]
