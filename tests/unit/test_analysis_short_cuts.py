"""Optimisations for long messages do not change results: each is compared with the plain implementation."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.recall import details, time_expressions
from holdfast.recall.chunks import MOST, find_sentences, split_chunks
from holdfast.recall.details import LONG, Sentence, analyse, find_mentions, write_detail
from holdfast.recall.terms import choose_language, extract_terms, split_words
from holdfast.recall.time_expressions import Rule, Rules, fold, match_rule, read_words
from tests.amounts import examples

AT = 1_700_000_000_000
NOW = datetime(2023, 11, 14, 22, 13)  # noqa: DTZ001 - local time
ENDS = "[.!?…]{1,8}[\"')\\]*”’»]{0,4}(?=\\s|$)|[。！？；]{1,8}[”’」』）]{0,4}"  # noqa: RUF001 - ends of sentences
PLAIN_SENTENCE = re.compile(rf"[^\n]+?(?:{ENDS}|$|(?=\n))")
RULES = [*time_expressions.RULES, *time_expressions.FURTHER_RULES, *time_expressions.DENSE_RULES, *details.RULES]
WORDS = [
    "I",
    "you",
    "yours",
    "my",
    "the",
    "of",
    "and",
    "ship",
    "ships",
    "order-17",
    "ORD-12345",
    "naïve",
    "Straße",
    "könnte",
    "Käse",
    "1234",
    "5678",
    "9012",
    "3.5",
    "12,000",
    "don't",
    "DE89",
    "3704",
    "0044",
    "C++",
    "user@example.com",
    "订单",
    "注文した",
    "주문",
    "½",
    "ﬁne",
    "yesterday",
    "Friday",
    "week",
    "May",
    "14th",
    "2024-05-03",
    "next",
    "明天",
    "in",
    "5",
    "days",
]
marks = st.sampled_from(
    [" "] * 8 + ["", "\n", "\n\n", ". ", ".", "? ", "! ", "… ", ".” ", "？", "。’", "\u3000", "\u00a0", "\u0301"]  # noqa: RUF001
)
texts = st.lists(st.builds(str.__add__, st.sampled_from(WORDS), marks), max_size=160).map("".join)


@given(text=texts | texts.map(lambda one: one * 4))
def test_analysis_by_sentence_equals_analysis_of_the_whole_text(text: str) -> None:
    terms = extract_terms(text)
    chunks = split_chunks(text, choose_language(split_words(text))) if terms.length > MOST else []
    found, detail = analyse(text, AT)
    assert found == terms
    assert [*found.counts] == [*terms.counts]
    assert detail == write_detail(chunks, find_mentions(text, AT))


def test_the_first_words_of_a_text_decide_its_language_and_every_term_is_bounded() -> None:
    text = "Das ist nicht die Katze, die ich kannte. " * 12 + "The cats were running. " * 40
    assert len(text) > LONG
    assert analyse(text, AT)[0] == extract_terms(text)
    many = " ".join(f"word{number}x. " for number in range(5_000))
    assert analyse(many, AT)[0] == extract_terms(many)


@given(
    text=st.text(st.sampled_from("ab. !?…。！？；\n\t\"')]*”’」』）»x3\u2028\x1c\r"), max_size=30),  # noqa: RUF001
    start=st.integers(0, 10),
    stop=st.none() | st.integers(0, 30),
)
def test_sentences_end_where_the_plain_pattern_ends(text: str, start: int, stop: int | None) -> None:
    plain = []
    for found in PLAIN_SENTENCE.finditer(text, start, len(text) if stop is None else stop):
        said = found.group()
        first, last = found.start() + len(said) - len(said.lstrip()), found.start() + len(said.rstrip())
        plain += [(first, last)] if first < last else []
    assert [*find_sentences(text, start, stop)] == plain


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Ask Mrs. Kettering at pavilion no. 3. She knows.", ["Ask Mrs. Kettering at pavilion no. 3.", "She knows."]),
        ("It is $1,825 incl. tax. Fine.", ["It is $1,825 incl. tax.", "Fine."]),
        ("I said no. Then she left.", ["I said no.", "Then she left."]),
        ("Frau Dr. Weiß kommt z. B. um 5. Gut.", ["Frau Dr. Weiß kommt z. B. um 5.", "Gut."]),
        ("Dr.\nMoss", ["Dr.", "Moss"]),
    ],
)
def test_sentences_do_not_end_at_abbreviations(text: str, sentences: list[str]) -> None:
    assert [text[start:stop] for start, stop in find_sentences(text)] == sentences


def sentence_of(text: str) -> Sentence:
    return Sentence(fold(text), read_words(fold(text)))


@given(text=texts)
def test_every_sentence_that_may_name_a_time_is_considered(text: str) -> None:
    sentences = [sentence_of(text[start:stop]) for start, stop in find_sentences(text)]
    assert [*details.find_dated_sentences(text)] == [one for one in sentences if details.can_name_time(one)]


@given(text=texts | st.text(max_size=40))
def test_folding_a_text_keeps_each_character_in_its_place(text: str) -> None:
    assert len(fold(text)) == len(text)
    assert [*map(fold, text)] == [*fold(text)]


@settings(max_examples=examples(20))
@given(data=st.data())
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text[:40])
def test_every_match_of_a_pattern_passes_the_word_filter(rule: Rule, data: st.DataObject) -> None:
    said = fold(data.draw(st.from_regex(rule.pattern)))
    if [*match_rule(rule, said, NOW)]:
        assert Rules([rule]).find(read_words(said)) == [rule]


def test_a_turkish_i_is_matched_without_error() -> None:
    """Patterns that ignore case match it as an i."""
    assert find_mentions("On frıday this week", AT)  # noqa: RUF001 - the letter
    assert find_mentions("By last FRİDAY, yesterday", AT)
