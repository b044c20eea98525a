"""How the proofs of the exercises are shared out among the workers of a parallel run."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep an exercise's tests on one worker: what its known wrong answers give is worked out once in each process."""
    for item in items:
        values = item.callspec.params if hasattr(item, "callspec") else {}
        name = values["exercise"].name if "exercise" in values else values.get("name")
        if name:
            item.add_marker(pytest.mark.xdist_group(name))
