"""What one prompt has in common with the one before it: what a provider's cache can use, and the hash of both.

A prompt that only grew is compared and hashed in what it grew by; the messages of a warm view are the same objects.
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
    """How a prompt begins, compared with the one before it."""

    messages: int
    """Messages that both begin with."""
    before: int | None
    """Messages that the earlier prompt had; None: it is not known here."""

    @property
    def whole(self) -> bool:
        """Whether the earlier prompt is a prefix of this one: a provider's cache holds all of it."""
        return self.messages == self.before


class PrefixTracker:
    """The prompts of one view, one after the other; the last one is remembered."""

    def __init__(self) -> None:
        self._last: tuple[Message, ...] | None = None
        self._hashed = 0
        self._hasher = hashlib.blake2b(digest_size=HASH_SIZE)
        self._is_staying = 0
        self._base: tuple[int, hashlib.blake2b] | None = None

    def advance(self, messages: tuple[Message, ...], stays: int = 0) -> Prefix:
        """Compare a prompt with the last one, whose place it takes.

        Args:
            messages: the prompt.
            stays: how many of them the next one is thought to begin with, where that is not all; 0: all.
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
        """Go on hashing from where the last two prompts part, or from a place before."""
        if self._base is not None and self._base[0] <= common:
            self._hashed, self._hasher = self._base[0], self._base[1].copy()
        else:
            self._hashed, self._hasher, self._base = 0, hashlib.blake2b(digest_size=HASH_SIZE), None

    def hash(self, messages: tuple[Message, ...]) -> str:
        """The hash of a prompt; of the last one, by what it grew by."""
        if messages is not self._last:
            return hash_messages(messages)
        if self._hashed < self._is_staying < len(messages):
            _update_hash(self._hasher, messages[self._hashed : self._is_staying])
            self._hashed, self._base = self._is_staying, (self._is_staying, self._hasher.copy())
        _update_hash(self._hasher, messages[self._hashed :])
        self._hashed = len(messages)
        return self._hasher.hexdigest()


def hash_messages(messages: Sequence[Message]) -> str:
    """Of the exact messages, as 32 hex digits: equal for equal log, strategy and budget."""
    hasher = hashlib.blake2b(digest_size=HASH_SIZE)
    _update_hash(hasher, messages)
    return hasher.hexdigest()


def _update_hash(hasher: hashlib.blake2b, messages: Sequence[Message]) -> None:
    for message in messages:
        hasher.update(encode_payload(message))
        hasher.update(b"\n")


class PromptSnapshot(NamedTuple):
    """What a prompt was made of: enough to tell why the next one does not begin with it."""

    system: int
    """System messages before the conversation."""
    frontier: int
    head: tuple[Unit, ...]
    summary: Compaction | None
    compaction: Compaction | None
    cuts: Mapping[int, Cut]
    recalled: int | None
    """Index of the message that tells what was recalled; None: there is none."""

    @classmethod
    def from_window(cls, window: Window, system: int, recalled: int | None) -> PromptSnapshot:
        """The mark of a window; it copies nothing."""
        frontier = window.units[0].first if window.units else 0
        return cls(system, frontier, window.head, window.summary, window.compaction, window.cuts, recalled)


class PrefixBreak(NamedTuple):
    """Where a prompt stops to be what the one before it was."""

    message: int
    """Index of the first message that differs."""
    seq: int | None
    """The entry that it is; None for a system message, a compaction, or the end."""
    why: str


def find_break(
    prefix: Prefix, before: PromptSnapshot | None, now: PromptSnapshot, window: Window, strategy: Strategy
) -> PrefixBreak | None:
    """Which entry broke the prefix, and why; None when nothing did, or the prompt before is not known."""
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
        return PrefixBreak(prefix.messages, seq, "what is recalled changed: it is of one turn only")
    return PrefixBreak(prefix.messages, seq, _explain_break(prefix, before, now, moved))


def _explain_break(prefix: Prefix, before: PromptSnapshot, now: PromptSnapshot, moved: str) -> str:
    if prefix.messages < max(before.system, now.system):
        return "the system prompt changed"
    if now.summary != before.summary:
        return "a summary was laid" if now.summary else "a summary was dropped"
    if now.frontier != before.frontier:
        return f"the frontier moved from {before.frontier} to {now.frontier}: {moved}"
    if now.cuts != before.cuts:
        cleared = any(cut.cleared and seq not in before.cuts for seq, cut in now.cuts.items())
        return "older tool results were cleared" if cleared else "messages were cut: the room was full"
    if now.compaction != before.compaction or now.head != before.head:
        return "what stands before the frontier changed"
    return "the message changed: results arrived, or it was edited"


def describe_prefix(found: Prefix, broke: PrefixBreak | None) -> dict[str, Any]:
    """What of the prompt before it a prompt begins with; `whole` is null where that one is not known."""
    known = found.before is not None
    told = {"messages": found.messages, "before": found.before, "whole": found.whole if known else None}
    return {**told, "broken": broke._asdict() if broke else None}
