"""Counting tokens: the published vocabularies, known counts, messages, media and tools, and which counter a model has."""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tiktoken_ext.openai_public as openai_public
from hypothesis import given
from hypothesis import strategies as st

from holdfast import tokens
from holdfast.domain.counting import TokenCounter
from holdfast.domain.messages import Message, Part
from holdfast.errors import HoldfastError
from holdfast.tokens import STORED, get_counter

CL100K = get_counter("gpt-4")
ESTIMATE = get_counter("somebody-elses-model")
COUNTERS = [STORED, CL100K, ESTIMATE]
VOCABULARIES = [(tokens.O200K, openai_public.o200k_base), (tokens.CL100K, openai_public.cl100k_base)]

texts = st.text() | st.text(alphabet=st.characters(categories=["L", "N", "P", "Z", "Cs", "So"]))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("counting tokens reached for the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


# -- vocabularies -------------------------------------------------------------


@pytest.mark.parametrize(("vocabulary", "define"), VOCABULARIES, ids=lambda value: getattr(value, "name", ""))
def test_vocabulary_is_the_published_one(
    vocabulary: tokens.Vocabulary, define: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda url, expected_hash: asked.append(expected_hash))
    theirs = define()
    original = b"".join(b"%s %d\n" % (base64.b64encode(raw), rank) for raw, rank in vocabulary.read_ranks().items())
    assert [hashlib.sha256(original).hexdigest()] == asked
    assert vocabulary.pattern == theirs["pat_str"]
    assert vocabulary.special == theirs["special_tokens"]


def test_damaged_vocabulary_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = bytearray((tokens.DATA / "cl100k_base.ranks").read_bytes())
    packed[1000] ^= 1
    (tmp_path / "cl100k_base.ranks").write_bytes(packed)
    monkeypatch.setattr(tokens, "DATA", tmp_path)
    with pytest.raises(HoldfastError, match="damaged"):
        tokens.CL100K.read_ranks()


def test_vocabulary_is_loaded_once_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tokens.CL100K
    fresh = tokens.Vocabulary("cl100k_base", sha256="", pattern=theirs.pattern, special=theirs.special)
    loads: list[int] = []

    def load() -> dict[bytes, int]:
        loads.append(1)
        return theirs.read_ranks()

    monkeypatch.setattr(fresh, "read_ranks", load)
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(fresh.count("hello world"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]
    assert counts == [2] * 8


# -- text ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "o200k", "cl100k"),
    [
        ("", 0, 0),
        ("hello world", 2, 2),
        ("tiktoken is great!", 6, 6),
        ("antidisestablishmentarianism", 6, 6),
        ("2 + 2 = 4", 7, 7),
        ("お誕生日おめでとう", 8, 9),
    ],
)
def test_known_counts(text: str, o200k: int, cl100k: int) -> None:
    assert STORED.text(text) == o200k
    assert CL100K.text(text) == cl100k


@pytest.mark.parametrize("counter", COUNTERS, ids=lambda counter: counter.name)
@pytest.mark.parametrize("special", ["<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>", "<|im_start|>"])
def test_special_tokens_are_ordinary_text(counter: TokenCounter, special: str) -> None:
    assert counter.text(special) > 1


@given(texts)
def test_any_text_counts(text: str) -> None:
    for counter in COUNTERS:
        assert 0 <= counter.text(text) <= 2 * len(text.encode("utf-8", "surrogatepass"))
        assert (counter.text(text) == 0) == (text == "")


@given(texts)
def test_estimate_is_the_dearest(text: str) -> None:
    assert ESTIMATE.text(text) >= 1.25 * max(STORED.text(text), CL100K.text(text))


@given(st.lists(st.sampled_from(["word ", "12345", " ", "\n", "、漢字", "x", "-->", "é "])), st.integers(2, 40))
def test_pieces_are_the_text(words: list[str], size: int) -> None:
    text = "".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "CHUNK_CHARS", size)
        pieces = list(tokens.split_text(text))
    assert "".join(pieces) == text
    assert all(len(piece) <= size for piece in pieces)


