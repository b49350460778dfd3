"""Transcripts: a JSON-lines file for each session, written as it goes on, for people, for tools, and for the loss of the database.

A write to a session only notes that its file lags. A task brings the file up to date from the store, which is also what is read
after a crash and by another process: so each entry is in it once and in order, whichever process writes. At the end of a session the
whole file is compared, and later changes (pins, state, an erasure by another process) are corrected.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.domain.session import EndReason, Entry, Session, SessionRef
from holdfast.errors import HookFailed, InvalidRequest, SessionNotFound, StoreUnavailable
from holdfast.hooks.registry import Change, EndedSession
from holdfast.hooks.transcript_files import (
    PART,
    SUFFIX,
    FileRevision,
    Retirement,
    RetirementTracker,
    TranscriptEnd,
    TranscriptFile,
    UnexpectedContent,
    encode_entry,
    encode_header,
    encode_header_start,
    encode_retirement,
    format_timestamp,
    make_earlier_name,
    make_earlier_pattern,
    make_file_name,
    sync_folder,
)
from holdfast.off_loop import run_in_thread
from holdfast.secrets import Redactor
from holdfast.stores.base import Store
from holdfast.stores.log import Appended
from holdfast.stores.walk import iterate_tenants

PAGE: Final = 200
"""Entries that are read, told and written at a time."""
PATIENCE: Final = 20.0
"""Seconds that a file is waited for which somebody else has."""
_PAUSES: Final = (0.001, 0.1)
"""Seconds between two looks whether it is free: at first, and at most."""

Log = Callable[[int], AsyncIterator[Entry]]
"""A log's entries from a `seq` on, retired ones included."""


@asynccontextmanager
async def hold_file(path: Path, *, patience: float = PATIENCE) -> AsyncIterator[TranscriptFile]:
    """The file, made if need be, and nobody else's meanwhile.

    Raises:
        HookFailed: somebody else had it for too long.
    """
    pause, longest = _PAUSES
    until = time.monotonic() + patience
    while (file := await run_in_thread(TranscriptFile.open_locked, path)) is None:
        if time.monotonic() > until:
            raise HookFailed(f"the transcript is being written by somebody else for {patience:g} s")
        await asyncio.sleep(pause)
        pause = min(longest, pause * 2)
    try:
        yield file
    finally:
        await run_in_thread(file.close)


class _HeaderOwner(msgspec.Struct):
    """Whose a file is, as its first line says."""

    tenant: str
    user_id: str


def read_owner(path: Path) -> tuple[str, str] | None:
    """Tenant and user of the session that a file is of; None where that cannot be told."""
    try:
        with path.open("rb") as file:
            header = msgspec.json.decode(file.readline(), type=_HeaderOwner)
    except (OSError, msgspec.MsgspecError):
        return None
    return header.tenant, header.user_id


async def append_new_entries(file: TranscriptFile, store: Store, session: Session, redactor: Redactor | None) -> None:
    """Write what came since: costs what is written, at any length of the session.

    Args:
        file: the session's, held.
        store: of the session's tenant.
        session: as it stands.
        redactor: takes secrets out.

    Raises:
        Strange: the file is another session's, or its end is not what the store has there.
    """
    end = await run_in_thread(file.end, encode_header_start(session))
    if end is None:
        await run_in_thread(lambda: file.append(encode_header(session, redactor)))
        end = TranscriptEnd()
    await _check_end(end, store, session.ref)
    after, known = end.seq, end.retired
    while True:
        page = await store.entries(session.ref, start=after + 1, limit=PAGE, retired=True)
        # Read behind the page: what its entries retired while they were read is seen.
        walk, known = RetirementTracker(await _find_retired(after, store, session.ref), known), None
        next_seq = page[-1].seq + 1 if page else after + 1
        last = len(page) < PAGE
        data = await run_in_thread(_encode_lines, walk, page, next_seq if last else None, redactor)
        if data:
            await run_in_thread(file.append, data)
        if last:
            return
        after = page[-1].seq


async def _check_end(end: TranscriptEnd, store: Store, ref: SessionRef) -> None:
    """Raise `UnexpectedContent` unless the store has what a file ends with."""
    if end.seq >= 0:
        found = await store.entries(ref, start=end.seq, limit=1, retired=True)
        if not found or not _is_same_entry(found[0], end):
            raise UnexpectedContent


