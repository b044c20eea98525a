import random

import cn2an
import pytest
from num2words import num2words

from mha_course.tasks.number_words import LIMIT, spell, words, written

SAMPLE = [*range(10_000), *random.Random(1).sample(range(10_000, LIMIT), 3_001)]

BY_HAND = {
    "en": {
        0: "zero",
        13: "thirteen",
        20: "twenty",
        42: "forty-two",
        100: "one hundred",
        101: "one hundred one",
        342: "three hundred forty-two",
        1_000: "one thousand",
        1_001: "one thousand one",
        20_015: "twenty thousand fifteen",
        999_999: "nine hundred ninety-nine thousand nine hundred ninety-nine",
    },
    "de": {
        0: "null",
        1: "eins",
        11: "elf",
        16: "sechzehn",
        17: "siebzehn",
        20: "zwanzig",
        21: "einundzwanzig",
        30: "dreißig",
        42: "zweiundvierzig",
        66: "sechsundsechzig",
        77: "siebenundsiebzig",
        100: "einhundert",
        101: "einhunderteins",
        121: "einhunderteinundzwanzig",
        1_000: "eintausend",
        1_001: "eintausendeins",
        1_101: "eintausendeinhunderteins",
        2_012: "zweitausendzwölf",
        21_000: "einundzwanzigtausend",
        # Where num2words writes "einhunderteinstausend": a 1 that is counted is "ein", however large the number.
        101_000: "einhunderteintausend",
        101_001: "einhunderteintausendeins",
        201_342: "zweihunderteintausenddreihundertzweiundvierzig",
        901_016: "neunhunderteintausendsechzehn",
    },
    "fr": {
        0: "zéro",
        16: "seize",
        17: "dix-sept",
        21: "vingt et un",
        22: "vingt-deux",
        61: "soixante et un",
        70: "soixante-dix",
        71: "soixante et onze",
        77: "soixante-dix-sept",
        80: "quatre-vingts",
        81: "quatre-vingt-un",
        90: "quatre-vingt-dix",
        91: "quatre-vingt-onze",
        97: "quatre-vingt-dix-sept",
        100: "cent",
        101: "cent un",
        180: "cent quatre-vingts",
        200: "deux cents",
        201: "deux cent un",
        1_000: "mille",
        1_200: "mille deux cents",
        2_000: "deux mille",
        80_000: "quatre-vingt mille",
        200_000: "deux cent mille",
        280_080: "deux cent quatre-vingt mille quatre-vingts",
        171_021: "cent soixante et onze mille vingt et un",
    },
    "zh": {
        0: "零",
        1: "一",
        2: "二",
        10: "十",
        11: "十一",
        12: "十二",
        20: "二十",
        21: "二十一",
        90: "九十",
        99: "九十九",
        100: "一百",
        101: "一百零一",
        110: "一百一十",
        111: "一百一十一",
        120: "一百二十",
        200: "二百",
        202: "二百零二",
        222: "二百二十二",
        342: "三百四十二",
        1_000: "一千",
        1_001: "一千零一",
        1_010: "一千零一十",
        1_011: "一千零一十一",
        1_100: "一千一百",
        1_101: "一千一百零一",
        1_110: "一千一百一十",
        2_002: "二千零二",
        2_222: "二千二百二十二",
        10_000: "一万",
        10_001: "一万零一",
        10_010: "一万零一十",
        10_100: "一万零一百",
        10_101: "一万零一百零一",
        11_000: "一万一千",
        11_001: "一万一千零一",
        12_000: "一万二千",
        20_000: "二万",
        20_202: "二万零二百零二",
        100_000: "十万",
        100_001: "十万零一",
        100_010: "十万零一十",
        100_100: "十万零一百",
        101_000: "十万一千",
        101_010: "十万一千零一十",
        110_000: "十一万",
        110_010: "十一万零一十",
        120_304: "十二万零三百零四",
        200_000: "二十万",
        305_060: "三十万五千零六十",
        342_000: "三十四万二千",
        999_999: "九十九万九千九百九十九",
    },
}


@pytest.mark.parametrize("language", BY_HAND)
def test_numbers_are_written_as_by_hand(language):
    assert {number: spell(number, language) for number in BY_HAND[language]} == BY_HAND[language]


def test_english_is_that_of_num2words_without_and():
    for number in SAMPLE:
        right = num2words(number, lang="en").replace(" and ", " ").replace(",", "")
        assert spell(number, "en") == right


def test_german_is_that_of_num2words_but_for_a_counted_hundred_and_one():
    different = []
    for number in SAMPLE:
        right = num2words(number, lang="de")
        if spell(number, "de") != right:
            different.append(number)
            assert spell(number, "de") == right.replace("einstausend", "eintausend")
    # 101, 201, ... 901 thousand: num2words leaves the s of "eins", which "einundzwanzigtausend" and "eintausend" lose.
    assert different == [number for number in SAMPLE if number >= 100_000 and number // 1000 % 100 == 1]
    assert len(different) > 10


def test_french_is_that_of_num2words():
    for number in SAMPLE:
        assert spell(number, "fr") == num2words(number, lang="fr")


def test_chinese_is_that_of_cn2an():
    for number in SAMPLE:
        assert spell(number, "zh") == cn2an.an2cn(number)


@pytest.mark.parametrize("language", BY_HAND)
def test_different_numbers_have_different_words_and_a_thousand_numbers_show_nearly_all_words(language):
    said = [tuple(words(number, language)) for number in SAMPLE]
    assert len(set(said)) == len(SAMPLE)
    assert {word for one in said for word in one} == {word for one in said[:1000] for word in one} | (
        {"en": {"thousand"}, "de": {"tausend"}, "fr": {"mille"}, "zh": {"千", "万"}}[language]
    )


def test_the_words_are_morphemes_in_german_words_in_french_and_characters_in_chinese():
    assert words(101_021, "de") == ["ein", "hundert", "ein", "tausend", "ein", "und", "zwanzig"]
    assert words(97_200, "fr") == ["quatre", "vingt", "dix", "sept", "mille", "deux", "cents"]
    assert words(110_010, "zh") == ["十", "一", "万", "零", "一", "十"]


@pytest.mark.parametrize("language", BY_HAND)
def test_no_words_are_written_as_an_empty_text(language):
    assert written([], language) == ""


@pytest.mark.parametrize("number", [-1, 1_000_000])
def test_a_number_out_of_range_is_refused(number):
    with pytest.raises(ValueError, match=f"from 0 to 999,999 can be said, but {number:,} cannot"):
        words(number, "fr")
