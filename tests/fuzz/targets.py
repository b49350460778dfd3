"""What is fuzzed: for each reader of other people's bytes, what has to hold whatever they are.

A target takes bytes and raises when something is wrong. `HoldfastError` is how a reader refuses; nothing else may come out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.config.loader import load
from holdfast.domain.history import OldEntry, rebuild_log
from holdfast.domain.messages import Message, decode_payload, encode_canonical, encode_payload
from holdfast.domain.session import Tail
from holdfast.errors import ConfigError, HoldfastError
from holdfast.models.sse import Event, EventReader, EventTooLong
from holdfast.wire.exports import is_same as imports_same
from holdfast.wire.exports import parse_export
from holdfast.wire.openai import OWN_FIELDS, parse_message, parse_messages, to_chat_message
from holdfast.wire.strict_json import decode_json
from holdfast.wire.transcripts import BadLine, Recording, read_recordings


@dataclass(frozen=True)
class Target:
    """One reader."""

    check: Callable[[bytes], None]
    modules: tuple[str, ...]
    """Where new lines are worth keeping an input for; parts of file names."""
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...]
    """What mutations put in."""


# -- messages ----------------------------------------------------------------


def normal(data: Mapping[str, Any]) -> dict[str, Any]:
    """What an accepted message comes back as: all that was sent, but for the few things that the format says in two ways."""
    nothing = {name for name in ("name", "tool_calls", "tool_call_id") if data.get(name) in (None, [])}
    kept = {name: value for name, value in data.items() if name not in OWN_FIELDS | nothing}
    if "tool_calls" in kept:
        kept["tool_calls"] = [_normal_call(call) for call in kept["tool_calls"]]
    return kept


def _normal_call(call: Mapping[str, Any]) -> dict[str, Any]:
    key, arguments = ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
    said = call[key].get(arguments)
    text = "" if said is None else said if isinstance(said, str) else msgspec.json.encode(said).decode()
    return {**call, "type": call.get("type") or "function", key: {**call[key], arguments: text}}


def check_message(data: bytes) -> None:
    """A message comes back as it was sent, through the wire's form and the store's."""
    value = _json(data)
    try:
        message = parse_message(value)
    except HoldfastError:
        return
    out = to_chat_message(message)
    assert same(out, normal(value)), (value, out)
    assert parse_message(out) == message
    assert decode_payload(encode_payload(message)) == message
    assert encode_canonical(parse_message(out)) == encode_canonical(message)
    assert isinstance(message.text, str)


def check_import(data: bytes) -> None:
    """What is imported is as many messages as were sent, each whole."""
    value = _json(data)
    if not isinstance(value, dict):
        return
    try:
        read = parse_export(value)
    except HoldfastError:
        return
    assert len(read.messages) == len(read.fields)
    assert imports_same(read, read)
    old = [
        OldEntry(message=m, **{"tokens": 1, "timestamp": 0, **own})
        for m, own in zip(read.messages, read.fields, strict=True)
    ]
    try:
        entries, tail, live = rebuild_log(old)
    except HoldfastError:
        entries, tail, live = [], Tail(), 0
    assert tail.next_seq == len(entries) >= live == sum(entry.retired_by is None for entry in entries)
    if any("stands_for" in own for own in read.fields):
        return  # what was erased is not what was sent
    sent = value["messages"][len(value["messages"]) - len(read.messages) :]
    assert all(same(to_chat_message(m), normal(item)) for m, item in zip(read.messages, sent, strict=True))
    assert [*parse_messages(sent)] == [*read.messages]


def check_recordings(data: bytes) -> None:
    """Each line is a recording, a message, or a bad line that says why; none is lost, and lines do not mix."""
    lines = data.splitlines(keepends=True)
    for item in read_recordings(lines, "file"):
        if isinstance(item, BadLine):
            assert 1 <= item.line <= len(lines)
            assert str(item)
        else:
            assert isinstance(item, Recording)
            assert all(isinstance(message, Message) for message in item.messages)


# -- bytes -------------------------------------------------------------------


def check_body(data: bytes) -> None:
    """What a strict reader takes, the standard one reads in the same way."""
    try:
        value = decode_json(data)
    except HoldfastError:
        return
    again = json.loads(data)
    assert same(value, again), (value, again)


def check_sse(data: bytes) -> None:
    """A stream gives the same events wherever it is cut."""
    cut = data[0] % 7 + 1 if data else 1
    try:
        whole = _events([data])
    except EventTooLong:
        return
    try:
        assert _events([data[at : at + cut] for at in range(0, len(data), cut)]) == whole
    except EventTooLong:  # pieces are looked at more often: what is too long only for them ended within one read
        return
    assert all(event.data.strip() for event in whole)


def _events(pieces: list[bytes]) -> list[Event]:
    reader = EventReader(limit=200)
    return [event for piece in pieces for event in reader.feed(piece)] + reader.end()


def check_yaml(data: bytes) -> None:
    """A configuration, or all that is wrong with it, a line each."""
    text = data.decode("utf-8", "surrogateescape" if data[:1] == b"!" else "replace")
    try:
        load(text, env={"A": "x", "B": "${A}", "OPENAI_BASE_URL": text[:20]})
    except ConfigError as exc:
        told = exc.problems
    else:
        return
    assert told
    assert all(told)


def _json(data: bytes) -> Any:
    """Any value that Python can make of JSON: NaN, surrogates and huge numbers too, which a library's caller may hand in."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types: 1 is not true, and 1.0 not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and bool(left == right)


