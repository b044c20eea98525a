import pytest
import torch
from torch.testing import assert_close

from mha_course.soft_addressing import soft_lookup, softmax


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_softmax_agrees_with_pytorch(dim, dtype):
    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1)).to(dtype) * 5
    half = dtype in (torch.bfloat16, torch.float16)
    assert_close(softmax(x, dim), x.softmax(dim), **({"rtol": 2e-2, "atol": 1e-2} if half else {}))


def test_softmax_of_scores_beyond_the_range_of_exp_is_finite():
    assert_close(softmax(torch.tensor([1e4, 1e4, -1e4]), dim=0), torch.tensor([0.5, 0.5, 0.0]))


def test_softmax_passes_gradcheck():
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: softmax(x, dim=-1), x)


def test_a_lookup_worked_out_by_hand():
    # scores 0 and ln 3, so the weights are 1/4 and 3/4
    keys = torch.tensor([[0.0], [1.0986123]])
    values = torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    assert_close(soft_lookup(torch.tensor([1.0]), keys, values), torch.tensor([1.0, 6.0]))


def test_many_queries_are_looked_up_each_on_its_own():
    generator = torch.Generator().manual_seed(1)
    queries, keys, values = (torch.randn(*shape, generator=generator) for shape in ((2, 3, 5), (7, 5), (7, 11)))
    together = soft_lookup(queries, keys, values)
    for i in range(2):
        for j in range(3):
            assert_close(together[i, j], soft_lookup(queries[i, j], keys, values))


def test_temperature_goes_from_the_best_entry_to_the_mean_of_all():
    generator = torch.Generator().manual_seed(1)
    query, keys, values = (torch.randn(*shape, generator=generator) for shape in ((5,), (7, 5), (7, 11)))
    assert_close(soft_lookup(query, keys, values, temperature=1e-4), values[(keys @ query).argmax()])
    assert_close(soft_lookup(query, keys, values, temperature=1e6), values.mean(dim=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_above_zero_is_refused(temperature):
    with pytest.raises(ValueError, match="the temperature must be above 0"):
        soft_lookup(torch.ones(2), torch.ones(3, 2), torch.ones(3, 2), temperature)
