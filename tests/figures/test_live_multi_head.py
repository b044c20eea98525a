"""The shape machine of chapter 4 counts memory as PyTorch does, and follows mouse, keyboard and sizes."""

import itertools

import pytest
import torch
from traitlets import TraitError

from live import computed, numbers
from mha_course.figures.live.multi_head import ShapeMachine
from mha_course.multi_head import merge_heads, split_heads

SIZES = list(itertools.product((1, 2), (2, 3, 4), (1, 2, 3, 4), (1, 2, 3)))


def stored(tensor):
    """Describe a tensor that covers all of its memory as the figure does."""
    memory = torch.as_strided(tensor, (tensor.numel(),), (1,))
    return {"shape": list(tensor.shape), "strides": list(tensor.stride()), "memory": memory.int().tolist()}


def view(tensor, shape):
    try:
        return tensor.view(shape)
    except RuntimeError:
        return None


def factors(count, generator):
    """Cut a number into random factors, some of them 1."""
    shape = []
    while count > 1 or not shape:
        divisors = [size for size in range(1, count + 1) if count % size == 0]
        shape.append(divisors[torch.randint(len(divisors), (1,), generator=generator)])
        count //= shape[-1]
    return shape


def test_views_swaps_and_copies_of_random_tensors_agree_with_pytorch():
    generator = torch.Generator().manual_seed(0)
    tensors, shapes, axes = [], [], []
    for count in [24, 36, 30, 7, 1] * 40:
        x = torch.arange(count).view(factors(count, generator))
        tensors.append(x.permute(torch.randperm(x.dim(), generator=generator).tolist()))
        shapes.append(factors(count, generator))
        axes.append(torch.randint(x.dim(), (2,), generator=generator).tolist())
    given = [stored(x) for x in tensors]
    wanted = [view(x, shape) for x, shape in zip(tensors, shapes, strict=True)]
    assert 60 < wanted.count(None) < 140
    assert computed("multi_head", *(["contents", x] for x in given)) == [x.flatten().tolist() for x in tensors]
    viewed = computed("multi_head", *(["viewed", x, shape] for x, shape in zip(given, shapes, strict=True)))
    assert viewed == [x if x is None else stored(x) for x in wanted]
    reshaped = computed("multi_head", *(["reshaped", x, shape] for x, shape in zip(given, shapes, strict=True)))
    assert reshaped == [stored(x.reshape(shape)) for x, shape in zip(tensors, shapes, strict=True)]
    swapped = computed("multi_head", *(["swapped", x, *pair] for x, pair in zip(given, axes, strict=True)))
    assert swapped == [stored(x.transpose(*pair)) for x, pair in zip(tensors, axes, strict=True)]
    assert computed("multi_head", *(["contiguous", x] for x in given)) == [stored(x.contiguous()) for x in tensors]


def test_a_view_of_another_count_is_refused():
    x = stored(torch.arange(6))
    assert computed("multi_head", *(["viewed", x, shape] for shape in ([2, 4], [3], [6, 2]))) == [None] * 3


def right_and_wrong(batch, length, heads, d_head):
    """All tensors of the figure, by PyTorch and the package; each number is known by its place in `x`."""
    whole = (batch, length, heads * d_head)
    x = torch.arange(batch * length * heads * d_head).float().view(whole)
    pieces = x.view(batch, length, heads, d_head)
    mixed = split_heads(x, heads).clone(memory_format=torch.contiguous_format)
    back = mixed.transpose(1, 2)
    assert torch.equal(merge_heads(mixed), back.reshape(whole))
    return {
        "x": x,
        "pieces": pieces,
        "split": pieces.transpose(1, 2),
        "mixed": mixed,
        "back": back,
        "merged": back.reshape(whole),
        "wrongSplit": x.view(batch, heads, length, d_head),
        "wrongMerge": mixed.view(whole),
    }


def test_every_size_is_split_and_merged_as_by_the_package():
    names = ("batch", "length", "heads", "d_head")
    found = computed("multi_head", *(["machine", dict(zip(names, sizes, strict=True))] for sizes in SIZES))
    for sizes, got in zip(SIZES, found, strict=True):
        wanted = right_and_wrong(*sizes)
        assert torch.equal(split_heads(wanted["x"], sizes[2]), wanted["split"])
        may_view = view(wanted["back"], wanted["x"].shape) is not None
        assert got == {name: stored(x) for name, x in wanted.items()} | {"mayView": may_view}


