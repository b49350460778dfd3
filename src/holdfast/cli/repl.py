"""What `holdfast chat` does with a session: turns, shown while they arrive, the commands, how full the budget is."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.terminal import counted, line, plain
from holdfast.context.build import WorkingSet
from holdfast.context.explain import Run
from holdfast.domain.messages import Message
from holdfast.errors import InvalidRequest
from holdfast.models import Collector, closing
from holdfast.sessions.handle import SessionHandle
from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn, TurnRequest

if TYPE_CHECKING:
    from holdfast.context.build import WorkingSet
    from holdfast.context.explain import Run
    from holdfast.holdfast import Holdfast

SHOWN = 20
"""Messages of the history, unless said otherwise."""
WIDEST = 90
"""Characters of a message in a list of them."""
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)
HELP = {
    "/context": "the prompt as it would be sent now",
    "/explain [N]": "what it keeps, what not, and why; of message N alone",
    "/history [N]": f"the last N messages of the log, {SHOWN} unless said otherwise",
    "/pin N": "keep message N in every prompt; /unpin N takes that back",
    "/new": "begin another session",
    "/quit": "end; Ctrl-D does too, and Ctrl-C stops a reply",
    "/help": "this list; a message that begins with a slash is written with two",
}


def command_in(text: str) -> tuple[str, str] | None:
    """The command that a line is, and what stands behind its name; None when it is a message: `/etc/hosts` is one."""
    found = _COMMAND.fullmatch(text)
    return (found[1], (found[2] or "").strip()) if found else None


class Talk:
    """One session under way.

    Attributes:
        handle: the session; `/new` puts another in its place.
        working_set: what the model was given in the last turn; None before the first.
    """

    def __init__(self, hf: Holdfast, handle: SessionHandle) -> None:
        self._hf = hf
        self.handle = handle
        self.working_set: WorkingSet | None = None

    async def say(self, text: str) -> None:
        """One turn; the reply is shown while it arrives."""
        incoming = (Message(role="user", content=text),)
        turn = Turn(self._hf.engine, TurnRequest(ref=self.handle.ref, voice=self.handle.voice, incoming=incoming))
        shown = Reply()
        try:
            async with closing(respond(turn)) as chunks:
                async for chunk in chunks:
                    shown.add(chunk)
            shown.finish()
        finally:
            shown.end()
            self.working_set = turn.working_set

    async def command(self, name: str, rest: str) -> list[str]:
        """The lines that a command answers. Raises `InvalidRequest` for one that is none."""
        commands: Mapping[str, Callable[[str], Awaitable[Iterable[str]]]] = {
            "context": self._context,
            "explain": self._explain,
            "history": self._history,
            "pin": self._pin,
            "unpin": self._unpin,
            "new": self._new,
            "help": self._help,
        }
        if name not in commands:
            raise InvalidRequest(f"there is no command /{name}; /help lists those there are")
        return list(await commands[name](rest))

    async def _context(self, rest: str) -> Iterable[str]:
        built = await self.handle.context()
        head = f"{counted(len(built.messages), 'message')}, {built.tokens:,} of {built.budget:,} tokens"
        beside = built.total_tokens - built.tokens
        return [f"{head}, and {beside:,} beside the conversation", *map(_sent, built.messages)]

    async def _explain(self, rest: str) -> Iterable[str]:
        if rest:
            explanation = await self.handle.explain(seq=_number(rest, "/explain N"))
            return plain(str(explanation)).splitlines()
        built = await self.handle.context()
        return [f"{built.tokens:,} of {built.budget:,} tokens", *map(_decided, built.decisions)]

    async def _history(self, rest: str) -> Iterable[str]:
        from holdfast.cli.sessions import transcript

        count = _number(rest, "/history N") if rest else SHOWN
        session, ref = await self.handle.info(), self.handle.ref
        newest = await self._hf.store.entries(ref, limit=count, descending=True) if count else ()
        return [told.rstrip() for told in transcript(session, newest[::-1], full=False)]

    async def _pin(self, rest: str) -> Iterable[str]:
        seq = _number(rest, "/pin N")
        entry = await self._hf.store.annotate(self.handle.ref, seq, pinned=True)
        return [f"pinned {seq}: {line(entry.message.text, WIDEST)}"]

    async def _unpin(self, rest: str) -> Iterable[str]:
        seq = _number(rest, "/unpin N")
        await self._hf.store.annotate(self.handle.ref, seq, pinned=False)
        return [f"unpinned {seq}"]

    async def _new(self, rest: str) -> Iterable[str]:
        old = await self.handle.info()
        session = await self._hf.create(user_id=old.user_id, agent=old.agent, greet=False)
        self.handle = SessionHandle(self._hf.engine, session.ref, self.handle.voice)
        self.working_set = None
        return []

    async def _help(self, rest: str) -> Iterable[str]:
        return [f"  {name:<13} {about}" for name, about in HELP.items()]


class Reply:
    """A reply on its way to the terminal, as text that cannot control it."""

    def __init__(self) -> None:
        self._collector = Collector()
        self._held = ""
        self._open = False
        """The line that is written has no end yet."""

    def add(self, chunk: dict[str, Any]) -> None:
        """Show the words in a chunk."""
        self._collector.add(chunk)
        words = self._held + "".join(_words(chunk))
        # The second half of a line end may come with the next chunk.
        self._held = "\r" if words.endswith("\r") else ""
        self._write(words.removesuffix("\r"))

    def finish(self) -> None:
        """The reply is whole: show the calls in it, which nothing here runs."""
        choices = self._collector.completion()["choices"]
        for call in choices[0]["message"].get("tool_calls") or []:
            function = call.get("function") or {}
            self.end()
            click.echo(f"-> {line(str(function.get('name')), 60)} {line(str(function.get('arguments')), WIDEST)}")

    def end(self) -> None:
        """Close the last line."""
        if self._open:
            click.echo()
            self._open = False

    def _write(self, words: str) -> None:
        if words:
            click.echo(plain(words), nl=False)
            self._open = not words.endswith("\n")


def _words(chunk: dict[str, Any]) -> Iterable[str]:
    for choice in chunk.get("choices") or ():
        content = (choice.get("delta") or {}).get("content") if choice.get("index", 0) == 0 else None
        if isinstance(content, str):
            yield content


def _number(text: str, usage: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidRequest(f"a message's number is missing: {usage}; /history shows them")
    return int(text)


def _sent(message: dict[str, Any]) -> str:
    """A message of a prompt in one line."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    text = " ".join(str(part.get("text") or f"[{part.get('type')}]") if part != {"text": ""} else "" for part in parts)
    calls = [str((call.get("function") or {}).get("name")) for call in message.get("tool_calls") or ()]
    called = f" -> {', '.join(calls)}" if calls else ""
    return f"  {message['role']:<9}  {line(text + called, WIDEST)}"


