"""The browser that tests open pages in."""

import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Without these, Chromium asks its maker's hosts for updates while it runs.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium():
    """Start a browser; a test that needs one where none is installed is skipped."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser is installed (none of {', '.join(BROWSERS)})")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def note_what_goes_wrong(page):
    """Collect in `page.wrong` each error, each request that fails or is answered by one, and each to another host."""
    page.wrong = []
    page.on("console", lambda message: message.type == "error" and page.wrong.append(message.text))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("requestfailed", lambda request: is_left_behind(request) or page.wrong.append(f"failed: {request.url}"))
    page.on("request", lambda request: is_foreign(request.url) and page.wrong.append(f"foreign: {request.url}"))
    page.on(
        "response", lambda response: response.status >= 400 and page.wrong.append(f"{response.status} {response.url}")
    )


def is_left_behind(request):
    """A page that leads elsewhere is left before its icon has come."""
    return request.failure == "net::ERR_ABORTED"


def is_foreign(url):
    return urlsplit(url).scheme not in ("file", "data", "blob", "about") and urlsplit(url).hostname != "127.0.0.1"