def panel(page, code):
    """What stands in a panel: its numbers as (word, feature), its shape, its strides, its marks, its sum."""
    found = page.locator(".mha-multi-head-panel", has=page.get_by_role("table", name=code, exact=True))
    lines = found.locator("p").all_inner_texts()
    return {
        "cells": [cell.split("·") for cell in found.get_by_role("button").all_inner_texts()],
        "shape": tuple(map(int, numbers(lines[1]))),
        "strides": tuple(map(int, numbers(lines[2]))),
        "sum": lines[4],
        "marks": found.locator(".mha-multi-head-mark").all_inner_texts(),
        "chosen": found.get_by_role("button", pressed=True).all_inner_texts(),
    }


def agrees(page, code, tensor, right, words):
    """A panel shows this tensor, and in which rows it differs from the right one."""
    shown = panel(page, code)
    assert shown["shape"] == tensor.shape
    assert shown["strides"] == tensor.stride()
    origin = [divmod(int(place), 6) for place in tensor.flatten()]
    assert shown["cells"] == [[words[word], str(feature)] for word, feature in origin]
    same = (tensor == right).flatten(0, -2).all(dim=1)
    assert shown["marks"] == ["✓" if row else "✗" for row in same]


def test_its_panels_show_the_right_and_the_wrong_way_at_every_step(opened):
    page = opened(ShapeMachine(batch=2, length=4, heads=3, sentence=1, word=3, feature=5, step=0))
    wanted = right_and_wrong(2, 4, 3, 2)
    words = ["The", "cat", "sat", "on", "A", "dog", "ran", "off"]
    assert page.get_by_role("table", name="x.view(2, 3, 4, 2)").count() == 0  # not shown yet
    page.get_by_role("button", name="Next").press("Enter")
    assert panel(page, "pieces = x.view(2, 4, 3, 2)")["shape"] == (2, 4, 3, 2)
    page.get_by_role("button", name="Step 3").click()
    agrees(page, "pieces.transpose(1, 2)", wanted["split"], wanted["split"], words)
    agrees(page, "x.view(2, 3, 4, 2)", wanted["wrongSplit"], wanted["split"], words)
    page.get_by_role("button", name="Step 6").click()
    agrees(page, "back.reshape(2, 4, 6)", wanted["merged"], wanted["merged"], words)
    agrees(page, "mixed.view(2, 4, 6)", wanted["wrongMerge"], wanted["merged"], words)
    memories = [page.get_by_role("table", name=name, exact=True) for name in ("Memory", "The copy: new memory")]
    held = [memory.get_by_role("button").all_inner_texts() for memory in memories]
    for cells, tensor in zip(held, (wanted["mixed"], wanted["merged"]), strict=True):
        assert cells == [f"{words[int(i) // 6]}·{int(i) % 6}" for i in tensor.flatten()]
    assert "The row of “The” is read at 0, 1, 8, 9, 16, 17: no even walk" in page.locator(".mha").inner_text()
    page.locator("fieldset", has_text="d_head").get_by_label("1").check()
    assert view(right_and_wrong(2, 4, 3, 1)["back"], (2, 4, 3)) is not None
    assert "The row of “The” is read at 0, 4, 8: an even walk" in page.locator(".mha").inner_text()
    assert panel(page, "mixed")["chosen"] == ["off·2"]  # the last feature, as there is no longer a sixth


