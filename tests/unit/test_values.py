"""Weights of values by their form, at the limits of each form."""

from __future__ import annotations

import string

import pytest

from holdfast.context.values import (
    DATE,
    DENSE_WORD,
    DIGITS,
    IDENTIFIER,
    LONG_DATE,
    MAX_KEY,
    MAX_VALUE,
    NAME,
    NUMBERED,
    PATH,
    PHRASE,
    SHORT,
    TIME,
    WORD,
    estimate_tokens,
    format_label,
    has_error,
    split_words,
    weigh_keyed_value,
    weigh_sentence,
    weigh_value,
    weigh_words,
)


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        ("W-12345", IDENTIFIER),
        ("a123", IDENTIFIER),
        ("row 1234", PHRASE),
        ("s31", PHRASE),
        ("2024-05-17", DATE),
        ("17.05.2024", DATE),
        ("2024-05-17T10:30:00Z", LONG_DATE),
        ("10:30", TIME),
        ("-10:30:15+02", TIME),
        ("1234567", NUMBERED),
        ("123456", DIGITS),
        ("1234.567", DIGITS),
        ("1234", DIGITS),
        ("123", SHORT),
        ("12/34", PATH),
        ("src/app", PATH),
        ("Ada", NAME),
        ("ada", WORD),
        ("", WORD),
        ("x" * 64, WORD),
        ("x" * 65, 0.2),
        ("a1" * 32, IDENTIFIER),
        ("a1" * 33, 0.2),
        ("/" + "x" * 64, PATH),
        ("/" + "x" * (MAX_VALUE - 1), PATH),
        ("/" + "x" * MAX_VALUE, 0.2),
        ("/a " + "x" * 64, 0.2),
    ],
)
def test_value_weights_follow_their_form(value: str, weight: float) -> None:
    assert weigh_value(value) == weight


def test_only_four_characters_make_a_path() -> None:
    """In words without digits and in words of digits."""
    paths = {mark for mark in string.punctuation if weigh_value(f"kelp{mark}bed") == PATH}
    numbers = {mark for mark in string.punctuation if weigh_value(f"12{mark}34") == PATH}
    assert paths == numbers == set("@_/\\")


@pytest.mark.parametrize(
    ("key", "value", "weight"),
    [
        ("id", "kelp", IDENTIFIER),
        ("user_id", "Kelp", IDENTIFIER),
        ("userId", "kelp", IDENTIFIER),
        ("paid", "kelp", WORD),
        ("id", "sea", WORD),
        ("id", "kelp bed", WORD),
        ("name", "Kelp", NAME),
        ("id", "1234", DIGITS),
    ],
)
def test_a_word_under_an_identifier_key_is_an_identifier(key: str, value: str, weight: float) -> None:
    """From four characters on; other forms keep their weight."""
    assert weigh_keyed_value(key, value) == weight


def test_sentence_weight_sums_the_best_values() -> None:
    """Up to six values count, each less than the one before; a title has almost no weight."""
    assert weigh_sentence("W-12345") == round(IDENTIFIER / 1.5, 2)
    assert weigh_sentence("the W-12345") == round(IDENTIFIER / 1.5 + WORD / 3, 2) == weigh_sentence("W-12345 the")
    assert weigh_sentence("a b c d e f") == weigh_sentence("a b c d e f g") > weigh_sentence("a b c d e")
    assert weigh_sentence("Orders W-12345:") == weigh_sentence("") == weigh_sentence("…") == 0.1
    assert weigh_sentence("a b c d e:") == 0.1
    assert weigh_sentence("a b c d e f:") == weigh_sentence("a b c d e f")


def test_three_characters_of_a_dense_script_count_as_a_word() -> None:
    """From a run of four on; a shorter run is one word."""
    one, two = (round(sum(WORD / (1.5 * at) for at in range(1, count + 1)), 2) for count in (1, 2))
    assert DENSE_WORD == 3
    assert weigh_sentence("订单号") == one
    assert weigh_sentence("订单号已") == weigh_sentence("订单号已发") == two
    assert weigh_sentence("订单号已发货") > two


def test_words_are_split_at_white_space_and_punctuation() -> None:
    """The ASCII table and the pattern for other scripts agree, and punctuation inside values stays."""
    text = "(see order #W-12,x@y.z; /srv/kelp_bed. ~home~ 'ok'! 5% $4)"
    words = ["see", "order", "W-12", "x@y.z", "srv/kelp_bed", "home", "ok", "5%", "$4"]
    assert split_words(text) == words
    assert split_words(f"{text} é") == [*words, "é"]
    assert split_words("... -- //") == []
    assert weigh_words("See W-12345") == (("see", NAME), ("w-12345", IDENTIFIER))


def test_token_estimates_depend_on_the_form() -> None:
    assert estimate_tokens("x" * 12) == 3.0
    assert estimate_tokens("x" * 11 + "1") == 5.0
    assert estimate_tokens("xxxxx 12345x") == 3.0
    assert estimate_tokens("号" * 9) == 5.0


def test_a_label_is_one_line_of_at_most_forty_characters() -> None:
    assert format_label(" total \n price ") == "total price"
    assert format_label("x" * MAX_KEY) == "x" * MAX_KEY
    assert format_label("x" * 10**6) == "x" * MAX_KEY
    assert format_label("a\n" * 100) == ("a " * 100)[:MAX_KEY]


@pytest.mark.parametrize(
    "text", ["Errors: 2", "it FAILED", "ValueError", "timed out", "not found", "ошибка", "请求失败"]
)
def test_error_words_are_recognized(text: str) -> None:
    assert has_error(text)


@pytest.mark.parametrize("text", ["fine", "unfailing", "failing is human", "in time", "timeline"])
def test_similar_words_are_not_errors(text: str) -> None:
    assert not has_error(text)
