import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.training import (
    accumulated_loss,
    cross_entropies,
    next_token_loss,
    seq2seq_loss,
    shift_targets,
    smoothed_loss,
    warmup_lr,
)

PAD = 4


def drawn(dtype=torch.float64, scale=3.0):
    generator = torch.Generator().manual_seed(1)
    logits = scale * torch.randn(3, 5, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 7, (3, 5), generator=generator)
    labels[labels == PAD] = 5
    labels[0, 3:] = PAD
    labels[2, :] = PAD
    return logits.to(dtype).requires_grad_(), labels


def pytorchs(logits, labels, **settings):
    """Return PyTorch's own mean loss and its gradient."""
    logits = logits.detach().clone().requires_grad_()
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **settings)
    return loss, torch.autograd.grad(loss, logits)[0]


def test_the_decoder_reads_the_begin_token_and_then_all_targets_but_the_last():
    tokens = torch.tensor([[5, 6, 7], [8, 9, 2]])
    assert torch.equal(shift_targets(tokens, begin=1), torch.tensor([[1, 5, 6], [1, 8, 9]]))
    assert torch.equal(tokens, torch.tensor([[5, 6, 7], [8, 9, 2]]))


@pytest.mark.parametrize(("length", "shifted"), [(0, 0), (1, 1)])
def test_the_shortest_targets_keep_their_length(length, shifted):
    inputs = shift_targets(torch.full((2, length), 9), begin=3)
    assert inputs.shape == (2, shifted)
    assert (inputs == 3).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_shifted_targets_keep_their_type(dtype):
    assert shift_targets(torch.ones(2, 3, dtype=dtype), begin=1).dtype == dtype


@pytest.mark.parametrize("pad", [None, PAD])
def test_each_position_predicts_the_token_after_it_as_in_pytorchs_cross_entropy(pad):
    logits, tokens = drawn()
    loss = next_token_loss(logits, tokens, pad)
    ignored = -100 if pad is None else pad
    right, _ = pytorchs(logits[:, :-1], tokens[:, 1:], ignore_index=ignored)
    assert_close(loss, right)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert (gradient[:, -1] == 0).all()  # there is nothing after the last
    assert_close(gradient[:, :-1], pytorchs(logits[:, :-1], tokens[:, 1:], ignore_index=ignored)[1])


def test_a_model_that_knows_the_next_token_has_no_loss_and_one_that_repeats_has():
    tokens = torch.tensor([[1, 3, 0, 2]])
    knows = 50.0 * F.one_hot(tokens.roll(-1, dims=1), 5).double()
    repeats = 50.0 * F.one_hot(tokens, 5).double()
    assert_close(next_token_loss(knows, tokens).item(), 0.0)
    assert_close(next_token_loss(repeats, tokens).item(), 50.0)


def test_labels_that_are_aligned_are_not_shifted_again():
    logits, labels = drawn()
    loss = seq2seq_loss(logits, labels, PAD)
    right, right_gradient = pytorchs(logits, labels, ignore_index=PAD)
    assert_close(loss, right)
    assert_close(torch.autograd.grad(loss, logits)[0], right_gradient)


def test_even_odds_cost_the_logarithm_of_the_vocabulary():
    labels = torch.tensor([[1, 2, PAD], [3, PAD, PAD]])
    assert_close(seq2seq_loss(torch.zeros(2, 3, 11), labels, PAD).item(), math.log(11))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7, 1.0])
def test_smoothing_and_its_gradient_are_those_of_pytorch_and_padding_counts_for_nothing(smoothing):
    logits, labels = drawn()
    loss = smoothed_loss(logits, labels, PAD, smoothing)
    right, right_gradient = pytorchs(logits, labels, ignore_index=PAD, label_smoothing=smoothing)
    assert_close(loss, right)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert_close(gradient, right_gradient)
    assert (gradient[labels == PAD] == 0).all()


def test_smoothing_worked_out_by_hand():
    # The model gives the right word 1/2 and the other two 1/4; of the label, 0.9 + 0.1 and two times 0.1 remain.
    logits = torch.tensor([[[math.log(2.0), 0.0, 0.0]]])
    by_hand = 0.8 * math.log(2) + 0.2 * math.log(4)
    assert_close(smoothed_loss(logits, torch.tensor([[0]]), pad=9, smoothing=0.3).item(), by_hand)


def test_a_word_that_was_ruled_out_costs_nothing_without_smoothing():
    logits, labels = drawn()
    forbidden = logits.detach().clone()
    forbidden[..., 6] = -math.inf
    forbidden.requires_grad_()
    labels[labels == 6] = 5
    loss = smoothed_loss(forbidden, labels, PAD, smoothing=0.0)
    assert_close(loss, F.cross_entropy(forbidden.flatten(0, 1), labels.flatten(), ignore_index=PAD))
    assert torch.autograd.grad(loss, forbidden)[0].isfinite().all()


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, math.nan])
def test_a_smoothing_that_is_no_share_is_refused(smoothing):
    with pytest.raises(ValueError, match=rf"smoothing must be a share in \[0, 1\], but it is {smoothing}"):
        smoothed_loss(*drawn(), PAD, smoothing)


