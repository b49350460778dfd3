"""Export and import sessions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.artifact import Artifact
from holdfast.domain.history import OldEntry, rebuild_log
from holdfast.domain.media.parts import take_out_data
from holdfast.domain.messages import NOTE
from holdfast.domain.origins import copy_origins
from holdfast.domain.record import PutRecord, Record, RecordInfo, encode_record_text, encode_record_value
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.entries import is_long
from holdfast.engine.redacting_store import clean_import
from holdfast.errors import Conflict, InvalidRequest, SessionExists, SessionNotFound, TooLarge
from holdfast.limits import INLINE_MESSAGES, PAGE, RECORD_INLINE_BYTES, RECORDS_BYTES
from holdfast.media.outgoing import restore_entries
from holdfast.stores.base import Store
from holdfast.stores.checks import check_new_session, encode_payloads
from holdfast.stores.logic.records import encode_changes
from holdfast.stores.sessions import NewSession
from holdfast.stores.walk import iterate_record_pages, measure_records
from holdfast.tokens import STORED
from holdfast.wire.exports import Imported, build_export, is_same, parse_export
from holdfast.wire.records import export_record

TRIES: Final = 8
"""Maximum number of attempts to read or write a session while other writers change it."""


async def export_session(
    store: Store,
    ref: SessionRef,
    *,
    retired: bool = False,
    calls: bool = False,
    digests: bool = False,
    records: bool = True,
    raw: bool = False,
    now: int = 0,
) -> dict[str, Any]:
    """Return a whole session as JSON data, as of one moment; see `holdfast.wire.exports`.

    Args:
        store: the store.
        ref: the session.
        retired: include messages that an edit, an interruption or a rewind took out of the conversation.
        calls: include the session's model calls. They refer to messages by position, so `retired` must be True too.
        digests: include the digests of erased content. Someone who has a digest can check a guess of the content. Without
            the digests, an imported copy does not recognise an erased message that a client sends again.
        records: include the records that the session owns.
        raw: leave the records' values encoded, as `msgspec.Raw`, which takes much less time and memory.
        now: milliseconds since the epoch; records that have expired by then are left out.

    Raises:
        SessionNotFound: there is no such session.
        TooLarge: the records have more than `RECORDS_BYTES` bytes together. An export without them is possible.
        InvalidRequest: `calls` is True and `retired` is False.
        Conflict: the session is changed so often that no consistent state could be read.
    """
    if calls and not retired:
        raise InvalidRequest(
            "calls requires retired: a call refers to messages by their position in the log", param="calls"
        )
    session, entries = await read_log(store, ref, retired=retired)
    whole = await restore_entries(store, ref, entries, strict=True)
    made = await read_calls(store, session) if calls else None
    artifacts = await _list_artifacts(store, ref)
    origins = (await store.origins(ref.user_id, [ref.id])).get(ref.id, ())
    owned = await _export_records(store, ref, raw=raw, now=now) if records else ()
    export = partial(
        build_export,
        session,
        whole,
        artifacts=artifacts,
        calls=made,
        digests=digests,
        records=owned,
        referring=entries,
        origins=origins,
    )
    return await run_cpu(export, long=len(entries) > INLINE_MESSAGES)


async def _export_records(store: Store, ref: SessionRef, *, raw: bool, now: int) -> list[dict[str, Any]]:
    """Return the records of a session as JSON data, as of one moment. They are read page by page, and their sizes first.

    Raises:
        TooLarge: the records have more than `RECORDS_BYTES` bytes together.
        Conflict: other writers change the records constantly.
    """
    for _ in range(TRIES):
        exported: list[dict[str, Any]] = []
        versions: set[int] = set()
        _, size = await measure_records(store, ref, now=now)
        if size > RECORDS_BYTES:
            raise TooLarge(
                f"the records have {size} bytes together; at most {RECORDS_BYTES} can be exported: leave them out with"
                " records=False, and read them page by page",
                param="records",
            )
        async for page in iterate_record_pages(store, ref, now=now):
            versions.add(page.version)
            if len(versions) > 1:
                break
            long = sum([one.size for one in page.records]) > RECORD_INLINE_BYTES
            exported += await run_cpu(partial(_export_page, page.records, raw=raw), long=long)
        if len(versions) == 1:
            return exported
    raise Conflict(f"the records of session {ref.id!r} are being written to constantly: try again")


def _export_page(records: Sequence[RecordInfo], *, raw: bool) -> list[dict[str, Any]]:
    return [export_record(one, raw=raw) for one in records if isinstance(one, Record)]


async def read_log(store: Store, ref: SessionRef, *, retired: bool) -> tuple[Session, Sequence[Entry]]:
    """Return a session and its log, as of one moment. Notes are included. Retired messages and notes are included only with `retired`."""
    if not retired:
        rows = await store.window(ref, None)
        if rows.session.tail.next_seq == rows.session.messages:  # there are no notes
            return rows.session, rows.entries
    for _ in range(TRIES):
        session = (await store.get(ref)).require_intact()
        entries = await store.entries(ref, retired=retired, notes=True)
        if (await store.get(ref)).version == session.version:
            return session, entries
    raise Conflict(f"session {ref.id!r} is being written to constantly: try again")


async def read_calls(store: Store, session: Session) -> list[ModelCall]:
    """Return all model calls of a session, oldest first. The first one has the texts of all prompts.

    The newest calls are read in one query. If there are more, all calls are read turn by turn.
    """
    found = list(reversed(await store.calls(session.ref, limit=PAGE)))
    if len(found) >= PAGE:
        turns = range(session.turns)
        found = [call for turn in turns for call in reversed(await store.calls(session.ref, limit=PAGE, turn_id=turn))]
    if found and (texts := await store.prompt_texts(session.ref)):
        found[0] = msgspec.structs.replace(found[0], texts=texts)
    return found


async def _list_artifacts(store: Store, ref: SessionRef) -> list[Artifact]:
    """Return the newest version of each of a session's own artifacts."""
    found: list[Artifact] = []
    while True:
        page = await store.artifacts(ref, limit=PAGE, after=found[-1].name if found else None)
        found += page.artifacts
        if not page.has_more:
            return found


