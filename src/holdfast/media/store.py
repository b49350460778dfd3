"""Take media data out of messages before they are stored, once per session, and cache it for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.media.parts import count_chars, list_hashes, take_out_data
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, RemovalCounts, SessionRef
from holdfast.limits import INLINE_MESSAGES, MEDIA_CACHE_BYTES
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper

THREAD_CHARS: Final = 256 * 1024
"""Characters of media above which they are processed outside the event loop."""


class MediaCache:
    """Recently written or read contents of all sessions of all tenants. The least recently used are evicted first.

    Args:
        room: maximum bytes.
    """

    def __init__(self, room: int = MEDIA_CACHE_BYTES) -> None:
        self._room = room
        self._contents: OrderedDict[tuple[str, SessionRef, bytes], bytes] = OrderedDict()
        self._of: dict[tuple[str, SessionRef], set[bytes]] = {}
        self.size = 0

    def get(self, tenant: str, ref: SessionRef, sha256: bytes) -> bytes | None:
        """Return a content of a session, or None."""
        key = (tenant, ref, sha256)
        content = self._contents.get(key)
        if content is not None:
            self._contents.move_to_end(key)
        return content

    def put(self, tenant: str, ref: SessionRef, contents: Mapping[bytes, bytes]) -> None:
        """Cache contents of a session, except those larger than half of the cache."""
        for sha256, content in contents.items():
            key = (tenant, ref, sha256)
            if key not in self._contents and len(content) <= self._room // 2:
                self._contents[key] = content
                self._of.setdefault((tenant, ref), set()).add(sha256)
                self.size += len(content)
        while self.size > self._room:
            self._drop(next(iter(self._contents)))

    def forget(self, tenant: str, ref: SessionRef) -> None:
        """Drop the contents of a session."""
        for sha256 in tuple(self._of.get((tenant, ref), ())):
            self._drop((tenant, ref, sha256))

    def _drop(self, key: tuple[str, SessionRef, bytes]) -> None:
        self.size -= len(self._contents.pop(key))
        of = self._of[key[:2]]
        of.discard(key[2])
        if not of:
            del self._of[key[:2]]


async def take_media_out(
    messages: Sequence[Message], *, plain: bool = True
) -> tuple[tuple[Message, ...], dict[bytes, bytes]]:
    """Return `messages` without media data, and the data by SHA-256. Many messages are processed outside the event loop.

    Args:
        messages: as received.
        plain: see `holdfast.domain.medium.detach_data`; False if they must still be searched for secrets.
    """
    contents: dict[bytes, bytes] = {}
    many = len(messages) > INLINE_MESSAGES
    if not (await run_cpu(has_media, messages, long=True) if many else has_media(messages)):
        return tuple(messages), contents
    taken = partial(take_out_data, messages, contents, plain=plain)
    return await run_cpu(taken, long=many or count_chars(messages) >= THREAD_CHARS), contents


def has_media(messages: Sequence[Message]) -> bool:
    """Return True if any of the messages has a part that is not text."""
    for message in messages:  # noqa: SIM110 - a generator would cost every turn several calls
        if type(message.content) is tuple and message.media:
            return True
    return False


class MediaReferringStore(StoreWrapper):
    """A store whose messages refer to their media; see `holdfast.domain.media.parts`.

    Args:
        inner: store for messages and media.
        cache: shared by the handles of all tenants.
    """

    def __init__(self, inner: Store, cache: MediaCache | None = None) -> None:
        super().__init__(inner)
        self._cache = MediaCache() if cache is None else cache

    def wrap(self, inner: Store) -> Self:
        """Wrap another handle in the same way."""
        return type(self)(inner, self._cache)

    def append(self, ref: SessionRef, write: Append) -> Coroutine[Any, Any, Appended]:
        """Append entries that refer to their media, which are stored once."""
        if len(write.entries) <= INLINE_MESSAGES and not has_media([entry.message for entry in write.entries]):
            return self.inner.append(ref, write)
        return self._append_media(ref, write)

    async def _append_media(self, ref: SessionRef, write: Append) -> Appended:
        entries, media = await _refer_to_contents(write.entries, write.media)
        if not media and entries is write.entries:
            return await self.inner.append(ref, write)
        appended = await self.inner.append(ref, msgspec.structs.replace(write, entries=entries, media=media))
        if not appended.replayed:
            self._cache.put(self.tenant, ref, media)
        return appended

    async def replace(
        self, new: NewSession, entries: Sequence[NewEntry], *, media: Mapping[bytes, bytes] = {}, **more: Any
    ) -> Appended:
        """Replace a session; its media are stored once."""
        entries, media = await _refer_to_contents(entries, media)
        if media:
            more["media"] = media
        installed = await self.inner.replace(new, entries, **more)
        self._cache.forget(self.tenant, new.ref)
        return installed

    async def media(self, ref: SessionRef, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Return media of a session. Contents that are not cached are read."""
        found: dict[bytes, bytes] = {}
        missing = []
        for sha256 in dict.fromkeys(hashes):
            content = self._cache.get(self.tenant, ref, sha256)
            if content is None:
                missing.append(sha256)
            else:
                found[sha256] = content
        if missing:
            read = await self.inner.media(ref, missing)
            self._cache.put(self.tenant, ref, read)
            found |= read
        return found

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """Erase a message, and drop the session's media from the cache."""
        try:
            return await self.inner.erase(ref, seq, tokens=tokens)
        finally:
            self._cache.forget(self.tenant, ref)

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> RemovalCounts | None:
        """Remove a session, and drop its media from the cache."""
        try:
            return await self.inner.remove(ref, expect=expect, artifacts=artifacts)
        finally:
            self._cache.forget(self.tenant, ref)


async def _refer_to_contents(
    entries: Sequence[NewEntry], given: Mapping[bytes, bytes]
) -> tuple[Sequence[NewEntry], dict[bytes, bytes]]:
    """Return entries that list their media, and the available contents of these. Without media, return the same entries."""
    many = len(entries) > INLINE_MESSAGES
    messages = [entry.message for entry in entries]
    if not (await run_cpu(has_media, messages, long=True) if many else has_media(messages)):
        return entries, {}
    without_media, contents = await take_media_out(messages)
    named = await run_cpu(lambda: [list_hashes([message]) for message in without_media], long=many)
    if not any(named):
        return entries, {}
    referring = [
        msgspec.structs.replace(entry, message=message, media=hashes) if hashes else entry
        for entry, message, hashes in zip(entries, without_media, named, strict=True)
    ]
    wanted = {sha256 for hashes in named for sha256 in hashes}
    return referring, {sha256: content for sha256, content in {**given, **contents}.items() if sha256 in wanted}


def refer_to_media(store: Store) -> Store:
    """Wrap `store` so that media are taken out of everything that is written."""
    return MediaReferringStore(store)  # type: ignore[abstract]  # the rest is passed on