LOSSES = {
    "next token": lambda logits, labels: next_token_loss(logits, labels, PAD),
    "sequence to sequence": lambda logits, labels: seq2seq_loss(logits, labels, PAD),
    "smoothed": lambda logits, labels: smoothed_loss(logits, labels, PAD, 0.1),
    "accumulated": lambda logits, labels: accumulated_loss([cross_entropies(logits, labels, PAD)] * 2),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_no_real_label_at_all_is_a_loss_of_0_with_gradients_of_0(loss):
    logits, labels = drawn()
    nothing = loss(logits, torch.full_like(labels, PAD))
    assert nothing.item() == 0.0
    assert torch.equal(torch.autograd.grad(nothing, logits)[0], torch.zeros_like(logits))


def test_a_single_token_predicts_nothing():
    logits = torch.randn(2, 1, 7, generator=torch.Generator().manual_seed(1), requires_grad=True)
    loss = next_token_loss(logits, torch.tensor([[1], [2]]))
    assert loss.item() == 0.0
    assert torch.equal(torch.autograd.grad(loss, logits)[0], torch.zeros_like(logits))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_whatever_stands_on_padding_even_nan_changes_neither_loss_nor_gradient(loss):
    logits, labels = drawn()
    labels = labels.clone()
    labels[:, 0] = 2
    padding = labels == PAD
    where_predicted = padding.roll(-1, dims=1) if loss is LOSSES["next token"] else padding
    where_predicted[:, -1] |= padding[:, -1]
    spoilt = logits.detach().masked_fill(where_predicted[..., None], math.nan).requires_grad_()
    assert_close(loss(spoilt, labels), loss(logits, labels))
    expected = torch.autograd.grad(loss(logits, labels), logits)[0]
    assert_close(torch.autograd.grad(loss(spoilt, labels), spoilt)[0], expected)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_lose_nothing_in_the_loss(loss, dtype):
    logits, labels = drawn(dtype)
    value = loss(logits, labels)
    assert value.dtype == torch.float32
    assert_close(value.double(), loss(logits.double(), labels), rtol=1e-6, atol=0.0)
    assert torch.autograd.grad(value, logits)[0].isfinite().all()


def test_the_sum_of_many_half_precision_losses_does_not_overflow():
    assert_close(accumulated_loss([torch.full((7001,), 11.0, dtype=torch.float16)]).item(), 11.0)


def test_double_precision_is_kept():
    logits, labels = drawn()
    assert seq2seq_loss(logits, labels, PAD).dtype == torch.float64


def test_micro_batches_count_by_their_tokens_as_if_they_had_been_one_batch():
    logits, labels = drawn()
    labels[2, 1] = 3
    parts = [cross_entropies(logits[row : row + 1], labels[row : row + 1], PAD) for row in range(3)]
    assert [part.numel() for part in parts] == [3, 5, 1]
    loss = accumulated_loss(parts)
    right, right_gradient = pytorchs(logits, labels, ignore_index=PAD)
    assert_close(loss, right)
    assert_close(torch.autograd.grad(loss, logits)[0], right_gradient)
    assert abs(loss - torch.stack([part.mean() for part in parts]).mean()) > 0.1


def test_no_micro_batch_at_all_is_a_loss_of_0():
    assert accumulated_loss([]).item() == 0.0


def test_losses_come_sentence_after_sentence():
    logits, labels = drawn()
    each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    assert_close(cross_entropies(logits, labels, None), each.flatten())
    assert_close(cross_entropies(logits, labels, PAD), torch.cat([each[0, :3], each[1]]))


def test_the_learning_rate_worked_out_by_hand():
    # d_model = 64: 1/8. Rising: n / 9^1.5 = n / 27. Falling: 1 / sqrt(n).
    rates = [warmup_lr(step, d_model=64, warmup=9) for step in (0, 1, 7, 8, 15, 24)]
    assert_close(rates, [1 / 8 / 27, 2 / 8 / 27, 8 / 8 / 27, 1 / 8 / 3, 1 / 8 / 4, 1 / 8 / 5])


def test_the_learning_rate_of_the_paper_is_highest_at_the_end_of_the_warmup():
    rates = [warmup_lr(step, d_model=512, warmup=4000) for step in range(9001)]
    assert max(range(9001), key=rates.__getitem__) == 3999
    assert_close(rates[3999], 1 / math.sqrt(512 * 4000))
    assert rates[0] > 0


@pytest.mark.parametrize(("step", "d_model", "warmup"), [(-1, 64, 9), (0, 0, 9), (0, 64, 0)])
def test_a_schedule_that_makes_no_sense_is_refused(step, d_model, warmup):
    with pytest.raises(ValueError, match=rf"they are {step}, {d_model} and {warmup}; without a warmup"):
        warmup_lr(step, d_model, warmup)