def test_a_number_is_chosen_by_mouse_and_arrow_keys_and_marked_everywhere(opened):
    figure = ShapeMachine()
    page = opened(figure)
    wrong = page.get_by_role("table", name="x.view(1, 2, 3, 2)")
    assert page.locator(".mha-sentence").inner_text() == (
        "“cat·2” is still at address 6, and it belongs to cat in head 1. In the wrong way it counts as part of The in head 1. "
        "There head 1 gets pieces of cat and sat alone, and attention takes them for The, cat and sat."
    )
    wrong.get_by_role("button", name="sat·0").click()
    for key in ("ArrowUp", "ArrowLeft"):  # one row up, then back to the end of the row before
        page.keyboard.press(key)
    codes = ("x", "pieces = x.view(1, 3, 2, 2)", "pieces.transpose(1, 2)", "x.view(1, 2, 3, 2)")
    assert [panel(page, code)["chosen"] for code in codes] == [["cat·1"]] * 4
    place = torch.arange(12).view(1, 3, 4)[0, 1, 1].item()
    assert [numbers(panel(page, code)["sum"])[-1] for code in codes] == [place] * 4
    assert panel(page, "x.view(1, 2, 3, 2)")["sum"] == "= 0·12 + 0·6 + 2·2 + 1·1 = 5"
    assert panel(page, "pieces.transpose(1, 2)")["sum"] == "= 0·12 + 0·2 + 1·4 + 1·1 = 5"
    assert wrong.locator("[role=button]:focus").inner_text() == "cat·1"
    scrolled = page.evaluate("scrollY")
    for key, there in [("Home", "cat·0"), ("End", "cat·1"), ("End", "cat·1")]:
        page.keyboard.press(key)
        assert wrong.locator("[role=button]:focus").inner_text() == there
    assert page.evaluate("scrollY") == scrolled
    memory = page.get_by_role("table", name="Memory").and_(page.locator(":visible"))
    memory.get_by_role("button", name="sat·1").click()
    for key, there in [("End", "sat·3"), ("Home", "The·0")]:
        page.keyboard.press(key)
        assert memory.locator("[role=button]:focus").inner_text() == there
    memory.get_by_role("button", name="cat·1").click()
    assert page.locator("table [tabindex='0']").count() == 5  # one for each table, so that Tab gets on
    order = page.get_by_role("row", name="read as").locator("td").all_inner_texts()
    assert order == [str(i) for i in right_and_wrong(1, 3, 2, 2)["split"].flatten().argsort().tolist()]


def test_with_one_head_no_way_is_called_wrong(opened):
    page = opened(ShapeMachine(heads=1))
    for step in ("Step 3", "Step 6"):
        page.get_by_role("button", name=step).click()
        shown = page.locator(".mha").inner_text()
        assert "✗" not in shown
        assert "Also right: " in shown
        assert "wrong" not in shown.lower()
    page.locator("fieldset", has_text="heads").get_by_label("2").check()
    assert panel(page, "mixed.view(1, 3, 4)")["marks"] == ["✗"] * 3  # each row has a wrong number, and not all are
    assert "Wrong: mixed.view(1, 3, 4)" in page.locator(".mha").inner_text()
    assert page.get_by_text("numbers in the right place: 4 of 12").and_(page.locator(":visible")).count() == 1


NOTE_THE_MARKED = """() => {
  window.seen = [];
  const note = () => seen.push(document.querySelector(".mha-multi-head-chosen").textContent);
  const changes = { subtree: true, attributes: true, attributeFilter: ["aria-pressed"] };
  new MutationObserver(note).observe(document.querySelector(".mha"), changes);
}"""


def test_reading_in_order_starts_when_asked_and_ends_at_the_last_number_or_when_stopped(opened):
    page = opened(ShapeMachine(length=2, heads=2, d_head=1, word=1, feature=0))
    page.evaluate(NOTE_THE_MARKED)
    start, stop = (page.get_by_role("button", name=name) for name in ("Read in order", "Stop"))
    start.click()
    page.wait_for_function("seen.at(-1) === 'cat·1'")
    assert list(dict.fromkeys(page.evaluate("seen"))) == ["The·0", "cat·0", "The·1", "cat·1"]
    for end in ("Stop", "Step 1"):
        start.click()
        assert stop.count() == 1
        page.get_by_role("button", name=end).click()
        assert start.count() == 1


def test_who_wants_no_motion_gets_the_end_at_once(opened):
    page = opened(ShapeMachine(), reduced_motion="reduce")
    page.get_by_role("button", name="Read in order").click()
    assert page.get_by_role("button", name="Stop").count() == 0
    assert panel(page, "x")["chosen"] == ["sat·3"]


@pytest.mark.parametrize(
    "state", [{"heads": 5}, {"length": 1}, {"d_head": 0}, {"batch": 3}, {"step": 6}, {"word": 1.5}]
)
def test_sizes_that_it_does_not_have_are_refused(state):
    with pytest.raises(TraitError, match=f"'{next(iter(state))}' trait of a ShapeMachine instance"):
        ShapeMachine(**state)
