"""A slow and simple reference for an agent's view of a shared session, written from `docs/agents.md`.

Independent of the code under test: units are taken from the log by hand, and each is either the agent's own as it stands,
or a list of messages, or not seen at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.context.agent_view import Perspective
from holdfast.domain.messages import UNSPOKEN_PARTS, Message, Part
from holdfast.domain.session import Entry

Group = list[Entry]
"""A unit of the log."""


class Seen(NamedTuple):
    """A message that replaces the message of an entry."""

    entry: Entry
    message: Message
    heading: str
    """Its heading; empty for the agent's own messages."""
    tool: str = ""
    """The author of the result."""


def is_seen(eyes: Perspective | None, group: Group) -> bool:
    """Return True if a unit is in the view's branch, or in one that contains it or is contained in it."""
    first = group[0]
    if eyes is None or first.message.role in ("user", "system", "developer"):
        return True
    theirs = [name for name in ((first.metadata or {}).get("branch") or "").split(".") if name]
    mine = [name for name in eyes.branch.split(".") if name]
    inside = mine[: len(theirs)] == theirs
    if any((entry.metadata or {}).get("joined") for entry in group) and theirs:
        return inside
    return inside or theirs[: len(mine)] == mine


def replace_unit(eyes: Perspective | None, group: Group) -> list[Seen] | None:
    """Return the replacement of a unit's messages, or None if it is sent unchanged."""
    first = group[0]
    if eyes is None or first.message.role in ("user", "system", "developer"):
        return None
    steps_reply = [call.name for call in first.message.tool_calls] == ["hand_over"] and "step" in (first.metadata or {})
    if first.agent in (None, eyes.agent):
        if not steps_reply:
            return None
        return [Seen(first, first.message.evolve(tool_calls=(), content=first.message.content or ""), "")]
    name = _name(first.agent or "")
    if first.message.role == "tool":
        return [_result(name, first, "")]
    results = _results(group)
    seen = [_words(name, first, [] if steps_reply else results)]
    names = {result.seq: tool for tool, _, result in results if result is not None}
    handed = {result.seq for tool, _, result in results if result is not None and _is_transfer(tool, result)}
    for entry in group[1:]:
        if not (entry.seq in handed or (steps_reply and entry.seq in names)):
            seen.append(_result(name, entry, names.get(entry.seq, "")))
    return seen


def _name(name: str) -> str:
    return " ".join(name.split()).replace("[", "(").replace("]", ")")[:64]


def _results(group: Group) -> list[tuple[str, str, Entry | None]]:
    """Return each call of a unit with tool, arguments and the first result for its id that no earlier call used."""
    left = [entry for entry in group[1:] if entry.unit == group[0].seq]
    found: list[tuple[str, str, Entry | None]] = []
    for call in group[0].message.tool_calls:
        result = next((entry for entry in left if entry.message.tool_call_id == call.id), None)
        if result is not None:
            left.remove(result)
        found.append((call.name, call.arguments, result))
    return found


def _is_transfer(tool: str, result: Entry | None) -> bool:
    return tool == "transfer_to_agent" and (result is None or "transfer" in (result.metadata or {}))


def _words(name: str, first: Entry, calls: Sequence[tuple[str, str, Entry | None]]) -> Seen:
    lines: list[tuple[str, str]] = []
    for tool, arguments, result in calls:
        if _is_transfer(tool, result):
            target = ((result.metadata or {}) if result else {}).get("transfer") or json.loads(arguments)["agent_name"]
            message = json.loads(arguments).get("message", "")
            lines.append((f"[agent {name} handed the conversation over to {target}]", message and f": {_in(message)}"))
        else:
            lines.append((f"[agent {name} called {_name(tool)} with]: ", _in(_short(arguments, first.seq))))
    heading = f"[agent {name}]: "
    pieces = _pieces(first.message)
    if not pieces:
        heading = lines[0][0] if lines else f"[agent {name} said nothing]"
        pieces = ["\n".join(map("".join, lines)) if lines else heading]
        return Seen(first, _message(pieces), heading)
    return Seen(first, _message([*_under(heading, pieces), *("\n" + "".join(line) for line in lines)]), heading)


def _result(name: str, entry: Entry, tool: str) -> Seen:
    heading = f"[agent {name}'s tool {tool} returned]: " if tool else f"[agent {name}'s tool returned late]: "
    return Seen(entry, _message(_under(heading, _pieces(entry.message))), heading, tool)


def _short(text: str, seq: int) -> str:
    if len(text) <= 1000:
        return text
    return f"{text[:666]} [… {len(text) - 1000} of {len(text)} characters left out, message {seq} of the session …] {text[-334:]}"


def _in(text: str) -> str:
    """Indent all lines except the first by two spaces."""
    lines = text.splitlines()
    return "\n".join([*lines[:1], *(line and f"  {line}" for line in lines[1:])])


def _pieces(message: Message) -> list[str | Part]:
    """Return texts and media of a message without reasoning; adjacent texts are joined."""
    content = (Part("text", message.content),) if isinstance(message.content, str) else message.content
    pieces: list[str | Part] = []
    for part in content if isinstance(content, tuple) else ():
        if part.type in UNSPOKEN_PARTS:
            continue
        if part.text is None:
            pieces.append(part)
        elif pieces and isinstance(pieces[-1], str):
            pieces[-1] += part.text
        else:
            pieces.append(part.text)
    return [piece for piece in pieces if isinstance(piece, Part) or piece.strip()]


def _under(heading: str, pieces: list[str | Part]) -> list[str | Part]:
    if pieces and isinstance(pieces[0], str):
        first, rest = heading + _in(pieces[0]), pieces[1:]
    else:
        first, rest = heading, pieces
    return [first, *(piece if isinstance(piece, Part) else f"  {_in(piece)}" for piece in rest)]


def _message(pieces: Sequence[str | Part]) -> Message:
    """Make a user message of texts and media; adjacent texts are joined."""
    joined: list[str | Part] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece.removeprefix("\n") if isinstance(piece, str) else piece)
    if len(joined) == 1 and isinstance(joined[0], str):
        return Message(role="user", content=joined[0])
    parts = (Part("text", piece) if isinstance(piece, str) else piece for piece in joined)
    return Message(role="user", content=tuple(parts))
