"""Compare a prompt with the previous one, to find the common prefix that a provider's cache can reuse. Also hashes and encodes prompts.

If a prompt only has additional messages at its end, only these are hashed and encoded. Comparing the others is fast, because a view in
memory returns the same message objects each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.domain.messages import Message, encode_without_origin

HASH_SIZE = 16
"""Bytes of a prompt's hash."""


class ConvertFunction(Protocol):
    """Converts a part of a prompt to the messages of an API."""

    def __call__(self, messages: Sequence[Message], *, is_end: bool = True) -> Sequence[Mapping[str, Any]]:
        """Return the messages. `is_end` is False if other parts follow."""
        ...


class Prefix(NamedTuple):
    """The common prefix of a prompt and the previous one."""

    messages: int
    """Number of messages at the beginning that both prompts have in common."""
    before: int | None
    """Number of messages of the previous prompt; None if the previous prompt is not known."""

    @property
    def whole(self) -> bool:
        """True if the prompt begins with the whole previous prompt, so that a provider's cache can reuse all of the previous one."""
        return self.messages == self.before


class PrefixTracker:
    """Remembers the last prompt of a view, and compares the next one with it."""

    def __init__(self) -> None:
        self._last: tuple[Message, ...] | None = None
        self._hashed = 0
        self._hasher = hashlib.blake2b(digest_size=HASH_SIZE)
        self._is_staying = 0
        self._base: tuple[int, hashlib.blake2b] | None = None
        self._plain = 0
        self._sent = _Sent()

    @property
    def size(self) -> int:
        """Bytes of the encoded messages that are kept."""
        return len(self._sent.json)

    def advance(self, messages: tuple[Message, ...], stays: int = 0) -> Prefix:
        """Return the common prefix of a prompt and the previous one. The prompt becomes the previous one of the next call.

        Args:
            messages: the prompt.
            stays: number of messages at the beginning of the prompt with which the next prompt will probably begin too; 0 for all.
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
        self._plain = min(self._plain, common)
        if common < self._sent.messages:
            self._sent = _Sent()
        return Prefix(common, len(last))

    def _rewind(self, common: int) -> None:
        """Reset the hasher to a saved state within the first `common` messages, or to the beginning if there is none."""
        if self._base is not None and self._base[0] <= common:
            self._hashed, self._hasher = self._base[0], self._base[1].copy()
        else:
            self._hashed, self._hasher, self._base = 0, hashlib.blake2b(digest_size=HASH_SIZE), None

    def hash(self, messages: tuple[Message, ...]) -> str:
        """Return the hash of a prompt. For the prompt last passed to `advance`, only messages that are new in it are hashed."""
        if messages is not self._last:
            return hash_messages(messages)
        if self._hashed < self._is_staying < len(messages):
            _update_hash(self._hasher, messages[self._hashed : self._is_staying])
            self._hashed, self._base = self._is_staying, (self._is_staying, self._hasher.copy())
        _update_hash(self._hasher, messages[self._hashed :])
        self._hashed = len(messages)
        return self._hasher.hexdigest()

    def are_plain(self, messages: tuple[Message, ...], check: Callable[[Sequence[Message]], bool]) -> bool:
        """Return True if `check` holds for each message. For the prompt last passed to `advance`, only new messages are checked."""
        if messages is not self._last:
            return check(messages)
        if not check(messages[self._plain :]):
            return False
        self._plain = len(messages)
        return True

    def encode(
        self, messages: Sequence[Message], key: Hashable, convert: ConvertFunction
    ) -> Sequence[Mapping[str, Any]] | msgspec.Raw:
        """Return a prompt as a list of messages in the format of an API, or as its JSON.

        Args:
            messages: the prompt. Nothing is kept of one that was not the last passed to `advance`.
            key: what the result of `convert` depends on, in addition to the messages.
            convert: converts the prompt in parts, each of which begins with the first message or a user's message after a reply in words.
        """
        if messages is not self._last:
            return convert(messages)
        sent = self._sent
        if sent.key != key or not _is_boundary(messages, sent.messages):
            sent = _Sent(key)
        stop = self._is_staying or len(messages)
        while stop > sent.messages and not _is_boundary(messages, stop):
            stop -= 1
        encode = msgspec.json.encode
        if stop > sent.messages:
            new = encode(convert(messages[sent.messages : stop], is_end=False))[1:-1]
            sent = _Sent(key, stop, b",".join([sent.json, new]) if sent.json else new)
        self._sent, rest = sent, encode(convert(messages[stop:]))[1:-1]
        return msgspec.Raw(b"[" + b",".join(part for part in (sent.json, rest) if part) + b"]")


class _Sent(NamedTuple):
    """The beginning of a prompt as it was sent."""

    key: Hashable = None
    messages: int = 0
    json: bytes = b""


def _is_boundary(messages: Sequence[Message], at: int) -> bool:
    if not 0 < at < len(messages) or messages[at].role != "user":
        return False
    before = messages[at - 1]
    return before.role == "assistant" and type(before.content) is str and not before.tool_calls


def hash_messages(messages: Sequence[Message]) -> str:
    """Return the hash of messages as 32 hex digits. Equal messages have equal hashes in every process."""
    hasher = hashlib.blake2b(digest_size=HASH_SIZE)
    _update_hash(hasher, messages)
    return hasher.hexdigest()


def _update_hash(hasher: hashlib.blake2b, messages: Sequence[Message]) -> None:
    for message in messages:
        hasher.update(encode_without_origin(message))
        hasher.update(b"\n")
