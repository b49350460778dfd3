"""Take media data out of messages before they are stored. Each session stores a content once. Recent contents are cached in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.media.parts import count_chars, list_hashes, take_out_data
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Receipt, SessionRef
from holdfast.limits import INLINE_MESSAGES, MEDIA_CACHE_BYTES
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper

THREAD_CHARS: Final = 256 * 1024
"""Media with more characters than this are processed outside the event loop."""


class MediaCache:
    """A cache of media contents that were recently written or read, for all sessions of all tenants.

    The least recently used contents are evicted first.

    Args:
        room: maximum bytes of all cached contents together.
    """

    def __init__(self, room: int = MEDIA_CACHE_BYTES) -> None:
        self._room = room
        self._contents: OrderedDict[tuple[str, SessionRef, bytes], bytes] = OrderedDict()
        self._of: dict[tuple[str, SessionRef], set[bytes]] = {}
        self.size = 0

    def get(self, tenant: str, ref: SessionRef, sha256: bytes) -> bytes | None:
        """Return the content with this SHA-256 in a session's media; None if it is not cached."""
        key = (tenant, ref, sha256)
        content = self._contents.get(key)
        if content is not None:
            self._contents.move_to_end(key)
        return content

    def put(self, tenant: str, ref: SessionRef, contents: Mapping[bytes, bytes]) -> None:
        """Cache contents of a session. The keys are their SHA-256. A content larger than half of the cache is not cached."""
        for sha256, content in contents.items():
            key = (tenant, ref, sha256)
            if key not in self._contents and len(content) <= self._room // 2:
                self._contents[key] = content
                self._of.setdefault((tenant, ref), set()).add(sha256)
                self.size += len(content)
        while self.size > self._room:
            self._drop(next(iter(self._contents)))

    def forget(self, tenant: str, ref: SessionRef) -> None:
        """Remove all contents of a session from the cache."""
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
    """Return `messages` without media data, and the media data by SHA-256.

    Many messages and large media are processed outside the event loop.

    Args:
        messages: the messages as received.
        plain: True to also take out data that are not in base64 or are in unusual fields. False if the messages must still be searched for
            secrets, because the search must read such data.
    """
    contents: dict[bytes, bytes] = {}
    many = len(messages) > INLINE_MESSAGES
    if not (await run_cpu(has_media, messages, long=True) if many else has_media(messages)):
        return tuple(messages), contents
    taken = partial(take_out_data, messages, contents, plain=plain)
    return await run_cpu(taken, long=many or count_chars(messages) >= THREAD_CHARS), contents


def has_media(messages: Sequence[Message]) -> bool:
    """Return True if any message may contain media: it has a part that is not text, or an origin."""
    for message in messages:  # noqa: SIM110 - a generator would cost every turn several calls
        if message.origin is not None or (type(message.content) is tuple and message.media):
            return True
    return False


class MediaReferringStore(StoreWrapper):
    """A store that takes media data out of messages before it writes them to another store. The messages then refer to the data.

    `holdfast.domain.media.parts` defines the references.

    Args:
        inner: the store to which messages and media data are written.
        cache: the cache, which the handles of all tenants share; None to create one.
    """

    def __init__(self, inner: Store, cache: MediaCache | None = None) -> None:
        super().__init__(inner)
        self._cache = MediaCache() if cache is None else cache

    def wrap(self, inner: Store) -> Self:
        """Return a wrapper around another handle of the same store. The wrapper uses the same cache."""
        return type(self)(inner, self._cache)

    def append(self, ref: SessionRef, write: Append) -> Coroutine[Any, Any, Appended]:
        """Append entries to a session's log. Their media data is stored separately, each content once."""
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
        """Replace a session. The media data of the new entries is stored separately, each content once."""
        entries, media = await _refer_to_contents(entries, media)
        if media:
            more["media"] = media
        installed = await self.inner.replace(new, entries, **more)
        self._cache.forget(self.tenant, new.ref)
        return installed

    async def media(self, ref: SessionRef, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Return contents of a session's media by SHA-256. Contents that are not cached are read from the store."""
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
        """Erase a message, and remove the session's media from the cache."""
        try:
            return await self.inner.erase(ref, seq, tokens=tokens)
        finally:
            self._cache.forget(self.tenant, ref)

    async def remove(self, ref: SessionRef, **expected: int | None) -> Receipt | None:
        """Remove a session, and remove its media from the cache."""
        try:
            return await self.inner.remove(ref, **expected)
        finally:
            self._cache.forget(self.tenant, ref)


async def _refer_to_contents(
    entries: Sequence[NewEntry], given: Mapping[bytes, bytes]
) -> tuple[Sequence[NewEntry], dict[bytes, bytes]]:
    """Take media data out of entries. Return the entries, and the contents of their media by SHA-256, as far as they are known.

    Entries without media are returned unchanged.

    Args:
        entries: the entries.
        given: contents that were taken out before.
    """
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
