"""`holdfast watch`: follow a session live."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import click

from holdfast.cli.session_text import ROLE_COLORS
from holdfast.cli.stores import find_session, json_option, run_with_store, session_user_option, store_options
from holdfast.cli.terminal import (
    UNBOUNDED,
    can_print,
    format_line,
    format_time,
    get_ellipsis,
    json_line,
    sanitize,
)
from holdfast.errors import SessionNotFound
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

    from holdfast.domain.messages import Message
    from holdfast.domain.session import Entry, ModelCall, Session, SessionRef
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.session_events import SessionEvent, SessionFollower

MAX_LINES = 3
"""Maximum number of lines of a message that are printed."""
MAX_CHARACTERS = 150
"""Maximum number of characters of a line of a message, or of a tool call with its result. A terminal may have room for fewer."""
CALL_SHARE = 0.45
"""Share of a line that a tool call may take. The rest is for its result."""
MAX_WAITING = 100
"""Number of calls that wait for a result, from which on they are printed without one."""
_MARGIN = " " * 29
"""Space before the second and later lines of a message: time, number and role."""


@click.command
@click.argument("session_id", metavar="SESSION")
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(0, 200),
    default=5,
    show_default=True,
    help="Number of earlier messages to print first.",
)
@click.option("--turns", metavar="N", type=click.IntRange(1), help="Stop after the end of N turns.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 60),
    default=0.5,
    show_default=True,
    help="Pause between two reads of the session.",
)
@session_user_option
@store_options
@json_option
def watch(
    session_id: str,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    last: int,
    turns: int | None,
    interval: float,
    as_json: bool,
) -> None:
    """Follow a session live: messages, tool calls, prompts and turns, as they are stored.

    Works with any program that writes to the database. Ends when the session is deleted, after --turns, or with Ctrl-C. --json
    prints one event per line.
    """

    async def do(hf: Holdfast) -> None:
        from holdfast.sessions.session_events import SessionFollower

        session = await find_session(hf, session_id, user)
        follower = SessionFollower(hf.store, session, hf.clock)
        printer = JsonPrinter(hf, session.ref) if as_json else EventPrinter()
        with printer:
            await _follow(follower, printer, last=last, turns=turns, interval=interval)

    run_with_store(do, store=store, config=config, keep_sessions=True, index_read_only=True, shows_output=True)


async def _follow(
    follower: SessionFollower, printer: JsonPrinter | EventPrinter, *, last: int, turns: int | None, interval: float
) -> None:
    """Print the events of a session until it is deleted or `turns` turns have ended. With None, print without an end."""
    import anyio

    from holdfast.sessions.session_events import SessionDeleted, TurnEnded

    await printer.begin(follower.session)
    await printer.show(await follower.read_last(last))
    while True:
        printer.show_activity(follower)
        if not follower.has_more:
            await anyio.sleep(interval)
        for event in await follower.look():
            await printer.show([event])
            if isinstance(event, SessionDeleted):
                return
            if turns is not None and isinstance(event, TurnEnded):
                turns -= 1
                if not turns:
                    return


# -- JSON ------------------------------------------------------------------------


class JsonPrinter(nullcontext[None]):
    """Prints each event as one line of JSON."""

    def __init__(self, hf: Holdfast, ref: SessionRef) -> None:
        super().__init__()
        self._store, self._ref = hf.store, ref

    async def begin(self, session: Session) -> None:
        """Print the session."""
        from holdfast.wire.sessions import SessionObject

        click.echo(json_line({"event": "session", "session": SessionObject.from_session(session)}), nl=False)

    async def show(self, events: Iterable[SessionEvent]) -> None:
        """Print events."""
        for event in events:
            click.echo(json_line(await self._to_json(event)), nl=False)

    def show_activity(self, follower: SessionFollower) -> None:
        """Print nothing: only a terminal shows what the session is doing."""

    async def _to_json(self, event: SessionEvent) -> dict[str, Any]:
        import msgspec

        from holdfast.media.outgoing import restore_entries
        from holdfast.sessions import session_events as events
        from holdfast.wire.openai import to_entry_json
        from holdfast.wire.sessions import SessionObject

        fields: dict[str, Any]
        match event:
            case events.MessageAppended(entry):
                with suppress(SessionNotFound):  # it was deleted meanwhile, as the next event says
                    (entry,) = await restore_entries(self._store, self._ref, [entry])
                fields = {"message": to_entry_json(entry)}
            case events.PromptSent(call):
                fields = _describe_call(call)
            case events.SessionReplaced(session):
                fields = {"session": SessionObject.from_session(session)}
            case _:
                fields = msgspec.structs.asdict(event)
        return {"event": event.name, **fields}


def _describe_call(call: ModelCall) -> dict[str, Any]:
    """Return the fields of a model call and of its prompt. Fields whose value was not recorded are null."""
    from holdfast.context.explain import decode_record

    record = decode_record(call.build)
    names = ("turn_id", "timestamp", "model", "through", "prompt_tokens", "cached_tokens", "completion_tokens")
    return {
        **{name: getattr(call, name) for name in names},
        "strategy": (record and record.strategy) or None,
        "budget": record and record.limit,
        "messages": record and record.messages,
        "frontier": record and record.frontier,
    }


# -- text ------------------------------------------------------------------------


class WaitingCall(NamedTuple):
    """A tool call whose result is not in the log yet."""

    seq: int
    timestamp: int
    label: str
    """Name and arguments of the call, sanitized and shortened."""


class EventPrinter:
    """Prints events as lines. On a terminal, a status line at the bottom shows what the session is doing."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console: Console = Console(highlight=False)
        self._is_live = sys.stdout.isatty()
        self._room = MAX_CHARACTERS
        if self._is_live:
            self._room = max(20, min(MAX_CHARACTERS, self._console.width - len(_MARGIN)))
        else:
            self._console.width = UNBOUNDED
        self._overflow: Literal["ellipsis", "crop"] = "ellipsis" if can_print("…") else "crop"
        self._status: Status | None = None
        self._calls: dict[str, WaitingCall] = {}
        self._frontier = 0

    def __enter__(self) -> Self:
        if self._is_live:
            self._status = self._console.status("", spinner="line")
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Print the calls that have no result, and remove the status line."""
        for line in self._end_calls():
            self._print(line)
        if self._status is not None:
            self._status.stop()

    async def begin(self, session: Session) -> None:
        """Print the id and size of the session."""
        for line in _format_session(session):
            self._print(line)

    async def show(self, events: Iterable[SessionEvent]) -> None:
        """Print events. A tool call is printed together with its result."""
        for event in events:
            for line in self._format(event):
                self._print(line)

    def show_activity(self, follower: SessionFollower) -> None:
        """Show the state of the session in the status line."""
        if self._status is None:
            return
        from rich.text import Text

        session = follower.session
        turn, calls = session.tail.turn_id, ", ".join(call.label for call in self._calls.values())
        doing = {
            "running": f"turn {turn} is running" + (f": {calls}" if calls else ""),
            "waiting": f"turn {turn} waits for the result of {calls or 'a tool'}",
            "idle": f"waiting for turn {turn + 1}",
        }[follower.activity]
        text = Text(f"{doing}  (Ctrl-C ends)", style="dim", no_wrap=True)
        text.truncate(max(10, self._console.width - 3))
        self._status.update(text)

    def _print(self, line: Text) -> None:
        if self._is_live:
            self._console.print(line, no_wrap=True, overflow=self._overflow, crop=True)
        else:
            self._console.print(line, soft_wrap=True)

    # -- events ------------------------------------------------------------------

    def _format(self, event: SessionEvent) -> Iterator[Text]:
        from rich.text import Text

        from holdfast.sessions import session_events as events

        match event:
            case events.TurnStarted(turn, timestamp, resumed):
                yield _format_row(timestamp, Text(f"turn {turn}{' continues' if resumed else ''}", style="bold"))
            case events.MessageAppended(entry):
                yield from self._format_entry(entry)
            case events.PromptSent(call):
                yield self._format_call(call)
            case events.TurnEnded(turn, timestamp, milliseconds):
                yield from self._end_calls()
                after = "" if milliseconds is None else f" after {_format_duration(milliseconds)}"
                yield _format_row(timestamp, Text(f"turn {turn} ended{after}", style="dim"))
            case events.MessagesRetired(count):
                yield Text(f"{format_count(count, 'message')} replaced by an edit or a rewind", style="yellow")
            case events.SessionClosed(reason):
                yield Text(f"session closed ({reason}); the next message opens it again", style="yellow")
            case events.SessionReplaced(session):
                yield Text("session deleted; a new session has its id", style="yellow")
                yield from _format_session(session)
            case events.SessionDeleted():
                yield Text("session deleted", style="yellow")

    def _format_entry(self, entry: Entry) -> Iterator[Text]:
        message, place = entry.message, f"{entry.seq:>6}"
        if message.role == "tool":
            call = self._calls.pop(str(message.tool_call_id), None)
            label = call.label if call else _shorten(message.name or str(message.tool_call_id), 40)
            place = f"{call.seq}-{entry.seq}".rjust(6) if call else place
            result = _shorten(message.text, max(10, self._room - len(label) - 4))
            yield _format_message_row(entry.timestamp, place, "tool", f"{label} -> {result}")
            return
        lines = _format_lines(message, self._room)
        if lines or not message.tool_calls:
            yield _format_message_row(entry.timestamp, place, message.role, lines[0] if lines else "")
            from rich.text import Text

            yield from (Text(_MARGIN + line) for line in lines[1:])
        if len(self._calls) >= MAX_WAITING:
            yield from self._end_calls()
        for one in message.tool_calls:
            label = _shorten(
                f"{one.name[:MAX_CHARACTERS]} {one.arguments[: 4 * MAX_CHARACTERS]}", int(self._room * CALL_SHARE)
            )
            self._calls[one.id] = WaitingCall(entry.seq, entry.timestamp, label)

    def _format_call(self, call: ModelCall) -> Text:
        """Format a prompt: size, share of the provider's cache, strategy, and the frontier if it moved."""
        from rich.text import Text

        about = _describe_call(call)
        parts = [f"{call.prompt_tokens:,} tokens"] if call.prompt_tokens else []
        if call.prompt_tokens:
            parts.append(f"{call.cached_tokens / call.prompt_tokens:.0%} cached")
        if about["messages"] is not None:
            parts.append(format_count(about["messages"], "message"))
        if about["strategy"]:
            parts.append(f"{format_line(about['strategy'], 60)}, budget {about['budget']:,}")
        parts.append(format_line(call.model, 60))
        if (frontier := about["frontier"] or 0) > self._frontier:
            parts.append(f"recent from message {frontier}")
            self._frontier = frontier
        return _format_row(call.timestamp, Text(" " * 8 + f"{'prompt':<9}  {', '.join(parts)}", style="dim"))

    def _end_calls(self) -> Iterator[Text]:
        """Yield lines for the calls that wait for a result, and forget the calls."""
        for call in self._calls.values():
            yield _format_message_row(call.timestamp, f"{call.seq:>6}", "tool", f"{call.label} -> (no result)")
        self._calls.clear()


