import pytest
import torch

from mha_course.positions import RotaryAttention, TokenAndPositionEmbedding
from mha_course.tasks.order import (
    NONE,
    SCHEMES,
    TOKENS,
    Reader,
    accuracy,
    came_last,
    copy_back,
    marked,
    right_at,
    train,
    weight_on_marks,
)


class Answers(torch.nn.Module):
    """Gives the answers of a rule with certainty, whatever it was trained on."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def forward(self, ids):
        return torch.nn.functional.one_hot(self.rule(ids), TOKENS).float()


def test_copying_back_asks_for_the_token_three_places_before():
    torch.manual_seed(0)
    ids, wanted = copy_back(batch=5, length=7)
    assert ids.shape == wanted.shape == (5, 7)
    for text, answers in zip(ids.tolist(), wanted.tolist(), strict=True):
        assert answers == [NONE, NONE, NONE, *text[:4]]
    assert set(copy_back(31, 17)[0].unique().tolist()) == set(range(TOKENS))


def test_the_mark_that_came_last_is_asked_for_at_the_end_alone():
    torch.manual_seed(0)
    ids, wanted = came_last(batch=31, length=7)
    for text, answers in zip(ids.tolist(), wanted.tolist(), strict=True):
        assert (text.count(0), text.count(1), text[-1]) == (1, 1, 11)
        assert answers == [NONE] * 6 + [int(text.index(1) > text.index(0))]
    assert set(wanted[:, -1].tolist()) == {0, 1}
    assert {text.index(0) for text in ids.tolist()} == set(range(6))


def test_the_later_mark_stands_at_the_distance_and_the_earlier_one_four_before_it():
    texts = marked(distance=2, length=13, batch=3)
    assert texts.shape == (2, 3, 13)
    for later, same in enumerate(texts.tolist()):
        for text in same:
            assert (text.index(later), text.index(1 - later), text[12]) == (10, 6, 11)
            assert (text.count(0), text.count(1), text.count(11)) == (1, 1, 1)


def test_a_rule_that_is_right_is_found_to_be_right():
    copying = Answers(lambda ids: ids.roll(3, dims=1))
    assert accuracy(copying, copy_back, 17) == 1.0
    assert accuracy(Answers(lambda ids: ids.roll(2, dims=1)), copy_back, 17) < 0.2

    def last_mark(ids):
        where = torch.arange(ids.size(1))
        ones, zeros = ((where * (ids == mark)).amax(1) for mark in (1, 0))
        return (ones > zeros).long()[:, None].expand_as(ids)

    assert accuracy(Answers(last_mark), came_last, 17) == 1.0
    assert right_at(Answers(last_mark), distance=5, length=17, batch=3) == 1.0
    assert right_at(Answers(lambda ids: 1 - last_mark(ids)), distance=5, length=17, batch=3) == 0.0
    assert right_at(Answers(torch.zeros_like), distance=5, length=17, batch=3) == 0.5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_reader_sees_a_later_token(scheme):
    torch.manual_seed(0)
    reader, ids = Reader(*SCHEMES[scheme]), torch.randint(TOKENS, (2, 7))
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] + 1) % TOKENS
    with torch.no_grad():
        difference = (reader(changed) - reader(ids)).abs().amax(dim=(0, 2))
    assert (difference[:4] == 0).all()
    assert (difference[4:] > 0).all()


def test_each_scheme_is_told_of_the_order_in_its_own_way():
    reader = Reader(*SCHEMES["learned"])
    assert isinstance(reader.embedding, TokenAndPositionEmbedding)
    assert reader.embedding.position.weight.shape == (128, 32)
    assert isinstance(Reader(*SCHEMES["rotary"]).attention, RotaryAttention)
    plain = Reader(*SCHEMES["none"])
    # Tokens and answers, and four projections with their biases: nothing for the places.
    assert sum(p.numel() for p in plain.parameters()) == 12 * 32 + 4 * (32 * 32 + 32) + (32 * 12 + 12)


def test_training_lowers_the_loss_from_that_of_a_guess():
    torch.manual_seed(0)
    reader = Reader(*SCHEMES["learned"])
    losses = train(reader, came_last, steps=60, length=7)
    assert len(losses) == 60
    assert losses[0] == pytest.approx(torch.tensor(float(TOKENS)).log().item(), abs=0.6)
    assert sum(losses[-10:]) / 10 < 0.75


def test_training_takes_the_places_that_are_drawn_for_each_step():
    torch.manual_seed(0)
    reader, steps = Reader(*SCHEMES["learned"]), []
    before = reader.embedding.position.weight.detach().clone()

    def places():
        steps.append(len(steps))
        return torch.arange(100, 107)[None]

    train(reader, copy_back, steps=3, length=7, positions=places)
    moved = (reader.embedding.position.weight != before).any(dim=1)
    assert steps == [0, 1, 2]
    assert moved.nonzero().flatten().tolist() == list(range(100, 107))


def test_the_weight_on_both_marks_is_that_of_the_head_that_gives_them_most():
    torch.manual_seed(0)
    reader = Reader(*SCHEMES["none"])
    for projection in (reader.attention.q_proj, reader.attention.k_proj):
        torch.nn.init.zeros_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    assert weight_on_marks(reader, distance=2, length=11, batch=3) == pytest.approx(2 / 11)
    # Head 0 now scores the key of a mark by a feature that marks alone have.
    with torch.no_grad():
        reader.embedding.weight.zero_()
        reader.embedding.weight[:2, 0] = 1.0
        reader.attention.q_proj.bias[0] = 8**0.5
        reader.attention.k_proj.weight[0, 0] = 2.0
    e2 = torch.tensor(2.0).exp().item()
    assert weight_on_marks(reader, distance=2, length=11, batch=3) == pytest.approx(2 * e2 / (2 * e2 + 9))
