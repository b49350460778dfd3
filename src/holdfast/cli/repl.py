"""Run a chat in the terminal: turns, streamed replies, slash commands and the budget gauge."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import FAILED
from holdfast.cli.session_text import format_heading, format_log
from holdfast.cli.terminal import format_line, is_interactive, sanitize
from holdfast.context.build import WorkingSet
from holdfast.context.explain import Run
from holdfast.domain.messages import Message
from holdfast.errors import HoldfastError, InvalidRequest, ModelError
from holdfast.log.items import Delta, get_text
from holdfast.models.collect import Collector
from holdfast.numbers import format_count
from holdfast.sessions.explanation import format_explanation
from holdfast.sessions.handle import SessionHandle
from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn, TurnRequest

if TYPE_CHECKING:
    import asyncio

    from holdfast.holdfast import Holdfast

PROMPT = "you> "
DEFAULT_MESSAGES = 20
"""Number of messages that /history shows by default."""
MAX_WIDTH = 90
"""Maximum characters of a message that is shown on one line."""
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)
HELP = {
    "/context": "show the prompt as it would be sent now",
    "/explain [N]": "show what the prompt contains and why, for message N or for all",
    "/history [N]": f"show the last N messages of the log (default: {DEFAULT_MESSAGES})",
    "/pin N": "keep message N in every prompt; /unpin N undoes it",
    "/new": "start another session",
    "/quit": "end the chat; Ctrl-D does the same, Ctrl-C stops a reply",
    "/help": "show this list; start a message with // to send a leading slash",
}


class Chat:
    """Reads lines of input, and runs each as a command or a turn.

    Args:
        runner: the event loop.
        hf: the open store.
        handle: the session. `/new` replaces it.
    """

    def __init__(self, runner: asyncio.Runner, hf: Holdfast, handle: SessionHandle) -> None:
        self._runner = runner
        self._hf = hf
        self._handle = handle
        self._gauge = BudgetGauge()
        self._failed = False

    def run(self) -> int:
        """Run until the input or the chat ends, and return the exit code."""
        self._greet()
        next_line = _make_reader()
        while (text := next_line()) is not None:
            if text.strip() and not self._handle_line(text.strip()):
                break
        # A script needs the exit code; a user at a terminal has seen the error.
        return FAILED if self._failed and not _is_interactive() else 0

    def _greet(self) -> None:
        session, llm = self._runner.run(self._handle.info()), self._handle.responder.llm
        is_offline = llm.model == "offline"
        model = "the built-in offline model, no language model" if is_offline else f"model {format_line(llm.model, 60)}"
        size = f"{format_count(session.messages, 'message')} so far" if session.messages else "new"
        click.echo(f"session {format_line(session.id)} of user {format_line(session.user_id)}, {size}; {model}")
        if _is_interactive():
            click.echo("/help lists the commands.")

    def _handle_line(self, text: str) -> bool:
        """Run a line of input as a command or a turn. Return False if the line ends the chat."""
        command = _COMMAND.fullmatch(text)
        try:
            if command is None:  # a message; it may begin with a path, such as `/etc/hosts`
                self._say(text.removeprefix("/") if text.startswith("//") else text)
            elif command[1] == "quit":
                return False
            else:
                self._run_command(command[1], (command[2] or "").strip())
        except HoldfastError as exc:
            self._failed = True
            kept = " (your message is saved; send it again to retry)" if isinstance(exc, ModelError) else ""
            click.echo(f"Error: {format_line(str(exc))}{kept}", err=True)
        return True

    def _say(self, text: str) -> None:
        """Run one turn with a message of the user, and show how full the budget is."""
        incoming = (Message(role="user", content=text),)
        turn = Turn(
            self._hf.engine, TurnRequest(ref=self._handle.ref, responder=self._handle.responder, incoming=incoming)
        )
        try:
            self._runner.run(_print_reply(turn))
        except KeyboardInterrupt:
            click.echo("(stopped; the part that arrived is saved)")
        if turn.working_set is not None:
            click.echo(click.style(self._gauge.read(turn.working_set), dim=True))

    # -- commands ----------------------------------------------------------------

    def _run_command(self, name: str, rest: str) -> None:
        """Run a slash command and print its output.

        Args:
            name: name of the command, without the slash.
            rest: arguments of the command.

        Raises:
            InvalidRequest: there is no such command, or an argument is not valid.
        """
        commands: Mapping[str, Callable[[str], Awaitable[Iterable[str]]]] = {
            "context": self._show_context,
            "explain": self._show_explanation,
            "history": self._show_history,
            "pin": self._pin,
            "unpin": self._unpin,
            "new": self._start_new,
            "help": self._list_commands,
        }
        if name not in commands:
            raise InvalidRequest(f"unknown command /{name}; /help lists the commands")
        before = self._handle

        async def run() -> list[str]:
            return list(await commands[name](rest))

        for text_line in self._runner.run(run()):
            click.echo(text_line)
        if self._handle is not before:
            self._gauge = BudgetGauge()
            self._greet()

    async def _show_context(self, rest: str) -> Iterable[str]:
        built = await self._handle.context()
        head = (
            f"{format_count(len(built.messages), 'message')}, {built.conversation_tokens:,} of {built.budget:,} tokens"
        )
        overhead = built.total_tokens - built.conversation_tokens
        return [f"{head}, plus {overhead:,} outside the conversation", *map(_format_message, built.messages)]

    async def _show_explanation(self, rest: str) -> Iterable[str]:
        seq = _parse_number(rest, "/explain N") if rest else None
        explanation = await self._handle.explain(seq=seq)
        return sanitize(format_explanation(explanation, {"pin": "/pin"})).splitlines()

    async def _show_history(self, rest: str) -> Iterable[str]:
        count = _parse_number(rest, "/history N") if rest else DEFAULT_MESSAGES
        session, ref = await self._handle.info(), self._handle.ref
        newest = await self._hf.store.entries(ref, limit=count, descending=True) if count else ()
        lines = [*format_heading(session), *format_log(session, newest[::-1], full=False, compactions=())]
        return [text_line.rstrip() for text_line in lines]

    async def _pin(self, rest: str) -> Iterable[str]:
        seq = _parse_number(rest, "/pin N")
        entry = await self._hf.store.annotate(self._handle.ref, seq, pinned=True)
        return [f"pinned {seq}: {format_line(entry.message.text, MAX_WIDTH)}"]

    async def _unpin(self, rest: str) -> Iterable[str]:
        seq = _parse_number(rest, "/unpin N")
        await self._hf.store.annotate(self._handle.ref, seq, pinned=False)
        return [f"unpinned {seq}"]

    async def _start_new(self, rest: str) -> Iterable[str]:
        old = await self._handle.info()
        session = await self._hf.create(user_id=old.user_id, agent=old.agent, greet=False)
        self._handle = SessionHandle(self._hf.engine, session.ref, self._handle.responder, session.identity)
        return []

    async def _list_commands(self, rest: str) -> Iterable[str]:
        return [f"  {name:<13} {about}" for name, about in HELP.items()]


# -- input and output --------------------------------------------------------------


def _is_interactive() -> bool:
    """Return True if standard input and output are both terminals."""
    return is_interactive() and sys.stdout.isatty()


def _make_reader() -> Callable[[], str | None]:
    """Return a function that reads the next line of input, and returns None at the end of the input."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not _is_interactive():
        return lambda: sys.stdin.readline() or None
    with suppress(ImportError):
        import readline as _  # noqa: F401  # with it, `input` can be edited and has a history
    return _ask


