import pytest

from .differences import DIFFERENCES


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.check.__name__)
def test_the_other_library_does_otherwise_as_the_page_says(difference):
    difference.check()
