"""Take the picture of each figure that stands in its place where no JavaScript runs, and until it does.

It is the figure's own first state, as Chromium has built it, with its controls switched off. `tools/stills.py NAME …` takes those named,
without names all.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from chromium import chromium  # noqa: E402
from live import figure_class, write_page  # noqa: E402
from mha_course.figures.live import bundle  # noqa: E402

FREEZE = """figure => {
  for (const input of figure.querySelectorAll("input, select, button, textarea")) {
    if (input.type === "checkbox" || input.type === "radio") input.toggleAttribute("checked", input.checked);
    else if (input.matches("input")) input.setAttribute("value", input.value);
    for (const option of input.options ?? []) option.toggleAttribute("selected", option.selected);
    input.removeAttribute("name");
    input.disabled = true;
  }
  for (const part of figure.querySelectorAll("[tabindex]"))
    for (const { name } of [...part.attributes])
      if (name === "tabindex" || name === "role" || name.startsWith("aria-")) part.removeAttribute(name);
  return figure.outerHTML;
}"""


def take(name: str, browser: Browser) -> str:
    """Return the picture of a figure as HTML."""
    page = browser.new_page(viewport={"width": 900, "height": 900})
    with tempfile.TemporaryDirectory() as folder:
        page.goto(write_page(figure_class(name)(), Path(folder)))
        html: str = page.locator(".mha").evaluate(FREEZE)
    page.close()
    return html + "\n"


def main() -> None:
    """Take the pictures and store them."""
    with chromium() as browser:
        for name in sys.argv[1:] or bundle.names():
            (bundle.HERE / "stills" / f"{name}.html").write_text(take(name, browser), "utf-8")
            sys.stdout.write(f"    {name}\n")


if __name__ == "__main__":
    main()
