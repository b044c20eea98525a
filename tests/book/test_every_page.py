"""Every page of the built book in a browser: no error, no call to another host, as wide as a phone, and open to all."""

from axe_playwright_python.sync_playwright import Axe


def test_every_page_opens_without_an_error_or_a_foreign_request_and_fits_a_phone(address, pages, view):
    wrong = {}
    for name in pages:
        view.wrong.clear()
        view.goto(f"{address}/{name}")
        view.wait_for_timeout(100)  # for what scripts do after the page is loaded
        width = view.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            view.wrong.append(f"is {width} wide")
        if view.wrong:
            wrong[str(name)] = list(view.wrong)
    assert wrong == {}


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


def test_nothing_on_a_page_shuts_anybody_out(site, pages, view):
    axe = Axe().axe_script
    wrong = {}
    for name in pages:
        view.goto(f"{site.as_uri()}/{name}")
        if view.locator("article.bd-article").count():
            view.evaluate(axe)
            found = view.evaluate(AUDIT)
            grave = [
                (one["id"], node["html"][:120]) for one in found if one["impact"] != "minor" for node in one["nodes"]
            ]
            if grave:
                wrong[str(name)] = grave
    assert wrong == {}
