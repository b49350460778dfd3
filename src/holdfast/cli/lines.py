"""Sessions out of JSON lines, with all that an export says of them; the shapes of `holdfast.wire.transcripts`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.exports import Imported, import_from, own_fields
from holdfast.wire.openai import message_from
from holdfast.wire.transcripts import MAX_LINE


class Sent(NamedTuple):
    """One session to import, and where it stands."""

    place: str
    """File and line."""
    id: str
    session: Imported


def sessions_in(lines: Iterable[bytes], source: str) -> Iterator[Sent]:
    """The sessions in `lines`; messages of one a line are gathered to the end.

    A session without an id is named after its place, so that importing the file again is noticed.

    Raises:
        InvalidMessage: a line that is none, named by file and number.
    """
    gathered: dict[str, tuple[str, list[Any]]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{source}:{number}"
        try:
            data = _decoded(line)
            if "messages" in data:
                yield _sent(data, place)
            else:
                session_id, message = _single(data)
                gathered.setdefault(session_id, (place, []))[1].append(message)
        except InvalidRequest as exc:
            raise InvalidMessage(f"{place}: {exc}") from exc
    for session_id, (place, messages) in gathered.items():
        try:
            yield _sent({"id": session_id, "messages": messages}, place)
        except InvalidRequest as exc:
            raise InvalidMessage(f"{place}: session {session_id!r}: {exc}") from exc


def _decoded(line: bytes) -> dict[str, Any]:
    """The object in a line; a bare list is the messages of one."""
    if len(line) > MAX_LINE:
        raise InvalidMessage(f"the line has {len(line)} bytes, more than {MAX_LINE}")
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidMessage(f"no JSON: {exc}") from exc
    if isinstance(data, list):
        return {"messages": data}
    if not isinstance(data, dict):
        raise InvalidMessage("a line is an object with messages, a list of messages, or a message with a session_id")
    return data


def _sent(data: dict[str, Any], place: str) -> Sent:
    name = data.get("id") or data.get("session_id")
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    session = import_from({**data, "id": name})
    return Sent(place, session.id or place, session)


def _single(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A message of one a line, checked here so that a mistake is told with its own line, and whose it is."""
    if "role" not in data or data.get("session_id") is None:
        raise InvalidMessage("neither messages nor a role with its session_id stand in the object")
    message = {key: value for key, value in data.items() if key != "session_id"}
    message_from(message)
    own_fields(message, "message")
    return str(data["session_id"]), message
