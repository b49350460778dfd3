"""Chat Completions messages: lossless both ways, and errors that name the place."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import UNSET

from holdfast.domain.log import extend
from holdfast.domain.messages import Message, Part, ToolCall, decode_payload, encode_payload
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import InvalidMessage
from holdfast.wire.openai import OWN_FIELDS, parse_message, parse_messages, split_system, to_chat_message

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def unknown(*known: str) -> SearchStrategy[dict[str, Any]]:
    """Fields beside the known ones."""
    return st.dictionaries(texts.filter(lambda key: key not in known), json_values, max_size=3)


def with_unknown(
    fields: dict[str, SearchStrategy[Any]],
    *,
    optional: dict[str, SearchStrategy[Any]] | None = None,
    known: Iterable[str] = (),
) -> SearchStrategy[dict[str, Any]]:
    """An object of the known fields and any others, in any order."""
    named: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(fields, optional=optional or {})
    both = st.tuples(named, unknown(*fields, *(optional or ()), *known)).map(lambda two: {**two[0], **two[1]})
    return both.flatmap(lambda data: st.permutations(list(data.items()))).map(dict)


parts = with_unknown({"type": st.just("text"), "text": texts}) | with_unknown(
    {"type": st.sampled_from(["image_url", "input_audio", "file", "thinking"])}
)
calls = st.sampled_from([("function", "arguments"), ("custom", "input")]).flatmap(
    lambda kind: with_unknown(
        {
            "id": texts,
            "type": st.just(kind[0]),
            kind[0]: with_unknown({"name": texts, kind[1]: texts}),
        }
    )
)
NAMED = {"role", "content", "name", "tool_calls", "tool_call_id"}
contents = texts | st.none() | st.lists(parts, max_size=3)
messages = (
    with_unknown(
        {"role": st.sampled_from(["user", "system", "developer"]), "content": contents},
        optional={"name": texts},
        known=NAMED | OWN_FIELDS,
    )
    | with_unknown(
        {"role": st.just("assistant")},
        optional={"content": contents, "tool_calls": st.lists(calls, min_size=1, max_size=2), "name": texts},
        known=NAMED | OWN_FIELDS,
    )
    | with_unknown(
        {"role": st.just("tool"), "content": contents, "tool_call_id": texts.filter(bool)},
        optional={"name": texts},
        known=NAMED | OWN_FIELDS,
    )
)


@given(messages)
def test_a_round_trip_loses_nothing(data: dict[str, Any]) -> None:
    """Every field at every level leaves as it came, also after it was stored; what came is left alone."""
    before = copy.deepcopy(data)
    message = parse_message(data)
    assert to_chat_message(message) == data == before
    assert decode_payload(encode_payload(message)) == message


@given(messages, st.dictionaries(st.sampled_from(sorted(OWN_FIELDS)), json_values, min_size=1))
def test_own_fields_are_never_kept_or_sent(data: dict[str, Any], own: dict[str, Any]) -> None:
    """What Holdfast gives an entry is recognised when it comes back, and goes no further."""
    message = parse_message({**own, **data})
    assert message == parse_message(data)
    assert not OWN_FIELDS & set(to_chat_message(message))


@given(messages)
def test_a_message_does_not_share_the_callers_dict(data: dict[str, Any]) -> None:
    """Changing the dict later does not change the message."""
    message = parse_message(data)
    kept = copy.deepcopy(message)
    for value in data.values():
        if isinstance(value, dict | list):
            value.clear()
    assert message == kept


@given(st.recursive(json_values, lambda inner: st.fixed_dictionaries({"role": inner, "content": inner})))
def test_any_json_gives_a_message_or_an_error_with_its_position(data: Any) -> None:
    made = parse_or_refuse(data)
    if isinstance(made, Message):
        assert parse_message(to_chat_message(made)) == made
    else:
        assert str(made).startswith("messages[3]")
        assert (made.param or "").startswith("messages[3]")


def parse_or_refuse(data: Any) -> Message | InvalidMessage:
    """The message in `data`, or why it is none."""
    try:
        return parse_message(data, "messages[3]")
    except InvalidMessage as error:
        return error


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (7, ""),
        (None, ""),
        ([], ""),
        ({}, ".role"),
        ({"role": "robot", "content": "x"}, ".role"),
        ({"role": ["user"], "content": "x"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": 7}, ".content"),
        ({"role": "user", "content": {"type": "text"}}, ".content"),
        ({"role": "user", "content": ["x"]}, ".content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text"}]}, ".content[1]"),
        ({"role": "user", "content": [{"text": "x"}]}, ".content[0]"),
        ({"role": "user", "content": "x", "name": 7}, ".name"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, ".tool_calls"),
        ({"role": "assistant", "tool_calls": "call"}, ".tool_calls"),
        ({"role": "assistant", "tool_calls": {"0": CALL}}, ".tool_calls"),
        ({"role": "assistant", "tool_calls": [CALL, {"type": "function"}]}, ".tool_calls[1]"),
        ({"role": "assistant", "tool_calls": [{**CALL, "function": {"arguments": ""}}]}, ".tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": 7}]}, ".tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}, ".tool_calls[0].custom"),
        ({"role": "tool", "content": "x"}, ".tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, ".tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, ".tool_call_id"),
        # What no JSON body can carry.
        ({"role": "user", "content": "\ud800"}, ".content"),
        ({"role": "user", "content": "x", "odd": {"deep": [float("nan")]}}, ".odd.deep[0]"),
        ({"role": "user", "content": "x", "odd": float("inf")}, ".odd"),
        ({"role": "user", "content": "x", "odd": b"bytes"}, ".odd"),
        ({"role": "user", "content": "x", "odd": datetime(2024, 5, 17, tzinfo=UTC)}, ".odd"),
        ({"role": "user", "content": "x", "odd": {1: 2}}, ".odd"),
        ({"role": "user", "content": "x", 1: 2}, ""),
    ],
)
def test_errors_name_the_position(data: Any, place: str) -> None:
    """`param` is the path of what is wrong, and the message begins with it."""
    with pytest.raises(InvalidMessage) as caught:
        parse_messages([{"role": "user", "content": "fine"}, data])
    assert caught.value.param == f"messages[1]{place}"
    assert str(caught.value).startswith(f"messages[1]{place}")


def test_too_deep_nesting_is_rejected() -> None:
    """Nesting without end is refused, not a crash."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidMessage, match="message is nested too deeply"):
        parse_message({"role": "user", "content": "x", "odd": deep})


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, ""), ({"a": 1}, '{"a":1}'), ([1, 2], "[1,2]"), ("{not json", "{not json")],
    ids=["none", "object", "list", "text"],
)
def test_arguments_become_a_text(given: Any, kept: str) -> None:
    """Parsed arguments are written as the text that providers want; a text stays as it is."""
    call = {"id": "c", "function": {"name": "f", "arguments": given}}
    message = parse_message({"role": "assistant", "tool_calls": [call]})
    assert message.tool_calls == (ToolCall("c", "f", kept),)
    assert message.content is UNSET


def test_parts_keep_their_kind() -> None:
    """Text, refusals and media come apart in the right places."""
    data = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "refusal", "refusal": "no"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]
    message = parse_message({"role": "assistant", "content": data})
    assert message.text == "ano"
    assert message.media == (Part("image_url", extra={"image_url": {"url": "data:,"}}),)
    assert to_chat_message(message)["content"] == data


def test_leading_system_messages_are_split_off() -> None:
    """Only those in front: one inside the conversation stays where it is."""
    given = parse_messages([{"role": role, "content": role} for role in ("system", "developer", "user", "system")])
    system, rest = split_system(given)
    assert [message.role for message in system] == ["system", "developer"]
    assert [message.role for message in rest] == ["user", "system"]
    assert split_system([]) == ((), [])


# -- entries -------------------------------------------------------------------


def entry(**changes: Any) -> Entry:
    """One entry, as a log would have it."""
    message = Message(role="user", content="hi", extra={"odd": 1})
    [made], _ = extend(Tail(), [NewEntry(message=message, tokens=5, timestamp=17, **changes)])
    return made
