"""What is true of every figure that computes, whatever it shows: it can be used by all, weighs little, and is one thing in all hosts."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from chromium import note_what_goes_wrong
from live import NODE, faults, figure_class, write_page
from mha_course.figures.live import bundle

ROOT = Path(__file__).parents[2]
MOST = 60_000  # bytes of code, style and data that a figure brings before its reader asks for more

every_figure = pytest.mark.parametrize("name", bundle.names())


@pytest.fixture(scope="module")
def stills():
    spec = importlib.util.spec_from_file_location("stills", ROOT / "tools" / "stills.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_module_that_cannot_be_joined_is_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "HERE", tmp_path)
    for wrong in (
        'import { sum as total } from "./maths.mjs";',
        "import { sum } from './maths.mjs'",
        "export { figure };",
    ):
        (tmp_path / "figure.mjs").write_text(f"{wrong}\nexport const figure = {{}};\n", "utf-8")
        with pytest.raises(ValueError, match=r"^figure\.mjs can't be joined: "):
            bundle.for_page("figure")


def test_a_module_is_joined_with_what_it_imports_and_nothing_twice():
    script = bundle.for_page("soft_addressing")
    assert script.count("export const softmax") == script.count("import {") == 0
    assert script.count("function softmax(") == script.count("function h(") == 1
    assert script.index("function softmax(") < script.index("function lookUp(")


@every_figure
def test_the_script_can_be_read_in_both_forms_and_is_light(name, tmp_path):
    for form, suffix in ((bundle.for_page(name), "cjs"), (bundle.for_notebook(name), "mjs")):
        path = tmp_path / f"figure.{suffix}"
        path.write_text(form, "utf-8")
        done = subprocess.run([NODE, "--check", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert len(path.read_bytes()) + len(bundle.STYLE.read_bytes()) + len(bundle.style(name)) < MOST


@every_figure
def test_its_picture_is_what_it_shows_at_first(name, stills, browser):
    kept = bundle.HERE / "stills" / f"{name}.html"
    assert kept.read_text("utf-8") == stills.take(name, browser), f"take it again: python tools/stills.py {name}"


@every_figure
def test_it_takes_the_place_of_its_picture_without_moving_anything(name, browser, tmp_path):
    figure = figure_class(name)()
    page = browser.new_page()
    boxes = []
    for scripts in (False, True):
        page.goto(write_page(figure, tmp_path, scripts=scripts))
        for width in (900, 360):
            page.set_viewport_size({"width": width, "height": 900})
            boxes.append((scripts, page.locator(".mha").bounding_box()))
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
    assert [box for scripts, box in boxes if not scripts] == [box for scripts, box in boxes if scripts]


@every_figure
def test_without_javascript_its_picture_stands_there_and_nothing_to_press(name, browser, tmp_path):
    page = browser.new_page(java_script_enabled=False)
    page.goto(write_page(figure_class(name)(), tmp_path))
    assert page.locator(".mha").is_visible()
    assert page.locator(".mha :is(table, svg, canvas)").first.is_visible()
    for control in page.locator(".mha :is(button, select, input:not(table input))").all():
        assert not control.is_visible()
    page.close()


@every_figure
def test_nobody_is_shut_out(name, opened):
    page = opened(figure_class(name)(), width=390, reduced_motion="reduce")
    assert faults(page) == []
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert faults(page) == []
    assert page.locator(".mha").get_attribute("aria-label")
    assert page.locator(".mha table, .mha-sentence").count() >= 1


# Where the focus is among all parts, and whether it can be seen there.
FOCUS = """() => {
    const at = document.activeElement, style = getComputedStyle(at.querySelector(".mha-reach") ?? at);
    return [[...document.querySelectorAll(".mha *")].indexOf(at), style.outlineStyle !== "none" || style.stroke !== "none"];
}"""


@every_figure
def test_all_that_moves_it_can_be_reached_by_tab_in_order(name, opened):
    page = opened(figure_class(name)())
    reachable = page.locator(".mha").evaluate(
        """figure => [...figure.querySelectorAll("button, input, select, summary, [tabindex='0']")].filter(part =>
            part.tabIndex >= 0 && part.checkVisibility({ visibilityProperty: true }) && !(part.type === "radio" && !part.checked)
        ).length"""
    )
    seen = []
    for _ in range(reachable):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUS))
    places = [place for place, _ in seen]
    assert reachable >= 1
    assert -1 not in places
    assert places == sorted(set(places))
    assert all(ring for _, ring in seen)


@every_figure
def test_out_of_sight_it_waits_and_two_on_a_page_are_apart(name, browser, tmp_path):
    figure = figure_class(name)()
    path = tmp_path / Path(write_page(figure, tmp_path)).name
    html = path.read_text("utf-8")
    element = re.search(r"<mha-.*</mha-[a-z-]+>", html, re.DOTALL)[0]
    path.write_text(html.replace(element, f'{element}<div style="height: 5000px"></div>{element}'), "utf-8")
    page = browser.new_page(viewport={"width": 900, "height": 900})
    note_what_goes_wrong(page)
    page.goto(path.as_uri())
    page.wait_for_timeout(300)
    drawn = """second => { const model = second.model; let times = 0; model.bind(() => times++);
        model.refresh(); const hidden = times; second.scrollIntoView();
        return new Promise(done => setTimeout(() => done([hidden, times]), 400)); }"""
    assert page.locator(f"mha-{name.replace('_', '-')}").last.evaluate(drawn) == [0, 1]
    assert page.wrong == []
    page.close()
