"""Types for explanations of messages, and their printed form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final, Literal

import msgspec

from holdfast.context.explain import CompactionSize, Overhead, Run, format_table
from holdfast.context.presence import Departure, Presence
from holdfast.context.recalled import format_time

RemedyKind = Literal["pin", "budget", "window_size", "history", "summary", "recall", "send", "append"]
SHOWN: Final = 100
"""Maximum number of characters of a message, or of an excerpt, that are printed on one line."""
_STATES: Final = {"whole": "in the prompt, whole", "part": "in the prompt in part", "no": "not in the prompt"}
_EXACT: Final = {True: ", as it was sent", False: ", as it was sent, without what was erased since", None: ""}


class Remedy(msgspec.Struct, frozen=True, gc=False):
    """A change that would bring a message back into prompts."""

    kind: RemedyKind
    text: str
    """The change to make, and its cost."""
    budget: int | None = None
    """For the kind `budget`: a token budget with which nothing of the log is left out. None: there is none, or it is not known."""
    call: str | None = None
    """The method call on a `SessionHandle` that makes the change; None if the library has no such call."""


class MessageMark(Presence, frozen=True, gc=False, kw_only=True):
    """A message of the log, and how much of it a prompt contains."""

    seq: int
    turn_id: int
    role: str
    agent: str | None
    timestamp: int
    tokens: int
    """Tokens of the message, as counted when it was stored."""
    pinned: bool
    importance: float | None
    text: str
    """The first characters of the message; empty if it was erased."""
    shortened: bool
    """True if `text` is not the whole text."""


class MessageExplanation(MessageMark, frozen=True, gc=False, kw_only=True):
    """Explains whether a prompt contains one message, in which form, and why."""

    match: str | None = None
    """After a search for text: the words around the first match, with white space shortened; otherwise None."""
    departure: Departure | None
    """Model call at which the message left the prompt. None if the whole message is in the prompt, was never in it, or if no recorded call
    shows when it left."""
    remedies: tuple[Remedy, ...]
    redacted: bool
    """True if secrets in the message were masked before the message was stored."""

    def __str__(self) -> str:
        return "\n".join(line for _, line in _iter_message_lines(self, None))


class Explanation(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A short description of a prompt, with explanations of some messages."""

    object: Literal["explanation"] = "explanation"
    session_id: str
    turn: int | None = None
    """The turn whose last prompt is explained; None: the prompt that would be built now."""
    exact: bool | None
    """With `turn`: True if the prompt is exactly the one that was sent, False if something was erased since. None if it was not sent."""
    not_sent: str | None = None
    """With `turn`: the reason why the explained prompt was not sent. It is then the one that the current settings give."""
    strategy: str
    tokens: int
    """Tokens of the conversation."""
    budget: int
    """Token limit for the conversation."""
    frontier: int
    """`seq` of the first message that is in the prompt because it is recent. Older messages can be left out."""
    compactions: tuple[CompactionSize, ...]
    recalled: tuple[str, ...] = ()
    """Ids of everything that was found by search and added to the prompt: `session#seq` for messages, and ids of memories."""
    overhead: Overhead
    """Tokens of the parts that `tokens` does not include."""
    decisions: tuple[Run, ...] = ()
    """For ranges of the session's messages: whether the prompt contains them, and why. Empty if messages were selected."""
    messages: tuple[MessageExplanation, ...]
    before: int | None = None
    """After a search for text: pass this as `before` to get earlier messages; None: there are no earlier messages."""
    has_more: bool = False
    """True if there may be earlier messages."""

    def __str__(self) -> str:
        return format_explanation(self)


# -- formatting ----------------------------------------------------------------


def format_explanation(explanation: Explanation, commands: Mapping[RemedyKind, str] | None = None) -> str:
    """Return an explanation as text; see `iter_lines`."""
    return "\n".join(line for _, line in iter_lines(explanation, commands))


def iter_lines(explanation: Explanation, commands: Mapping[RemedyKind, str] | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of an explanation.

    Each comes with the state of the messages that it is about, `later` if they are newer than the prompt, or an empty text.

    Args:
        explanation: the explanation.
        commands: for each kind of change, the shell command that makes it. The message's number is added to the command. None: show calls
            of the library instead.
    """
    turn, runs = explanation.turn, explanation.decisions
    used = f"strategy {explanation.strategy}, {explanation.tokens:,} of {explanation.budget:,} tokens"
    if explanation.not_sent:
        yield "", f"session {explanation.session_id}, turn {turn}: {explanation.not_sent}"
        yield "", f"  {used}"
    else:
        which = "the next prompt" if turn is None else f"the prompt of turn {turn}{_EXACT[explanation.exact]}"
        yield "", f"session {explanation.session_id}, {which}: {used}"
    yield from (("", f"  {one}") for one in explanation.compactions)
    if explanation.recalled:
        yield "", f"  {_format_recalled(explanation)}"
    if runs:
        rows = list(format_table(explanation.overhead, runs))
        states = ["whole"] * (len(rows) - len(runs)) + [run.state for run in runs]
        yield from zip(states, rows, strict=True)
    for message in explanation.messages:
        yield "", ""
        yield from _iter_message_lines(message, commands)
    if explanation.before is not None:
        yield "", ""
        yield "", f"There may be more before message {explanation.before}."


def _format_recalled(explanation: Explanation) -> str:
    """Return one line with the ids of everything that was recalled, and its sources."""
    own, groups = "from this session", dict[str, list[str]]()
    for one in explanation.recalled:
        session_id, mark, _ = one.rpartition("#")
        group = own if session_id == explanation.session_id else "from other sessions" if mark else "from memories"
        groups.setdefault(group, []).append(one)
    listed = "; ".join(f"{where}: {', '.join(ids)}" for where, ids in groups.items())
    return f"recalled {listed} ({explanation.overhead.recalled:,} tokens)"


def _iter_message_lines(
    one: MessageExplanation, commands: Mapping[RemedyKind, str] | None
) -> Iterator[tuple[str, str]]:
    """Yield the lines that explain a message; see `iter_lines`."""
    head = f"message {one.seq} of turn {one.turn_id}, {one.role}, {format_time(one.timestamp)}: {_STATES[one.state]}"
    yield "later" if one.decision == "later" else one.state, head
    if one.text:
        yield "", f"  {one.match or _shorten_line(one.text)}"
    if one.redacted:
        yield "", "  secrets in it were replaced before it was stored"
    where = f", in block {one.block}" if one.block else ""
    yield "", f"  why: {one.decision}, {one.reason}{where}"
    for block, excerpts in groupby(one.excerpts, key=lambda excerpt: excerpt.block):
        words = [f'"{_shorten_line(one.words)}"' for one in excerpts]
        yield "", f"  in block {block}: {', '.join(words)}"
    if one.departure is not None:
        left = one.departure
        yield "", f"  removed in turn {left.turn_id}, {format_time(left.timestamp)}: {left.reason}"
    for remedy in one.remedies:
        command = commands.get(remedy.kind) if commands is not None else None
        action = f"{command} {one.seq}" if command else remedy.call
        yield "", f"  to get it back: {remedy.text}{f': {action}' if action else ''}"


def _shorten_line(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= SHOWN else folded[: SHOWN - 1] + "…"
