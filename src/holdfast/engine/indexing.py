"""Telling an index what was written: behind turns, never in one. What a search index is, `Indexer` does not say.

An index is derived: it can be made anew from the log. So whatever becomes of it, no turn fails for its sake.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from holdfast.domain.session import Session, SessionRef
from holdfast.limits import INDEX_SECONDS

_log: Final = logging.getLogger("holdfast.indexing")


class Indexer(Protocol):
    """Keeps an index over logs."""

    async def index(self, ref: SessionRef, session: Session) -> None:
        """Take in what a session has by now.

        It is told behind commits, one call at a time of a session, and not of each commit: behind several it may be told once.
        What it raises is logged; it is told again behind the next.

        Args:
            ref: which session.
            session: as it was after a commit: its tenant, and its version, by which an index knows how far it is.
        """
        ...


class Indexing:
    """Tells an indexer of the sessions of one tenant, in the background.

    Args:
        indexer: None: there is none, and nothing is done.
    """

    def __init__(self, indexer: Indexer | None) -> None:
        self._indexer = indexer
        self._tasks: dict[SessionRef, asyncio.Task[None]] = {}
        self._again: dict[SessionRef, Session] = {}
        self._closed = False

    def soon(self, ref: SessionRef, session: Session) -> None:
        """Have it told of a session, in the background; while it is at that one, once more behind that."""
        if self._indexer is None or self._closed:
            return
        if ref in self._tasks:
            self._again[ref] = session
            return
        self._tasks[ref] = asyncio.create_task(self._told(self._indexer, ref, session), name=f"indexing {ref.id}")

    async def _told(self, indexer: Indexer, ref: SessionRef, session: Session) -> None:
        newest: Session | None = session
        try:
            while newest is not None:
                try:
                    await indexer.index(ref, newest)
                except Exception as exc:  # noqa: BLE001 - the last place: no turn fails for the sake of an index
                    _log.error("session %r could not be indexed", ref.id, exc_info=exc)
                newest = self._again.pop(ref, None)
        finally:
            self._again.pop(ref, None)
            del self._tasks[ref]

    async def settled(self) -> None:
        """Return when it is told of everything."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))

    async def close(self) -> None:
        """Let it finish what it was told, for a while, then give it up. Closing twice is fine."""
        self._closed = True
        if self._tasks:
            _, late = await asyncio.wait(tuple(self._tasks.values()), timeout=INDEX_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
