"""Exercise: write the best token again and again, until every text has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mha_course import generation
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given

SECTION = "transformer#greedy-decoding"
VOCAB, BOS, EOS = 11, 1, 2
NEVER = 1000  # an id that the model has no score for, so that nothing ends

Model = Callable[[Tensor, Tensor], Tensor]


class Reader(nn.Module):
    """A causal model whose scores depend on the whole source, and on every target token so far and its place."""

    def __init__(self, seed: int, vocab: int, calls: int) -> None:
        super().__init__()
        self.table = torch.randn(97, vocab, generator=torch.Generator().manual_seed(seed))
        self.calls = calls

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("the model is asked again and again, though max_length tokens have long been written")
        place = torch.arange(1, target.size(1) + 1)
        read = (source * torch.arange(1, source.size(1) + 1)).sum(dim=1, keepdim=True)
        return self.table[((target + 3) * place).cumsum(dim=1).add(5 * read) % len(self.table)]


class Actor(nn.Module):
    """A model that says its script, one row a text, whatever it is given."""

    def __init__(self, script: list[list[int]], vocab: int, calls: int) -> None:
        super().__init__()
        self.script, self.vocab, self.calls = torch.tensor(script), vocab, calls

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("the model is asked again and again, though max_length tokens have long been written")
        script = torch.cat([self.script, self.script[:, -1:].expand(-1, target.size(1))], dim=1)
        return 5.0 * F.one_hot(script[:, : target.size(1)], self.vocab)


def cases(rng: Generator) -> Iterator[Case]:
    for batch, length, max_length in ((1, 2, 1), (1, 3, 3), (1, 5, 7), (2, 3, 5), (5, 2, 3), (3, 7, 11)):
        source = torch.randint(3, VOCAB, (batch, length), generator=rng)
        label = f"{count(batch, 'source')} of {count(length, 'token')}, max_length {max_length}, no end token"
        yield read(rng, label, source, max_length)
    source = torch.randint(3, VOCAB, (2, 3), generator=rng)
    yield read(rng, "2 sources of 3 tokens, bos = 7, max_length 5, no end token", source, 5, bos=7)

    for label, script in (
        ("one text that ends after 2 tokens", ["5 7 e 4 4 9"]),
        ("one text that ends at once", ["e 4 9 5"]),
        ("two texts, the first of which ends earlier", ["5 e 7 7 9 6 8", "4 6 3 8 e 9 9"]),
        ("two texts, the second of which ends earlier", ["4 6 3 8 e 9 9", "5 e 7 7 9 6 8"]),
        ("two texts that end together", ["5 7 e 9 8", "6 4 e 3 3"]),
        ("two texts, one of which never ends", ["5 e 7 7 9", "4 6 3 8 9"]),
        ("one text that ends with the last token allowed", ["5 7 4 9 e"]),
        ("a text whose script goes on after the end, and ends again", ["5 e 7 e 9 6", "4 6 3 8 9 e"]),
        ("three texts that end at different times", ["e 5 5 5 5 5 5", "3 4 5 6 e 7 7", "4 e 3 3 3 e 3"]),
    ):
        yield scripted(label, script)
    yield scripted("eos = 0", ["5 e 7 7 9", "4 6 3 e 9"], eos=0)
    yield scripted("bos and eos are one token, as in GPT-2", ["5 7 e 9", "6 e 4 4"], bos=EOS)
    model = given(Reader, args=(0, VOCAB, 2 * patience(3)))
    call = Call((model, torch.arange(3, 9).view(2, 3), 3, BOS, NEVER))
    label = "a model in training mode, and then in evaluation mode"
    yield Case("end", label, (call,), through=given(modes), compare=False, holds=(mode_kept,))


def read(rng: Generator, label: str, source: Tensor, max_length: int, bos: int = BOS) -> Case:
    seed = int(torch.randint(2**31, (), generator=rng))
    model = given(Reader, args=(seed, VOCAB, patience(max_length)))
    call = Call((model, source, max_length, bos, NEVER))
    return Case("best token", label, (call,), holds=(begins_with(bos), goes_on_with_the_best(seed, source)))


def scripted(label: str, script: Sequence[str], bos: int = BOS, eos: int = EOS) -> Case:
    rows = [[eos if word == "e" else int(word) for word in row.split()] for row in script]
    max_length = len(rows[0])
    source = torch.arange(3, 3 + 2 * len(rows)).view(len(rows), 2)
    text = f"{label}, max_length {max_length}"
    model = given(Actor, args=(rows, VOCAB, patience(max_length)))
    call = Call((model, source, max_length, bos, eos))
    return Case("end", text, (call,), holds=(begins_with(bos), ends_once(eos)))


def patience(max_length: int) -> int:
    """How often a model lets itself be asked: more often than anybody needs, but not for ever."""
    return 2 * max_length + 5


def count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def begins_with(bos: int) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        for row, text in enumerate(outputs[0].tolist()):
            if text[0] != bos:
                return f"row {row} of yours is {text}, and bos is {bos}"
        return None

    return Property("Every row of the result begins with bos.", broken)


def goes_on_with_the_best(seed: int, source: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        text = outputs[0]
        best = Reader(seed, VOCAB, 1)(source, text)[:, :-1].argmax(dim=-1)
        for place, row in (text[:, 1:] != best).t().nonzero().tolist():
            whole, before = text[row].tolist(), text[row, : place + 1].tolist()
            return f"row {row} of yours is {whole}; behind {before} the model's best token is {best[row, place]}"
        return None

    return Property("Each token is the one that the model finds best behind all those before it.", broken)


def modes(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Say whether a model that was training before is so afterwards, and then the same of one that was not."""

    def run(model: nn.Module, *others: Any) -> list[bool]:
        found = []
        for before in (True, False):
            model.train(before)
            decode(model, *others)
            found.append(model.training)
        return found

    return run


