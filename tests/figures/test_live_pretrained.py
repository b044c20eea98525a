"""The head browser of chapter 5 shows the model's own maps, scores heads as the package does, and loads nothing unasked."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from traitlets import TraitError

from live import computed, numbers
from mha_course import head_roles, pretrained
from mha_course.figures.live import bundle
from mha_course.figures.live.pretrained import LONGEST, SENTENCES, HeadBrowser

needs_weights = pytest.mark.skipif(not pretrained.is_installed(), reason=f"no weights here: {pretrained.INSTALL}")
HALF_A_STEP = 1 / 131070  # a weight is a whole number of 65535ths
CAT, DOOR, NEW_SHOP = range(3)


def stored(sentence):
    """The maps of a sentence as they lie in its file: (layer, head, query, key)."""
    steps = np.frombuffer(bundle.pieces("pretrained")[sentence], "<u2")
    length = round((len(steps) / 72) ** 0.5)
    return torch.tensor(steps / 65535).reshape(6, 12, length, length)


@pytest.fixture(scope="module")
def model():
    return pretrained.load()


def test_heads_are_scored_as_the_package_scores_them():
    torch.manual_seed(0)
    tokens, ids = ["[CLS]", "the", "door", ",", "the", ",", "the", "[SEP]"], torch.tensor([[1, 7, 8, 9, 7, 9, 7, 2]])
    maps = torch.randn(3, 8, 8, dtype=torch.float64).mul(4).softmax(dim=-1)
    wanted = {
        role: head_roles.role_score(maps[None, None], pattern(ids, torch.ones_like(ids, dtype=torch.bool)))[0]
        for role, pattern in head_roles.ROLES.items()
    } | {"itself": maps.diagonal(dim1=1, dim2=2).mean(dim=1)}
    calls = [["roleScore", one.tolist(), tokens, role] for role in wanted for one in maps]
    got = torch.tensor(computed("pretrained", *calls), dtype=torch.float64).reshape(6, 3)
    assert_close(got, torch.stack(list(wanted.values())), rtol=0, atol=1e-12)


def test_even_weights_the_largest_numbers_and_a_role_that_no_token_can_show():
    even, order, score = computed(
        "pretrained",
        ["evenMap", 8],
        ["largest", [0.1, 0.5, 0.3, 0.5], 3],
        ["roleScore", torch.eye(4).tolist(), ["[CLS]", "storks", "return", "[SEP]"], "same word elsewhere"],
    )
    assert_close(torch.tensor(even), head_roles.even_maps(torch.ones(1, 8, dtype=torch.bool))[0, 0, 0])
    assert order == [1, 3, 2]
    assert score is None


@needs_weights
def test_the_files_are_what_the_tool_makes_and_right_to_half_a_step(model):
    tool = Path(__file__).parents[2] / "tools" / "head_maps.py"
    spec = importlib.util.spec_from_file_location("head_maps", tool)
    head_maps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(head_maps)
    pieces = bundle.pieces("pretrained")
    assert len(pieces) == len(SENTENCES) == 12
    for index, sentence in enumerate(SENTENCES):
        made = np.frombuffer(head_maps.packed(model, sentence), "<u2").astype(int)
        assert abs(made - np.frombuffer(pieces[index], "<u2").astype(int)).max() <= 1
        exact = model.attention_maps(*model.tokenize([sentence]))[:, 0].double()
        assert_close(stored(index), exact, rtol=0, atol=HALF_A_STEP + 2e-6)  # and rounding, on another machine


@needs_weights
def test_the_page_knows_the_tokens_and_reads_the_maps_of_a_file(model):
    wanted = [model.tokens(sentence) for sentence in SENTENCES]
    assert computed("pretrained", *(["tokensOf", sentence] for sentence in SENTENCES)) == wanted
    assert max(map(len, wanted)) == LONGEST
    (read,) = computed("pretrained", ["unpack", list(bundle.pieces("pretrained")[NEW_SHOP]), 8])
    exact = model.attention_maps(*model.tokenize([SENTENCES[NEW_SHOP]]))[:, 0].double().flatten(0, 1)
    assert_close(torch.tensor(read, dtype=torch.float64), exact, rtol=0, atol=HALF_A_STEP + 2e-6)


def row_shown(page):
    return [numbers(text)[0] for text in page.locator(".mha-pretrained-list td").all_inner_texts()]


def agrees(page, sentence, layer, head, query):
    """The row that is read out, and the scores under the small maps, are those of the stored maps."""
    maps = stored(sentence)
    assert row_shown(page) == pytest.approx(maps[layer, head, query].tolist(), abs=0.0051)
    bars = page.locator(".mha-pretrained-list i").evaluate_all(
        "bars => bars.map(bar => parseFloat(bar.style.width) > 0)"
    )
    assert [weight > 0 for weight in row_shown(page)] == bars  # what is written as 0.00 has no bar
    chosen = page.locator("[aria-selected=true]").get_attribute("aria-label")
    assert chosen.startswith(f"layer {layer}, head {head}")


def test_nothing_is_loaded_before_it_is_asked_for_and_then_the_previous_token_head_is_found(opened):
    page = opened(HeadBrowser())
    asked = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    agrees(page, CAT, 4, 5, 3)  # the sample
    assert page.locator(".mha-sentence").inner_text().startswith("In L4H5, “sat” looks at [CLS] (0.89)")
    assert asked == []
    assert page.locator("canvas").count() == 0
    options = page.locator("select").first.locator("option").all_inner_texts()
    assert tuple(text.replace("…", "did not cross the street because") for text in options) == SENTENCES
    assert len({text[:30] for text in options}) == 12  # a phone's closed menu shows no more
    strip, role = page.locator(".mha-pretrained-strip"), page.locator("select").last
    assert "Load the maps to see all heads." in strip.inner_text()
    role.select_option("itself")
    assert "Load the maps to score all heads." in strip.inner_text()
    role.select_option("nothing")

    button = page.get_by_role("button", name="Load all 72 maps (12 kB)")
    button.focus()
    button.press("Enter")
    page.locator("canvas").nth(71).wait_for()
    assert asked == ["pretrained-0.js"]
    assert page.evaluate("document.activeElement.ariaLabel") == "layer 4, head 5"

    role.select_option("previous token")
    ids = torch.tensor([[0, 1, 2, 3, 4, 1, 5, 6, 7]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    scores = head_roles.role_score(stored(CAT)[:, None], head_roles.previous_token(ids, mask))
    names = [cell.get_attribute("aria-label") for cell in page.get_by_role("gridcell").all()]
    assert [numbers(name)[2] for name in names] == pytest.approx(scores.flatten().tolist(), abs=0.0051)
    assert names[2] == "layer 0, head 2: 1.00 on the previous token"
    assert names[2 * 12 + 11] == "layer 2, head 11: 0.41 on the previous token"
    best = page.locator(".mha-pretrained-strip button").all_inner_texts()
    assert page.get_by_role("gridcell").nth(2).inner_text() == "1"
    assert page.get_by_role("gridcell").nth(2 * 12 + 11).inner_text() == ".41"
    assert best == ["L0H2 1.00", "L2H11 0.41", "L1H9 0.34"]
    page.get_by_role("button", name="L0H2").click()
    agrees(page, CAT, 0, 2, 3)
    said = page.locator(".mha-sentence").inner_text()
    assert said == (
        "In L0H2, “sat” looks at “cat” (1.00). "
        "The head puts 1.00 of its weight on the previous token, the most of all 72; even weights would put 0.11 there."
    )
    # In its small map too, the pixel below the diagonal is the darkest of its row.
    row = page.locator("canvas").nth(2).evaluate("canvas => [...canvas.getContext('2d').getImageData(0, 5, 9, 1).data]")
    assert np.argmin(np.array(row).reshape(9, 4)[:, 0]) == 4


def test_heads_and_queries_are_chosen_by_keys_and_by_mouse_and_other_sentences_load_by_themselves(opened):
    page = opened(HeadBrowser(sentence=SENTENCES[DOOR], layer=2, head=9, token=6, role="same word elsewhere"))
    assert "not loaded yet" in page.locator(".mha-sentence").inner_text()
    page.get_by_role("button", name="Load").click()
    page.locator("canvas").first.wait_for()
    agrees(page, DOOR, 2, 9, 6)
    assert "In L2H9, “door” looks at “door” at position 2 (0.81)" in page.locator(".mha-sentence").inner_text()
    assert (
        "Over the tokens that stand twice, the head puts 0.78 of its weight on the same word elsewhere, the most"
        in page.locator(".mha-sentence").inner_text()
    )

    page.locator("[aria-selected=true]").focus()
    for key, layer, head in [("ArrowRight", 2, 10), ("ArrowDown", 3, 10), ("Home", 3, 0), ("ArrowLeft", 3, 0), ("End", 3, 11), ("ArrowUp", 2, 11)]:  # fmt: skip
        page.keyboard.press(key)
        agrees(page, DOOR, layer, head, 6)
        assert page.evaluate("document.activeElement.ariaSelected") == "true"
        assert page.locator(".mha-pretrained-heads [tabindex='0']").count() == 1
    page.get_by_role("gridcell", name="layer 1, head 8").click()
    agrees(page, DOOR, 1, 8, 6)
    page.get_by_role("radio").nth(6).press("ArrowDown")
    agrees(page, DOOR, 1, 8, 7)
    page.locator(".mha-pretrained-map tbody tr").nth(2).locator("td").nth(4).click()
    agrees(page, DOOR, 1, 8, 2)

    # The menu keeps the focus while its sentence is loaded, and the height stays; 720 is a page of 1280 in the book.
    menu = page.locator("select").first
    menu.focus()
    tall = {}
    for index in range(len(SENTENCES)):
        menu.select_option(index=index)
        page.locator(f"canvas[width='{stored(index).size(3)}']").first.wait_for()
        agrees(page, index, 1, 8, 2)
        assert page.evaluate("document.activeElement === document.querySelector('select')")
        for width in (720, 344):
            page.set_viewport_size({"width": width, "height": 900})
            height = page.locator(".mha").bounding_box()["height"]
            assert height == pytest.approx(tall.setdefault(width, height), abs=1)
    assert all(cell.bounding_box()["width"] >= 24 for cell in page.get_by_role("gridcell").all()[:12])
    page.emulate_media(media="print")
    assert not page.locator(".mha-pretrained-strip").is_visible()
    page.emulate_media(media="screen")
    menu.select_option("The dog barked until its owner came.")
    assert page.locator(".mha-pretrained-strip").inner_text() == "No token stands twice in this sentence."
    assert page.get_by_role("gridcell").first.get_attribute("aria-label") == "layer 0, head 0"


def test_data_that_are_missing_are_said_to_be_and_can_be_asked_for_again(opened, tmp_path):
    page = opened(HeadBrowser(token=14))
    assert page.locator(".mha-pretrained-list caption").inner_text() == "L4H5: the row of [SEP]"  # it has 9 tokens
    (tmp_path / "pretrained-0.js").unlink()
    page.get_by_role("button", name="Load").click()
    page.get_by_role("alert").filter(has_text="pretrained-0.js is missing beside the page").wait_for()
    page.wrong.clear()
    bundle.write("pretrained", tmp_path)
    page.get_by_role("button", name="Load").click()
    page.locator("canvas").first.wait_for()


def test_a_notebook_gets_a_sentence_from_the_kernel(monkeypatch):
    figure, sent = HeadBrowser(), []
    monkeypatch.setattr(figure, "send", lambda content, buffers: sent.append((content, buffers)))
    for piece in (2, 12, None):
        figure._send_piece(figure, {"piece": piece}, [])
    assert sent == [({"piece": 2}, [bundle.pieces("pretrained")[2]])]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"layer": 6}, "'layer'.*greater than 5"),
        ({"token": -1}, "'token'.*less than 0"),
        ({"sentence": "A dog."}, "'sentence'.*any of"),
        ({"role": "boss"}, "'role'.*any of"),
    ],
)
def test_a_state_that_cannot_be_shown_is_refused(state, words):
    with pytest.raises(TraitError, match=words):
        HeadBrowser(**state)
