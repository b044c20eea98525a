"""Numbers written in words, in four languages: what the translation model learns to translate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, get_args

Language = Literal["en", "de", "fr", "zh"]

LIMIT = 1_000_000

# What a number is called that has a name of its own, counted from 0.
_SMALL = {
    language: line.split()
    for language, line in {
        "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen",
        "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
        "siebzehn achtzehn neunzehn",
        "fr": "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize",
        "zh": "零 一 二 三 四 五 六 七 八 九",
    }.items()
}
# The tens from 20 on.
_TENS = {
    language: dict(zip(range(20, 100, 10), line.split(), strict=False))
    for language, line in {
        "en": "twenty thirty forty fifty sixty seventy eighty ninety",
        "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
        "fr": "vingt trente quarante cinquante soixante",
    }.items()
}
# Chinese counts by groups of four digits, so that 万 is counted in its turn: 十万.
_PLACES = {10_000: "万", 1_000: "千", 100: "百", 10: "十"}

# The words that stand apart; any two others are joined by a hyphen. German and Chinese leave no space at all.
_STAND_APART = {"en": {"hundred", "thousand"}, "fr": {"et", "cent", "cents", "mille"}}


def words(number: int, language: Language) -> list[str]:
    """Say a number in words.

    English is American ("three hundred forty-two", without "and"); French is that of France in its traditional
    spelling; Chinese is the written standard: 二 throughout and never 两, 零 once for each run of skipped places.

    Args:
        number: at least 0 and below 1,000,000.
        language: "en", "de", "fr" or "zh".

    Returns:
        The words in the order in which they are spoken: morphemes in German, single characters in Chinese.

    Raises:
        ValueError: if the number is out of range or the language is not one of the four.

    Source: agrees for every number below a million with Unicode CLDR's rule-based number formats
    ("spellout-cardinal", ICU 72), except for the character it takes for 零 and the hyphens of French.

    >>> words(342, "en")
    ['three', 'hundred', 'forty', 'two']
    >>> words(342, "de")
    ['drei', 'hundert', 'zwei', 'und', 'vierzig']
    """
    if language not in get_args(Language):
        raise ValueError(f"the language must be one of {', '.join(get_args(Language))}, but it is {language!r}")
    if not 0 <= number < LIMIT:
        raise ValueError(f"numbers from 0 to {LIMIT - 1:,} can be said, but {number:,} cannot; choose one of them")
    if number == 0:
        return [_SMALL[language][0]]
    match language:
        case "en":
            return list(_english(number))
        case "de":
            return list(_german(number))
        case "fr":
            return list(_french(number))
        case "zh":
            return list(_chinese(number))


def written(tokens: Sequence[str], language: Language) -> str:
    """Write words as one would in a text: German and Chinese in one piece, English and French with hyphens.

    >>> written(["quatre", "vingt", "dix", "sept", "mille"], "fr")
    'quatre-vingt-dix-sept mille'
    """
    if language not in _STAND_APART:
        return "".join(tokens)
    apart = _STAND_APART[language]
    joints = [" " if {before, after} & apart else "-" for before, after in pairwise(tokens)]
    return "".join(part for pair in zip(tokens, [*joints, ""], strict=False) for part in pair)


def spell(number: int, language: Language) -> str:
    """Write a number in words as one would in a text.

    Args:
        number: at least 0 and below 1,000,000.
        language: "en", "de", "fr" or "zh".

    Raises:
        ValueError: as `words` does.

    >>> spell(101_021, "de")
    'einhunderteintausendeinundzwanzig'
    """
    return written(words(number, language), language)


# Each rule splits off the largest part and says the rest by the same rule; a rest of 0 is not said.
# The parts are few and come again and again, so they are kept: that takes a third of the time.
_kept = lru_cache(maxsize=5000)


@_kept
def _english(number: int) -> tuple[str, ...]:
    if number >= 1000:
        return (*_english(number // 1000), "thousand", *_english(number % 1000))
    if number >= 100:
        return (*_english(number // 100), "hundred", *_english(number % 100))
    if number >= 20:
        return (_TENS["en"][number // 10 * 10], *_english(number % 10))
    return (_SMALL["en"][number],) if number else ()


@_kept
def _german(number: int, one: str = "eins") -> tuple[str, ...]:
    # A 1 is "eins" at the very end alone; what is counted or joined by "und" takes "ein".
    if number >= 1000:
        return (*_german(number // 1000, "ein"), "tausend", *_german(number % 1000))
    if number >= 100:
        return (*_german(number // 100, "ein"), "hundert", *_german(number % 100, one))
    if number >= 20:
        unit = _german(number % 10, "ein")
        return (*unit, *(("und",) if unit else ()), _TENS["de"][number // 10 * 10])
    if number == 1:
        return (one,)
    return (_SMALL["de"][number],) if number else ()


@_kept
def _french(number: int, *, plural: bool = True) -> tuple[str, ...]:
    # "cents" and "vingts" keep their s where nothing follows them, not even "mille".
    if number >= 1000:
        thousands = _french(number // 1000, plural=False) if number >= 2000 else ()
        return (*thousands, "mille", *_french(number % 1000))
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        if hundreds == 1:
            return ("cent", *_french(rest, plural=plural))
        return (_SMALL["fr"][hundreds], "cent" if rest or not plural else "cents", *_french(rest, plural=plural))
    if number >= 80:
        return ("quatre", "vingts" if number == 80 and plural else "vingt", *_french(number - 80))
    if number >= 20:
        tens = min(number // 10 * 10, 60)  # from 60 to 79 one goes on counting: 71 is sixty and eleven
        rest = number - tens
        return (_TENS["fr"][tens], *(("et",) if rest in (1, 11) else ()), *_french(rest))
    if number >= 17:
        return ("dix", *_french(number - 10))
    return (_SMALL["fr"][number],) if number else ()


@_kept
def _chinese(number: int, place_before: int = 0) -> tuple[str, ...]:
    for place, character in _PLACES.items():
        if number >= place:
            count, rest = divmod(number, place)
            skipped = ("零",) if 10 * place < place_before else ()
            # 十 at the head of a number, 一十 inside it.
            counted = () if place == 10 and count == 1 and place_before == 0 else _chinese(count)
            return (*skipped, *counted, character, *_chinese(rest, place))
    if number == 0:
        return ()
    return ("零", _SMALL["zh"][number]) if place_before > 10 else (_SMALL["zh"][number],)
