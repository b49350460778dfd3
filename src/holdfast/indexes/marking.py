"""Sources that something is done to: marked before, so that a process that ends in between leaves a trace, and brought in line behind."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.domain.session import Session, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.indexes.sources import INVALID, marked, space_of
from holdfast.recall.base import Batch, Index, Progress, Source
from holdfast.stores.base import Store

_TRIES: Final = 8


class Change:
    """What is about to be done to a source.

    Attributes:
        before: how far it was; None: nothing was known of it, or nobody looked.
        mark: what stands there meanwhile.
    """

    def __init__(self) -> None:
        self.before: Progress | None = None
        self.mark: Progress | None = None

    def after(self, known: Progress, session: Session) -> Progress | None:
        """How far it is then, where that was the only thing done to it; None: that is not known."""
        was = self.before
        if was is None or known != self.mark or not was.complete or session.version != was.version + 1:
            return None
        return msgspec.structs.replace(was, version=session.version)


class Marks:
    """Marks sources of one tenant.

    Args:
        store: where sessions live, as it is.
        index: of the tenant.
    """

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index

    async def mark(self, ref: SessionRef, identity: str | None, change: Change) -> None:
        """Mark a source.

        Args:
            ref: the session.
            identity: of the one that takes the name, where one does: of that there is a source then, in any case.
            change: is told what was there.
        """
        space = space_of(ref)
        for _ in range(_TRIES):
            known = await self._index.progress(space, ref.id)
            if known is not None:
                progress, was = marked(known), known.identity
            elif identity is not None:
                progress, was = Progress(identity=identity, version=INVALID, complete=False), identity
            else:
                return
            if await self._index.write(space, Batch(source=Source(ref.id, was), progress=progress, expect=known)):
                change.before, change.mark = known, progress
                return

    async def erase(self, ref: SessionRef, seq: int, change: Change) -> None:
        """Take the document of an entry away that was erased in the log."""
        space = space_of(ref)
        for _ in range(_TRIES):
            known = await self._index.progress(space, ref.id)
            if known is None:
                return
            try:
                session = await self._store.get(ref)
            except SessionNotFound:
                return
            # Another progress than any feeder goes on from: what it has read may have the entry still.
            progress = change.after(known, session) or marked(known)
            batch = Batch(source=Source(ref.id, known.identity), progress=progress, drop=[seq], expect=known)
            if await self._index.write(space, batch):
                return

    async def forget(self, ref: SessionRef) -> bool:
        """Drop the source of a session that is gone, or has given its name to another; whether it was not: it is there."""
        space = space_of(ref)
        known = await self._index.progress(space, ref.id)
        if known is None:
            return False
        try:
            there = (await self._store.get(ref)).identity == known.identity
        except SessionNotFound:
            there = False
        if not there:
            await self._index.drop(space, ref.id, identity=known.identity)
        return there
