"""Describe in plain words how much of a message a prompt has, and why, as pages about prompts show it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol

from holdfast.context.explain import PrefixChange, Run
from holdfast.context.presence import Excerpt
from holdfast.limits import EXPLAIN_TEXT_CHARS
from holdfast.server.inspector.frame import GLOBALS

_BLOCKS: Final[Mapping[str, str]] = {
    "facts": "standing facts",
    "summary": "the summary",
    "digest": "the digest",
    "introduction": "memories",
    "recalled": "recalled messages",
}
"""For each block that quotes messages: its name in a sentence."""
_PLACES: Final[Mapping[str | None, str]] = {
    "task": "sent as the task",
    "pins": "pinned",
    "tail": "sent as a recent message",
    "current": "sent as the current message",
}
"""For each block of messages: how a complete message in it is described."""


class Marked(Protocol):
    """A message with how much of it a prompt contains."""

    @property
    def state(self) -> str: ...
    @property
    def decision(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def block(self) -> str | None: ...
    @property
    def excerpts(self) -> tuple[Excerpt, ...]: ...
    @property
    def text(self) -> str: ...


def describe_change(change: PrefixChange, *, condensed: bool = True) -> str:
    """Return why messages left a prompt, or why it differs from the one before, in words that need no glossary.

    >>> describe_change(PrefixChange("frontier", (0, 43)))
    'messages 1 to 42 were condensed, because the budget was full'
    """
    done = "condensed" if condensed else "left out"
    if change.frontier is None:
        return "messages were cut: the budget was full" if change.kind == "cut" else str(change)
    before, now = change.frontier
    if change.kind == "already":
        return f"messages before {now} were {done} by then"
    first, last = max(before, 1), now - 1
    if last < first:
        return f"older messages were {done} in another way"
    why = "newer messages took the place of older ones" if change.slides else "the budget was full"
    return f"{f'messages {first} to {last} were' if last > first else f'message {last} was'} {done}, because {why}"


def name_state(mark: Marked) -> str:
    """Return in one to four words how much of a message the prompt has."""
    if mark.decision == "later":
        return "not written yet"
    if mark.state == "whole":
        return "whole"
    if mark.state == "no":
        return "condensed" if mark.decision == "compacted" else "left out"
    block = find_complete_block(mark)
    return f"kept in {block}" if block else "part"


def describe_presence(mark: Marked) -> str:
    """Return how much of a message the prompt has, and why."""
    if mark.state == "whole" and mark.decision in {"kept", "pinned", "anchored"} and mark.block in _PLACES:
        return _PLACES[mark.block]
    if mark.decision == "later":
        return mark.reason
    if mark.decision == "compacted":
        by = " by a model's summary" if mark.cause == "summarized" else ""
        block = find_complete_block(mark)
        if mark.state == "no":
            return f"condensed{by}: nothing of it is left"
        return f"condensed{by}: {f'all of it is kept in {block}' if block else 'the prompt has a part of it'}"
    decision = name_decision(mark.decision)
    return decision if mark.cause == mark.decision else f"{decision}: {mark.reason}"


def name_decision(decision: str) -> str:
    """Return the name of a decision about messages, in words that need no glossary."""
    return {"compacted": "condensed", "evicted": "left out", "anchored": "task"}.get(decision, decision)


def describe_run(run: Run) -> str:
    """Return what happened to a range of messages, and why."""
    if run.decision == "compacted":
        return "condensed by a model's summary" if run.cause == "summarized" else "condensed"
    decision = name_decision(run.decision)
    return decision if run.cause in {"task", "pinned"} else f"{decision}: {run.reason}"


def find_complete_block(mark: Marked) -> str:
    """Return the name of the block that quotes all words of a message; empty if none does."""
    if getattr(mark, "shortened", len(mark.text) >= EXPLAIN_TEXT_CHARS):
        return ""  # only the beginning of the message is known
    for block, name in _BLOCKS.items():
        rest = mark.text
        for one in sorted(mark.excerpts, key=lambda each: -len(each.words)):
            if one.block == block and one.words:
                rest = re.sub(r"\s+".join(map(re.escape, one.words.split())), " ", rest)
        if rest != mark.text and not any(char.isalnum() for char in rest):
            return name
    return ""


GLOBALS.update(
    describe_change=describe_change,
    describe_presence=describe_presence,
    describe_run=describe_run,
    find_complete_block=find_complete_block,
    name_state=name_state,
)
