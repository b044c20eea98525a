from functools import cache

import pytest
import torch

from mha_course.tasks import generator_at
from mha_course.tasks.number_words import words
from mha_course.tasks.translation import BEGIN, END, PAD, Batch, NumberTranslation, Vocabulary, exact_match


@cache
def task(language="de", below=1_000_000, at_most_words=None):
    return NumberTranslation(language, below, at_most_words=at_most_words)


def drawn(of, steps, size=251, seed=0):
    return torch.cat([of.numbers_at(seed, step, size) for step in range(steps)])


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(mine, its) for mine, its in zip(vars(one).values(), vars(other).values(), strict=True))


@pytest.mark.parametrize(("language", "size"), [("en", 33), ("de", 35), ("fr", 30), ("zh", 17)])
def test_every_word_has_an_id_and_every_id_above_two_a_word(language, size):
    vocabulary = Vocabulary(language)
    assert len(vocabulary) == len(vocabulary.tokens) == len(set(vocabulary.tokens)) == size
    assert vocabulary.encode(vocabulary.tokens[3:]) == list(range(3, size))
    assert vocabulary.encode(words(0, language) + words(1, language)) == [3, 4]
    assert (vocabulary.tokens[PAD], vocabulary.tokens[BEGIN], vocabulary.tokens[END]) == ("<pad>", "<begin>", "<end>")


def test_decoding_stops_at_the_end_and_leaves_out_what_is_no_word():
    vocabulary = Vocabulary("fr")
    ids = [BEGIN, *vocabulary.encode(["deux", "cent", "un"]), PAD, END, 5, PAD]
    assert vocabulary.decode(ids) == vocabulary.decode(torch.tensor(ids)) == ["deux", "cent", "un"]


def test_a_word_of_another_language_is_refused():
    with pytest.raises(ValueError, match="only words of numbers can be encoded, but 'eins' is none in 'en'"):
        Vocabulary("en").encode(["one", "eins"])


def test_a_batch_is_padded_and_its_labels_are_the_input_one_further():
    batch = task().batch([342, 0, 1_021])
    en, de = task().source_vocabulary.encode, task().target_vocabulary.encode
    assert batch.numbers.tolist() == [342, 0, 1_021]
    assert batch.source.tolist() == [
        en(["three", "hundred", "forty", "two"]),
        [*en(["zero"]), PAD, PAD, PAD],
        en(["one", "thousand", "twenty", "one"]),
    ]
    assert batch.source_lengths.tolist() == [4, 1, 4]
    assert batch.decoder_input.tolist() == [
        [BEGIN, *de(["drei", "hundert", "zwei", "und", "vierzig"])],
        [BEGIN, *de(["null"]), PAD, PAD, PAD, PAD],
        [BEGIN, *de(["ein", "tausend", "ein", "und", "zwanzig"])],
    ]
    assert batch.labels.tolist() == [
        [*de(["drei", "hundert", "zwei", "und", "vierzig"]), END],
        [*de(["null"]), END, PAD, PAD, PAD, PAD],
        [*de(["ein", "tausend", "ein", "und", "zwanzig"]), END],
    ]


@pytest.mark.parametrize("language", ["de", "fr", "zh"])
def test_a_drawn_batch_says_its_numbers_in_both_languages(language):
    batch = task(language).batch_at(1, 3, 251)
    for row, number in enumerate(batch.numbers.tolist()):
        assert task(language).source_vocabulary.decode(batch.source[row]) == words(number, "en")
        assert task(language).target_vocabulary.decode(batch.labels[row]) == words(number, language)
        length = len(words(number, language))
        assert batch.labels[row, length] == END
        assert (batch.labels[row, length + 1 :] == PAD).all()
        assert batch.decoder_input[row, 0] == BEGIN
        assert torch.equal(batch.decoder_input[row, 1 : length + 1], batch.labels[row, :length])
        assert (batch.decoder_input[row, length + 1 :] == PAD).all()


@pytest.mark.parametrize(("below", "held_out"), [(1_000, 25), (10_007, 250), (1_000_000, 25_000)])
def test_the_numbers_are_parted_without_overlap_or_rest(below, held_out):
    numbers = torch.cat([task(below=below).held_out_numbers, task(below=below).training_numbers])
    assert len(task(below=below).held_out_numbers) == held_out
    assert torch.equal(numbers.sort().values, torch.arange(below))
    assert task(below=below).held_out_numbers.min() >= 100


