"""What tests of more than one folder share."""

import pytest

from chromium import chromium


@pytest.fixture(scope="module")
def browser():
    """Started once for the tests of a file; a second one beside it can't start in the same thread."""
    with chromium() as found:
        yield found
