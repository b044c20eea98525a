"""Exercise: say at which position each piece of a text begins, when it is read in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Generator

from mha_course import generation
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property

CACHE, COUNTING = "transformer#the-key-value-cache", "positions#counting-from-the-first-real-token"


def cases(rng: Generator) -> Iterator[Case]:
    for prompt_length, steps in ((3, 2), (2, 1), (1, 2), (5, 2), (7, 1), (11, 2)):
        yield _case("the prompt", prompt_length, steps)
    for prompt_length, steps in ((3, 3), (2, 5), (1, 3), (5, 7), (7, 4), (13, 11)):
        yield _case("one token at a time", prompt_length, steps)


def _case(part: str, prompt_length: int, steps: int) -> Case:
    label = f"a prompt of {_count(prompt_length, 'token')} and {_count(steps, 'call')} of the model"
    return Case(part, label, (Call((prompt_length, steps)),), holds=(behind_one_another(prompt_length),))


def behind_one_another(prompt_length: int) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        for call, position in enumerate(map(int, outputs[0])):
            read = prompt_length + call - 1 if call else 0
            if position != read:
                sizes = " + ".join(map(str, [prompt_length, 1, 1][:call])) + " + …" * (call > 3)
                so_far = (
                    f"the calls before it have read {sizes} token{'s' * (read > 1)}"
                    if call
                    else "nothing comes before it"
                )
                return (
                    f"your positions are {list(map(int, outputs[0]))}; call {call} begins at {position}, and {so_far}"
                )
        return None

    return Property("Each piece of a text begins where the piece before it has ended.", broken)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


# --- wrong answers -------------------------------------------------------------------------------------------------


def prompt_added_twice(prompt_length: int, steps: int) -> list[int]:
    return [0, prompt_length, *range(2 * prompt_length, 2 * prompt_length + steps)][:steps]


def prompt_added_twice_at_once(prompt_length: int, steps: int) -> list[int]:
    return [0, *range(2 * prompt_length, 2 * prompt_length + steps - 1)]


def prompt_added_always(prompt_length: int, steps: int) -> list[int]:
    return [step * prompt_length for step in range(steps)]


def always_zero(prompt_length: int, steps: int) -> list[int]:
    return [0] * steps


def counted_anew(prompt_length: int, steps: int) -> list[int]:
    return [0, *range(steps - 1)]


def calls_counted(prompt_length: int, steps: int) -> list[int]:
    return list(range(steps))


def end_of_each_piece(prompt_length: int, steps: int) -> list[int]:
    return list(range(prompt_length, prompt_length + steps))


def last_place_of_each_piece(prompt_length: int, steps: int) -> list[int]:
    return list(range(prompt_length - 1, prompt_length - 1 + steps))


def one_too_early(prompt_length: int, steps: int) -> list[int]:
    return [0, *range(prompt_length - 1, prompt_length + steps - 2)]


def one_too_late(prompt_length: int, steps: int) -> list[int]:
    return [0, *range(prompt_length + 1, prompt_length + steps)]


def counted_from_one(prompt_length: int, steps: int) -> list[int]:
    return [1, *range(prompt_length + 1, prompt_length + steps)]


def stays_behind_the_prompt(prompt_length: int, steps: int) -> list[int]:
    return [0, *[prompt_length] * (steps - 1)]


def every_token(prompt_length: int, steps: int) -> list[int]:
    return list(range(prompt_length + steps - 1))


def prompt_not_counted(prompt_length: int, steps: int) -> list[int]:
    return [0, *range(prompt_length, prompt_length + steps)]


def only_new_tokens(prompt_length: int, steps: int) -> list[int]:
    return list(range(prompt_length, prompt_length + steps - 1))


MISCONCEPTIONS = (
    Misconception(
        "kv_offset_wrong",
        "The position jumps by the length of the prompt more than once. The prompt's tokens are counted when the prompt "
        "has been read, and then they are counted again, though the piece that was read next had a single token. A "
        "position should grow by the size of the piece that was just read, and only the first piece is a whole prompt. "
        "The model does not complain: its new tokens just seem to stand far away from the text that they go on with.",
        CACHE,
        (prompt_added_twice, prompt_added_always, prompt_added_twice_at_once),
        ("https://github.com/skyzh/tiny-llm/pull/46", "https://github.com/xberg-io/xberg/issues/1210"),
    ),
    Misconception(
        "position_zero_for_all",
        "Every piece begins at 0. A piece is indeed all that the model is handed in a call, and its first token stands at "
        "place 0 of that piece; but in the text it stands behind everything that the cache holds. With 0 for all, each "
        "new token looks as if it began the text.",
        CACHE,
        (always_zero,),
        ("https://github.com/Blaizzy/mlx-vlm/issues/1983", "https://github.com/RobertCsordas/moeut/pull/6"),
    ),
    Misconception(
        "counted_anew_after_the_prompt",
        "The written tokens are counted from 0 again. Prompt and continuation are one text to the model: the first token "
        "that it wrote comes behind the last one of the prompt.",
        CACHE,
        (counted_anew,),
        ("https://github.com/pytorch/torchchat/pull/1462",),
    ),
    Misconception(
        "calls_counted_not_tokens",
        "The calls of the model are numbered. But the first call reads the whole prompt, so that one call uses up as many "
        "positions as the prompt has tokens. Count tokens.",
        CACHE,
        (calls_counted,),
    ),
    Misconception(
        "end_instead_of_beginning",
        "This says where each piece ends, not where it begins. Asked for after the call, a cache's length has the piece "
        "in it already; the position of a piece is the number of tokens that were there before.",
        CACHE,
        (end_of_each_piece, last_place_of_each_piece),
        ("https://github.com/fla-org/flash-linear-attention/issues/766",),
    ),
    Misconception(
        "one_too_early",
        "The first token after the prompt gets the position of the prompt's last token, so that two tokens stand in one "
        "place. Of n tokens counted from 0 the last one stands at n - 1; what comes next stands at n.",
        COUNTING,
        (one_too_early,),
    ),
    Misconception(
        "one_too_late",
        "Behind the prompt one place is left empty. The number of tokens so far is itself the position of the next one, as "
        "positions are counted from 0; the new token must not be counted before it is read.",
        COUNTING,
        (one_too_late,),
        ("https://github.com/microsoft/onnxruntime-genai/pull/2354",),
    ),
    Misconception(
        "counted_from_one",
        "Positions are counted from 1. In this book, and in nearly every model, the first token stands at 0; a model that "
        "was trained so finds each token one place further than it should be.",
        COUNTING,
        (counted_from_one,),
    ),
    Misconception(
        "stays_behind_the_prompt",
        "All new tokens get one and the same position, the one behind the prompt. Each of them is kept once it has been "
        "read, and the next one stands behind it.",
        CACHE,
        (stays_behind_the_prompt,),
    ),
    Misconception(
        "every_token_instead_of_every_call",
        "There is one position for each token. Asked for is one for each call, that of its first token; the other tokens "
        "of the prompt follow from it.",
        CACHE,
        (every_token,),
    ),
    Misconception(
        "prompt_is_no_call",
        "There is one position too many: the call that reads the prompt has not been counted among the calls. It's an "
        "ordinary call, which gives the scores of the first new token.",
        CACHE,
        (prompt_not_counted,),
    ),
    Misconception(
        "prompt_left_out",
        "The call that reads the prompt is left out of the list. It's an ordinary call, at position 0.",
        CACHE,
        (only_new_tokens,),
    ),
)

EXERCISE = Exercise(
    name="step_positions",
    chapter="generation",
    kind="function",
    minutes=5,
    parts=(
        Part("the prompt", 1, "begin with the prompt at 0, and put the first new token right behind it", CACHE),
        Part("one token at a time", 1, "move on by as many positions as the call before has read", CACHE),
    ),
    hints=(
        "Write the tokens of a text in a row and number them. Which of them does the first call read, which the second?",
        "A piece begins where the piece before it ended. How long was that one: at the second call, and at the third?",
        "Keep a running position that starts at 0, and note it down before each call. After the first call it grows by "
        "prompt_length, after every other one by 1.",
    ),
    cases=cases,
    reference=generation.step_positions,
    misconceptions=MISCONCEPTIONS,
)