def _format_duration(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"


def _format_session(session: Session) -> Iterator[Text]:
    from rich.text import Text

    agent = f", agent {format_line(session.agent, 60)}" if session.agent else ""
    counts = ", ".join(
        format_count(count, noun)
        for count, noun in ((session.turns, "turn"), (session.messages, "message"), (session.tokens, "token"))
    )
    head = Text.assemble((f"session {format_line(session.id)}", "bold"))
    yield head.append(f" of user {format_line(session.user_id)}{agent}: {session.status}, {counts}")


def _format_row(timestamp: int, text: Text) -> Text:
    from rich.text import Text

    return Text.assemble((format_time(timestamp)[-8:], "dim"), "  ", text)


def _format_message_row(timestamp: int, place: str, role: str, line: str) -> Text:
    from rich.text import Text

    style = f"bold {ROLE_COLORS.get(role, '')}"
    shown = format_line(role, 9)
    return _format_row(timestamp, Text.assemble(f"{place}  ", (f"{shown:<9}", style), f"  {line}"))


def _format_lines(message: Message, width: int) -> list[str]:
    """Return the first lines of a message's text, wrapped to `width`, and one line for its media."""
    from textwrap import wrap

    text = message.text.strip()
    head = sanitize(text[: (MAX_LINES + 1) * width])
    lines = [part for line in head.split("\n", MAX_LINES) for part in wrap(line, width)][: MAX_LINES + 1]
    if len(lines) > MAX_LINES:
        *lines, _ = lines
        lines[-1] = f"{lines[-1][: width - len(get_ellipsis()) - 1]} {get_ellipsis()}"
    if message.media:
        kinds = ", ".join(format_line(part.type, 60) for part in message.media[:5])
        lines.append(f"[{kinds}{f', {get_ellipsis()}' if len(message.media) > 5 else ''}]")
    return lines


def _shorten(text: str, limit: int) -> str:
    """Return the beginning of a text as one line. The text may be large, so only its beginning is sanitized."""
    head = sanitize(text[: 4 * limit])
    return format_line(head if len(text) <= 4 * limit else head + get_ellipsis(), limit)