async def _find_retired(seq: int, store: Store, ref: SessionRef) -> list[Entry]:
    """Entries up to a place that later ones have retired, the last one first."""
    if seq < 0:
        return []
    before = await store.entries(ref, start=seq, limit=1, retired=True)
    left: list[Entry] = []
    while before and before[-1].retired_by is not None:
        left += before
        before = await store.entries(ref, stop=left[-1].seq, limit=PAGE, descending=True, retired=True)
    return [entry for entry in (*left, *before) if (entry.retired_by or 0) > seq]


def _is_same_entry(entry: Entry, end: TranscriptEnd) -> bool:
    """Whether an entry is the one that the file ends with."""
    told = end.entry or {}
    said = (told.get("seq"), told.get("timestamp"), told.get("turn_id"), told.get("role"))
    return said == (entry.seq, format_timestamp(entry.timestamp), entry.turn_id, entry.message.role)


def _encode_lines(
    walk: RetirementTracker, page: Sequence[Entry], next_seq: int | None, redactor: Redactor | None
) -> bytes:
    """The lines of some entries. Args: `next_seq`: what comes behind the log, where this is its end."""
    lines: list[bytes] = []
    for entry in page:
        lines += [encode_retirement(retired) for retired in walk.track(entry)]
        lines.append(encode_entry(entry, redactor))
    behind: Sequence[Retirement] = [] if next_seq is None else list(walk.list_before(next_seq))
    return b"".join((*lines, *map(encode_retirement, behind)))