def test_long_prose_is_counted_exactly() -> None:
    text = "The quick brown fox jumps over 13 lazy dogs, and so on.\n" * 6000
    assert len(text) > 4 * tokens.CHUNK_CHARS
    for vocabulary, _ in VOCABULARIES:
        assert vocabulary.count(text) == len(vocabulary.load_encoding().encode_ordinary(text))


@pytest.mark.parametrize("text", ["a", " ", "^", "\n", "中", "x1", "a ", "é", "=-"])
def test_a_megabyte_is_counted_in_pieces(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer's time grows with the square of what it is given at once, which would be minutes for a megabyte."""
    encode, pieces = tiktoken.Encoding.encode_ordinary, list[str]()

    def encode_and_record(encoding: tiktoken.Encoding, piece: str) -> list[int]:
        pieces.append(piece)
        return encode(encoding, piece)

    monkeypatch.setattr(tiktoken.Encoding, "encode_ordinary", encode_and_record)
    megabyte = text * (1_000_000 // len(text))
    assert CL100K.text(megabyte) > 1_000
    assert "".join(pieces) == megabyte
    assert max(map(len, pieces)) <= 64 * 1024


# -- messages -----------------------------------------------------------------


def test_unknown_fields_are_counted_and_empty_ones_are_not() -> None:
    bare = Message(role="assistant", content="yes")
    empty = bare.evolve(extra={"refusal": None, "annotations": [], "audio": None})
    thinking = bare.evolve(extra={"reasoning_content": "because of the weather"})
    assert STORED.message(empty) == STORED.message(bare)
    assert STORED.message(thinking) >= STORED.message(bare) + STORED.text("because of the weather")
    assert STORED.message(bare.evolve(extra={"odd": "\ud800"})) > STORED.message(bare)
    assert STORED.message(bare.evolve(extra={"index": 0})) > STORED.message(bare)


@given(st.lists(texts, max_size=4))
def test_a_message_never_gets_cheaper_by_more_parts(contents: list[str]) -> None:
    parts = tuple(Part("text", text) for text in contents)
    for counter in COUNTERS:
        counts = [counter.message(Message(role="user", content=parts[:end])) for end in range(len(parts) + 1)]
        assert counts == sorted(counts)


# -- models -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-2024-08-06", "o200k_base"),
        ("GPT-4.1-mini", "o200k_base"),
        ("gpt-5.1-codex", "o200k_base"),
        ("o1", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("chatgpt-4o-latest", "o200k_base"),
        ("openrouter/openai/gpt-oss-120b:free", "o200k_base"),
        ("openai:gpt-4o", "o200k_base"),
        ("ft:gpt-4o-mini:org::id", "o200k_base"),
        ("offline", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("azure/gpt-4-turbo", "cl100k_base"),
        ("ft:gpt-3.5-turbo:acme:name:id", "cl100k_base"),
        ("gpt-35-turbo", "cl100k_base"),
        ("text-embedding-3-small", "cl100k_base"),
        ("claude-sonnet-4-5", "estimate"),
        ("gpt-40", "estimate"),
        ("o1000", "estimate"),
        ("my-gpt-4o", "estimate"),
        ("", "estimate"),
    ],
)
def test_counter_for_model(model: str, name: str) -> None:
    counter = get_counter(model)
    assert counter.name == name
    assert counter.exact == (name != "estimate")


def test_factors_bound_recorded_sessions(recordings: list[dict[str, Any]]) -> None:
    messages = [message["content"] for session in recordings for message in session["messages"] if message["content"]]
    for counter in COUNTERS:
        stored, counted = 0, 0
        for text in messages[:500]:
            stored += STORED.text(text)
            counted += counter.text(text)
        assert counted <= counter.factor * stored


def test_stored_counter_is_o200k() -> None:
    assert (STORED.name, STORED.exact, STORED.factor) == ("o200k_base", True, 1.0)
