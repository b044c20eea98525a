"""What every test and doctest finds in place."""

import pytest
import torch

# The workers of a parallel run share the cores; more threads would only wait for one another.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _doctest_ground(doctest_namespace):
    """Doctests speak of `torch` without importing it and draw the same numbers every time."""
    doctest_namespace["torch"] = torch
    torch.manual_seed(0)
