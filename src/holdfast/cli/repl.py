"""Run a chat in the terminal: turns, streamed replies, slash commands and the budget gauge."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.terminal import format_line, sanitize
from holdfast.context.build import WorkingSet
from holdfast.context.explain import Run
from holdfast.domain.messages import Message
from holdfast.errors import InvalidRequest
from holdfast.log.items import Delta, get_text
from holdfast.models import Collector
from holdfast.numbers import format_count
from holdfast.sessions.explanation import format_explanation
from holdfast.sessions.handle import SessionHandle
from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn, TurnRequest

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast

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


def parse_command(text: str) -> tuple[str, str] | None:
    """Return name and arguments of a slash command. Return None if the text is a message, such as `/etc/hosts`."""
    found = _COMMAND.fullmatch(text)
    return (found[1], (found[2] or "").strip()) if found else None


class ChatSession:
    """The session of a chat, and the last prompt that was sent.

    Attributes:
        handle: the current session. `/new` replaces it.
        working_set: the messages that were sent to the model in the last turn; None: there was no turn yet.
    """

    def __init__(self, hf: Holdfast, handle: SessionHandle) -> None:
        self._hf = hf
        self.handle = handle
        self.working_set: WorkingSet | None = None

    async def say(self, text: str) -> None:
        """Run one turn with a message of the user, and print the reply as it arrives."""
        incoming = (Message(role="user", content=text),)
        turn = Turn(
            self._hf.engine, TurnRequest(ref=self.handle.ref, responder=self.handle.responder, incoming=incoming)
        )
        printer = ReplyPrinter()
        try:
            await respond(turn, printer.add)
            printer.finish()
        finally:
            printer.end()
            self.working_set = turn.working_set

    async def run_command(self, name: str, rest: str) -> list[str]:
        """Run a slash command and return the lines of its output.

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
        return list(await commands[name](rest))

    async def _show_context(self, rest: str) -> Iterable[str]:
        built = await self.handle.context()
        head = (
            f"{format_count(len(built.messages), 'message')}, {built.conversation_tokens:,} of {built.budget:,} tokens"
        )
        overhead = built.total_tokens - built.conversation_tokens
        return [f"{head}, plus {overhead:,} outside the conversation", *map(_format_message, built.messages)]

    async def _show_explanation(self, rest: str) -> Iterable[str]:
        seq = _parse_number(rest, "/explain N") if rest else None
        explanation = await self.handle.explain(seq=seq)
        return sanitize(format_explanation(explanation, {"pin": "/pin"})).splitlines()

    async def _show_history(self, rest: str) -> Iterable[str]:
        from holdfast.cli.session_text import format_transcript

        count = _parse_number(rest, "/history N") if rest else DEFAULT_MESSAGES
        session, ref = await self.handle.info(), self.handle.ref
        newest = await self._hf.store.entries(ref, limit=count, descending=True) if count else ()
        return [text_line.rstrip() for text_line in format_transcript(session, newest[::-1], full=False)]

    async def _pin(self, rest: str) -> Iterable[str]:
        seq = _parse_number(rest, "/pin N")
        entry = await self._hf.store.annotate(self.handle.ref, seq, pinned=True)
        return [f"pinned {seq}: {format_line(entry.message.text, MAX_WIDTH)}"]

    async def _unpin(self, rest: str) -> Iterable[str]:
        seq = _parse_number(rest, "/unpin N")
        await self._hf.store.annotate(self.handle.ref, seq, pinned=False)
        return [f"unpinned {seq}"]

    async def _start_new(self, rest: str) -> Iterable[str]:
        old = await self.handle.info()
        session = await self._hf.create(user_id=old.user_id, agent=old.agent, greet=False)
        self.handle = SessionHandle(self._hf.engine, session.ref, self.handle.responder, session.identity)
        self.working_set = None
        return []

    async def _list_commands(self, rest: str) -> Iterable[str]:
        return [f"  {name:<13} {about}" for name, about in HELP.items()]


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
        choices = self._collector.build_completion()["choices"]
        for call in choices[0]["message"].get("tool_calls") or []:
            function = call.get("function") or {}
            self.end()
            click.echo(
                f"-> {format_line(str(function.get('name')), 60)} {format_line(str(function.get('arguments')), MAX_WIDTH)}"
            )

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


class Removal(NamedTuple):
    """A range of messages that were removed from the prompt, or shortened, since the previous prompt."""

    decision: str
    first: int
    last: int
    summarized: bool = False
    """True if a model's summary replaces the messages; False if the digest or nothing replaces them."""

    def __str__(self) -> str:
        one = self.first == self.last
        became = "summarized" if self.summarized else REMOVAL_WORDS[self.decision]
        return f"message{'' if one else 's'} {self.first}{'' if one else f'-{self.last}'} {became}"


class BudgetGauge:
    """Formats how full the budget is, and which messages left the prompt since the previous turn."""

    def __init__(self) -> None:
        self._before: Sequence[Run] = ()

    def read(self, built: WorkingSet) -> str:
        """Return a text with the bar for a working set, and the messages that left the prompt since the last call."""
        runs = built.list_decisions()
        left, self._before = list(find_new_removals(self._before, runs)), runs
        lines = [format_bar(built.tokens, built.budget)]
        if left:
            more = f", and {format_count(len(left) - MAX_RANGES, 'more run')}" if len(left) > MAX_RANGES else ""
            lines.append(f"  left: {', '.join(map(str, left[:MAX_RANGES]))}{more}")
        return "\n".join(lines)


def format_bar(tokens: int, budget: int) -> str:
    """Draw a bar that shows how full a budget is, with numbers.

    >>> format_bar(2048, 8192)
    '[#####...............]  25%  2,048 of 8,192 tokens'
    """
    share = min(1.0, tokens / max(1, budget))
    full = max(round(share * WIDTH), int(tokens > 0))
    return f"[{'#' * full}{'.' * (WIDTH - full)}] {share:>4.0%}  {tokens:,} of {budget:,} tokens"


def find_new_removals(before: Sequence[Run], now: Sequence[Run]) -> Iterator[Removal]:
    """Yield the ranges of messages that a prompt removes or shortens, but the previous prompt did not.

    Args:
        before: decisions about the messages of the previous prompt.
        now: decisions about the messages of the new prompt.
    """
    from holdfast.context.explain import SUMMARIZED

    for run in now:
        if run.decision not in REMOVAL_WORDS:
            continue
        first, summarized = run.first, run.reason == SUMMARIZED
        known = sorted((old.first, old.last) for old in before if old.decision == run.decision)
        for start, end in known:
            if end < first or start > run.last:
                continue
            if start > first:
                yield Removal(run.decision, first, start - 1, summarized)
            first = max(first, end + 1)
        if first <= run.last:
            yield Removal(run.decision, first, run.last, summarized)