# -- import ------------------------------------------------------------------


class ImportResult(NamedTuple):
    """The imported session, and what the import changed."""

    session: Session
    changed: bool
    """False if an identical session existed already."""
    replaced: bool
    """True if a different session with the same user and id was replaced."""


async def find_existing(store: Store, ref: SessionRef, read: Imported, *, now: int = 0) -> tuple[Session, bool] | None:
    """Return the session that an import would replace, and True if the import differs from it. Return None if there is no such session.

    Args:
        store: the store.
        ref: user and id of the session.
        read: the import.
        now: milliseconds since the epoch; stored records that have expired by then are not compared.
    """
    try:
        session = await store.get(ref)
        count = sum(message.role != NOTE for message in read.messages)
        if session.damaged or (not read.has_retired and session.messages != count):
            return session, True
        # Records of another size differ. Then they are not read, because they may be many more than those of the import.
        size = await run_cpu(_measure_changes, read.records, long=bool(read.records))
        if await measure_records(store, ref, now=now) != (len(read.records), size):
            return session, True
        calls = "calls" in read.given_past  # then retired messages were exported too, if there were any
        retired = read.has_retired or calls
        found = await export_session(store, ref, retired=retired, calls=calls, digests=True, raw=True, now=now)
    except SessionNotFound:
        return None
    return session, not is_same(read, parse_export(found, own=True))


def _measure_changes(records: Sequence[PutRecord]) -> int:
    return sum([len(encode_record_value(one.value)[1]) + len(encode_record_text(one.text) or b"") for one in records])


def check_import(ref: SessionRef, read: Imported) -> None:
    """Check an import before anything is written. Raises an `InvalidRequest` that names the place of the mistake."""
    check_new_session(_make_new_session(ref, read, 0), past=True)
    messages = take_out_data(read.messages, {})
    pairs = zip(messages, read.fields, strict=True)
    entries = [OldEntry(message=one, **{"tokens": 0, "timestamp": 0, **own}) for one, own in pairs]
    encode_payloads(entries)
    rebuild_log(entries)
    encode_changes(read.records, unlimited=True)


async def import_session(engine: Engine, ref: SessionRef, read: Imported, *, fresh: bool = False) -> ImportResult:
    """Create a session from an export or a recording. A session with the same user and id is replaced. The write is atomic.

    If an identical session exists, that session stays unchanged, including its version and artifacts.

    Args:
        engine: the tenant's engine.
        ref: user and id of the session.
        read: the content of the session.
        fresh: True raises an error instead of replacing a different session.

    Raises:
        SessionExists: a different session has the same user and id, and `fresh` is True.
        InvalidRequest: the content cannot be stored; the error says what is wrong.
    """
    now = engine.clock()
    found = await find_existing(engine.store, ref, await clean_import(engine.guard, read), now=now)
    if found is not None and not found[1]:
        return ImportResult(found[0], changed=False, replaced=False)
    if found is not None and fresh:
        raise SessionExists(ref.id)
    entries = await run_cpu(_make_entries, read, now, long=is_long(read.messages))
    new = _make_new_session(ref, read, now)
    appended = await engine.store.replace(new, entries, fresh=fresh, records=read.records)
    engine.warm.forget(ref)
    return ImportResult(appended.session, changed=True, replaced=found is not None)


def _make_entries(read: Imported, now: int) -> list[OldEntry]:
    return [
        OldEntry(message=message, **{"tokens": STORED.message(message), "timestamp": now, **own})
        for message, own in zip(read.messages, read.fields, strict=True)
    ]


def _make_new_session(ref: SessionRef, read: Imported, now: int) -> NewSession:
    new = NewSession.from_session(read, timestamp=now, id=ref.id, user_id=ref.user_id, past=read.past)
    if not read.origins:
        return new
    shared = copy_origins(read.origins, range(len(read.messages)), new.identity)
    return msgspec.structs.replace(new, origins=shared)
