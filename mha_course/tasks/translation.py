"""Translating numbers from English words into German, French or Chinese ones, as data to train on and to be judged by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from mha_course.tasks import generator_at
from mha_course.tasks.number_words import LIMIT, Language, words

PAD, BEGIN, END = 0, 1, 2

# One number in so many is held out: 25,000 of those below a million.
_HELD_OUT = 40
# From here on numbers are held out. All below are trained on: they are where each word is learned, and "zero" is one.
_FIRST_HELD_OUT = 100


class Vocabulary:
    """The words that a language's numbers are made of, and an id for each.

    >>> vocabulary = Vocabulary("en")
    >>> vocabulary.encode(["forty", "two"])
    [25, 5]
    >>> vocabulary.decode([25, 5, END, PAD])
    ['forty', 'two']
    """

    def __init__(self, language: Language) -> None:
        """Collect the words in the order in which one meets them when counting from zero.

        Ids 0, 1 and 2 are those of padding, of the beginning and of the end.

        Raises:
            ValueError: if the language is not one of those that `words` knows.
        """
        counted = [*range(100), 100, 200, 1_000, 10_000]  # none but these bring a word that has not been met before
        met = dict.fromkeys(word for number in counted for word in words(number, language))
        self.language = language
        self.tokens = ("<pad>", "<begin>", "<end>", *met)
        self._ids = {token: i for i, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Give each word's id.

        Raises:
            ValueError: if a word is none of this language's.
        """
        unknown = [token for token in tokens if token not in self._ids]
        if unknown:
            raise ValueError(
                f"only words of numbers can be encoded, but {unknown[0]!r} is none in {self.language!r}; "
                "let words() write the number"
            )
        return [self._ids[token] for token in tokens]

    def decode(self, ids: Sequence[int] | Int[Tensor, " length"]) -> list[str]:
        """Give the words up to the end, without beginning, end and padding."""
        before_end = takewhile(lambda i: i != END, map(int, ids))
        return [self.tokens[i] for i in before_end if i not in (PAD, BEGIN)]


@dataclass(frozen=True)
class Batch:
    """Numbers in two languages, as ids, padded to the longest of the batch.

    Attributes:
        numbers: which number each row says.
        source: its words in English, without beginning and end.
        source_lengths: how many words that is; `padding_mask(source_lengths, source.size(1))` hides the rest.
        decoder_input: BEGIN, then its words in the other language.
        labels: the token that follows each one of `decoder_input`: the words, then END. PAD is not to be predicted.
    """

    numbers: Int[Tensor, " batch"]
    source: Int[Tensor, "batch source"]
    source_lengths: Int[Tensor, " batch"]
    decoder_input: Int[Tensor, "batch target"]
    labels: Int[Tensor, "batch target"]


