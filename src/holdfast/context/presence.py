"""Look up how much of a message of the log a prompt contains, in which block, and why."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, Final, Literal

import msgspec

from holdfast.context.digest.texts import split_text
from holdfast.context.escaping import escape_inline, to_json_line
from holdfast.context.explain import Cause, PrefixChange, Run, join_reason, list_decisions, word_cause
from holdfast.context.parts import Part, PromptRecord, ShownPrompt, decode_lines
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.limits import EXPLAIN_CHARS, EXPLAIN_EXCERPTS, EXPLAIN_PHRASES

State = Literal["whole", "part", "no"]
_LEAST_CHARS: Final = 4
"""Minimum length of words that are quoted."""


class Excerpt(msgspec.Struct, frozen=True, gc=False):
    """Words of a message that a block of the prompt contains."""

    block: str
    """Name of the block: `task`, `pins`, `tail`, …, or the kind of a compaction, such as `digest`."""
    words: str
    """The words exactly as the prompt has them."""


class Presence(msgspec.Struct, frozen=True, gc=False):
    """The extent to which a prompt contains a message, and the reason."""

    state: State
    decision: str
    """The decision as in `Run`. Also `erased`, `retired` (removed by an edit or a rewind) or `later` (written after the prompt), or
    `note` (not a message)."""
    cause: Cause
    reason: str
    block: str | None = None
    """The block in which the message is sent; None if it is not sent as a message of its own."""
    excerpts: tuple[Excerpt, ...] = ()
    """Words of the message that the prompt contains, if it does not contain the complete message; at most `EXPLAIN_EXCERPTS`."""

    @property
    def why(self) -> str:
        """The decision and its reason, as one text."""
        return join_reason(self.decision, self.reason)


class Departure(msgspec.Struct, frozen=True, gc=False):
    """The first recorded prompt that no longer contained a message completely."""

    turn_id: int
    timestamp: int
    """Time of the model call, in milliseconds since the epoch."""
    reason: str
    """Description of the change in the prompt."""
    change: PrefixChange
    """The same for programs."""


class PromptContents:
    """The content of a prompt, in which messages of the log are looked up."""

    def __init__(self, prompt: ShownPrompt) -> None:
        self._prompt, self._record = prompt, prompt.record
        self._runs = list_decisions(prompt.record)
        self._firsts = [run.first for run in self._runs]
        self._sent = {one.seq: one for one in prompt.messages if one.seq is not None}
        # A prompt that was not sent has what is in the log now.
        self._last = math.inf if prompt.call is None else self._record.end[0]
        self._blocks = [part for part in self._record.parts if part.kind in ("facts", "summary", "digest")]

    def find_presence(self, entry: Entry) -> Presence:
        """Return the extent to which the prompt contains an entry, and the reason."""
        if entry.is_note or entry.erased:
            cause: Cause = "note" if entry.is_note else "erased"
            return Presence("no", cause, cause, word_cause(cause))
        if entry.seq > self._record.end[0]:
            return Presence("no", "later", "later", word_cause("later"))
        if entry.retired_by is not None and entry.retired_by <= self._last:
            reason = f"removed by an edit or a rewind; message {entry.retired_by} came next"
            return Presence("no", "retired", "retired", reason)
        if (run := self._find_run(entry.seq)) is None:
            return Presence("no", "evicted", "branch", word_cause("branch"))
        sent = self._sent.get(entry.seq)
        block = name_block(self._record, sent.part, entry.seq) if sent else None
        if sent and sent.part.form in ("whole", "changed"):
            return Presence("whole", run.decision, run.cause, run.reason, block)
        excerpts = tuple(dict.fromkeys(self._iter_excerpts(entry)))[:EXPLAIN_EXCERPTS]
        is_part = excerpts or (sent and sent.part.form in ("cut", "trimmed"))
        return Presence("part" if is_part else "no", run.decision, run.cause, run.reason, block, excerpts)

    def _find_run(self, seq: int) -> Run | None:
        at = bisect_right(self._firsts, seq) - 1
        return self._runs[at] if at >= 0 and seq <= self._runs[at].last else None

    def _iter_excerpts(self, entry: Entry) -> Iterator[Excerpt]:
        """Yield the words of an entry that the prompt contains: those of its shortened form, recalled ones, and those that a block quotes."""
        sent = self._sent.get(entry.seq)
        if sent and sent.part.form in ("cut", "trimmed"):
            block, text = name_block(self._record, sent.part, entry.seq), sent.message.text
            ends = _list_ends(entry.message.text, text) or self._iter_quotes(entry, text)
            yield from (Excerpt(block, words) for words in ends)
        if self._record.block is not None:
            for line in self._prompt.list_lines(self._record.block):
                if line.source is None and line.first <= entry.seq <= line.last:
                    yield Excerpt("recalled", _read_item(decode_lines(line)))
        for part in self._blocks:
            if part.first <= entry.seq <= part.last:
                text = "\n".join(map(decode_lines, self._prompt.list_lines(part)))
                yield from (Excerpt(part.kind, words) for words in self._iter_quotes(entry, text))

    def _iter_quotes(self, entry: Entry, text: str) -> Iterator[str]:
        """Yield the sentences and values of an entry that a text quotes."""
        for phrase in _list_phrases(entry.message):
            forms = (phrase, escape_inline(phrase, self._record.marker), to_json_line(phrase)[1:-1])
            if (found := next((form for form in forms if form in text), None)) is not None:
                yield found


def name_block(record: PromptRecord, part: Part, seq: int) -> str:
    """Return the name of the block in which a message of the log is sent."""
    if seq == record.find_mark("task"):
        return "task"
    if part.kind == "pinned":
        return "pins"
    causes = {mark.cause for mark in record.marks if mark.seq == seq}
    if "standing" in causes:
        return "system"
    if "current" in causes:
        return "current"
    return "head" if part.kind == "chosen" else "tail"


def _list_ends(said: str, sent: str) -> list[str]:
    """Return the beginning and the end of a message that its shortened form has too."""
    head = _find_common_start(said, sent)
    tail = _find_common_start(said[len(head) :][::-1], sent[len(head) :][::-1])[::-1]
    return [words for one in (head, tail) if len(words := one.strip()) >= _LEAST_CHARS]


def _find_common_start(one: str, other: str) -> str:
    return one[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))]


def _read_item(line: str) -> str:
    """Return the text of a line of the recalled block, as it is in the line."""
    try:
        return to_json_line(json.loads(line)["text"])[1:-1]
    except (ValueError, KeyError, TypeError):
        return line


def _list_phrases(message: Message) -> list[str]:
    """Return the sentences of a message, or the texts of its JSON, which a block may quote."""
    phrases: list[str] = []
    for text in (message.text, *(call.arguments for call in message.tool_calls)):
        decoded = _decode_json(text)
        phrases += split_text(text[:EXPLAIN_CHARS]) if decoded is None else _iter_values(decoded)
    return [one for one in dict.fromkeys(phrases) if len(one) >= _LEAST_CHARS][:EXPLAIN_PHRASES]


def _decode_json(text: str) -> Any:
    if not text.startswith(("{", "[")) or len(text) > EXPLAIN_CHARS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _iter_values(decoded: Any) -> Iterator[str]:
    """Yield the strings and numbers in decoded JSON. Strings are split into sentences."""
    waiting = [decoded]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += reversed([*value.values()])
        elif isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, str):
            yield from split_text(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)