async def revise_file(
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
    revision = FileRevision(file)
    try:
        await run_in_thread(lambda: revision.write(encode_header(session, redactor)))
        walk, page, next_seq = RetirementTracker(), [], 0
        async for entry in log(0):
            page.append(entry)
            next_seq = entry.seq + 1
            if len(page) == PAGE:
                await run_in_thread(_write_page, revision, walk, page, None, redactor)
                page = []
        await run_in_thread(_write_page, revision, walk, page, next_seq, redactor)
        await run_in_thread(lambda: revision.finish(sync=sync))
    finally:
        await run_in_thread(revision.close)


def _write_page(
    revision: FileRevision,
    walk: RetirementTracker,
    page: Sequence[Entry],
    next_seq: int | None,
    redactor: Redactor | None,
) -> None:
    revision.write(_encode_lines(walk, page, next_seq, redactor))


def make_log_reader(store: Store, ref: SessionRef) -> Log:
    """A session's log, read page by page."""

    async def entries(start: int) -> AsyncIterator[Entry]:
        while page := await store.entries(ref, start=start, limit=PAGE, retired=True):
            for entry in page:
                yield entry
            start = page[-1].seq + 1

    return entries


_log = logging.getLogger("holdfast.transcripts")
Fsync = Literal["never", "end", "always"]
FSYNC: Final = ("never", "end", "always")
"""When what was written has to survive the machine: when the system sees fit, when its session has ended, at once."""
_STALE: Final = ".stale"
_WORKERS: Final = 4
_RECENT_PAGE: Final = 100
"""Sessions that are looked at together for what a crash left behind."""
_RECENT_PAGES: Final = 100
"""How often, at most."""
_LONGEST_PAUSE: Final = 60.0
_SERIOUS: Final[dict[str | None, int]] = {None: 0, "annotated": 1, "erased": 1, "replaced": 2, "deleted": 3}
"""What is to be done for a session includes what is less."""


class _Key(NamedTuple):
    tenant: str
    ref: SessionRef


class _StaleNote(msgspec.Struct, frozen=True):
    """What is noted on the disk before something changes that is in a file already."""

    tenant: str
    user_id: str
    id: str
    how: Change


class Transcripts:
    """Keeps a transcript of every session: `Holdfast(hooks=[Transcripts("transcripts")])`.

    It is a hook, which completes a session's file when it ends and removes it when it is deleted, and an observer, which
    keeps the file up to date before that. What fails is logged, without any content, and tried again.

    Args:
        folder: where the files go; made, for its owner alone, if it is not there.
        redactor: takes secrets out of what is written; None: it is written as it is stored.
        fsync: when the disk is waited for; see `FSYNC`.
        pause: seconds before what failed is tried again, doubled with each failure up to a minute.

    Raises:
        InvalidRequest: `fsync` is none of them, or this is Windows, which has no locks that go with their process.
    """

    name = "transcripts"
    reasons: frozenset[EndReason] = frozenset({"ttl", "cap", "delete", "close", "shutdown"})

    def __init__(
        self, folder: str | Path, *, redactor: Redactor | None = None, fsync: Fsync = "end", pause: float = 1.0
    ) -> None:
        if os.name == "nt":
            raise InvalidRequest("transcripts need locks on files that Windows does not have", param="transcripts_dir")
        if fsync not in FSYNC:
            raise InvalidRequest(f"fsync must be one of {', '.join(FSYNC)}, not {fsync!r}"[:300], param="fsync")
        self.folder = Path(folder)
        self._redactor = redactor
        self._fsync = fsync
        self._pause = pause
        self._store: Store | None = None
        self._mine = secrets.token_hex(4)
        self._lagging: OrderedDict[_Key, Change | None] = OrderedDict()
        self._changing: Counter[_Key] = Counter()
        self._busy: set[_Key] = set()
        self._failures: dict[_Key, int] = {}
        self._waiting: dict[_Key, tuple[asyncio.TimerHandle, Change | None]] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._workers = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"Transcripts({str(self.folder)!r})"

    def path(self, tenant: str, user_id: str, session_id: str) -> Path:
        """Where the transcript of a session is, or would be."""
        return self.folder / make_file_name(tenant, user_id, session_id)

    # -- as an observer ------------------------------------------------------

    def begin(self, store: Store) -> None:
        """See `Observer.begin`. Looks for what a crash left behind."""
        self._store = store
        # Whoever follows has nothing to learn from a shutdown: `close` brings every file up to date.
        self.reasons -= {"shutdown"}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise StoreUnavailable(f"transcripts cannot be written to {self.folder}: {exc.strerror or exc}") from exc
        self._start(self._recover(store))

    def on_append(self, tenant: str, ref: SessionRef, appended: Appended) -> None:
        """See `Observer.appended`."""
        self._note(_Key(tenant, ref), None)

    def before_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """See `Observer.changing`. What the file must not keep is noted on the disk, since the process may end before it is gone."""
        path = self.path(tenant, ref.user_id, ref.id)
        try:
            self._changing[_Key(tenant, ref)] += 1
            if path.exists():
                note = msgspec.json.encode(_StaleNote(tenant, ref.user_id, ref.id, how))
                self._make_stale_path(path).write_bytes(note)
        except OSError as exc:
            _log_failure("could not be noted as stale", ref, exc)

    def after_change(self, tenant: str, ref: SessionRef, how: Change) -> None:
        """See `Observer.changed`."""
        key = _Key(tenant, ref)
        self._changing[key] -= 1
        if not self._changing[key]:
            del self._changing[key]
        self._note(key, how)

    async def wait_until_settled(self) -> None:
        """Return when every file is up to date, but for those that failed."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def close(self) -> None:
        """Bring every file up to date, trying once more what failed."""
        for key, (timer, how) in list(self._waiting.items()):
            timer.cancel()
            self._note(key, how)
        self._waiting.clear()
        await self.wait_until_settled()
        for timer, _ in self._waiting.values():
            timer.cancel()
        if self._waiting:
            count = len(self._waiting)
            _log.error("transcripts are behind", extra={"fields": {"sessions": count}})
        self._waiting.clear()

    # -- as a hook -----------------------------------------------------------

    async def __call__(self, ended: EndedSession) -> None:
        """Complete the file of a session that has ended; remove that of one that was deleted.

        Raises:
            HookFailed: it could not be written; says why.
        """
        task = self._ends.get(ended.delivery_id)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            # A task of its own: what writes to a file is not to be cancelled in the middle. Of a very long session it may
            # outlive its caller's patience; then the next try finds it here.
            task = self._ends[ended.delivery_id] = self._start(self._handle_end(ended))
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                self._ends.pop(ended.delivery_id, None)

    async def _handle_end(self, ended: EndedSession) -> None:
        session = ended.session
        path = self.path(session.tenant, session.user_id, session.id)
        # Its name may be another session's by now, and its file another one.
        moved = path.with_name(make_earlier_name(path.name, session.created_at))
        try:
            if await run_in_thread(moved.exists) or not await self._complete_or_remove(path, ended):
                await self._complete_or_remove(moved, ended)
        except OSError as exc:
            raise HookFailed(f"the transcript could not be written: {exc.strerror or type(exc).__name__}") from exc

    async def _complete_or_remove(self, path: Path, ended: EndedSession) -> bool:
        """Complete or remove a file; False, and nothing done, when it is another session's."""
        sync = self._fsync != "never"
        async with hold_file(path) as file:
            if not await run_in_thread(file.has_start, encode_header_start(ended.session)):
                return False
            if ended.reason != "delete":
                await revise_file(file, ended.session, partial(_entries, ended), self._redactor, sync=sync)
                return True
            await run_in_thread(file.remove)
        if sync:
            await run_in_thread(sync_folder, self.folder)
        return True

    async def forget(self, tenant: str, user_id: str, session_id: str) -> int:
        """Remove all that is kept of sessions of that name, earlier ones too; how many files there were.

        For whoever removes what is derived from a session and gives a receipt of it.
        """
        path = self.path(tenant, user_id, session_id)

        def remove() -> int:
            files = [one for one in (path, *path.parent.glob(make_earlier_pattern(path.name))) if one.exists()]
            for one in files:
                one.unlink(missing_ok=True)
            return len(files)

        return await run_in_thread(remove)

    async def forget_user(self, tenant: str, user_id: str) -> int:
        """Remove all that is kept of a user's sessions; how many files there were. Reads the first line of every file.

        A session may be gone from its store, and its file be there all the same: time took it, or it was deleted elsewhere.
        """

        def remove() -> int:
            files = [one for one in self.folder.glob(f"*{SUFFIX}") if read_owner(one) == (tenant, user_id)]
            for one in files:
                one.unlink(missing_ok=True)
            return len(files)

        return await run_in_thread(remove)

    # -- files behind --------------------------------------------------------

    def _note(self, key: _Key, how: Change | None) -> None:
        if key in self._waiting:
            timer, earlier = self._waiting.pop(key)
            timer.cancel()
            how = max(how, earlier, key=_SERIOUS.__getitem__)
        self._lagging[key] = max(how, self._lagging.get(key), key=_SERIOUS.__getitem__)
        if self._workers < _WORKERS:
            self._workers += 1
            self._start(self._work())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._discard_task)
        return task

    def _discard_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it is told; nobody may

    async def _work(self) -> None:
        """Bring files up to date until none is behind that nobody works at."""
        try:
            while (key := next((one for one in self._lagging if one not in self._busy), None)) is not None:
                await self._work_at(key, self._lagging.pop(key))
        finally:
            self._workers -= 1

    async def _work_at(self, key: _Key, how: Change | None) -> None:
        self._busy.add(key)
        try:
            await self._update(key, how)
            self._failures.pop(key, None)
        except Exception as exc:  # noqa: BLE001 - whatever it is, no reply waits for it, and it is tried again
            self._put_off(key, how, exc)
        finally:
            self._busy.discard(key)

    def _put_off(self, key: _Key, how: Change | None, exc: Exception) -> None:
        _log_failure("could not be written", key.ref, exc)
        if key in self._lagging:  # noted again meanwhile: it is tried again once
            how = max(how, self._lagging.pop(key), key=_SERIOUS.__getitem__)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(_LONGEST_PAUSE, self._pause * 2 ** min(failures, 16))
        timer = asyncio.get_running_loop().call_later(pause, self._again, key)
        self._waiting[key] = (timer, how)

    def _again(self, key: _Key) -> None:
        _, how = self._waiting.pop(key)
        self._note(key, how)

    async def _update(self, key: _Key, how: Change | None) -> None:
        """Bring one file up to date."""
        if self._store is None:
            return
        path = self.path(key.tenant, key.ref.user_id, key.ref.id)
        while not await self._try_update(path, self._store.for_tenant(key.tenant), key.ref, how):
            pass
        if how is not None and key not in self._lagging and key not in self._changing:
            await run_in_thread(partial(self._make_stale_path(path).unlink, missing_ok=True))

    async def _try_update(self, path: Path, store: Store, ref: SessionRef, how: Change | None) -> bool:
        """Bring it up to date; False when an earlier session's had to go first, and it is to be tried again."""
        async with hold_file(path) as file:
            # Behind the lock: what is deleted meanwhile is deleted from the file when it is free.
            try:
                session = await store.get(ref)
            except SessionNotFound:
                if how == "deleted":
                    await run_in_thread(file.remove)
                return True  # or it was withdrawn, and its end is told
            if how not in {None, "replaced"} and not file.size:
                return True
            if not await run_in_thread(file.has_start, encode_header_start(session)):
                await run_in_thread(file.remove if how in {"replaced", "deleted"} else file.move_away)
                return False
            if how is None and await self._append_new(file, store, session):
                return True
            sync = self._fsync != "never"
            await revise_file(file, session, make_log_reader(store, ref), self._redactor, sync=sync)
            return True

    async def _append_new(self, file: TranscriptFile, store: Store, session: Session) -> bool:
        """Whether what came since was written; not when the file's end is not what the store has there."""
        try:
            await append_new_entries(file, store, session, self._redactor)
        except UnexpectedContent:
            return False
        if self._fsync == "always":
            await run_in_thread(file.sync)
            await run_in_thread(sync_folder, self.folder)
        return True

    # -- after a crash -------------------------------------------------------

    async def _recover(self, store: Store) -> None:
        """Note what was left behind: what is marked as stale, and the files of those sessions that were written to last."""
        try:
            await run_in_thread(self._remove_parts)
            for key, how in await run_in_thread(self._take_over_stale_notes):
                self._note(key, how)
            async for tenant in iterate_tenants(store):
                await self._check_recent_sessions(store.for_tenant(tenant))
        except Exception as exc:  # noqa: BLE001 - as in `_work`; the next write, or the end, brings a file up to date
            _log.warning("transcripts could not be looked through", extra={"fields": {"error": type(exc).__name__}})

    async def _check_recent_sessions(self, store: Store) -> None:
        after: SessionRef | None = None
        for _ in range(_RECENT_PAGES):
            page = await store.list(limit=_RECENT_PAGE, after=after)
            late = await run_in_thread(self._find_late, page.sessions)
            for session in late:
                self._note(_Key(store.tenant, session.ref), None)
            if not late or not page.has_more:
                return
            after = page.sessions[-1].ref

    def _find_late(self, sessions: Sequence[Session]) -> list[Session]:
        """Those whose file lacks the last entry. One without a file is written when it goes on, or ends."""
        return [session for session in sessions if self._is_late(session)]

    def _is_late(self, session: Session) -> bool:
        path = self.path(session.tenant, session.user_id, session.id)
        try:
            file = TranscriptFile.open_locked(path) if _is_file_of(path, session) else None
            if file is None:  # there is none, or somebody writes to it
                return False
            try:
                end = file.end(encode_header_start(session))
            finally:
                file.close()
        except (UnexpectedContent, OSError):
            return True
        return end is None or end.seq < session.tail.next_seq - 1

    def _remove_parts(self) -> None:
        """Remove versions of files that were never finished: what has been erased since may stand in them."""
        for part in self.folder.glob(f"*{PART}"):
            file = TranscriptFile.open_locked(part.with_suffix(""))
            if file is not None:
                part.unlink(missing_ok=True)
                file.close()

    def _take_over_stale_notes(self) -> list[tuple[_Key, Change]]:
        found = []
        for path in sorted(self.folder.glob(f"*{_STALE}")):
            try:
                note = msgspec.json.decode(path.read_bytes(), type=_StaleNote)
            except (OSError, msgspec.MsgspecError):
                continue
            found.append((_Key(note.tenant, SessionRef(note.user_id, note.id)), note.how))
            path.rename(self._make_stale_path(self.path(note.tenant, note.user_id, note.id)))
        return found

    def _make_stale_path(self, path: Path) -> Path:
        """Where this process notes that a file is stale."""
        return path.with_name(f"{path.name.removesuffix(SUFFIX)}.{self._mine}{_STALE}")


def _entries(ended: EndedSession, start: int) -> AsyncIterator[Entry]:
    return ended.entries(start=start, retired=True)


def _is_file_of(path: Path, session: Session) -> bool | None:
    """Whether the file at `path` is of this session; None: nothing stands there."""
    start = encode_header_start(session)
    try:
        with path.open("rb") as file:
            there = file.read(len(start))
    except FileNotFoundError:
        return None
    # The first line may have been torn.
    return None if len(there) < len(start) and start.startswith(there) else there == start


def _log_failure(what: str, ref: SessionRef, exc: Exception) -> None:
    """Log a failure: whose, and of what kind; what the session says stands in no log."""
    reason = exc.strerror if isinstance(exc, OSError) else None
    fields = {"session_id": ref.id, "error": reason or type(exc).__name__}
    _log.warning("a transcript %s", what, extra={"fields": fields})
