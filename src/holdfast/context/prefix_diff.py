"""Compares a prompt with the previous one: the common prefix, which a provider's cache can reuse, and the hash of the prompt.

If a prompt only grew, only the new messages are compared and hashed. The messages of a view in memory are the same objects each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.context.strategies import Strategy
from holdfast.context.units import Unit
from holdfast.context.window import Compaction, Cut, Window
from holdfast.domain.messages import Message, encode_payload

HASH_SIZE = 16
"""Bytes of a prompt's hash."""


class Prefix(NamedTuple):
    """The common prefix of a prompt and the previous one."""

    messages: int
    """Number of common messages at the beginning."""
    before: int | None
    """Number of messages of the previous prompt; None if it is not known."""

    @property
    def whole(self) -> bool:
        """True if the previous prompt is a prefix of this one, so that a provider's cache holds all of it."""
        return self.messages == self.before


class PrefixTracker:
    """Compares each prompt of a view with the previous one, which it remembers."""

    def __init__(self) -> None:
        self._last: tuple[Message, ...] | None = None
        self._hashed = 0
        self._hasher = hashlib.blake2b(digest_size=HASH_SIZE)
        self._is_staying = 0
        self._base: tuple[int, hashlib.blake2b] | None = None

    def advance(self, messages: tuple[Message, ...], stays: int = 0) -> Prefix:
        """Compare a prompt with the previous one, and remember it in its place.

        Args:
            messages: the prompt.
            stays: how many of its messages the next prompt will probably begin with; 0 means all.
        """
        last, self._last, self._is_staying = self._last, messages, stays
        if last is None:
            return Prefix(0, None)
        common = 0
        for mine, theirs in zip(messages, last, strict=False):
            if mine is not theirs and mine != theirs:
                break
            common += 1
        if common < self._hashed:
            self._rewind(common)
        return Prefix(common, len(last))

    def _rewind(self, common: int) -> None:
        """Continue hashing from the end of the common prefix, or from an earlier saved position."""
        if self._base is not None and self._base[0] <= common:
            self._hashed, self._hasher = self._base[0], self._base[1].copy()
        else:
            self._hashed, self._hasher, self._base = 0, hashlib.blake2b(digest_size=HASH_SIZE), None

    def hash(self, messages: tuple[Message, ...]) -> str:
        """Return the hash of a prompt. For the last one, only new messages are hashed."""
        if messages is not self._last:
            return hash_messages(messages)
        if self._hashed < self._is_staying < len(messages):
            _update_hash(self._hasher, messages[self._hashed : self._is_staying])
            self._hashed, self._base = self._is_staying, (self._is_staying, self._hasher.copy())
        _update_hash(self._hasher, messages[self._hashed :])
        self._hashed = len(messages)
        return self._hasher.hexdigest()


def hash_messages(messages: Sequence[Message]) -> str:
    """Return the hash of the exact messages as 32 hex digits: the same log, strategy and budget give the same hash."""
    hasher = hashlib.blake2b(digest_size=HASH_SIZE)
    _update_hash(hasher, messages)
    return hasher.hexdigest()


def _update_hash(hasher: hashlib.blake2b, messages: Sequence[Message]) -> None:
    for message in messages:
        hasher.update(encode_payload(message))
        hasher.update(b"\n")


class PromptSnapshot(NamedTuple):
    """The components of a prompt: enough to explain why the next prompt does not begin with it."""

    system: int
    """Number of system messages before the conversation."""
    frontier: int
    head: tuple[Unit, ...]
    summary: Compaction | None
    compaction: Compaction | None
    cuts: Mapping[int, Cut]
    recalled: int | None
    """Index of the recalled block; None if there is none."""

    @classmethod
    def from_window(cls, window: Window, system: int, recalled: int | None) -> PromptSnapshot:
        """Return the snapshot of a window. Nothing is copied."""
        frontier = window.units[0].first if window.units else 0
        return cls(system, frontier, window.head, window.summary, window.compaction, window.cuts, recalled)


class PrefixBreak(NamedTuple):
    """The first difference between a prompt and the previous one."""

    message: int
    """Index of the first message that differs."""
    seq: int | None
    """Its entry; None for a system message, a compaction, or the end."""
    why: str


def find_break(
    prefix: Prefix, before: PromptSnapshot | None, now: PromptSnapshot, window: Window, strategy: Strategy
) -> PrefixBreak | None:
    """Return the entry that broke the prefix, and why; None if it is unbroken, or if the previous prompt is not known."""
    if before is None or prefix.before is None or prefix.whole:
        return None
    place = prefix.messages - now.system
    if now.recalled is not None and prefix.messages >= now.recalled:
        place = -1 if prefix.messages == now.recalled else place - 1
    seqs = window.list_seqs()
    seq = seqs[place] if 0 <= place < len(seqs) else None
    slides = strategy.window_size is not None or strategy.history
    moved = "newer messages took the place of older ones" if slides else "the room was full"
    if prefix.messages in (before.recalled, now.recalled):
        return PrefixBreak(prefix.messages, seq, "the recalled text changed: it belongs to one turn only")
    return PrefixBreak(prefix.messages, seq, _explain_break(prefix, before, now, moved))


def _explain_break(prefix: Prefix, before: PromptSnapshot, now: PromptSnapshot, moved: str) -> str:
    if prefix.messages < max(before.system, now.system):
        return "the system prompt changed"
    if now.summary != before.summary:
        return "a summary was added" if now.summary else "the summary was removed"
    if now.frontier != before.frontier:
        return f"the frontier moved from {before.frontier} to {now.frontier}: {moved}"
    if now.cuts != before.cuts:
        cleared = any(cut.cleared and seq not in before.cuts for seq, cut in now.cuts.items())
        return "older tool results were cleared" if cleared else "messages were cut: the room was full"
    if now.compaction != before.compaction or now.head != before.head:
        return "the messages before the frontier changed"
    return "the message changed: results arrived, or it was edited"


def describe_prefix(found: Prefix, broke: PrefixBreak | None) -> dict[str, Any]:
    """Return the common prefix with the previous prompt as the API shows it; `whole` is null if that prompt is not known."""
    known = found.before is not None
    shown = {"messages": found.messages, "before": found.before, "whole": found.whole if known else None}
    return {**shown, "broken": broke._asdict() if broke else None}
