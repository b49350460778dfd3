"""Show a session, its messages and compactions as lines of text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from holdfast.cli.prompt_bar import format_excerpts, mark_message
from holdfast.cli.terminal import cut, format_line, format_time, get_ellipsis, sanitize
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.domain.messages import Message
    from holdfast.domain.session import Entry, Session, StoredCompaction
    from holdfast.sessions.explanation import MessageMark

MAX_CHARACTERS = 600
"""Maximum characters of a text that are shown without --full."""
MAX_LINES = 12
CALL_CHARACTERS = 110
"""Maximum characters of a tool call or its result, which are shown on one line without --full."""
ROLE_COLORS = {"user": "green", "assistant": "cyan", "tool": "yellow", "system": "magenta", "developer": "magenta"}


def format_log(
    session: Session,
    entries: Sequence[Entry],
    *,
    full: bool,
    compactions: Sequence[StoredCompaction],
    marks: Mapping[int, MessageMark] = {},
) -> Iterator[str]:
    """Yield the lines below the heading.

    Args:
        session: the session.
        entries: the entries to show, without those that an edit replaced.
        full: show long texts, calls and results completely.
        compactions: summaries and digests of the session, including failed ones. They are listed at the end.
        marks: marks of messages in a prompt, by `seq`.
    """
    for message in session.system_messages:
        yield from ("", format_role(message.role), *format_message(message, full=full))
    if (earlier := session.messages - len(entries)) > 0:
        yield from (
            "",
            click.style(f"{get_ellipsis()} {format_count(earlier, 'earlier message')} (use --last)", dim=True),
        )
    turn = -1
    tools: dict[str, str] = {}
    for entry in entries:
        if entry.turn_id != turn:
            turn = entry.turn_id
            yield from ("", click.style(f"turn {turn}", bold=True) + f"  {format_time(entry.timestamp)}")
        mark = marks.get(entry.seq)
        sign = " " if mark is None else mark_message(mark.state, mark.decision)
        details = [*_describe_entry(entry), *_describe_mark(mark)]
        yield f"{sign} {entry.seq:>4}  {format_role(entry.message.role)}  {', '.join(details)}"
        if mark is not None and mark.excerpts:
            yield click.style(f"        {format_excerpts(mark.excerpts)}", dim=True)
        yield from format_message(entry.message, full=full, tools=tools)
    if compactions:
        yield from ("", click.style("compactions", bold=True))
    for one in compactions:
        yield from _format_compaction(one, full=full)


def _format_compaction(one: StoredCompaction, *, full: bool) -> Iterator[str]:
    """Yield the lines that show a summary or digest: its text if its status is `live`, or its error if it failed."""
    status = click.style(one.status, bold=one.status == "live")
    by = f" by {format_line(one.model, 60)}" if one.model else ""
    size = f", {format_count(one.tokens, 'token')} of {one.source_tokens:,}" if one.error is None else ""
    yield f"  {one.id:>4}  {status}  {one.kind} of messages {one.first} to {one.last}{by}{size}, {format_time(one.created_at)}"
    if one.error is not None:
        yield f"        {format_line(one.error, MAX_CHARACTERS)}"
    elif one.status == "live":
        yield from _format_text(one.text, full=full)


def format_heading(session: Session) -> Iterator[str]:
    """Yield the lines with the id, owner, size and usage of a session."""
    owner = f" of user {format_line(session.user_id)}"
    agent = f", agent {format_line(session.agent)}" if session.agent else ""
    yield click.style(f"session {format_line(session.id)}", bold=True) + owner + agent
    yield ", ".join(
        (
            f"{session.status}, version {session.version}",
            format_count(session.turns, "turn"),
            format_count(session.messages, "message"),
            format_count(session.tokens, "token"),
        )
    )
    yield f"created {format_time(session.created_at)}, updated {format_time(session.updated_at)}"
    usage = session.usage
    if usage.calls:
        prompt = f"{usage.prompt_tokens:,} prompt tokens ({usage.cached_tokens:,} cached)"
        yield f"{format_count(usage.calls, 'model call')}, {prompt}, {usage.completion_tokens:,} completion tokens"


def format_role(role: str) -> str:
    """Return a role in its colour. The role of a transcript can be any text."""
    return click.style(format_line(role[:60]), fg=ROLE_COLORS.get(role), bold=True)


def _describe_entry(entry: Entry) -> Iterator[str]:
    """Yield the details of an entry that are shown after its role."""
    yield format_count(entry.tokens, "token")
    if entry.agent:
        yield format_line(entry.agent, 60)
    metadata = entry.metadata or {}
    if metadata.get("source"):
        yield format_line(str(metadata["source"]), 60)
    if metadata.get("interrupted"):
        yield "interrupted"
    if entry.importance is not None:
        yield f"importance {entry.importance:g}"
    if entry.pinned:
        yield "pinned"
    if entry.erased:
        yield "erased"


def _describe_mark(mark: MessageMark | None) -> Iterator[str]:
    """Yield the reason why a message is not in the prompt, or not whole."""
    if mark is not None and mark.state != "whole" and mark.decision != "later":
        yield f"{mark.decision}: {format_line(mark.reason, 60)}"


def format_message(message: Message, *, full: bool, tools: dict[str, str] | None = None) -> Iterator[str]:
    """Yield the lines that show text, media and tool calls of a message. They are indented, so that a text cannot look like a heading.

    Args:
        message: the message.
        full: show long texts, calls and results completely.
        tools: names of called tools, by call id. The calls of this message are added, so that later messages with results can use them.
    """
    tools = {} if tools is None else tools
    if message.role == "tool":
        name = tools.get(str(message.tool_call_id)) or message.name or str(message.tool_call_id)
        yield from _format_call(f"<- {format_line(name, 60)}: ", message.text, full=full)
    elif message.text:
        yield from _format_text(message.text, full=full)
    for part in message.media:
        yield f"        [{format_line(part.type, 60)}]"
    for call in message.tool_calls:
        tools[call.id] = call.name
        yield from _format_call(f"-> {format_line(call.name, 60)} ", call.arguments, full=full)


def _format_call(prefix: str, text: str, *, full: bool) -> Iterator[str]:
    """Yield the lines that show a tool call or a result: a single line, or all its lines if `full` is set."""
    if not full:
        yield f"        {prefix}{format_line(text, CALL_CHARACTERS)}"
        return
    first, *rest = sanitize(text).split("\n")
    yield f"        {prefix}{first}"
    yield from (f"           {following}" for following in rest)


def _format_text(text: str, *, full: bool) -> Iterator[str]:
    shown = text if full else "\n".join(text[:MAX_CHARACTERS].split("\n")[:MAX_LINES])
    yield from (f"        {one}" for one in sanitize(shown).split("\n"))
    if len(shown) < len(text):
        yield click.style(f"        {get_ellipsis()} {len(text) - len(shown):,} more characters (use --full)", dim=True)


def fit_line(text: str, *, full: bool) -> str:
    """Wrap a line of `format_log` to the width of the terminal, with its indent. Cut a tool call or a result instead, unless `full` is set."""
    width = shutil.get_terminal_size().columns
    if len(text) <= width or "\x1b" in text:  # headings are short, but have colours
        return text.rstrip()
    words = text.lstrip()
    if words.startswith(("-> ", "<- ")) and not full:
        return cut(text, width)
    indent = " " * (len(text) - len(words))
    return "\n".join(wrap(words, max(20, width), initial_indent=indent, subsequent_indent=indent))
