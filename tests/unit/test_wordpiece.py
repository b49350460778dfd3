"""WordPiece as in BERT: rules on a small vocabulary, and comparison with Hugging Face's tokenizer."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.embedders import weights
from holdfast.embedders.wordpiece import WORD_CHARS, WordPiece, read_vocabulary, split_words
from holdfast.errors import EmbeddingFailed

SMALL = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "un",
    "##aff",
    "##able",
    "##a",
    "a",
    "##b",
    ",",
    "!",
    "東",
    "京",
    "creme",
    "hello",
]
FRAME = (2, 3)
RECLASSIFIED = {0x166D, 0x1734, 0x1885, 0x1886}
"""Code points with another category in an older Unicode."""


def tokenize_small(text: str, most: int = 100) -> list[str]:
    ids = WordPiece(SMALL).encode(text, most)
    assert (ids[0], ids[-1]) == FRAME
    return [SMALL[at] for at in ids[1:-1]]


def test_the_longest_known_piece_is_taken_first() -> None:
    assert tokenize_small("unaffable") == ["un", "##aff", "##able"]
    assert tokenize_small("ab, unaffaba!") == ["a", "##b", ",", "un", "##aff", "##a", "##b", "##a", "!"]


def test_a_word_with_an_unknown_part_is_unknown() -> None:
    assert tokenize_small("unaffx hello") == ["[UNK]", "hello"]
    assert tokenize_small("a" + "b" * (WORD_CHARS - 1), 200) == ["a"] + ["##b"] * (WORD_CHARS - 1)
    assert tokenize_small("a" + "b" * WORD_CHARS) == ["[UNK]"]


def test_accents_case_controls_and_white_space_are_normalized() -> None:
    assert tokenize_small("CRÈME\u00a0he\u0000l\u200blo\r\n\u2028東京a") == ["creme", "hello", "東", "京", "a"]
    assert split_words("Crème BRÛLÉE\tnaïve\u3000x") == ["creme", "brulee", "naive", "x"]
    assert split_words("he\u0000l\u200bl\x1fo\x7f \ufffd") == ["hello"]
    assert split_words("明日の会議") == ["明", "日", "の", "会", "議"]
    assert split_words("ΟΔΟΣ İ") == ["οδοσ", "i"]
    assert split_words("a-b_c: $5…") == ["a", "-", "b", "_", "c", ":", "$", "5", "…"]


def test_special_tokens_in_texts_are_plain_text() -> None:
    assert "[SEP]" not in tokenize_small("[SEP] [CLS] hello [PAD]")


@given(st.text(st.sampled_from("abé, \n東!\u0301"), max_size=60), st.integers(2, 40))
def test_long_texts_are_truncated_at_the_end(text: str, most: int) -> None:
    assert tokenize_small(text, most) == tokenize_small(text, 10_000)[: most - 2]


@given(st.integers(3900, 4300), st.sampled_from(["a", "ab ", "a" * 101, " ", "é", "東"]), st.integers(200, 300))
def test_reading_only_the_beginning_gives_the_same_tokens(shift: int, unit: str, most: int) -> None:
    text = " " * shift + unit * (40_000 // len(unit))
    assert tokenize_small(text, most) == tokenize_small(text, 100_000)[: most - 2]


@pytest.mark.parametrize("lacks", ["[CLS]", "[SEP]", "[UNK]"])
def test_a_vocabulary_without_special_tokens_is_rejected(lacks: str) -> None:
    with pytest.raises(EmbeddingFailed, match=r"\[" + lacks[1:-1]):
        WordPiece(piece for piece in SMALL if piece != lacks)


# -- comparison with Hugging Face ---------------------------------------------------------


@lru_cache(maxsize=1)
def load_both() -> tuple[WordPiece, Any]:
    """Load both tokenizers with the vocabulary of the installed weights."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    try:
        files = weights.find()
    except EmbeddingFailed:
        pytest.skip("the weights of the local embedder are not installed")
    with files.vocabulary.open(encoding="utf-8") as lines:
        ours = WordPiece(read_vocabulary(lines))
    theirs = tokenizers.Tokenizer.from_file(str(files.vocabulary.with_name("tokenizer.json")))
    theirs.no_padding()
    theirs.no_truncation()
    return ours, theirs


def is_long_known(code: int) -> bool:
    """Return True if an older Unicode, which their tables use, classifies the character in the same way."""
    char = chr(code)
    return unicodedata.ucd_3_2_0.category(char) not in {"Cn", "Cs"} and code not in RECLASSIFIED


def test_every_character_is_tokenized_like_hugging_face() -> None:
    ours, theirs = load_both()
    codes = [code for code in range(0x30000) if is_long_known(code)]
    texts = [f"a{chr(code)}b {chr(code)}" for code in codes]
    found = theirs.encode_batch(texts)
    assert len(codes) > 90_000
    assert [
        hex(code) for code, text, one in zip(codes, texts, found, strict=True) if ours.encode(text, 64) != one.ids
    ] == []


TEXT = st.text(
    st.one_of(
        st.sampled_from("abcdefghijklmnopqrstuvwxyzABCDEFGH 0123456789 .,;:'\"!?()-_/\n\t"),
        st.characters(max_codepoint=0x2FFFF, exclude_categories=["Cs"]).filter(lambda char: is_long_known(ord(char))),
    ),
    max_size=80,
).filter(lambda text: "[" not in text)  # their tokenizer parses special tokens


@given(TEXT)
def test_texts_are_tokenized_like_hugging_face(text: str) -> None:
    ours, theirs = load_both()
    assert ours.encode(text, 100_000) == theirs.encode(text).ids