def _mode_changed(outputs: Sequence[Any]) -> str | None:
    names = {True: "training", False: "evaluation"}
    for before, after in zip((True, False), outputs[0], strict=True):
        if after != before:
            return f"the model was in {names[before]} mode before, and is in {names[after]} mode afterwards"
    return None


mode_kept = Property("The model is in the same mode afterwards as before.", _mode_changed)


def ends_once(eos: int) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        for row, text in enumerate(outputs[0].tolist()):
            written = text[1:]
            if eos in written and any(token != eos for token in written[written.index(eos) :]):
                return (
                    f"row {row} of yours is {text}; it has ended with its first {eos} after the beginning, and goes on"
                )
        return None

    return Property("Behind the end token of a row there is nothing but the end token.", broken)


# --- wrong answers -------------------------------------------------------------------------------------------------


class Decoder:
    """Greedy decoding in steps that are right, for wrong answers to replace one of."""

    extra = 0

    def __call__(self, model: Model, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
        target = torch.full((source.size(0), 1), bos)
        done = torch.zeros(source.size(0), dtype=torch.bool)
        for _ in range(max_length + self.extra):
            best = self.fill(self.choose(self.ask(model, source, target)), done, bos, eos)
            target = torch.cat([target, best[:, None]], dim=1)
            done = self.ended(done, best, target, eos)
            if self.stops(done, best, eos):
                break
        return self.finish(target)

    def ask(self, model: Model, source: Tensor, target: Tensor) -> Tensor:
        return model(source, target)[:, -1]

    def choose(self, logits: Tensor) -> Tensor:
        return logits.argmax(dim=-1)

    def fill(self, best: Tensor, done: Tensor, bos: int, eos: int) -> Tensor:
        return best.masked_fill(done, eos)

    def ended(self, done: Tensor, best: Tensor, target: Tensor, eos: int) -> Tensor:
        return done | (best == eos)

    def stops(self, done: Tensor, best: Tensor, eos: int) -> bool:
        return bool(done.all())

    def finish(self, target: Tensor) -> Any:
        return target


class FirstPlace(Decoder):
    def ask(self, model: Model, source: Tensor, target: Tensor) -> Tensor:
        return model(source, target)[:, 0]


class LastTokenAlone(Decoder):
    def ask(self, model: Model, source: Tensor, target: Tensor) -> Tensor:
        return model(source, target[:, -1:])[:, -1]


class Exchanged(Decoder):
    def ask(self, model: Model, source: Tensor, target: Tensor) -> Tensor:
        return model(target, source)[:, -1]


class SourceTwice(Decoder):
    def ask(self, model: Model, source: Tensor, target: Tensor) -> Tensor:
        return model(source, source)[:, -1]


class TargetTwice(Decoder):
    def ask(self, model: Model, source: Tensor, target: Tensor) -> Tensor:
        return model(target, target)[:, -1]


class BosLeftOut(Decoder):
    def finish(self, target: Tensor) -> Any:
        return target[:, 1:]


class OneTooFew(Decoder):
    extra = -1


class OneTooMany(Decoder):
    extra = 1


class FirstRowForAll(Decoder):
    def choose(self, logits: Tensor) -> Tensor:
        return super().choose(logits)[:1].expand(len(logits))


class BestOfTheBatch(Decoder):
    def choose(self, logits: Tensor) -> Tensor:
        return (logits.argmax() % logits.size(-1)).expand(len(logits))


class PlaceInTheBatch(Decoder):
    def choose(self, logits: Tensor) -> Tensor:
        return logits.argmax().expand(len(logits))


class BestPlace(Decoder):
    def ask(self, model: Model, source: Tensor, target: Tensor) -> Tensor:
        return model(source, target)

    def choose(self, logits: Tensor) -> Tensor:
        return logits.argmax(dim=1)[:, -1]


class NewOnesInFront(Decoder):
    def __call__(self, model: Model, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
        target = torch.full((source.size(0), 1), bos)
        done = torch.zeros(source.size(0), dtype=torch.bool)
        for _ in range(max_length):
            best = model(source, target)[:, -1].argmax(dim=-1).masked_fill(done, eos)
            target = torch.cat([best[:, None], target], dim=1)
            done = done | (best == eos)
            if done.all():
                break
        return target


class Worst(Decoder):
    def choose(self, logits: Tensor) -> Tensor:
        return logits.argmin(dim=-1)


class Drawn(Decoder):
    def choose(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=-1).multinomial(1)[:, 0]


class NeverStops(Decoder):
    def fill(self, best: Tensor, done: Tensor, bos: int, eos: int) -> Tensor:
        return best

    def stops(self, done: Tensor, best: Tensor, eos: int) -> bool:
        return False


class StopsWhenAllEndAtOnce(NeverStops):
    def stops(self, done: Tensor, best: Tensor, eos: int) -> bool:
        return bool((best == eos).all())


class GoesOnUntilAllHaveEnded(Decoder):
    def fill(self, best: Tensor, done: Tensor, bos: int, eos: int) -> Tensor:
        return best


class FilledForOneStep(Decoder):
    def __call__(self, model: Model, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
        target = torch.full((source.size(0), 1), bos)
        done = torch.zeros(source.size(0), dtype=torch.bool)
        for _ in range(max_length):
            best = model(source, target)[:, -1].argmax(dim=-1)
            target = torch.cat([target, best.masked_fill(done, eos)[:, None]], dim=1)
            done = best == eos
            if done.all():
                break
        return target


class WritesToTheEnd(Decoder):
    def stops(self, done: Tensor, best: Tensor, eos: int) -> bool:
        return False


class StopsOneStepLate(Decoder):
    def __call__(self, model: Model, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
        target = torch.full((source.size(0), 1), bos)
        done = torch.zeros(source.size(0), dtype=torch.bool)
        for _ in range(max_length):
            best = model(source, target)[:, -1].argmax(dim=-1).masked_fill(done, eos)
            target = torch.cat([target, best[:, None]], dim=1)
            if done.all():
                break
            done = done | (best == eos)
        return target


class StopsAtTheFirstEnd(Decoder):
    def stops(self, done: Tensor, best: Tensor, eos: int) -> bool:
        return bool(done.any())


class StopsWithTheFirstRow(Decoder):
    def stops(self, done: Tensor, best: Tensor, eos: int) -> bool:
        return bool(done[0])


class FilledWithZero(Decoder):
    def fill(self, best: Tensor, done: Tensor, bos: int, eos: int) -> Tensor:
        return best.masked_fill(done, 0)


class FilledWithBos(Decoder):
    def fill(self, best: Tensor, done: Tensor, bos: int, eos: int) -> Tensor:
        return best.masked_fill(done, bos)


class FilledWithTheLast(Decoder):
    """A row that has ended is kept from the end token on, which is then written over."""

    def fill(self, best: Tensor, done: Tensor, bos: int, eos: int) -> Tensor:
        return best.masked_fill(done, -1)


class EndLeftOut(Decoder):
    def __call__(self, model: Model, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
        target = torch.full((source.size(0), 1), bos)
        done = torch.zeros(source.size(0), dtype=torch.bool)
        for _ in range(max_length):
            best = model(source, target)[:, -1].argmax(dim=-1).masked_fill(done, eos)
            done = done | (best == eos)
            if done.all():
                break
            target = torch.cat([target, best[:, None]], dim=1)
        return target


class EndedBeforeItBegan(Decoder):
    def ended(self, done: Tensor, best: Tensor, target: Tensor, eos: int) -> Tensor:
        return (target == eos).any(dim=1)


class EndedFromTheStart(Decoder):
    """Whether a row has ended is read off its newest token, which is bos at first."""

    def fill(self, best: Tensor, done: Tensor, bos: int, eos: int) -> Tensor:
        return best.masked_fill(done | (bos == eos), eos)


def left_in_evaluation(model: nn.Module, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
    return Decoder()(model.eval(), source, max_length, bos, eos)


def left_in_training(model: nn.Module, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
    target = left_in_evaluation(model, source, max_length, bos, eos)
    model.train()
    return target


def stale(model: Model, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
    first = model(source, torch.full((source.size(0), 1), bos))

    class Stale(Decoder):
        def ask(self, model: Model, source: Tensor, target: Tensor) -> Tensor:
            return first[:, -1]

    return Stale()(model, source, max_length, bos, eos)


def lists(model: Model, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
    return Decoder()(model, source, max_length, bos, eos).tolist()


def scores(model: Model, source: Tensor, max_length: int, bos: int, eos: int) -> Any:
    return model(source, Decoder()(model, source, max_length, bos, eos))


MISCONCEPTIONS = (
    Misconception(
        "greedy_stale_logits",
        "From the second token on, the scores of the first step are read again: the model is asked only once, or its answer "
        "at place 0 is taken, which is the same each time as place 0 never sees what comes after it. The first token is "
        "right and is then repeated to the end. Each step needs the scores of the text as it is now, and of these the ones "
        "at the *last* place.",
        SECTION,
        (stale, FirstPlace()),
        ("https://github.com/xberg-io/xberg/issues/1210",),
    ),
    Misconception(
        "last_token_alone",
        "The model is handed only the newest token. That is how it's done with a cache, which remembers the others. This "
        "model has none: it knows of the text what it's given, and sees a text of one token each time.",
        SECTION,
        (LastTokenAlone(),),
    ),
    Misconception(
        "source_and_target_exchanged",
        "What is read and what is written have changed places, or one of the two is handed over twice. The first argument "
        "of the model is the source, the second what has been written so far.",
        SECTION,
        (Exchanged(), SourceTwice(), TargetTwice()),
    ),
    Misconception(
        "first_row_for_all",
        "All rows get the same token: that of the first row, or the best one of the whole batch. argmax over all scores "
        "gives a single number; each row chooses for itself, along the last axis.",
        SECTION,
        (FirstRowForAll(), BestOfTheBatch(), PlaceInTheBatch()),
        ("https://github.com/Lightning-AI/lit-llama/pull/153",),
    ),
    Misconception(
        "best_place_instead_of_best_token",
        "argmax runs along axis 1, the places of the text, and says at which place a token would fit best. The scores to be "
        "compared are those of all tokens for one place; they stand along the last axis.",
        SECTION,
        (BestPlace(),),
    ),
    Misconception(
        "new_tokens_in_front",
        "The new token is put in front of the text. It comes behind everything written so far, as the last column.",
        SECTION,
        (NewOnesInFront(),),
    ),
    Misconception(
        "worst_token",
        "The token with the lowest score is written.",
        SECTION,
        (Worst(),),
    ),
    Misconception(
        "drawn",
        "The token is drawn by its probability. That is sampling, which gives another text each time. Greedy decoding "
        "leaves nothing to chance: it takes the best token.",
        "transformer#drawing-lots",
        (Drawn(),),
    ),
    Misconception(
        "bos_left_out",
        "The result lacks bos. It was handed to the model with the rest, and here it's asked for as part of the text.",
        SECTION,
        (BosLeftOut(),),
    ),
    Misconception(
        "max_length_counts_bos",
        "One token too few is written. max_length says how many tokens may be *written*; bos was there before and doesn't "
        "count.",
        SECTION,
        (OneTooFew(),),
        ("https://github.com/huggingface/transformers/issues/9855",),
    ),
    Misconception(
        "one_token_too_many",
        "One token too many is written: max_length + 1 of them.",
        SECTION,
        (OneTooMany(),),
    ),
    Misconception(
        "lists_returned",
        "The result is a list of lists. Asked for is one tensor of ids, (batch, length).",
        SECTION,
        (lists,),
    ),
    Misconception(
        "scores_returned",
        "The result holds scores, where the ids of the tokens are asked for.",
        SECTION,
        (scores,),
    ),
    Misconception(
        "greedy_past_eos",
        "A text goes on after its end token. The model doesn't stop by itself: asked for another token, it gives one. With "
        "one text at a time a break is enough. In a batch the others still have to be written, so it has to be remembered, "
        "from step to step, *which* rows have ended; and those get the end token, whatever the model says. It's not enough "
        "to look at the newest token: that a row ended three steps ago is no longer to be seen there.",
        SECTION,
        (NeverStops(), StopsWhenAllEndAtOnce(), GoesOnUntilAllHaveEnded(), FilledForOneStep()),
        (
            "https://github.com/joeynmt/joeynmt/issues/45",
            "https://github.com/Dao-AILab/flash-attention/pull/2784",
            "https://github.com/mistralai/mistral-inference/pull/270",
            "https://github.com/lucidrains/h-transformer-1d/issues/9",
        ),
    ),
    Misconception(
        "stops_at_the_first_end",
        "Everything stops as soon as one row has ended, and the other texts are cut off. Stop when *all* have ended.",
        SECTION,
        (StopsAtTheFirstEnd(), StopsWithTheFirstRow()),
        ("https://github.com/Lightning-AI/lit-llama/pull/153",),
    ),
    Misconception(
        "writes_to_max_length",
        "Though all rows have ended, writing goes on, to max_length or for a step more. The rows hold the right text, with a "
        "tail of end tokens that costs a call of the model each. Whether all have ended has to be asked after the newest "
        "tokens have been taken into account.",
        SECTION,
        (WritesToTheEnd(), StopsOneStepLate()),
        ("https://github.com/google/gemma_pytorch/pull/57",),
    ),
    Misconception(
        "filled_with_something_else",
        "A row that has ended is filled up with 0, with bos, or with another number, where eos is asked for. Those are "
        "tokens with a meaning of their own, or none at all; the end token says that nothing comes any more.",
        SECTION,
        (FilledWithZero(), FilledWithBos(), FilledWithTheLast()),
    ),
    Misconception(
        "end_left_out",
        "When the last rows end, their end token is not written. The end belongs to the text: without it nobody can tell a "
        "text that has ended from one that was cut off.",
        SECTION,
        (EndLeftOut(),),
        ("https://github.com/microsoft/onnxruntime-genai/pull/1864",),
    ),
    Misconception(
        "ended_before_it_began",
        "Where bos and eos are the same token, every text counts as ended before anything has been written. Only a token "
        "that was *written* can end a text; so look at the new tokens, not at the whole row.",
        SECTION,
        (EndedBeforeItBegan(), EndedFromTheStart()),
    ),
    Misconception(
        "mode_left_changed",
        "The text is right, but the model comes back in another mode than it had: eval() or train() was called in here, and "
        "it lasts. Who looks at a few translations in the middle of training goes on without dropout from then on, and "
        "nothing tells them. The mode belongs to the caller, and the model is ready as it is; whoever changes it "
        "has to note what it was and set it back.",
        SECTION,
        (left_in_evaluation, left_in_training),
    ),
)

EXERCISE = Exercise(
    name="greedy_decode",
    chapter="generation",
    kind="function",
    minutes=20,
    parts=(
        Part("best token", 2, "write the best token, max_length times, asking the model with the text so far", SECTION),
        Part("end", 2, "fill up with eos what has ended, and stop when all rows have", SECTION),
    ),
    hints=(
        "Two texts, max_length 4. What do you hand to the model in the first step, what in the second? And which of its "
        "scores say what comes next?",
        "The model's answer is (batch, target, vocab), and only the last place matters: take [:, -1] and argmax along the "
        "last axis. For the end you need one boolean for each row that says whether it has ended; when does it change, and "
        "can it change back?",
        "Start with a column of bos and with done = all False. In each step: ask; take the best tokens; where done, put "
        "eos in their place; append them as a new column; done becomes done or (token == eos); leave the loop if done is "
        "True for all.",
    ),
    cases=cases,
    reference=generation.greedy_decode,
    misconceptions=MISCONCEPTIONS,
)
