"""How a transcript comes to say what the store does: from its end on, or from its beginning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.errors import HookFailed
from holdfast.hooks.transcripts_file import End, Revision, Strange, TranscriptFile
from holdfast.hooks.transcripts_lines import (
    Retired,
    Walk,
    entry_line,
    header_line,
    header_start,
    moment,
    retired_line,
)
from holdfast.off_loop import off_loop
from holdfast.secrets import Redactor
from holdfast.stores.base import Store

PAGE: Final = 200
"""Entries that are read, told and written at a time."""
PATIENCE: Final = 20.0
"""Seconds that a file is waited for which somebody else has."""
_PAUSES: Final = (0.001, 0.1)
"""Seconds between two looks whether it is free: at first, and at most."""

Log = Callable[[int], AsyncIterator[Entry]]
"""A log's entries from a `seq` on, retired ones included."""


@asynccontextmanager
async def held(path: Path, *, patience: float = PATIENCE) -> AsyncIterator[TranscriptFile]:
    """The file, made if need be, and nobody else's meanwhile.

    Raises:
        HookFailed: somebody else had it for too long.
    """
    pause, longest = _PAUSES
    until = time.monotonic() + patience
    while (file := await off_loop(TranscriptFile.locked, path)) is None:
        if time.monotonic() > until:
            raise HookFailed(f"the transcript is being written by somebody else for {patience:g} s")
        await asyncio.sleep(pause)
        pause = min(longest, pause * 2)
    try:
        yield file
    finally:
        await off_loop(file.close)


class _Header(msgspec.Struct):
    """Whose a file is, as its first line says."""

    tenant: str
    user_id: str


def owner_of(path: Path) -> tuple[str, str] | None:
    """Tenant and user of the session that a file is of; None where that cannot be told."""
    try:
        with path.open("rb") as file:
            header = msgspec.json.decode(file.readline(), type=_Header)
    except (OSError, msgspec.MsgspecError):
        return None
    return header.tenant, header.user_id


async def go_on(file: TranscriptFile, store: Store, session: Session, redactor: Redactor | None) -> None:
    """Write what came since: costs what is written, at any length of the session.

    Args:
        file: the session's, held.
        store: of the session's tenant.
        session: as it stands.
        redactor: takes secrets out.

    Raises:
        Strange: the file is another session's, or its end is not what the store has there.
    """
    end = await off_loop(file.end, header_start(session))
    if end is None:
        await off_loop(lambda: file.append(header_line(session, redactor)))
        end = End()
    await _check(end, store, session.ref)
    after, known = end.seq, end.retired
    while True:
        page = await store.entries(session.ref, start=after + 1, limit=PAGE, retired=True)
        # Read behind the page: what its entries retired while they were read is seen.
        walk, known = Walk(await _retired_up_to(after, store, session.ref), known), None
        next_seq = page[-1].seq + 1 if page else after + 1
        last = len(page) < PAGE
        data = await off_loop(_told, walk, page, next_seq if last else None, redactor)
        if data:
            await off_loop(file.append, data)
        if last:
            return
        after = page[-1].seq


async def _check(end: End, store: Store, ref: SessionRef) -> None:
    """Raise `Strange` unless the store has what a file ends with."""
    if end.seq >= 0:
        found = await store.entries(ref, start=end.seq, limit=1, retired=True)
        if not found or not _same(found[0], end):
            raise Strange


async def _retired_up_to(seq: int, store: Store, ref: SessionRef) -> list[Entry]:
    """Entries up to a place that later ones have retired, the last one first."""
    if seq < 0:
        return []
    before = await store.entries(ref, start=seq, limit=1, retired=True)
    left: list[Entry] = []
    while before and before[-1].retired_by is not None:
        left += before
        before = await store.entries(ref, stop=left[-1].seq, limit=PAGE, descending=True, retired=True)
    return [entry for entry in (*left, *before) if (entry.retired_by or 0) > seq]


def _same(entry: Entry, end: End) -> bool:
    """Whether an entry is the one that the file ends with."""
    told = end.entry or {}
    said = (told.get("seq"), told.get("timestamp"), told.get("turn_id"), told.get("role"))
    return said == (entry.seq, moment(entry.timestamp), entry.turn_id, entry.message.role)


def _told(walk: Walk, page: Sequence[Entry], next_seq: int | None, redactor: Redactor | None) -> bytes:
    """The lines of some entries. Args: `next_seq`: what comes behind the log, where this is its end."""
    lines: list[bytes] = []
    for entry in page:
        lines += [retired_line(retired) for retired in walk.over(entry)]
        lines.append(entry_line(entry, redactor))
    behind: Sequence[Retired] = [] if next_seq is None else list(walk.behind(next_seq))
    return b"".join((*lines, *map(retired_line, behind)))


async def revise(
    file: TranscriptFile, session: Session, log: Log, redactor: Redactor | None, *, sync: bool = False
) -> None:
    """Make the file say what the store does, from its first line to its last; nothing is written where it does already.

    Args:
        file: the session's, held.
        session: as it stands.
        log: the session's, all of it.
        redactor: takes secrets out.
        sync: whether it has to survive the machine.
    """
    revision = Revision(file)
    try:
        await off_loop(lambda: revision.feed(header_line(session, redactor)))
        walk, page, next_seq = Walk(), [], 0
        async for entry in log(0):
            page.append(entry)
            next_seq = entry.seq + 1
            if len(page) == PAGE:
                await off_loop(_feed, revision, walk, page, None, redactor)
                page = []
        await off_loop(_feed, revision, walk, page, next_seq, redactor)
        await off_loop(lambda: revision.finish(sync=sync))
    finally:
        await off_loop(revision.close)


def _feed(
    revision: Revision, walk: Walk, page: Sequence[Entry], next_seq: int | None, redactor: Redactor | None
) -> None:
    revision.feed(_told(walk, page, next_seq, redactor))


def log_of(store: Store, ref: SessionRef) -> Log:
    """A session's log, read page by page."""

    async def entries(start: int) -> AsyncIterator[Entry]:
        while page := await store.entries(ref, start=start, limit=PAGE, retired=True):
            for entry in page:
                yield entry
            start = page[-1].seq + 1

    return entries
