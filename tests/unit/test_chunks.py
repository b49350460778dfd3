"""Chunks of long messages, and the details that an index stores of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recall.chunks import LEAST, MAX_CHUNKS, MOST, split_chunks
from holdfast.recall.details import find_chunks, read_chunks, write_detail
from holdfast.recall.terms import MAX_TEXT, extract_terms

WORDS = ["anchor", "boat", "canvas", "drift", "engine", "ferry", "gale", "harbour"]
sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(lambda words: " ".join(words) + ".")
texts = st.lists(sentences, min_size=1, max_size=40).flatmap(
    lambda some: st.lists(st.sampled_from([" ", "\n", "\n\n"]), min_size=len(some), max_size=len(some)).map(
        lambda gaps: "".join(a + b for a, b in zip(some, gaps, strict=True))
    )
)
hostile = st.text(max_size=2_000) | st.text(alphabet="ab。！\n\x00\ud800`#|;@ ", max_size=2_000)  # noqa: RUF001 - ends of sentences


@given(texts)
def test_every_word_is_in_a_chunk_and_chunks_end_with_sentences(text: str) -> None:
    chunks = split_chunks(text, "english")
    assert set().union(*(chunk.terms for chunk in chunks)) == set(extract_terms(text).counts)
    for chunk in chunks:
        assert text[chunk.start : chunk.stop].endswith(".")
        assert sum(chunk.terms.values()) == chunk.length
    assert all(one.start < other.start and one.stop < other.stop for one, other in pairwise(chunks))
    assert all(LEAST <= chunk.length <= MOST + 30 for chunk in chunks[:-1])


@given(hostile)
def test_details_of_any_text_can_be_read_back(text: str) -> None:
    chunks = split_chunks(text, "english")
    detail = write_detail(chunks, ())
    assert detail.isascii()
    assert "|" not in detail
    shapes = read_chunks(detail)
    assert [(one.start, one.stop, one.length, one.traits) for one in shapes] == [
        (one.start, one.stop, one.length, one.traits) for one in chunks if len(chunks) > 1
    ]
    for term in {term for chunk in chunks for term in chunk.terms} if shapes else ():
        assert find_chunks(detail, term) == [at for at, chunk in enumerate(chunks) if term in chunk.terms]
    assert find_chunks(detail, "nowhere") == []


def test_neighbouring_sentences_share_a_chunk() -> None:
    """So facts spread over two sentences are found at any split."""
    text = " ".join(f"The {first} met the {second} at pier number {at}." for at, (first, second) in enumerate(zip(WORDS * 9, (WORDS * 9)[1:], strict=False)))  # fmt: skip
    chunks = split_chunks(text, "english")
    assert len(chunks) > 3
    for one, other in pairwise(chunks):
        assert other.start < one.stop, "the last sentence of one is the first of the next"


def test_chunks_end_at_code_blocks_and_paragraphs() -> None:
    prose = "The harbour master wrote down each boat that came in with the tide that evening, and its anchor. " * 5
    text = f"{prose}\n\n```python\n" + "\n".join(f"engine_{at} = Ferry(gale={at})" for at in range(30)) + "\n```\n"
    chunks = split_chunks(text, "english")
    assert any(text[chunk.start :].startswith(("```python", "engine_0")) for chunk in chunks)


@pytest.mark.parametrize("gap", ["\n", "\r\n\r\n", "\n\n"])
def test_a_heading_begins_a_chunk(gap: str) -> None:
    prose = " ".join(f"The harbour master wrote down boat {at}, its anchor and its canvas." for at in range(9))
    text = f"{prose}{gap}## Ferries\n{prose}"
    assert any(text.startswith("## Ferries", chunk.start) for chunk in split_chunks(text, "english"))


def test_a_very_long_text_keeps_its_first_and_last_chunks() -> None:
    text = "".join(f"Buoy number {at} is painted red and white.\n" for at in range(MAX_TEXT // 20))
    chunks = split_chunks(text, "english")
    assert len(chunks) <= MAX_CHUNKS
    assert chunks[0].start == 0
    assert text[chunks[-1].stop :].strip() == ""
