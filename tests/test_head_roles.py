import pytest
import torch
from torch.testing import assert_close

from mha_course import head_roles, pretrained
from mha_course.head_roles import ROLES, SENTENCES, even_maps, role_score, role_scores

needs_weights = pytest.mark.skipif(not pretrained.is_installed(), reason=f"no weights here: {pretrained.INSTALL}")

# Five places; the second sentence has three real tokens. 7 stands in the first one twice.
IDS = torch.tensor([[1, 7, 8, 7, 2], [1, 9, 2, 0, 0]])
MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def hits(name):
    """The places (sentence, query, key) that a role counts."""
    return {tuple(place) for place in ROLES[name](IDS, MASK).nonzero().tolist()}


def test_the_previous_and_the_next_token_are_neighbours_and_never_padding():
    previous = {(0, 1, 0), (0, 2, 1), (0, 3, 2), (0, 4, 3), (1, 1, 0), (1, 2, 1)}
    assert hits("previous token") == previous
    assert hits("next token") == {(sentence, key, query) for sentence, query, key in previous}


def test_the_marks_are_the_first_token_and_the_last_real_one():
    queries = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2)]
    assert hits("[CLS]") == {(*query, 0) for query in queries}
    assert hits("[SEP]") == {(sentence, query, (4, 2)[sentence]) for sentence, query in queries}


def test_the_same_word_elsewhere_is_neither_the_word_itself_nor_padding():
    assert hits("same word elsewhere") == {(0, 1, 3), (0, 3, 1)}


def test_a_score_is_the_mean_weight_on_hits_over_the_queries_that_have_one():
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [1.0, 0.0, 0.0]])
    maps = torch.stack([weights, weights.flip(0)])[:, None, None]  # two layers, one sentence, one head
    pattern = torch.tensor([[[False, True, True], [False, False, False], [True, False, False]]])
    # Layer 0: 0.25 + 0.25 for the first query, 1 for the last; layer 1: 0 and 0.5. The second query is not asked.
    assert role_score(maps, pattern).tolist() == [[0.75], [0.25]]


def test_perfect_heads_score_one_and_heads_that_look_elsewhere_zero():
    maps = torch.stack(
        [torch.eye(5).roll(-1, dims=1), torch.eye(5).roll(1, dims=1), torch.eye(5)[0].expand(5, 5)]
    )  # three heads: to the token before, to the token after, to the first token
    scores = role_scores(maps[None, None].expand(1, 2, 3, 5, 5), IDS, MASK)
    assert_close(scores["previous token"], torch.tensor([[1, 0, 2 / 6]]))
    assert scores["next token"].tolist() == [[0, 1, 0]]
    assert scores["[CLS]"].tolist() == [[2 / 8, 1 / 8, 1]]  # from the last place, "after" leads round to the first


def test_scores_lie_between_zero_and_one_whatever_the_maps():
    maps = torch.randn(3, 2, 7, 5, 5, generator=torch.Generator().manual_seed(1)).mul(9).softmax(dim=-1)
    for scores in role_scores(maps, IDS, MASK).values():
        assert scores.shape == (3, 7)
        assert ((scores >= 0) & (scores <= 1)).all()


def test_even_weights_leave_padding_out_and_score_one_over_the_length():
    even = even_maps(MASK)
    assert_close(even[0, :, 0, 0], torch.tensor([[0.2] * 5, [1 / 3] * 3 + [0.0] * 2]))
    scores = role_scores(even, IDS, MASK)
    assert_close(scores["previous token"], torch.tensor([[(4 / 5 + 2 / 3) / 6]]))
    assert_close(scores["same word elsewhere"], torch.tensor([[0.2]]))


def test_a_role_that_no_sentence_can_show_is_refused():
    with pytest.raises(ValueError, match="a role needs at least one query with a hit"):
        role_scores(even_maps(MASK[1:]), IDS[1:], MASK[1:])  # no word occurs twice


def test_the_sentences_differ_and_half_of_them_repeat_a_word():
    assert len(set(SENTENCES)) == len(SENTENCES)
    assert 30 <= len(SENTENCES) <= 50
    little = {"a", "the", "and", "no", "one", "was", "his", "to", "is", "people"}
    words = [sentence.lower().replace(",", "").rstrip(".").split() for sentence in SENTENCES]
    repeating = [one for one in words if any(one.count(word) > 1 for word in set(one) - little)]
    assert len(repeating) >= len(SENTENCES) / 2


@pytest.fixture(scope="module")
def measured():
    model = pretrained.load()
    ids, mask = model.tokenize(SENTENCES)
    return model.attention_maps(ids, mask), ids, mask


@needs_weights
@pytest.mark.parametrize(
    ("role", "layer", "head", "least", "ahead"),
    [("previous token", 0, 2, 0.95, 0.5), ("next token", 1, 8, 0.55, 0.25), ("same word elsewhere", 2, 9, 0.35, 0.1)],
)
@pytest.mark.parametrize("half", [0, 1])
def test_a_head_with_a_role_is_found_on_either_half_of_the_sentences(measured, role, layer, head, least, ahead, half):
    maps, ids, mask = (measured[0][:, half::2], measured[1][half::2], measured[2][half::2])
    best, second = role_scores(maps, ids, mask)[role].flatten().topk(2)[0].tolist()
    assert role_scores(maps, ids, mask)[role][layer, head] == best
    assert best > least
    assert best - second > ahead


@needs_weights
def test_most_heads_fall_back_on_cls_and_none_on_sep(measured):
    scores = role_scores(*measured)
    assert scores["[CLS]"].median() > 0.4
    assert scores["[CLS]"][4, 5] > 0.75
    assert scores["[SEP]"].max() < 0.25


def test_every_role_is_a_function_of_the_module():
    assert all(getattr(head_roles, role.__name__) is role for role in ROLES.values())
