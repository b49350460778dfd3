"""Write a transcript of each session: a JSON-lines file with its messages, for people and tools, and as a backup copy.

    {"type":"session","schema":1,"created_at":…,"tenant":…,"user_id":…,"id":…,"agent":…,"system_messages":[…],"state":{…}, …}
    {"session_id":…,"seq":0,"turn_id":0,"role":"user","content":…,"timestamp":…, …}

The first line describes the session. Each other line is an entry as in an export, with the id of the session. `holdfast sessions import`
reads these files.

A write to a session only records in memory that its file is out of date. A task then completes the file from the log. If the last line
equals its entry in the store, the entries after it are appended; so the next write also completes a file after a crash. Otherwise, for
example after an edit, the file is written again as a whole, as it is when the session ends.

There are no locks between processes. A file is only changed if it still has the size that it had when its end was read. Before content is
erased or replaced in the store, the file is deleted, so that erased text cannot stay in it. It is then written again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from holdfast.background import run_in_thread
from holdfast.domain.session import EndReason, Entry, NewEntry, Session, SessionRef
from holdfast.errors import HookFailed, SessionNotFound, StoreUnavailable
from holdfast.hooks.registry import EndedSession, HookRegistry
from holdfast.safe_names import is_safe_name, make_safe_name
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.sessions import NewSession
from holdfast.stores.walk import iterate_log_pages
from holdfast.stores.wrapper import StoreWrapper
from holdfast.wire.exports import SCHEMA
from holdfast.wire.openai import to_chat_message, to_entry_json

SUFFIX: Final = ".jsonl"
_DEFAULT: Final = "default"
"""If tenant and user have this name, the file is named by the session id alone."""
_TRIES: Final = 8
"""Maximum number of attempts to change a file that another process changes at the same time."""
_CHUNK: Final = 64 * 1024
_FLAGS: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_log = logging.getLogger("holdfast.transcripts")
_encode = msgspec.json.Encoder().encode


# -- names and lines -----------------------------------------------------------


def make_file_name(tenant: str, user_id: str, session_id: str) -> str:
    """Return the name of a session's file.

    For the tenant and user `default`, this is `<session id>.jsonl` if the id is a safe file name. In all other cases it is a unique name
    with a digest.

    >>> make_file_name("default", "default", "support-42")
    'support-42.jsonl'
    >>> make_file_name("default", "ada", "../Support 42")
    '---support-42~3862ca8b0646b105cf4b26b0f0cb509ca0c8c512.jsonl'
    """
    if tenant == user_id == _DEFAULT and is_safe_name(session_id):
        return session_id + SUFFIX
    return make_safe_name(session_id, tenant, user_id, session_id) + SUFFIX


def make_earlier_path(path: Path, created_at: int | str) -> Path:
    """Return the path for the file of an earlier session, whose name a new session with the same id needs.

    >>> make_earlier_path(Path("support-42.jsonl"), 1760000000000).name
    'support-42@1760000000000.jsonl'
    """
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}@{created_at}{SUFFIX}")


def encode_header(session: Session) -> bytes:
    """Return the first line of a session's file, which describes the session without its log."""
    about = {
        "type": "session",
        "schema": SCHEMA,
        "created_at": session.created_at,
        "tenant": session.tenant,
        "user_id": session.user_id,
        "id": session.id,
        "agent": session.agent,
        "system_messages": [to_chat_message(message) for message in session.system_messages],
        "state": session.state,
        "metadata": session.metadata,
        "ttl": session.ttl,
    }
    return _encode(about) + b"\n"


def encode_entry(session_id: str, entry: Entry) -> bytes:
    """Return the line of an entry."""
    # A field of the message with the same name gives way.
    return _encode({"session_id": session_id} | to_entry_json(entry) | {"session_id": session_id}) + b"\n"


class _Header(msgspec.Struct):
    """The fields of a first line that tell whose file it is."""

    created_at: int
    tenant: str
    user_id: str


class _Line(msgspec.Struct):
    seq: int


