"""Parsing an upstream's bytes as events, chunks or errors, without a network."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import (
    ModelError,
)
from holdfast.models.answer import AnswerReader
from holdfast.models.collect import Collector
from holdfast.models.failures import find_error_object, is_retryable, make_upstream_error, parse_retry_after, scrub
from holdfast.models.sse import Event, EventReader, EventTooLong

# -- events -----------------------------------------------------------------------


def read_events(data: bytes, places: list[int]) -> list[Event]:
    reader = EventReader()
    places = sorted({0, len(data), *places})
    events = [e for start, stop in itertools.pairwise(places) for e in reader.feed(data[start:stop])]
    return events + reader.end()


@given(
    st.lists(
        st.text(st.characters(blacklist_characters="\r\n", codec="utf-8"), min_size=1, max_size=9).filter(str.strip)
    ),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 200)),
)
def test_events_do_not_depend_on_where_bytes_are_split(texts: list[str], line_end: bytes, places: list[int]) -> None:
    lines = [b": comment", b"id: 7", b""]
    for text in texts:
        lines += [b"event: note", b"data: " + text.encode(), b"data:second", b"retry: 5", b""]
    found = read_events(line_end.join([*lines, b""]), places)
    assert found == [Event("note", text.encode() + b"\nsecond") for text in texts]


def test_a_byte_order_mark_and_a_missing_last_line_are_accepted() -> None:
    assert read_events(b"\xef\xbb\xbfdata: 1\n\n\n\ndata:\n\ndata: 2", [1, 2]) == [Event("", b"1"), Event("", b"2")]


def test_an_event_over_the_limit_is_rejected_in_one_line_or_many() -> None:
    with pytest.raises(EventTooLong):
        EventReader(100).feed(b"data: " + b"x" * 100)
    reader = EventReader(100)
    with pytest.raises(EventTooLong):  # noqa: PT012  (one of the rounds raises)
        for _ in range(100):
            reader.feed(b"data: x\n")
    assert EventReader(100).feed(b"data: x\n\n" * 100) == [Event("", b"x")] * 100


# -- answers ----------------------------------------------------------------------


def collect_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    collector = Collector()
    for chunk in chunks:
        collector.add(chunk)
    return collector.build_completion()


def read_answer(data: bytes, step: int = 0) -> list[dict[str, Any]]:
    reader = AnswerReader("http://model", ["sk-secret-key"], 10_000)
    chunks = []
    for at in range(0, len(data), step or max(1, len(data))):
        chunks += list(reader.feed(data[at : at + (step or len(data))]))
    return chunks if reader.done else chunks + list(reader.end())


GOOD = {
    "id": "c",
    "x": {"é": "☃"},
    "choices": [{"index": 0, "delta": {"content": "☃", "new": 1}, "finish_reason": None}],
}
LAST = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def make_sse(*events: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(e, ensure_ascii=False).encode() + b"\n\n" for e in events) + end


@pytest.mark.parametrize("step", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"data: [DONE]", b"data:[DONE]\r\r", b""])
def test_chunks_are_returned_unchanged(step: int, end: bytes) -> None:
    assert read_answer(make_sse(GOOD, LAST, end=end), step) == [GOOD, LAST]


names = st.sampled_from(["choices", "delta", "message", "error", "index", "code", "type", "tool_calls", "function"])
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 500) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
bodies = st.binary(max_size=60) | nonsense.map(lambda data: json.dumps(data).encode())
streams = st.lists(bodies | st.sampled_from([b"[DONE]"]), max_size=4).map(
    lambda events: b"".join(b"data: " + event + b"\n\n" for event in events)
)


@given(bodies | streams, st.integers(1, 70))
def test_any_bytes_give_an_answer_or_a_model_error(data: bytes, step: int) -> None:
    try:
        chunks = read_answer(data, step)
    except ModelError:
        return
    assert chunks
    assert collect_chunks(chunks)["choices"]


# -- error responses -----------------------------------------------------------------------


def test_retry_hints_of_the_upstream_are_followed() -> None:
    busy = make_upstream_error(503, None, where="w")
    assert is_retryable(busy, {})
    assert not is_retryable(busy, {"x-should-retry": "false"})
    refused = make_upstream_error(400, None, where="w")
    assert not is_retryable(refused, {})
    assert is_retryable(refused, {"x-should-retry": "true"})
    assert not is_retryable(make_upstream_error(429, {"code": "insufficient_quota"}, where="w"), {})


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:09 GMT", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 9),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:09 GMT"}, None),
        ({"retry-after": "Fri, 20 Nov 2020 10:00:09 GMT", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 0),
    ],
)
def test_retry_after_is_parsed_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"error": {"message": "m"}}, {"message": "m"}),
        ({"error": "m"}, {"message": "m"}),
        ({"detail": "m", "id": 1}, {"message": "m", "id": 1}),
        ({"detail": [{"loc": ["a"]}]}, {"detail": [{"loc": ["a"]}]}),
        ([{"error": {"message": "m"}}], {"message": "m"}),
        ({"object": "error", "message": "m"}, {"object": "error", "message": "m"}),
        ("m", {"message": "m"}),
        ([], None),
        (None, None),
        (7, None),
    ],
)
def test_the_error_object_is_found_in_every_shape(data: Any, expected: Any) -> None:
    assert find_error_object(data) == expected


def test_secrets_are_redacted_and_short_words_stay() -> None:
    data = {"a": ["key sk-0123456789 is bad"], "sk-0123456789": "none"}
    assert scrub(data, ["sk-0123456789", "none"]) == {"a": ["key [redacted] is bad"], "[redacted]": "none"}
