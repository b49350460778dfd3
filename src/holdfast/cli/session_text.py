"""A session as text for a terminal: what was said, in order; calls and results folded to a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from holdfast.cli.terminal import counted, line, moment, plain
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, Session, StoredCompaction

LONGEST = 600
"""Characters of a text that are shown, unless all of it is wanted."""
MOST_LINES = 12
FOLDED = 110
"""Characters of a call or a result in its one line."""
_COLORS = {"user": "green", "assistant": "cyan", "tool": "yellow", "system": "magenta", "developer": "magenta"}


def transcript(
    session: Session, entries: Sequence[Entry], *, full: bool, compactions: Sequence[StoredCompaction] = ()
) -> Iterator[str]:
    """The lines of a session.

    Args:
        session: the session itself.
        entries: its live path.
        full: whether long texts, calls and results are shown whole.
        compactions: what was made of ranges of the log, and what failed; told behind it.
    """
    yield from _heading(session)
    for message in session.system_messages:
        yield from ("", role_shown(message.role), *said(message, full=full))
    turn = -1
    tools: dict[str, str] = {}
    for entry in entries:
        if entry.turn_id != turn:
            turn = entry.turn_id
            yield from ("", click.style(f"turn {turn}", bold=True) + f"  {moment(entry.timestamp)}")
        yield f"  {entry.seq:>4}  {role_shown(entry.message.role)}  {', '.join(_notes(entry))}"
        yield from said(entry.message, full=full, tools=tools)
    if compactions:
        yield from ("", click.style("compactions", bold=True))
    for one in compactions:
        yield from _compaction(one, full=full)


def _compaction(one: StoredCompaction, *, full: bool) -> Iterator[str]:
    """What stands for a range, with its text where that is what is sent; of a failed one why there is none."""
    status = click.style(one.status, bold=one.status == "live")
    by = f" by {line(one.model, 60)}" if one.model else ""
    size = f", {counted(one.tokens, 'token')} of {one.source_tokens:,}" if one.error is None else ""
    yield f"  {one.id:>4}  {status}  {one.kind} of messages {one.first} to {one.last}{by}{size}, {moment(one.created_at)}"
    if one.error is not None:
        yield f"        {line(one.error, LONGEST)}"
    elif one.status == "live":
        yield from _text(one.text, full=full)


def _heading(session: Session) -> Iterator[str]:
    whose = f" of user {line(session.user_id)}"
    agent = f", agent {line(session.agent)}" if session.agent else ""
    yield click.style(f"session {line(session.id)}", bold=True) + whose + agent
    yield ", ".join(
        (
            f"{session.status}, version {session.version}",
            counted(session.turns, "turn"),
            counted(session.messages, "message"),
            counted(session.tokens, "token"),
        )
    )
    yield f"created {moment(session.created_at)}, updated {moment(session.updated_at)}"
    usage = session.usage
    if usage.calls:
        prompt = f"{usage.prompt_tokens:,} prompt tokens ({usage.cached_tokens:,} cached)"
        yield f"{counted(usage.calls, 'model call')}, {prompt}, {usage.completion_tokens:,} completion tokens"


def role_shown(role: str) -> str:
    """A role, in its colour."""
    return click.style(role, fg=_COLORS.get(role), bold=True)


def _notes(entry: Entry) -> Iterator[str]:
    """What is worth knowing of an entry beside its role."""
    yield counted(entry.tokens, "token")
    if entry.agent:
        yield line(entry.agent, 60)
    metadata = entry.metadata or {}
    if metadata.get("source"):
        yield line(str(metadata["source"]), 60)
    if metadata.get("interrupted"):
        yield "interrupted"
    if entry.importance is not None:
        yield f"importance {entry.importance:g}"
    if entry.pinned:
        yield "pinned"
    if entry.erased:
        yield "erased"


def said(message: Message, *, full: bool, tools: dict[str, str] | None = None) -> Iterator[str]:
    """The words of a message, its media, its calls; indented so far that no text can pass for a heading."""
    tools = {} if tools is None else tools
    if message.role == "tool":
        name = tools.get(str(message.tool_call_id)) or message.name or str(message.tool_call_id)
        yield from _folded(f"<- {line(name, 60)}: ", message.text, full=full)
    elif message.text:
        yield from _text(message.text, full=full)
    for part in message.media:
        yield f"        [{line(part.type, 60)}]"
    for call in message.tool_calls:
        tools[call.id] = call.name
        yield from _folded(f"-> {line(call.name, 60)} ", call.arguments, full=full)


def _folded(prefix: str, text: str, *, full: bool) -> Iterator[str]:
    """A call or a result in one line, or with all its lines."""
    if not full:
        yield f"        {prefix}{line(text, FOLDED)}"
        return
    first, *rest = plain(text).split("\n")
    yield f"        {prefix}{first}"
    yield from (f"           {following}" for following in rest)


def _text(text: str, *, full: bool) -> Iterator[str]:
    shown = text if full else "\n".join(text[:LONGEST].split("\n")[:MOST_LINES])
    yield from (f"        {one}" for one in plain(shown).split("\n"))
    if len(shown) < len(text):
        yield click.style(f"        … {len(text) - len(shown):,} more characters, see --full", dim=True)