def _ask() -> str | None:
    try:
        return input(PROMPT)
    except EOFError:
        click.echo()  # the prompt's line is still open
        return None
    except KeyboardInterrupt:
        click.echo()
        raise


async def _print_reply(turn: Turn) -> None:
    """Run a turn, and print its reply as it arrives."""
    printer = ReplyPrinter()
    try:
        await respond(turn, printer.add)
        printer.finish()
    finally:
        printer.end()


class ReplyPrinter:
    """Prints a reply as it arrives, sanitized for the terminal."""

    def __init__(self) -> None:
        self._collector = Collector()
        self._held = ""
        self._open = False
        """True if the last line of the output is not ended yet."""

    async def add(self, deltas: list[Delta]) -> None:
        """Print the text in a part of the reply."""
        self._collector.add(deltas)
        words = self._held + get_text(deltas)
        # The second half of a CRLF may come with the next chunk.
        self._held = "\r" if words.endswith("\r") else ""
        self._write(words.removesuffix("\r"))

    def finish(self) -> None:
        """Print the tool calls of the complete reply. The chat does not run them."""
        for call in self._collector.build_message().tool_calls:
            self.end()
            click.echo(f"-> {format_line(call.name, 60)} {format_line(call.arguments, MAX_WIDTH)}")

    def end(self) -> None:
        """End the last line of the output, if it is not ended yet."""
        if self._open:
            click.echo()
            self._open = False

    def _write(self, words: str) -> None:
        if words:
            click.echo(sanitize(words), nl=False)
            self._open = not words.endswith("\n")


