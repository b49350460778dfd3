"""Recorded sessions as JSON lines, in the shapes people have them.

A line is `{"id", "messages": […]}`, or a bare list of messages, or one message with the `session_id` it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.domain.messages import Message
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.limits import RECORDING_LINE_BYTES
from holdfast.wire.openai import message_from, messages_from
from holdfast.wire.voice import find_records


class Recording(msgspec.Struct, frozen=True):
    """One recorded session, its system messages still in place."""

    id: str
    messages: tuple[Message, ...]


class BadLine(msgspec.Struct, frozen=True):
    """A line that is no recording, and why."""

    source: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.problem}"


def recordings(lines: Iterable[bytes], source: str) -> Iterator[Recording | BadLine]:
    """The sessions in `lines`, bad lines among them as they come; messages of one a line are gathered to the end.

    Args:
        lines: of a JSONL file, line ends allowed; blank ones are passed over.
        source: the file's name, for bad lines and for sessions without an id.
    """
    gathered: dict[str, list[Message]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            read = _recording(line, f"{source}:{number}")
        except InvalidMessage as exc:
            yield BadLine(source, number, str(exc))
            continue
        if isinstance(read, Recording):
            yield read
        else:
            session_id, message = read
            gathered.setdefault(session_id, []).append(message)
    for session_id, messages in gathered.items():
        yield Recording(session_id, tuple(messages))


def _recording(line: bytes, name: str) -> Recording | tuple[str, Message]:
    data = _decoded(line)
    if isinstance(data, list):
        return Recording(name, tuple(messages_from(data)))
    if not isinstance(data, dict):
        raise InvalidMessage("a line is an object with messages, a list of messages, or a message with a session_id")
    if "messages" in data or "contents" in data:
        given, where = _records(data)
        return Recording(_name(data, name), tuple(messages_from(given, where)))
    if "role" in data and "session_id" in data:
        message = {key: value for key, value in data.items() if key != "session_id"}
        return str(data["session_id"]), message_from(message)
    raise InvalidMessage("neither messages nor a role with its session_id stand in the object")


def _records(data: dict[str, Any]) -> tuple[Any, str]:
    try:
        return find_records(data)
    except InvalidRequest as exc:
        raise InvalidMessage(str(exc)) from exc


def _decoded(line: bytes) -> Any:
    if len(line) > RECORDING_LINE_BYTES:
        raise InvalidMessage(f"the line has {len(line)} bytes, more than {RECORDING_LINE_BYTES}")
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidMessage(f"no JSON: {exc}") from exc


def _name(data: dict[str, Any], fallback: str) -> str:
    name = data.get("id") or data.get("session_id")
    return fallback if name is None else str(name)
