import pytest
import torch
from torch import nn

from mha_course.multi_head import MultiHeadAttention
from mha_course.tasks.attention_only import AttentionOnly, Induction
from mha_course.tasks.repetition import Repetition


def small(num_layers=2):
    torch.manual_seed(5)
    return AttentionOnly(13, max_length=11, d_model=21, num_heads=3, num_layers=num_layers)


def test_it_has_no_feed_forward_part():
    model = small()
    kinds = {type(part) for part in model.modules() if not list(part.children())}
    assert kinds == {nn.Embedding, nn.Linear, nn.LayerNorm, nn.Dropout}
    dense = {name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    assert dense == {"q_proj", "k_proj", "v_proj", "out_proj", "output"}
    attentions = sum(isinstance(part, MultiHeadAttention) for part in model.modules())
    assert attentions == 2
    of_an_attention, of_a_norm = 4 * (21 * 21 + 21), 2 * 21
    assert sum(p.numel() for p in model.parameters()) == (13 + 11 + 13) * 21 + 2 * of_an_attention + 3 * of_a_norm


@torch.no_grad()
def test_it_agrees_with_pytorchs_attention_put_together_by_hand():
    model, ids = small(), torch.randint(13, (2, 7))
    x = model.embedding.token(ids) + model.embedding.position(torch.arange(7))
    blocked = torch.ones(7, 7, dtype=torch.bool).triu(1)
    for norm, ours in zip(model.norms, model.layers, strict=False):
        theirs = nn.MultiheadAttention(21, 3, batch_first=True)
        projections = (ours.q_proj, ours.k_proj, ours.v_proj)
        theirs.in_proj_weight.copy_(torch.cat([one.weight for one in projections]))
        theirs.in_proj_bias.copy_(torch.cat([one.bias for one in projections]))
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
        normed = norm(x)
        x = x + theirs(normed, normed, normed, attn_mask=blocked, need_weights=False)[0]
    torch.testing.assert_close(model(ids), model.output(model.norms[2](x)))


@torch.no_grad()
def test_no_token_sees_a_later_one():
    model, ids = small(), torch.randint(13, (2, 7))
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] + 1) % 13
    difference = (model(changed) - model(ids)).abs().amax(dim=(0, 2))
    assert (difference[:4] == 0).all()
    assert (difference[4:] > 0).all()


class Remembering(nn.Module):
    """Says what followed the same token before, and token 0 where it was not seen before."""

    def forward(self, ids):
        scores = torch.zeros(*ids.shape, 30)
        for row, tokens in enumerate(ids.tolist()):
            for i, token in enumerate(tokens):
                earlier = tokens[:i].index(token) + 1 if token in tokens[:i] else None
                scores[row, i, tokens[earlier] if earlier else 0] = 1.0
        return scores


def test_the_share_that_is_right_counts_what_can_be_predicted_alone():
    induction = Induction(num_layers=1)
    induction.model = Remembering()
    assert induction.right(induction.batch(0, 17, seed=1)) == 1.0
    task = Repetition(
        inputs=torch.tensor([[5, 7, 5, 7, 5]]),
        labels=torch.tensor([[7, 5, 7, 11, 7]]),  # Remembering says 5 where 11 is right
        predictable=torch.tensor([[False, False, True, True, True]]),
        periods=torch.tensor([2]),
    )
    assert induction.right(task) == pytest.approx(2 / 3)


def test_batches_are_the_same_every_time_and_other_ones_for_another_seed():
    induction = Induction(num_layers=1, length=5, vocab_size=17)
    one, again, other = (induction.batch(3, 7, seed=seed).inputs for seed in (0, 0, 1))
    assert one.shape == (7, 9)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_training_is_the_same_every_time_and_only_what_can_be_predicted_counts():
    runs = [Induction(2, num_heads=2, length=5, vocab_size=11, steps=40).train() for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 40
    assert runs[0][0] == pytest.approx(torch.tensor(11.0).log().item(), rel=0.3)  # a guess among the vocabulary
    # Half of all tokens could not be learned: with them the loss would stay above half of that.
    assert runs[0][-1] < 0.6 * runs[0][0]


def test_the_caller_keeps_its_random_numbers():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    Induction(1, steps=2).train()
    assert torch.equal(torch.rand(3), expected)