def _parse_number(text: str, usage: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidRequest(f"expected a message number, got {text!r}: {usage}; /history shows the numbers")
    return int(text)


def _format_message(message: dict[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    text = " ".join(str(part.get("text") or f"[{part.get('type')}]") if part != {"text": ""} else "" for part in parts)
    calls = [str((call.get("function") or {}).get("name")) for call in message.get("tool_calls") or ()]
    called = f" -> {', '.join(calls)}" if calls else ""
    return f"  {message['role']:<9}  {format_line(text + called, MAX_WIDTH)}"


# -- budget gauge ----------------------------------------------------------------

WIDTH = 20
"""Number of characters inside the bar."""
REMOVAL_WORDS = {"compacted": "condensed", "evicted": "left out", "cut": "cut short", "cleared": "cleared"}
"""Words that the chat prints for each decision after which a message is no longer sent completely."""
MAX_RANGES = 3
"""Maximum number of ranges of removed messages that are listed after a reply."""


class BudgetGauge:
    """Formats how full the budget is, and which messages left the prompt since the previous turn."""

    def __init__(self) -> None:
        self._before: Sequence[Run] = ()

    def read(self, built: WorkingSet) -> str:
        """Return a text with the bar for a working set, and the messages that left the prompt since the last call."""
        runs = built.list_decisions()
        left, self._before = list(_find_removals(self._before, runs)), runs
        lines = [_format_bar(built.tokens, built.budget)]
        if left:
            more = f", and {format_count(len(left) - MAX_RANGES, 'more run')}" if len(left) > MAX_RANGES else ""
            lines.append(f"  left: {', '.join(left[:MAX_RANGES])}{more}")
        return "\n".join(lines)


def _format_bar(tokens: int, budget: int) -> str:
    """Draw a bar that shows how full a budget is, with numbers.

    >>> _format_bar(2048, 8192)
    '[#####...............]  25%  2,048 of 8,192 tokens'
    """
    share = min(1.0, tokens / max(1, budget))
    full = max(round(share * WIDTH), int(tokens > 0))
    return f"[{'#' * full}{'.' * (WIDTH - full)}] {share:>4.0%}  {tokens:,} of {budget:,} tokens"


def _find_removals(before: Sequence[Run], now: Sequence[Run]) -> Iterator[str]:
    """Yield the ranges of messages that a prompt removes or shortens, but the previous prompt did not, with what became of them.

    Args:
        before: decisions about the messages of the previous prompt.
        now: decisions about the messages of the new prompt.
    """
    for run in now:
        if run.decision not in REMOVAL_WORDS:
            continue
        became = "summarized" if run.cause == "summarized" else REMOVAL_WORDS[run.decision]
        first = run.first
        known = sorted((old.first, old.last) for old in before if old.decision == run.decision)
        for start, end in [*known, (run.last + 1, run.last + 1)]:
            if end < first or start > run.last + 1:
                continue
            if start > first:
                last = start - 1
                yield f"message {first} {became}" if first == last else f"messages {first}-{last} {became}"
            first = max(first, end + 1)
