"""The figure of chapter 6 calculates what the package does, and follows mouse, keyboard and Python."""

import base64
import importlib.util
import math
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from traitlets import TraitError

from live import computed, numbers
from mha_course import pretrained
from mha_course.figures.live import bundle
from mha_course.figures.live.positions import PositionExplorer
from mha_course.positions import apply_rope, sinusoidal_positions

MODULE = (bundle.HERE / "positions.mjs").read_text("utf-8")
STORED = dict(re.findall(r'(\d+): "([^"]+)"', re.search(r"(?m)^const LEARNED = .*$", MODULE)[0]))
needs_weights = pytest.mark.skipif(not pretrained.is_installed(), reason=f"no weights here: {pretrained.INSTALL}")


def close(got, want, **tolerance):
    torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), want.double(), **tolerance)


def turned(vector, place, pair=0, width=2):
    """Turn one pair of features, by the package."""
    x = torch.zeros(1, 1, 1, width, dtype=torch.float64)
    x[..., [pair, pair + width // 2]] = torch.tensor(vector, dtype=torch.float64)
    return apply_rope(x, torch.tensor([[place]]))[..., [pair, pair + width // 2]].flatten()


@cache
def learned():
    rows = F.normalize(pretrained.load().position.weight.detach().double())
    return rows @ rows.T


def test_sinusoids_are_those_of_the_package_far_out_as_well():
    places, widths = [0, 1, 2, 44, 511, 4999, 5000], [1, 2, 7, 32, 384]
    got = iter(computed("positions", *(["sinusoids", place, width] for width in widths for place in places)))
    for width in widths:
        want = sinusoidal_positions(5001, width, torch.float64)[places]
        close([next(got) for _ in places], want, rtol=0, atol=1e-9)


def test_another_base_makes_other_wavelengths():
    (got,) = computed("positions", ["sinusoids", 29, 4, 100])
    close(got, torch.tensor([math.sin(29), math.cos(29), math.sin(2.9), math.cos(2.9)], dtype=torch.float64))


def test_a_pair_is_turned_as_rotary_positions_do():
    torch.manual_seed(0)
    vectors = torch.randn(5, 2, dtype=torch.float64).tolist()
    speeds = computed("positions", *(["speed", pair, 10] for pair in range(5)))
    places = (0, 1, 13, 5000)
    calls = [["turn", vectors[pair], place * speeds[pair]] for place in places for pair in range(5)]
    want = torch.stack([turned(vectors[pair], place, pair, 10) for place in places for pair in range(5)])
    close(computed("positions", *calls), want, rtol=0, atol=1e-9)


def test_cosines_are_those_of_torch():
    torch.manual_seed(0)
    vectors = torch.randn(5, 7, dtype=torch.float64)
    (got,) = computed("positions", ["cosines", vectors.tolist()])
    close(got, F.cosine_similarity(vectors[:, None], vectors[None], dim=-1))


def test_the_share_of_distance_is_what_the_mean_of_each_distance_explains():
    torch.manual_seed(0)
    similar = torch.randn(7, 7, dtype=torch.float64)
    similar += similar.T.clone()
    distance = (torch.arange(7)[:, None] - torch.arange(7)).abs()
    means = torch.stack([similar[distance == d].mean() for d in range(7)])[distance]
    toeplitz, all_of_it = computed(
        "positions", ["shareOfDistance", similar.tolist()], ["shareOfDistance", means.tolist()]
    )
    assert toeplitz == pytest.approx((means.var() / similar.var()).item())
    assert all_of_it == pytest.approx(1)


def test_a_stored_map_is_read_row_by_row():
    (got,) = computed("positions", ["unpack", base64.b64encode(bytes([127, 0, 129])).decode()])
    assert got == [[1, 1, 0], [1, 1, -1], [0, -1, 1]]


@needs_weights
def test_the_stored_maps_are_those_of_the_model_and_of_the_tool_that_made_them():
    spec = importlib.util.spec_from_file_location("tool", Path(__file__).parents[2] / "tools" / "learned_positions.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    want = learned()
    assert list(STORED) == [str(first) for first, _ in tool.WINDOWS]
    for first, end in tool.WINDOWS:
        (got,) = computed("positions", ["unpack", STORED[str(first)]])
        close(got, want[first:end, first:end], rtol=0, atol=0.51 / 127)
        assert tool.packed(first, end) == STORED[str(first)]


def column(page, index):
    """Numbers of the seen table's column, or its words."""
    cells = page.locator(f"tbody tr > :nth-child({index + 2})").filter(visible=True).all_inner_texts()
    return [found[0] if (found := numbers(cell.replace(",", ""))) else cell for cell in cells]


def row(page, name):
    found = page.get_by_role("row", name=re.compile(f"^{name}")).filter(visible=True).locator("td")
    return [found[0] if (found := numbers(cell)) else cell for cell in found.all_inner_texts()]


def said(page):
    return page.locator(".mha-sentence").inner_text()


def slide(page, name, *keys):
    for key in keys:
        page.get_by_role("slider", name=name, exact=True).press(key)


def middle_of(locator, x, y):
    """A point of the drawing, as shares of its breadth and height."""
    box = locator.bounding_box()
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def test_the_hand_of_a_pair_and_the_table_follow_sliders_clicks_and_width(opened):
    page = opened(PositionExplorer())

    def agrees(position, pair, width):
        sine, cosine = sinusoidal_positions(position + 1, width)[position, 2 * pair : 2 * pair + 2].tolist()
        wave = 2 * math.pi * 10_000 ** (2 * pair / width)
        assert column(page, pair)[1:] == pytest.approx([wave, sine, cosine], abs=0.0051, rel=0.005)
        assert said(page).startswith(f"At position {position} the hand of pair {pair} ")
        assert f"sine {sine:.2f}, cosine {cosine:.2f}.".replace("-", "−") in said(page)

    agrees(6, 0, 8)
    slide(page, "position", *["ArrowRight"] * 5)
    slide(page, "pair", "End")
    agrees(11, 3, 8)
    slide(page, "width", "ArrowLeft")  # pair 3 is gone; the last one is shown
    agrees(11, 2, 6)
    assert page.get_by_role("slider", name="pair").input_value() == "2"
    slide(page, "width", "End")
    agrees(11, 3, 32)
    table = page.get_by_role("img", name="The table of sinusoids")
    page.mouse.click(*middle_of(table.locator("g[shape-rendering]"), 6.5 / 16, 20.5 / 64))
    agrees(20, 3, 32)  # the pair is another's to choose
    page.get_by_role("slider", name="base").press("ArrowLeft")
    assert column(page, 6)[1] == pytest.approx(2 * math.pi * 1000 ** (12 / 32), rel=0.005)
    slide(page, "pair", "End")
    box, cell = (
        part.bounding_box() for part in (page.locator(".mha-scroll").first, page.get_by_role("columnheader", name="15"))
    )
    assert box["x"] <= cell["x"] < cell["x"] + cell["width"] <= box["x"] + box["width"] + 1

    page.get_by_role("radio", name="rotary").check()
    slide(page, "pair", "Home", "ArrowRight")
    assert f"turns by {10_000 ** (-2 / 32):.3f} radians" in said(page)  # whatever the base of the table is


def test_the_dot_product_depends_on_the_distance_alone(opened):
    page = opened(PositionExplorer(view="distance", width=32))

    def agrees(place):
        sines = sinusoidal_positions(5100, 32)
        for name, sign in (("before", -1), ("after", 1)):
            steps = [place + sign * step for step in (0, 1, 2, 4, 8, 16, 32)]
            want = [(sines[place] @ sines[step]).item() if step >= 0 else "—" for step in steps]
            assert row(page, name) == [entry if entry == "—" else pytest.approx(entry, abs=0.0051) for entry in want]
        assert said(page).startswith(f"Position {place:,} with itself: 16.00")

    agrees(6)
    plot = page.get_by_role("img", name="Dot products of the chosen position")
    page.mouse.move(*middle_of(plot.locator(".mha-axes line").first, 0, 0.5))
    page.mouse.down()
    page.mouse.move(*middle_of(plot.locator(".mha-axes line").nth(2), 0, 0.3), steps=3)
    page.mouse.up()
    agrees(32)
    heights = numbers(plot.locator("path").nth(1).get_attribute("d"))[1::2]
    assert len(heights) == 64
    assert heights.index(min(heights)) == 32  # the curve's top, as y grows downwards
    by_distance = page.get_by_role("img", name="The same dot products").locator("path").nth(1)
    before = by_distance.get_attribute("d")
    slide(page, "position", "ArrowLeft")
    slide(page, "count from", "End")
    agrees(5031)
    assert by_distance.get_attribute("d") == before


def test_two_places_that_are_as_near_are_both_named_wherever_the_count_starts(opened):
    page = opened(PositionExplorer(view="distance"))
    assert said(page).endswith("0 and 12 come nearest: 3.78.")
    slide(page, "count from", "End")
    assert said(page).endswith("5,000 and 5,012 come nearest: 3.78.")
    slide(page, "width", "Home")
    assert said(page).endswith("5,050 comes nearest: 1.00.")


def test_a_finger_that_scrolls_the_page_leaves_the_position(opened):
    page = opened(PositionExplorer(view="distance"), has_touch=True)
    plot = page.get_by_role("img", name="Dot products of the chosen position")
    x, y = middle_of(plot, 0.5, 0.5)
    touch = page.context.new_cdp_session(page)

    def swipe(across, down):
        touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
        for share in (0.25, 0.5, 0.75, 1):
            points = [{"x": x + share * across, "y": y + share * down}]
            touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": points})
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    page.touchscreen.tap(x, y)
    assert said(page).startswith("Position 27 ")
    slide(page, "position", "Home")
    swipe(8, -60)
    assert said(page).startswith("Position 0 ")
    swipe(60, 8)
    assert said(page).startswith("Position 43 ")


def test_learned_positions_end_and_computed_ones_go_on(opened):
    page = opened(PositionExplorer(view="learned", position=20))
    sines = F.normalize(sinusoidal_positions(600, 384))
    steps = (-9, -6, -3, 3, 6, 9, 12)

    def agrees(place):
        assert row(page, "computed") == pytest.approx(
            [(sines[place] @ sines[place + s]).item() for s in steps], abs=0.0051
        )
        if pretrained.is_installed():
            want = learned()[place]
            entries = [want[place + step].item() if place + step < 512 else "none" for step in steps]
            shown = [entry if entry == "none" else pytest.approx(entry, abs=0.0091) for entry in entries]
            assert row(page, "learned") == shown

    agrees(20)
    assert said(page).endswith("Of the learned map 84% is distance alone, of the computed one 100%.")
    page.get_by_role("checkbox").press("Space")
    agrees(500)
    assert page.get_by_text("no rows").is_visible()
    slide(page, "position", *["ArrowRight"] * 8)
    agrees(508)
    page.mouse.click(
        *middle_of(page.get_by_role("img", name="How alike the computed").locator("g[shape-rendering]"), 0.2, 40.5 / 64)
    )
    assert row(page, "learned") == ["none"] * 7
    assert "to ask for position 520 is an error" in said(page)


def test_moving_query_and_key_together_leaves_the_score(opened):
    page = opened(PositionExplorer(view="rotary"))
    query, key = [1.0, 0.0], [0.8, 0.6]

    def agrees(query_place, key_place, pair=0):
        q, k = turned(query, query_place, pair, 8), turned(key, key_place, pair, 8)
        assert f"the score is {q @ k:.2f}.".replace("-", "−") in said(page)
        shown = [numbers(cell) for cell in page.locator("tr > td:last-child").filter(visible=True).all_inner_texts()]
        assert [shown[-2], shown[-1]] == [pytest.approx(q.tolist(), abs=0.0051), pytest.approx(k.tolist(), abs=0.0051)]

    agrees(1, 0)
    assert "0.94" in said(page)  # as in the chapter
    slide(page, "move both", "End")
    agrees(5001, 5000)
    assert "0.94" in said(page)
    slide(page, "query at", "ArrowRight", "ArrowRight")
    agrees(5003, 5000)
    slide(page, "pair", "ArrowRight")
    agrees(5003, 5000, 1)

    handle = page.get_by_role("slider", name="key, turned")
    x, y = middle_of(handle.locator("path"), 0.5, 0.5)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 30, y - 20, steps=3)
    page.mouse.up()
    assert middle_of(handle.locator("path"), 0.5, 0.5) == pytest.approx(
        (x - 30, y - 20), abs=2
    )  # it went where it was drawn
    handle.press("ArrowUp")
    tip = numbers(handle.get_attribute("aria-valuetext"))
    key = turned(tip, -5000, 1, 8).tolist()
    assert key != pytest.approx([0.8, 0.6], abs=0.1)
    agrees(5003, 5000, 1)
    slide(page, "move both", "Home")
    agrees(3, 0, 1)
    for _ in range(8):  # an arrow is never longer than the drawing, not even to its corner
        handle.press("Shift+ArrowLeft")
        handle.press("Shift+ArrowUp")
    assert math.hypot(*numbers(handle.get_attribute("aria-valuetext"))) == pytest.approx(1.5, abs=0.01)


def test_nothing_below_jumps_when_the_view_or_its_state_changes(opened):
    page = opened(PositionExplorer())
    for width in (360, 720, 900):
        page.set_viewport_size({"width": width, "height": 900})
        heights = []
        for view in ("dot products", "learned and computed", "rotary", "table and clocks"):
            page.get_by_role("radio", name=view).check()
            for key in ("End", "Home"):
                page.get_by_role("slider").filter(visible=True).first.press(key)
                heights.append(page.locator(".mha").bounding_box()["height"])
            if view == "learned and computed":
                assert page.get_by_role("slider").count() == 1  # those of other views can't be reached
                page.get_by_role("checkbox").press("Space")
                slide(page, "position", "End")
                heights.append(page.locator(".mha").bounding_box()["height"])
        assert len(set(heights)) == 1, (width, heights)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"width": 7}, "width must be an even number from 2 to 32, a sine and a cosine for each pair, but it is 7"),
        ({"width": 34}, "width must be an even number from 2 to 32"),
        (
            {"query_vector": [1]},
            "query_vector must be the query at place 0, a list of 2 numbers from -1.5 to 1.5, but it is [1]",
        ),
        ({"position": 64}, "should not be greater than 63"),
        ({"view": "clocks"}, "clocks"),
    ],
)
def test_a_state_that_cannot_be_is_refused(state, message):
    with pytest.raises((ValueError, TraitError), match=re.escape(message)):
        PositionExplorer(**state)