_WORDS = (
    *(b'"role":', b'"content":', b'"tool_calls":', b'"tool_call_id":', b'"function":', b'"custom":', b'"arguments":'),
    *(b'"type":"text"', b'"text":', b'"refusal":', b'"id":', b'"name":', b'"seq":1', b'"turn_id":', b'"metadata":{}'),
    *(b"null", b"NaN", b"1e999", b"-0", b"9" * 25, b"1.0", b"true", b'"\\ud800"', b'"\\u0000"', b"[]", b"{}", b'""'),
    *(b"[" * 20, b'{"a":' * 20, b"\\", b'"', b",", b":", b"\n", b"\xff", b"\xe9", b'"messages":[', b'"session_id":"s"'),
)
_CALL = b'{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}'
_CUSTOM = (
    b'{"role":"assistant","tool_calls":[{"id":"c","type":"custom","custom":{"name":"f","input":"x"},"function":1}]}'
)
_MESSAGES = (
    b'{"role":"user","content":"hi","x":{"a":[1,2.5,null,true]}}',
    _CALL,
    _CUSTOM,
    b'{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":{"a":1}},"x":1}],"name":null}',
    b'{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{}}]}',
    b'{"role":"assistant","content":[{"type":"refusal","refusal":"no","text":"x"},{"type":"output_text","text":""}]}',
    b'{"role":"system","content":"","seq":1,"timestamp":5,"metadata":{},"pinned":true,"importance":0.5}',
)
_EXPORT = (
    b'{"id":"s","state":{"k":1},"ttl":5,"system_messages":["x"],"metadata":{},"messages":['
    + b",".join(_MESSAGES)
    + b"]}"
)
_WHOLE = (
    b'{"schema":1,"created_at":1,"updated_at":2,"status":"closed","ended_at":3,"end_reason":"ttl","usage":{"calls":1},"messages":['
    b'{"role":"user","content":"a","seq":0,"retired_by":2},{"role":"user","content":"b","retired_by":2,"erased":true,'
    b'"digest":"00112233445566778899aabbccddeeff","tokens":7},{"role":"user","content":"c"}],"images":[{"seq":0}],'
    b'"calls":[{"model":"m","through":-1,"hash":"00","build":"AA=="}]}'
)

TARGETS: dict[str, Target] = {
    "message": Target(check_message, ("wire/openai", "holdfast/messages"), _MESSAGES, _WORDS),
    "import": Target(
        check_import,
        ("wire/openai", "wire/exports", "wire/past", "holdfast/history"),
        (_EXPORT, _WHOLE, b'{"messages":[{"role":"system","content":"x"},' + _MESSAGES[0] + b"]}"),
        _WORDS,
    ),
    "recordings": Target(
        check_recordings,
        ("wire/transcripts", "wire/openai"),
        (
            b'{"id":"a","messages":[' + _MESSAGES[0] + b"]}\n\n[" + _CALL + b"]\r\n",
            b'{"session_id":"s","role":"user","content":"x"}\n{"session_id":5,"role":"user","content":"y"}\nnonsense\n',
        ),
        _WORDS,
    ),
    "body": Target(check_body, ("wire/strict",), (*_MESSAGES, _EXPORT, b'{"a:":"\\u003a","\\u0061":1}'), _WORDS),
    "sse": Target(
        check_sse,
        ("models/sse",),
        (
            b'data: {"a":1}\n\ndata: [DONE]\n\n',
            b"\xef\xbb\xbfevent: x\r\ndata: a\r\ndata\r\n\r\n: c\rid: 1\r\rerror: e",
        ),
        (
            b"\r",
            b"\n",
            b"\r\n",
            b"data:",
            b"data: ",
            b"event: ",
            b": ",
            b"error:",
            b"\xef\xbb\xbf",
            b"x" * 190,
            b"\x00",
        ),
    ),
    "yaml": Target(
        check_yaml,
        ("config/document", "config/convert", "config/model", "config/llms", "config/storage"),
        (
            b"gateway: {port: 9000, max_body: 5MiB, tool_timeout: 1m30s}\nllms: {a: {model: m, base_url: 'http://x'}}\n",
            b"agents:\n  a: {llm: b, context: {strategy: token_window, budget: 5}}\ncontext: {strategy: digest}\n",
            b"databases: {main: {driver: sqlite, path: ${A:-x}}}\nstorage: {sessions: {backend: sql, database: main}}\n",
        ),
        (
            b"${A}",
            b"${",
            b"$${",
            b"&a ",
            b"*a",
            b"<<: ",
            b"!!int ",
            b"? ",
            b"- ",
            b"[",
            b"{",
            b"}",
            b"|\n  ",
            b"'",
            b'"',
            b": ",
            b"\n",
            b"\t",
            b"# ",
            b"---\n",
            b"%YAML 1.1\n",
            b"\x00",
            b"\xff",
            b"1e999",
            b"0x10",
            b".inf",
            b"~",
            b"9" * 30,
        ),
    ),
}
