import pytest
import torch

from mha_course.tasks.repetition import repeated


def whole(task):
    return torch.cat([task.inputs, task.labels[:, -1:]], dim=1)


def test_the_second_half_is_the_first_again_and_no_token_comes_twice_in_a_half():
    task = repeated(1, 2, batch=5, length=7, vocab_size=11, shortest=7)
    tokens = whole(task)
    assert tokens.shape == (5, 14)
    assert torch.equal(tokens[:, :7], tokens[:, 7:])
    assert all(len(set(row)) == 7 for row in tokens[:, :7].tolist())
    assert tokens.min() >= 0
    assert tokens.max() < 11


@pytest.mark.parametrize("shortest", [2, 3, None, 11])
def test_exactly_what_follows_a_token_for_the_second_time_is_predictable(shortest):
    task = repeated(1, 2, batch=97, length=11, vocab_size=23, shortest=shortest)
    assert torch.equal(task.inputs[:, 1:], task.labels[:, :-1])
    rows = zip(whole(task).tolist(), task.predictable.tolist(), task.periods.tolist(), strict=True)
    for tokens, predictable, period in rows:
        for i, seen_before in enumerate(predictable):
            assert seen_before == (tokens[i] in tokens[:i])
            if seen_before:
                assert tokens.index(tokens[i]) == i - period
                assert tokens[i + 1] == tokens[i - period + 1]
        assert sum(predictable) == period - 1
    assert set(task.periods.tolist()) == set(range(shortest or 5, 12))


def test_every_token_of_the_vocabulary_is_drawn_equally_often():
    counts = repeated(3, 5, batch=4001, length=5, vocab_size=11, shortest=5).inputs[:, :5].flatten().bincount()
    assert len(counts) == 11
    assert (counts / counts.sum() - 1 / 11).abs().max() < 0.01


def test_a_batch_depends_on_seed_and_step_alone():
    def drawn(seed, step):
        return whole(repeated(seed, step, batch=3, length=7, vocab_size=29)).tolist()

    first = drawn(3, 5)
    torch.manual_seed(17)
    assert drawn(3, 5) == first
    assert first not in [drawn(3, 6), drawn(4, 5), drawn(5, 3)]
    assert first[0] == [20, 17, 11, 19, 25, 23, 5, 3, 12, 25, 23, 5, 3, 12]


@pytest.mark.parametrize("shortest", [1, 8])
def test_a_repetition_of_nothing_or_of_too_much_is_refused(shortest):
    with pytest.raises(ValueError, match=f"from 2 to length = 7 tokens can be repeated, but shortest is {shortest}"):
        repeated(0, 0, batch=3, length=7, vocab_size=29, shortest=shortest)


def test_too_few_tokens_are_refused():
    with pytest.raises(ValueError, match="11 different tokens are needed, but vocab_size is 10; choose a larger"):
        repeated(0, 0, batch=3, length=7, vocab_size=10, shortest=3)
