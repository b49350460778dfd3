"""What a session's live path says, told page by page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.domain.session import Entry, SessionRef
from holdfast.limits import PAGE
from holdfast.sessions.interruption import TRIES
from holdfast.stores.base import Store

T = TypeVar("T")


async def read_history(store: Store, ref: SessionRef, told: Callable[[Sequence[Entry]], list[T]]) -> list[T]:
    """What `told` makes of a session's live path as it was at one moment, page by page: a long log is not held as entries.

    Args:
        store: where it is.
        ref: which session.
        told: makes something of some entries, in their order.

    Raises:
        SessionNotFound: no such session.
    """
    for _ in range(TRIES):
        version = (await store.get(ref)).version
        page = await store.entries(ref, limit=PAGE)
        found, pages = told(page), 1
        while len(page) == PAGE:
            page = await store.entries(ref, start=page[-1].seq + 1, limit=PAGE)
            found, pages = found + told(page), pages + 1
        if pages == 1 or (await store.get(ref)).version == version:
            return found
    return told(await store.entries(ref))  # it is written to all the time: then at once
