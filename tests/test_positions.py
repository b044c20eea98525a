import math

import pytest
import torch
from torch.testing import assert_close

from mha_course.positions import sinusoidal_positions


@pytest.mark.parametrize("d_model", [1, 2, 6, 7])
def test_each_entry_is_that_of_the_papers_formula(d_model):
    table = sinusoidal_positions(5, d_model)
    for position in range(5):
        for column in range(d_model):
            angle = position / 10000 ** ((column - column % 2) / d_model)
            right = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[position, column].item() == pytest.approx(right, abs=1e-6)


def test_far_positions_are_exact():
    angle = torch.tensor(50_000 / 10000 ** (2 / 512), dtype=torch.float64)
    assert_close(sinusoidal_positions(50_001, 512)[-1, 2].double(), angle.sin(), rtol=0.0, atol=1e-7)


def test_no_two_positions_are_alike():
    table = sinusoidal_positions(2048, 64)
    distances = torch.cdist(table, table).fill_diagonal_(torch.inf)
    assert distances.min() > 0.1