class NumberTranslation:
    """The task: numbers to train on without end, and others, never trained on, to be judged by.

    A number is drawn in one of two ways, each half of the time: uniformly, or uniformly and then with every digit
    replaced by 0 with probability 1/2. Nine in ten of the first kind have as many digits as there can be; the second
    kind brings the short ones, and the runs of zeros with their rare endings (200,000 or 十万零一十). With it, a small
    model has learned nearly every number below 1,000 after 300 steps; without it, half to three quarters of them.

    >>> task = NumberTranslation("de", below=1000)
    >>> batch = task.batch([342])
    >>> task.source_vocabulary.decode(batch.source[0])
    ['three', 'hundred', 'forty', 'two']
    >>> task.target_vocabulary.decode(batch.labels[0])
    ['drei', 'hundert', 'zwei', 'und', 'vierzig']
    """

    def __init__(self, language: Language = "de", below: int = LIMIT, *, at_most_words: int | None = None) -> None:
        """Part the numbers into those to train on and those held out, always in the same way.

        Args:
            language: what to translate into.
            below: the numbers are smaller than this; from 1,000 to 1,000,000. One in 40 is held out, none below 100.
            at_most_words: train on numbers of at most so many English words; the held-out ones stay the same.

        Raises:
            ValueError: if the language is unknown, `below` is out of range or `at_most_words` less than 1.
        """
        if not 1000 <= below <= LIMIT:
            raise ValueError(f"below must be from 1,000 to {LIMIT:,}, but it is {below:,}; choose a number in between")
        if at_most_words is not None and at_most_words < 1:
            raise ValueError(f"at_most_words must be at least 1, but it is {at_most_words}; every number has a word")
        self.source_vocabulary = Vocabulary("en")
        self.target_vocabulary = Vocabulary(language)
        self.language = language
        shuffled = torch.randperm(below - _FIRST_HELD_OUT, generator=torch.Generator().manual_seed(0))
        self.held_out_numbers = (_FIRST_HELD_OUT + shuffled[: below // _HELD_OUT]).sort().values
        self._trained_on = torch.ones(below, dtype=torch.bool)
        self._trained_on[self.held_out_numbers] = False
        if at_most_words is not None:
            self._trained_on &= _english_lengths(below) <= at_most_words
        self.training_numbers = self._trained_on.nonzero().squeeze(1)

    def batch_at(self, seed: int, step: int, size: int) -> Batch:
        """Draw a batch to train on; the same seed and step give the same one.

        Args:
            seed: at least 0; tells one training from another.
            step: at least 0; tells one batch from another.
            size: number of rows.
        """
        return self.batch(self.numbers_at(seed, step, size))

    def numbers_at(self, seed: int, step: int, size: int) -> Int[Tensor, " batch"]:
        """Draw the numbers of `batch_at(seed, step, size)` without writing them."""
        generator = generator_at(seed, step)
        numbers = self.training_numbers[torch.randint(len(self.training_numbers), (size,), generator=generator)]
        places = 10 ** torch.arange(len(str(LIMIT)))
        digits = numbers[:, None] // places % 10
        kept = torch.rand(digits.shape, generator=generator) < 0.5
        sparse = (digits * kept * places).sum(dim=1)
        chosen = (torch.rand(size, generator=generator) < 0.5) & self._trained_on[sparse]
        return torch.where(chosen, sparse, numbers)

    def held_out(self, size: int = 1000) -> Iterator[Batch]:
        """Go through the held-out numbers once, from small to large, at most `size` at a time."""
        return (self.batch(numbers) for numbers in self.held_out_numbers.split(size))

    def batch(self, numbers: Sequence[int] | Int[Tensor, " batch"]) -> Batch:
        """Write numbers of your choice in both languages.

        Raises:
            ValueError: if a number is out of range.
        """
        numbers = torch.as_tensor(numbers)
        listed = numbers.tolist()
        source = _padded([self.source_vocabulary.encode(words(number, "en")) for number in listed])
        target = _padded(
            [[BEGIN, *self.target_vocabulary.encode(words(number, self.language)), END] for number in listed]
        )
        return Batch(
            numbers=numbers,
            source=source,
            source_lengths=(source != PAD).sum(dim=1),
            decoder_input=target[:, :-1].masked_fill(target[:, :-1] == END, PAD),
            labels=target[:, 1:],
        )


def exact_match(
    predicted: Int[Tensor, "batch steps"],
    labels: Int[Tensor, "batch target"],
) -> Bool[Tensor, " batch"]:
    """Say which rows are right in every token, their end included.

    Args:
        predicted: ids without BEGIN; what comes after END does not count.
        labels: as in `Batch`.

    Returns:
        True for a row that is right as a whole; the mean is the exact-match score.

    >>> exact_match(torch.tensor([[5, END, 7], [5, 6, END]]), torch.tensor([[5, END], [5, END]]))
    tensor([ True, False])
    """
    lacking = max(0, labels.size(1) - predicted.size(1))
    predicted = F.pad(predicted, (0, lacking), value=PAD)[:, : labels.size(1)]
    return ((predicted == labels) | (labels == PAD)).all(dim=1)


def _english_lengths(below: int) -> Int[Tensor, " below"]:
    # Counted for all numbers at once: a million lists would take seconds. That zero has none here leaves it trained on.
    part = torch.tensor([0, *(len(words(number, "en")) for number in range(1, 1000))])
    numbers = torch.arange(below)
    thousands = numbers // 1000
    return part[thousands] + (thousands > 0) + part[numbers % 1000]


def _padded(rows: Sequence[Sequence[int]]) -> Int[Tensor, "batch length"]:
    longest = max(len(row) for row in rows)
    # By way of NumPy, which reads lists several times faster.
    return torch.from_numpy(np.array([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=np.int64))
