"""The book, built once for each worker of a parallel run, and where to open it."""

import functools
import http.server
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chromium import note_what_goes_wrong

ROOT = Path(__file__).parents[2]
# A reader has no PyTorch: the build must do without, though it is installed here.
BUILD = "import sys; sys.modules['torch'] = None; from jupyter_book.cli.main import main; main()"


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """A book built from the stored outputs, every warning an error: what the build said, and the folder."""
    out = tmp_path_factory.mktemp("book")
    command = [sys.executable, "-c", BUILD, "build", "--quiet", "-W", "-n", "--keep-going", "--path-output", out, ROOT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    return done, out / "_build" / "html"


@pytest.fixture(scope="session")
def site(build):
    return build[1]


@pytest.fixture(scope="session")
def pages(site):
    """The pages to read, without the one that only leads to the first of them."""
    found = [path.relative_to(site) for path in site.rglob("*.html") if "_static" not in path.parts]
    return sorted(path for path in found if path != Path("index.html"))


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session", params=["file", "http"])
def address(request, site):
    """Where the book is opened: as files, and from a server on this machine."""
    if request.param == "file":
        yield site.as_uri()
        return
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["light", "dark"])
def view(request, browser):
    """A page as wide as a phone, which notes what goes wrong in it."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=request.param)
    page = context.new_page()
    note_what_goes_wrong(page)
    yield page
    context.close()
