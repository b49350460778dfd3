"""What one prompt has in common with the one before it: what a provider's cache can use, and the hash of both.

A prompt that only grew is compared and hashed in what it grew by; the messages of a warm view are the same objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

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


class Trail:
    """The prompts of one view, one after the other; the last one is remembered."""

    def __init__(self) -> None:
        self._last: tuple[Message, ...] | None = None
        self._hashed = 0
        self._hasher = hashlib.blake2b(digest_size=HASH_SIZE)
        self._stays = 0
        self._base: tuple[int, hashlib.blake2b] | None = None

    def follow(self, messages: tuple[Message, ...], stays: int = 0) -> Prefix:
        """Compare a prompt with the last one, whose place it takes.

        Args:
            messages: the prompt.
            stays: how many of them the next one is thought to begin with, where that is not all; 0: all.
        """
        last, self._last, self._stays = self._last, messages, stays
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
            return hash_of(messages)
        if self._hashed < self._stays < len(messages):
            _feed(self._hasher, messages[self._hashed : self._stays])
            self._hashed, self._base = self._stays, (self._stays, self._hasher.copy())
        _feed(self._hasher, messages[self._hashed :])
        self._hashed = len(messages)
        return self._hasher.hexdigest()


def hash_of(messages: Sequence[Message]) -> str:
    """Of the exact messages, as 32 hex digits: equal for equal log, policy and budget."""
    hasher = hashlib.blake2b(digest_size=HASH_SIZE)
    _feed(hasher, messages)
    return hasher.hexdigest()


def _feed(hasher: hashlib.blake2b, messages: Sequence[Message]) -> None:
    for message in messages:
        hasher.update(encode_payload(message))
        hasher.update(b"\n")