def _read_header(path: Path) -> _Header | None:
    """Return the first line of a file; None if there is no such file, or the line is not valid."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.readline(), type=_Header)
    except (OSError, msgspec.MsgspecError):
        return None


# -- one file --------------------------------------------------------------------


class _FileEnd(NamedTuple):
    """The end of a file."""

    inode: int
    size: int
    complete: int = 0
    """Size without an unfinished last line."""
    line: bytes = b""
    """The last complete line."""


def _read_end(path: Path) -> _FileEnd | None:
    """Return the end of a file; None if there is no file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        stat = os.fstat(file.fileno())
        at, data = stat.st_size, b""
        while at > 0 and data.count(b"\n") < 2:
            at = max(0, at - max(_CHUNK, len(data)))
            file.seek(at)
            data = file.read(stat.st_size - at)
    lines, _, unfinished = data.rpartition(b"\n")
    return _FileEnd(stat.st_ino, stat.st_size, stat.st_size - len(unfinished), lines.rpartition(b"\n")[2] + b"\n")


def _extend_file(path: Path, end: _FileEnd | None, keep: int, data: bytes) -> _FileEnd | None:
    """Replace everything after the first `keep` bytes of a file by `data`. Return the new end without its last line.

    Return None if the file is not the one whose end was read: another process has changed, created or deleted it.
    """
    try:
        descriptor = os.open(path, _FLAGS if end else _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return None
    except FileNotFoundError:
        if end is None:  # the folder is missing
            raise
        return None
    with os.fdopen(descriptor, "r+b") as file:
        stat = os.fstat(descriptor)
        if end is not None and (stat.st_ino, stat.st_size) != (end.inode, end.size):
            return None
        file.truncate(keep)
        file.seek(keep)
        file.write(data)
    return _FileEnd(stat.st_ino, keep + len(data))


def _read_seq(line: bytes) -> int:
    """Return the `seq` in a line; -1 if the line is no entry."""
    try:
        return msgspec.json.decode(line, type=_Line).seq
    except msgspec.MsgspecError:
        return -1


async def _find_start(end: _FileEnd | None, session: Session, store: Store) -> int:
    """Return the `seq` of the first entry that a file does not have yet, or 0 if the file must be written again as a whole.

    If the last line equals an entry that is not retired, all lines are up to date, because an edit retires all later entries.
    """
    if end is not None and (last := _read_seq(end.line)) >= 0:
        for entry in await store.entries(session.ref, start=last, stop=last + 1, retired=True):
            if entry.retired_by is None and encode_entry(session.id, entry) == end.line:
                return last + 1
    return 0


def _encode_page(session_id: str, page: Sequence[Entry]) -> bytes:
    return b"".join(encode_entry(session_id, entry) for entry in page)


async def _write_entries(
    path: Path, session: Session, pages: AsyncIterator[Sequence[Entry]], end: _FileEnd | None, keep: int
) -> bool:
    """Write entries after the first `keep` bytes of a file. Return False if another process changed the file meanwhile."""
    head = b"" if keep else encode_header(session)
    async for page in pages:
        data = head + await run_in_thread(_encode_page, session.id, page)
        if data or (end is not None and keep < end.size):
            end = await run_in_thread(_extend_file, path, end, keep, data)
            if end is None:
                return False
            keep = end.size
        head = b""
    return True


async def update_file(path: Path, store: Store, ref: SessionRef) -> None:
    """Bring the file of a session up to date. If the file belongs to an earlier session with the same id, it is renamed first.

    Raises:
        SessionNotFound: there is no such session.
        OSError: the file cannot be read or written.
        HookFailed: the session or the file is changed constantly.
    """
    for _ in range(_TRIES):
        session = await store.get(ref)
        await run_in_thread(partial(_claim_path, path, session, live=True))
        end = await run_in_thread(_read_end, path)
        start = await _find_start(end, session, store)
        pages = iterate_log_pages(store, ref, start=start, retired=True)
        if await _write_entries(path, session, pages, end, end.complete if end and start else 0):
            if _count_retired(await store.get(ref)) == _count_retired(session):
                return
            # An edit may have retired entries after they were compared or written.
            await run_in_thread(partial(path.unlink, missing_ok=True))
    raise HookFailed("the session or its transcript is changed constantly")


def _count_retired(session: Session) -> int:
    return session.tail.next_seq - session.messages


def _claim_path(path: Path, session: Session, *, live: bool) -> Path:
    """Return the path for a session's file. If its name belongs to another session, one of the two files gets a name with a time.

    Args:
        path: path by the session's id.
        session: the session.
        live: True: the session has this id now, so the other file is renamed. False: the session has ended.
    """
    header, earlier = _read_header(path), make_earlier_path(path, session.created_at)
    if header is None or header.created_at == session.created_at:
        return path if live or not earlier.exists() else earlier
    if live:
        path.rename(make_earlier_path(path, header.created_at))
    return path if live else earlier


# -- all files ---------------------------------------------------------------------


class _Key(NamedTuple):
    tenant: str
    ref: SessionRef


class Transcripts:
    """Writes a transcript of every session. Use it as `holdfast.open(hooks=[Transcripts("transcripts")])`.

    The files are updated after each write, in the background, and completed when a session ends. They are deleted together with their
    sessions, unless these expire. A failed update is logged without content, and repeated at the next write and when the session ends.

    Args:
        folder: folder of the files. If it does not exist, it is created, and only its owner can access it.
    """

    name = "transcripts"
    reasons: frozenset[EndReason] = frozenset({"ttl", "cap", "close"})

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._store: Store | None = None
        self._writing = asyncio.Lock()
        self._stale: dict[_Key, bool] = {}
        """Sessions whose file is out of date. True: the whole file must be written again."""
        self._failed: dict[_Key, bool] = {}
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Transcripts({str(self.folder)!r})"

    def path(self, tenant: str, user_id: str, session_id: str) -> Path:
        """Return the path of a session's transcript, whether or not it exists."""
        return self.folder / make_file_name(tenant, user_id, session_id)

    def follow(self, store: Store) -> Store:
        """Return a store whose writes reach the files too.

        Raises:
            StoreUnavailable: the folder cannot be used.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise StoreUnavailable(f"transcripts cannot be written to {self.folder}: {exc.strerror or exc}") from exc
        self._store, self._writing = store, asyncio.Lock()
        return TranscribedStore(store, self)

    def note(self, tenant: str, ref: SessionRef, *, whole: bool = False) -> None:
        """Record that a file is out of date, and update it in the background. `whole`: write it again from its beginning."""
        key = _Key(tenant, ref)
        self._stale[key] = self._stale.get(key, False) or self._failed.pop(key, False) or whole
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._update_stale())

    @asynccontextmanager
    async def rewrite(self, tenant: str, ref: SessionRef) -> AsyncIterator[None]:
        """Delete the file of a session before a change of its content, which is the block, and write it again afterwards."""
        async with self._writing:
            try:
                await run_in_thread(partial(self.path(tenant, ref.user_id, ref.id).unlink, missing_ok=True))
            except OSError as exc:
                _log_failure(ref, exc)
            try:
                yield
            finally:
                self.note(tenant, ref, whole=True)

    async def wait_until_settled(self) -> None:
        """Wait until every file is up to date, or its update has failed."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Bring every file up to date. Each failed update is repeated once."""
        await self.wait_until_settled()
        for key in tuple(self._failed):
            self.note(*key)
        await self.wait_until_settled()
        if self._failed:
            _log.error("transcripts are out of date", extra={"fields": {"sessions": len(self._failed)}})

    async def __call__(self, ended: EndedSession) -> None:
        """Write the whole file of a session that has ended.

        Raises:
            HookFailed: the file could not be written. The message says why.
        """
        session = ended.session
        path = self.path(session.tenant, session.user_id, session.id)
        try:
            async with self._writing:
                path = await run_in_thread(_make_room, path, session)
                if not await _write_entries(path, session, ended.pages(retired=True), None, 0):
                    raise HookFailed("another process wrote the transcript at the same time")
        except OSError as exc:
            raise HookFailed(f"the transcript could not be written: {exc.strerror or type(exc).__name__}") from exc

    async def forget(self, tenant: str, user_id: str, session_id: str) -> int:
        """Delete the files of all sessions that now have, or once had, this user and id. Return the number of deleted files."""
        path = self.path(tenant, user_id, session_id)
        async with self._writing:
            return await run_in_thread(lambda: _delete((path, *path.parent.glob(make_earlier_path(path, "*").name))))

    async def forget_user(self, tenant: str, user_id: str) -> int:
        """Delete the files of all sessions of a user. Return the number of deleted files.

        This reads the first line of every file, because a file may exist although its session is no longer in the store: it expired, or
        another process deleted it.
        """

        def list_files() -> Iterable[Path]:
            for path in self.folder.glob(f"*{SUFFIX}"):
                header = _read_header(path)
                if header is not None and (header.tenant, header.user_id) == (tenant, user_id):
                    yield path

        async with self._writing:
            return await run_in_thread(lambda: _delete(list_files()))

    async def _update_stale(self) -> None:
        while self._stale:
            key = next(iter(self._stale))
            whole = self._stale.pop(key)
            try:
                async with self._writing:
                    await self._update(key, whole=whole)
            except SessionNotFound:
                pass  # it was deleted, or it has ended and the hook is called
            except Exception as exc:  # noqa: BLE001 - no caller waits for this, and it is repeated
                _log_failure(key.ref, exc)
                self._failed[key] = whole

    async def _update(self, key: _Key, *, whole: bool) -> None:
        assert self._store is not None, "follow sets it"
        store = self._store.for_tenant(key.tenant)
        path = self.path(key.tenant, key.ref.user_id, key.ref.id)
        if whole:
            await run_in_thread(partial(path.unlink, missing_ok=True))
        await update_file(path, store, key.ref)


def _make_room(path: Path, session: Session) -> Path:
    """Delete the file of a session that has ended, and return its path.

    The folder is created if it does not exist, because a hook that was added later follows no writes.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = _claim_path(path, session, live=False)
    path.unlink(missing_ok=True)
    return path


def _delete(paths: Iterable[Path]) -> int:
    """Delete files, and return the number of those that existed."""
    count = 0
    for path in paths:
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        count += 1
    return count


def _log_failure(ref: SessionRef, exc: Exception) -> None:
    """Log a failure with the session's id and the kind of error, without any content."""
    reason = exc.strerror if isinstance(exc, OSError) else None
    fields = {"session_id": ref.id, "error": reason or type(exc).__name__}
    _log.warning("a transcript could not be written", extra={"fields": fields})


def find_transcripts(hooks: HookRegistry) -> Transcripts | None:
    """Return the hook that writes transcripts; None if there is none."""
    hook = hooks.get(Transcripts.name)
    return hook if isinstance(hook, Transcripts) else None


class TranscribedStore(StoreWrapper):
    """A store whose writes reach transcripts. Appends do not wait for the files."""

    def __init__(self, inner: Store, transcripts: Transcripts) -> None:
        super().__init__(inner)
        self._transcripts = transcripts

    def wrap(self, inner: Store) -> Self:
        """Return a wrapper with the same transcripts around another handle of the store."""
        return type(self)(inner, self._transcripts)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        appended = await self.inner.append(ref, write)
        self._note(ref, write)
        return appended

    def note_append(self, ref: SessionRef, write: Append, appended: Appended) -> None:
        super().note_append(ref, write, appended)
        self._note(ref, write)

    def _note(self, ref: SessionRef, write: Append) -> None:
        # A write may retire entries without adding any.
        if write.entries or write.retire_from is not None:
            self._transcripts.note(self.tenant, ref)

    async def fork(self, new: NewSession, source: Session, stop: int) -> Session | None:
        made = await self.inner.fork(new, source, stop)
        self._transcripts.note(self.tenant, new.ref)
        return made

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        async with self._transcripts.rewrite(self.tenant, new.ref):
            return await self.inner.replace(new, entries, **more)

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        async with self._transcripts.rewrite(self.tenant, ref):
            return await self.inner.erase(ref, seq, tokens=tokens)
