"""Recorded sessions as JSON lines, in the formats in common use.

A line contains an object `{"id", "messages": […]}`, a bare list of messages, or one message with the `session_id` of
its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.domain.messages import NOTE, Message
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.limits import RECORDING_LINE_BYTES
from holdfast.wire.openai import parse_log_message, parse_log_messages
from holdfast.wire.voice import find_records


class Recording(msgspec.Struct, frozen=True):
    """One recorded session. System messages are among its messages."""

    id: str
    messages: tuple[Message, ...]


class BadLine(msgspec.Struct, frozen=True):
    """A line that is not a valid recording, with the reason."""

    source: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.problem}"


def read_recordings(lines: Iterable[bytes], source: str) -> Iterator[Recording | BadLine]:
    """Yield the recorded sessions, and the invalid lines, in the order of the lines.

    Sessions with one message per line are yielded at the end.

    Args:
        lines: Lines of a JSONL file, with or without line ends. Blank lines are skipped.
        source: Name of the file, for invalid lines and for sessions without an id.
    """
    gathered: dict[str, list[Message]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            read = _parse_recording(line, f"{source}:{number}")
        except InvalidMessage as exc:
            yield BadLine(source, number, str(exc))
            continue
        if isinstance(read, Recording):
            yield read
        else:
            session_id, message = read
            if message.role != NOTE:
                gathered.setdefault(session_id, []).append(message)
    for session_id, messages in gathered.items():
        yield Recording(session_id, tuple(messages))


def _parse_recording(line: bytes, name: str) -> Recording | tuple[str, Message]:
    data = _decode(line)
    if isinstance(data, list):
        return Recording(name, _parse_messages(data))
    if not isinstance(data, dict):
        raise InvalidMessage(
            "a line must be an object with messages, a list of messages, or a message with a session_id"
        )
    if "messages" in data or "contents" in data:
        given, where = _find_records(data)
        return Recording(_get_name(data, name), _parse_messages(given, where))
    if "role" in data and "session_id" in data:
        message = {key: value for key, value in data.items() if key != "session_id"}
        return str(data["session_id"]), parse_log_message(message)
    raise InvalidMessage("the object has neither messages nor a role with a session_id")


def _parse_messages(data: Any, where: str = "messages") -> tuple[Message, ...]:
    """Return the messages of a recording. The notes of an export are left out."""
    return tuple(message for message in parse_log_messages(data, where) if message.role != NOTE)


def _find_records(data: dict[str, Any]) -> tuple[Any, str]:
    try:
        return find_records(data)
    except InvalidRequest as exc:
        raise InvalidMessage(str(exc)) from exc


def _decode(line: bytes) -> Any:
    if len(line) > RECORDING_LINE_BYTES:
        raise InvalidMessage(f"the line has {len(line)} bytes, more than {RECORDING_LINE_BYTES}")
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidMessage(f"invalid JSON: {exc}") from exc


def _get_name(data: dict[str, Any], fallback: str) -> str:
    name = data.get("id") or data.get("session_id")
    return fallback if name is None else str(name)
