"""Where contents lie: what each such place promises, and how a content is called there."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from typing import Final, Protocol

from holdfast.errors import StoreCorrupt
from holdfast.stores.base import Store
from holdfast.stores.tenants import FOREVER

CHUNK: Final = 256 * 1024
"""Bytes that are read or written at once, about."""
IDENTITY: Final = "holdfast.artifacts"
"""Among what the tenant keeps of models: what its contents are told by from those of any other database."""


class Blobs(Protocol):
    """The contents of one tenant, by random keys.

    Foreign errors do not leak: what cannot be reached, is full or may not be written is `StoreUnavailable`.
    """

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        """Keep a content. When it returns, all of it is there and durable; when it raises, or is cancelled, nothing is.

        What `chunks` raises is passed on. Holds no more than a few chunks, or parts, in memory. What a process leaves that
        dies meanwhile is found by `old`; the parts of an unfinished upload to S3 are for a rule of the bucket to remove.
        """
        ...

    def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` to before `stop`, in chunks; close it when not reading on.

        Raises `StoreCorrupt` when there is no such content. A shorter one gives fewer bytes.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove contents; those that are not there are fine."""
        ...

    def old(self, before: int) -> AsyncGenerator[str, None]:
        """Keys of contents, unfinished ones too, that were written last before that time, milliseconds since the epoch."""
        ...

    def of(self, store: Store) -> Blobs:
        """The contents of another tenant in the same place: of the one that `store` is a handle of."""
        ...


def new_key() -> str:
    """A key that nobody guesses, and no two contents have: 128 random bits."""
    return secrets.token_hex(16)


def folder_of(tenant: str, identity: bytes) -> str:
    """What a tenant's contents lie under: tells nothing of its name, and cannot be another's, nor another database's.

    Args:
        tenant: whose.
        identity: 16 random bytes that only this database has.
    """
    return hashlib.blake2b(tenant.encode(), key=identity, digest_size=16, person=b"artifacts").hexdigest()


class Home:
    """What a tenant's contents lie under where several databases may share one folder or bucket.

    It is made with the first content and kept in the database: so a sweep for what no name leads to sees what this
    database has put there, and nothing else. A copy of the database has the same one.

    Args:
        store: the tenant's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder: str | None = None

    async def found(self) -> str | None:
        """Its name; None while nothing was ever kept."""
        if self._folder is None:
            identity = await self._store.learned(IDENTITY)
            self._folder = None if identity is None else folder_of(self._store.tenant, identity)
        return self._folder

    async def made(self) -> str:
        """Its name, made if there is none. Of several that make it at once, all have that of the first one."""
        while (folder := await self.found()) is None:
            await self._store.learn(IDENTITY, secrets.token_bytes(16), timestamp=FOREVER, expect=None)
        return folder


def missing(key: str) -> StoreCorrupt:
    """The error of a content that has a name, and is not there."""
    return StoreCorrupt(
        f"the content {key} of an artifact is missing: restore it from a backup, or delete the artifact"
    )


async def gathered(chunks: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """The same bytes in chunks of that size, the last one shorter; at least one, if empty."""
    buffer, any_yet = bytearray(), False
    async for chunk in chunks:
        for at in range(0, len(chunk), size):  # a caller's chunk may be as large as the content
            buffer += memoryview(chunk)[at : at + size]
            if len(buffer) >= size:
                any_yet = True
                yield bytes(memoryview(buffer)[:size])
                del buffer[:size]
    if buffer or not any_yet:
        yield bytes(buffer)