def _decided(run: Run) -> str:
    place = f"{run.first}" if run.first == run.last else f"{run.first}-{run.last}"
    return f"  {place:>11}  {run.decision:<9}  {run.tokens:>7,} tokens  {run.reason}"


# -- how full the budget is ------------------------------------------------------

WIDTH = 20
"""Cells of the bar."""
GONE = {"compacted": "condensed", "evicted": "left out", "cut": "cut short", "cleared": "cleared"}
"""Decisions by which a message is no longer sent as it was said, in words."""
MOST = 3
"""Runs of one look that are told one by one."""


class Left(NamedTuple):
    """Messages that a decision newly holds for."""

    decision: str
    first: int
    last: int
    summarized: bool = False
    """Whether a model's summary stands for them, and not a digest."""

    def __str__(self) -> str:
        one = self.first == self.last
        became = "summarized" if self.summarized else GONE[self.decision]
        return f"message{'' if one else 's'} {self.first}{'' if one else f'-{self.last}'} {became}"


class Gauge:
    """Reads working sets of one session, one after the other."""

    def __init__(self) -> None:
        self._before: Sequence[Run] = ()

    def read(self, built: WorkingSet) -> str:
        """The bar, and what left since the last reading."""
        runs = built.decisions()
        left, self._before = list(left_since(self._before, runs)), runs
        told = [bar(built.tokens, built.budget)]
        if left:
            more = f", and {counted(len(left) - MOST, 'more run')}" if len(left) > MOST else ""
            told.append(f"  left: {', '.join(map(str, left[:MOST]))}{more}")
        return "\n".join(told)


def bar(tokens: int, budget: int) -> str:
    """How full a budget is, drawn and in numbers.

    >>> bar(2048, 8192)
    '[#####...............]  25%  2,048 of 8,192 tokens'
    """
    share = min(1.0, tokens / max(1, budget))
    full = max(round(share * WIDTH), int(tokens > 0))
    return f"[{'#' * full}{'.' * (WIDTH - full)}] {share:>4.0%}  {tokens:,} of {budget:,} tokens"


def left_since(before: Sequence[Run], now: Sequence[Run]) -> Iterator[Left]:
    """What of `now` is gone by a decision that did not hold for it before."""
    from holdfast.context.explain import SUMMARIZED

    for run in now:
        if run.decision not in GONE:
            continue
        first, summarized = run.first, run.reason == SUMMARIZED
        known = sorted((old.first, old.last) for old in before if old.decision == run.decision)
        for start, end in known:
            if end < first or start > run.last:
                continue
            if start > first:
                yield Left(run.decision, first, start - 1, summarized)
            first = max(first, end + 1)
        if first <= run.last:
            yield Left(run.decision, first, run.last, summarized)
