"""Set pins, importance and refusals of messages."""

from __future__ import annotations

from typing import Any

from holdfast.domain.refusals import choose_refusals
from holdfast.domain.session import Entry, SessionRef
from holdfast.errors import EntryNotFound
from holdfast.stores.base import Store
from holdfast.stores.checks import check_int


async def annotate(store: Store, ref: SessionRef, seq: int, *, refused_by: object = None, **changes: Any) -> Entry:
    """Set a message's pin or importance, or the upstreams (model providers) that must not receive the message.

    Args:
        store: the store.
        ref: the session.
        seq: the message.
        refused_by: names of upstreams whose prompts leave the message out; an empty list sends it to all again; None leaves
            the list unchanged.
        changes: `pinned` and `importance`, as for `Store.annotate`.

    Raises:
        EntryNotFound: the session has no such message, or the message was replaced or removed.
        InvalidMessage: `refused_by` is not a list of names.
    """
    if refused_by is None:
        return await store.annotate(ref, seq, **changes)
    choose_refusals(None, refused_by)
    check_int(seq, "seq")
    found = await store.entries(ref, start=seq, stop=seq + 1)
    if not found:
        raise EntryNotFound(ref.id, seq)
    return await store.annotate(ref, seq, refused_by=choose_refusals(found[0].metadata, refused_by), **changes)
