"""Read a session's messages page by page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.domain.session import Entry, SessionRef
from holdfast.limits import PAGE
from holdfast.sessions.interruption import TRIES
from holdfast.stores.base import Store

T = TypeVar("T")


async def read_history(store: Store, ref: SessionRef, convert: Callable[[Sequence[Entry]], list[T]]) -> list[T]:
    """Return a session's current messages, all as of one moment, converted to another form.

    The log is read and converted page by page, so that a long log is not held in memory as entries.

    Args:
        store: the store.
        ref: the session.
        convert: converts one page of consecutive entries.

    Raises:
        SessionNotFound: there is no such session.
    """
    for _ in range(TRIES):
        version = (await store.get(ref)).version
        page = await store.entries(ref, limit=PAGE)
        found, pages = convert(page), 1
        while len(page) == PAGE:
            page = await store.entries(ref, start=page[-1].seq + 1, limit=PAGE)
            found, pages = found + convert(page), pages + 1
        if pages == 1 or (await store.get(ref)).version == version:
            return found
    return convert(await store.entries(ref))  # the session changes too fast: read everything in one query
