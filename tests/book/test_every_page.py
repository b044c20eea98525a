"""Every page of the built book in a browser: no error, no call to another host, as wide as a phone, and open to all.

Each page is a test of its own: a parallel run begins with the files of most tests, and this one takes minutes.
"""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

SOURCES = [path for path in (Path(__file__).parents[2] / "book").iterdir() if path.suffix in (".ipynb", ".md")]
PAGES = sorted([f"book/{path.stem}.html" for path in SOURCES] + ["genindex.html", "search.html"])


def test_these_are_all_pages(pages):
    assert [str(page) for page in pages] == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_it_opens_without_an_error_or_a_foreign_request_and_fits_a_phone(address, view, name):
    view.goto(f"{address}/{name}")
    view.wait_for_timeout(100)  # for what scripts do after the page is loaded
    assert view.evaluate("document.documentElement.scrollWidth") <= 390
    assert view.wrong == []


# axe on a page. The contrast of code is measured at one token for all in its block that look like it: there are thousands
# on a page, and they take most of the time. Every other rule sees every element.
AUDIT = """async () => {
    const looks = new WeakMap();
    for (const block of document.querySelectorAll('pre')) {
        const edge = block.getBoundingClientRect().right;
        const seen = new Set();
        for (const token of block.querySelectorAll('span')) {
            const { color, background, font, opacity } = getComputedStyle(token);
            const inView = token.getBoundingClientRect().right <= edge;
            const look = [looks.get(token.parentElement), token.className, color, background, font, opacity, inView].join();
            looks.set(token, look);
            token.toggleAttribute('data-like-another', seen.has(look));
            seen.add(look);
        }
    }
    axe.configure({ rules: [{ id: 'color-contrast', selector: '*:not([data-like-another])' }] });
    return (await axe.run({ resultTypes: ['violations'] })).violations;
}"""


@pytest.mark.parametrize("name", PAGES)
def test_nothing_on_it_shuts_anybody_out(site, view, name):
    view.goto(f"{site.as_uri()}/{name}")
    view.evaluate(Axe().axe_script)
    found = view.evaluate(AUDIT)
    assert [(one["id"], node["html"][:120]) for one in found if one["impact"] != "minor" for node in one["nodes"]] == []