def test_the_parting_and_the_draws_are_the_same_in_every_process():
    assert task().held_out_numbers[:5].tolist() == [105, 109, 166, 203, 298]
    assert task().batch_at(2, 3, 5).numbers.tolist() == [428430, 10300, 40500, 702000, 753239]
    assert torch.rand(1, generator=generator_at(2, 3)).item() == pytest.approx(0.7546242)


def test_the_same_numbers_are_held_out_whatever_the_language_and_the_lengths_trained_on():
    for other in (task("zh"), task("fr"), task(at_most_words=5)):
        assert torch.equal(other.held_out_numbers, task().held_out_numbers)


def test_the_held_out_numbers_are_as_long_as_numbers_are():
    held_out = task().held_out_numbers
    for low in (100, 1_000, 10_000, 100_000):
        share = ((held_out >= low) & (held_out < 10 * low)).sum() / (9 * low)
        assert share == pytest.approx(1 / 40, abs=0.01)
    assert {len(words(number, "en")) for number in held_out[::7].tolist()} == {3, 4, 5, 6, 7, 8, 9}


def test_held_out_batches_show_each_held_out_number_once():
    batches = list(task(below=10_007).held_out(size=101))
    assert [len(batch.numbers) for batch in batches] == [101, 101, 48]
    assert torch.equal(torch.cat([batch.numbers for batch in batches]), task(below=10_007).held_out_numbers)


@pytest.mark.parametrize(("below", "at_most_words"), [(1_000, None), (1_000_000, None), (1_000_000, 5)])
def test_no_held_out_number_is_ever_drawn(below, at_most_words):
    of = task(below=below, at_most_words=at_most_words)
    numbers = drawn(of, steps=41)
    assert not torch.isin(numbers, of.held_out_numbers).any()
    assert torch.isin(numbers, of.training_numbers).all()


def test_small_and_round_numbers_are_drawn_often():
    numbers = set(drawn(task(), steps=101).tolist())
    assert set(range(10)) <= numbers
    assert len({number for number in numbers if number and number % 100_000 == 0}) == 9
    assert sum(number < 100_000 for number in numbers) > 0.2 * len(numbers)
    assert sum(number >= 900_000 for number in numbers) > 0.05 * len(numbers)


def test_a_batch_depends_on_seed_and_step_alone():
    fresh = NumberTranslation("de", 10_007)
    torch.manual_seed(17)
    assert same(fresh.batch_at(3, 5, 13), task(below=10_007).batch_at(3, 5, 13))
    others = [(3, 6), (5, 3), (4, 5), (3 + 2**32, 5), (3, 5 + 2**32)]
    assert not any(same(fresh.batch_at(3, 5, 13), fresh.batch_at(*other, 13)) for other in others)


def test_short_numbers_alone_are_trained_on_where_that_is_asked_for():
    of = task(below=10_007, at_most_words=4)
    right = {number for number in range(10_007) if len(words(number, "en")) <= 4} - set(of.held_out_numbers.tolist())
    assert set(of.training_numbers.tolist()) == right
    large = task(at_most_words=5)
    assert max(len(words(number, "en")) for number in large.training_numbers.tolist()[::31]) == 5
    assert large.batch_at(0, 0, 251).source_lengths.max() == 5


def test_a_row_matches_where_every_token_up_to_the_end_is_right():
    labels = torch.tensor([[7, 5, END], [7, END, PAD], [7, 5, END], [7, 5, END], [7, END, PAD]])
    same_width = torch.tensor([[7, 5, END], [7, END, 9], [7, 5, 5], [5, 5, END], [7, 5, END]])
    assert exact_match(same_width, labels).tolist() == [True, True, False, False, False]
    longer = torch.tensor([[7, 5, END, 3, 3], [7, END, 9, 9, 9], [7, 5, 5, END, 3], [7, END, 5, 3, 3], [7] * 5])
    assert exact_match(longer, labels).tolist() == [True, True, False, False, False]
    shorter = torch.tensor([[7, 5], [7, END], [7, 5], [7, END], [7, 7]])
    assert exact_match(shorter, labels).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("below", [999, 1_000_001])
def test_a_range_that_cannot_be_parted_or_said_is_refused(below):
    with pytest.raises(ValueError, match=f"below must be from 1,000 to 1,000,000, but it is {below:,}"):
        NumberTranslation("de", below)


def test_a_task_without_numbers_is_refused():
    with pytest.raises(ValueError, match="at_most_words must be at least 1, but it is 0"):
        NumberTranslation("de", at_most_words=0)
