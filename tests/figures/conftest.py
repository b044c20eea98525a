import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from mha_course.figures import set_up


@pytest.fixture(autouse=True)
def _own_settings():
    """Each test draws with the book's settings, and leaves none of them behind."""
    with mpl.rc_context():
        set_up()
        yield
    plt.close("all")
