import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from chromium import note_what_goes_wrong
from live import write_page
from mha_course.figures import set_up


@pytest.fixture(autouse=True)
def _own_settings():
    """Each test draws with the book's settings, and leaves none of them behind."""
    with mpl.rc_context():
        set_up()
        yield
    plt.close("all")


@pytest.fixture
def opened(browser, tmp_path):
    """Open a figure in a page of its own: `opened(figure, width=390, scheme="dark")`; what goes wrong fails the test."""
    contexts, pages = [], []

    def open_page(figure, *, width=900, scheme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        page = context.new_page()
        note_what_goes_wrong(page)
        page.goto(write_page(figure, tmp_path, scheme))
        contexts.append(context)
        pages.append(page)
        return page

    yield open_page
    wrong = [page.wrong for page in pages if page.wrong]
    for context in contexts:
        context.close()
    assert wrong == []
