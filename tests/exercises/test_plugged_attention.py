"""What the whole model then does, told for answers of every kind; and what is said where there is no model."""

from functools import partial
from unittest import mock

import pytest
import torch

from mha_course import pretrained
from mha_course.exercises.multi_head.MultiHeadAttention import MaskIgnored, ScaleByModelWidth, WeightsReturnedToo
from mha_course.exercises.pretrained import PluggedAttention
from mha_course.grader.judging import judge
from mha_course.grader.worker import run_case
from mha_course.multi_head import MultiHeadAttention


def told(answer) -> str:
    return PluggedAttention.aftermath(partial(run_case, answer, is_learners=lambda filename: False))


def test_the_course_s_own_attention_finds_what_the_model_itself_finds():
    model = pretrained.load()
    vectors = model.embed(PluggedAttention.SENTENCES)
    torch.testing.assert_close(PluggedAttention._right_vectors(), vectors, atol=1e-5, rtol=0)
    for sentence, near, _ in PluggedAttention.SEARCHES:
        similarities = vectors @ model.embed([sentence])[0]
        assert PluggedAttention.SENTENCES[similarities.topk(2).indices[1]] == near


def test_a_right_layer_is_told_to_agree():
    assert "finds “Type the letter on the keyboard.”, as it should, and so in 3 of 3 such searches" in told(
        MultiHeadAttention
    )
    assert told(MultiHeadAttention).endswith("those of the course's own attention to the fifth decimal.")


@pytest.mark.parametrize("wrong", [MaskIgnored, ScaleByModelWidth])
def test_a_wrong_layer_is_told_what_it_finds_and_what_it_should(wrong):
    text = told(wrong)
    assert "finds “I left the key in the lock.”, which shares words with it" in text
    assert "With the course's own attention it finds “Type the letter on the keyboard.”" in text
    assert "Of 3 such searches 2 go wrong" in text


def test_every_misconception_shows_in_the_whole_model_unless_it_can_not_occur_there():
    never = {"self_attention_only", "kv_shape_from_query", "mask_square_reshape"}  # need other queries or another mask
    for known in PluggedAttention.MISCONCEPTIONS:
        for wrong in known.wrong:
            assert ("as it should" in told(wrong)) == (known.name in never), known.name


def test_a_slip_that_changes_no_search_is_still_told_by_its_numbers():
    class Rounded(MultiHeadAttention):
        def forward(self, query, key, value, mask=None):
            return super().forward(query, key, value, mask).bfloat16().float()

    text = told(Rounded)
    assert "3 of 3 such searches: nobody who only looks at results would notice anything" in text
    assert "off by up to 0.0" in text


class Raises(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        if len(query) > 3:
            raise ValueError("too many sentences.")
        return super().forward(query, key, value, mask)


class Flat(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key, value, mask).flatten(1)


class NotANumber(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key, value, mask) * (0 * torch.inf)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Raises, "gets as far as layer 0: there it raised ValueError: too many sentences."),
        (Flat, "there it returned a tensor of shape (10, 12288), and (10, 32, 384) is needed."),
        (WeightsReturnedToo, "there it returned something else than a tensor."),
        (NotANumber, "there it returned numbers that are NaN or infinite, and from there on everything is NaN."),
    ],
)
def test_a_layer_that_the_model_can_not_go_on_with_is_told_where_it_stopped(answer, text):
    assert told(answer).startswith("Put into the whole model")
    assert told(answer).endswith(text)


def test_numbers_that_overflow_behind_the_last_layer_are_told():
    calls = []

    def run(case):
        calls.append(case)
        reply = run_case(MultiHeadAttention, case, is_learners=lambda filename: False)
        if len(calls) == 6:
            reply["results"][0]["output"].fill_(3e38)
        return reply

    assert PluggedAttention.aftermath(run).endswith("so large that nothing but NaN is left at its end.")


def test_without_the_weights_nothing_is_marked_and_the_command_is_named():
    PluggedAttention._model.cache_clear()
    try:
        with mock.patch.object(pretrained, "CARRIER", "a_package_that_is_not_there"):
            verdict = judge(PluggedAttention.EXERCISE, partial(run_case, MultiHeadAttention, is_learners=bool), seed=97)
    finally:
        PluggedAttention._model.cache_clear()
    assert (verdict.verdict, verdict.points) == ("not_gradable", None)
    assert pretrained.INSTALL in verdict.message
