"""In JupyterLab a figure and Python share their state, its keys are its own, and its data comes from the kernel."""

import json
import os
import subprocess
import sys
import time

import nbformat
import pytest

from live import drag, numbers
from mha_course.figures.live.pretrained import SENTENCES

CELLS = [
    "import ipywidgets\nfrom mha_course.figures.live.soft_addressing import SoftAddressing\nfigure = SoftAddressing()\nfigure",
    "slider = ipywidgets.FloatSlider(value=1.0, min=0.1, max=5.0, description='warmth')\n"
    "link = ipywidgets.jslink((slider, 'value'), (figure, 'temperature'))\nslider",
    "print('python has', figure.query, figure.temperature)",
    "figure.query = [-1.5, -0.5]",
    "from mha_course.figures.live.pretrained import HeadBrowser\nbrowser = HeadBrowser()\nbrowser",
    "SoftAddressing()",
    "print('python has', browser.sentence)",
]


@pytest.fixture
def lab(tmp_path):
    """JupyterLab on a notebook with these cells: the notebook's address."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "figure.ipynb")
    runtime = tmp_path / "runtime"
    folders = {
        name: str(tmp_path / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTERLAB_SETTINGS_DIR")
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0", "--IdentityProvider.token=", f"--notebook-dir={tmp_path}"],
        env={**os.environ, **folders, "JUPYTER_RUNTIME_DIR": str(runtime)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(600):
            started = list(runtime.glob("jpserver-*.json"))
            if started:
                break
            assert process.poll() is None, "JupyterLab did not start"
            time.sleep(0.1)
        yield json.loads(started[0].read_text("utf-8"))["url"] + "doc/tree/figure.ipynb"
    finally:
        process.terminate()
        process.wait(30)


def test_what_is_dragged_is_in_python_and_what_python_sets_is_drawn(lab, browser):
    page = browser.new_page(viewport={"width": 1200, "height": 1400})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(lab)
    cells = page.locator(".jp-CodeCell")
    cells.first.locator(".cm-content").click(timeout=60_000)
    page.locator("[data-status=idle]").first.wait_for(timeout=60_000)
    for _ in range(2):
        page.keyboard.press("Shift+Enter")
    handle = page.get_by_role("slider", name="query", exact=True)
    handle.wait_for(timeout=60_000)
    page.locator(".widget-readout").wait_for(timeout=60_000)

    dragged = drag(page, handle, -70, 30)
    assert dragged != [1.0, 0.75]

    readout = page.locator(".widget-readout")
    readout.click()
    page.keyboard.press("Control+A")
    page.keyboard.type("2.5")
    page.keyboard.press("Enter")
    page.locator(".mha-slider output", has_text="2.50").wait_for()

    cells.nth(2).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    said = cells.nth(2).locator(".jp-OutputArea-output", has_text="python has").inner_text(timeout=60_000)
    assert numbers(said) == pytest.approx([*dragged, 2.5])

    page.keyboard.press("Shift+Enter")
    page.wait_for_function("document.querySelector('.mha-query')?.getAttribute('aria-valuetext') === '−1.50, −0.50'")

    for _ in range(2):
        page.keyboard.press("Shift+Enter")
    page.get_by_role("button", name="Load all 72 maps").click(timeout=60_000)
    page.locator("canvas").last.wait_for(timeout=60_000)
    assert page.locator("canvas").count() == 72

    # Of two figures of one kind each has its own choice.
    cells.nth(5).locator(".mha").wait_for(timeout=60_000)
    chosen = page.get_by_role("radio", name="dot product", exact=True)
    assert [radio.is_checked() for radio in chosen.all()] == [True, True]

    # An arrow in a list is for the list, not for JupyterLab.
    sentences = page.get_by_role("combobox", name="sentence")
    sentences.press("ArrowDown")
    cells.nth(6).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    said = cells.nth(6).locator(".jp-OutputArea-output", has_text="python has").inner_text(timeout=60_000)
    assert said.strip() == f"python has {SENTENCES[1]}"
    assert errors == []
    page.close()
