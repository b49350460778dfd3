"""Write sessions and logs. The functions are generators of statements, see `steps`.

A store runs each of them in one transaction, which is rolled back if the function raises.

All checks that can refuse a write come before its first change, so a rollback is rarely needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec import UnsetType
from msgspec.structs import replace as evolve

from holdfast.domain.fact_choices import Choice, with_choices
from holdfast.domain.history import Past, continue_log, rebuild_log
from holdfast.domain.log import erase_content as erased_message
from holdfast.domain.log import rewind
from holdfast.domain.messages import GENESIS, encode_payload
from holdfast.domain.refusals import with_refusals
from holdfast.domain.session import Ending, Entry, NewEntry, Receipt, Session, SessionRef, Tail
from holdfast.errors import (
    EntryNotFound,
    IdempotencyConflict,
    SessionExists,
    SessionNotFound,
)
from holdfast.stores.log import Append, Appended
from holdfast.stores.logic import media as media_steps
from holdfast.stores.logic import state as state_steps
from holdfast.stores.logic.compactions import (
    forget_views,
    record_compactions,
    save_views,
    update_after_erasure,
    update_after_retirement,
)
from holdfast.stores.logic.lifecycle import write_end
from holdfast.stores.logic.matching import add_origins, keep_origins
from holdfast.stores.logic.reads import read_session_row
from holdfast.stores.logic.records import DroppedRecords, drop_owner, plan_record_changes, write_record_plan
from holdfast.stores.logic.rows import (
    ENDLESS,
    decode_entry,
    decode_intact_session,
    decode_session,
    encode_array,
    encode_call,
    encode_claim,
    encode_counters,
    encode_entry,
    encode_metadata,
    encode_profile,
)
from holdfast.stores.logic.steps import Many, Query, Row, Steps
from holdfast.stores.matching import make_scope
from holdfast.stores.record_checks import EncodedChange
from holdfast.stores.session_changes import (
    advance_session,
    check_version,
    count_messages,
    fill_unset,
    install_session,
    make_session,
    patch_session,
    refuse_other_contents,
    refuse_stale,
    resolve_claim,
)
from holdfast.stores.sessions import NewSession, SessionPatch

_media_of: Final = attrgetter("media")
_SESSION_DELETES = (
    "artifacts_delete",
    "artifact_names_delete",
    "entries_delete_live",
    "entries_delete_retired",
    "views_delete",
    "compactions_delete",
    "idempotency_delete",
    "calls_delete",
    "media_uses_delete",
    "media_delete",
    "origins_delete",
    "profile_delete",
    "session_delete",
)


# -- sessions ----------------------------------------------------------------


def create_session(tenant: str, new: NewSession) -> Steps[Session]:
    """Create a session with an empty log. Raises `SessionExists` if a session with this id exists already."""
    if (yield Query("session_get", (tenant, new.id, new.user_id, ""))):
        raise SessionExists(new.id)
    session = make_session(tenant, new)
    plans = yield from state_steps.plan_changes(tenant, new.user_id, new.state)
    yield from insert_session(session)
    yield from state_steps.write_plans(plans, new.timestamp)
    return session


def update_session(
    tenant: str, ref: SessionRef, patch: SessionPatch, timestamp: int, expect: int | None
) -> Steps[Session]:
    """Change a session's own fields; return the session.

    Raises:
        SessionNotFound: the session does not exist.
        StaleSession: `expect` is given, and the session has another version.
    """
    row = yield from read_session_row(tenant, ref)
    old = decode_session(row)
    session = patch_session(old, patch, timestamp)
    check_version(old, expect)
    delta = {} if isinstance(patch.state, UnsetType) else patch.state
    plans = yield from state_steps.plan_changes(tenant, old.user_id, delta)
    yield Query("session_patch", (row[0], session.version, session.updated_at, session.agent, session.ttl))
    yield from _save_profile(row[0], session, old)
    yield from state_steps.write_plans(plans, timestamp)
    return session


def remove_session(
    tenant: str, ref: SessionRef, *, expect: int | None, held: tuple[int | None, int | None]
) -> Steps[tuple[Receipt | None, DroppedRecords]]:
    """Delete a session and all its data.

    Returns:
        Counts of the deleted data without records, or None if there was no session; then the result of deleting its records.

    Args:
        tenant: the tenant.
        ref: the session.
        expect: the version that the session must have, else `StaleSession`; None: any.
        held: the number of artifact versions, and the version as an owner of records, that the session must have, else `Conflict`;
            None: any.
    """
    rows = yield Query("session_get", (tenant, ref.id, ref.user_id, ref.withdrawn))
    if not rows:
        return None, DroppedRecords()
    pk, session = rows[0][0], decode_session(rows[0])
    check_version(session, expect)
    counts = (yield Query("session_holds", (pk,)))[0]
    compactions, views, calls, keys, artifacts, size, media, media_bytes = counts
    refuse_other_contents(ref, artifacts, held[0], "artifact versions")
    owner = yield Query("record_owner_get", (tenant, ref.user_id, pk))
    refuse_other_contents(ref, owner[0][1] if owner else 0, held[1], "changes of records")
    dropped = (yield from drop_owner(owner[0][0])) if owner else DroppedRecords()
    yield from _delete_session(pk)
    counted = Receipt(
        sessions=1,
        messages=session.messages,
        retired=session.tail.next_seq - session.messages,
        bytes=session.bytes,
        compactions=compactions,
        views=views,
        model_calls=calls,
        idempotency_keys=keys,
        state_keys=len(session.state),
        artifacts=artifacts,
        artifact_bytes=size,
        media=media,
        media_bytes=media_bytes,
    )
    return counted, dropped


def replace_session(
    tenant: str,
    new: NewSession,
    entries: Sequence[NewEntry],
    payloads: Sequence[bytes],
    *,
    fresh: bool,
    ending: Ending | None,
    media: Mapping[bytes, bytes],
    records: Sequence[EncodedChange],
) -> Steps[tuple[Appended, DroppedRecords]]:
    """Store a whole session. If a session of the same name exists, it is replaced.

    Returns:
        The stored session, and the result of deleting the records of the replaced one.
    """
    past = new.past or Past(created_at=new.timestamp, updated_at=new.timestamp)
    written, tail, live = rebuild_log(entries)
    fresh_media = yield from media_steps.select_new_media(None, entries, media)
    payloads = [
        encode_payload(one.message) if one.erased else as_sent for one, as_sent in zip(written, payloads, strict=True)
    ]
    rows = yield Query("session_get", (tenant, new.id, new.user_id, ""))
    if rows and fresh:
        raise SessionExists(new.id)
    old = decode_session(rows[0]) if rows else None
    ends = old is not None and ending is not None and old.accessed_at < ending.ended_at
    dropped = DroppedRecords()
    if old is not None and ends and ending is not None:
        yield from write_end(rows[0][0], old, ending)
    elif old is not None:
        owner = yield Query("record_owner_get", (tenant, new.user_id, rows[0][0]))
        dropped = (yield from drop_owner(owner[0][0])) if owner else dropped
        yield from _delete_session(rows[0][0])
    size = sum(map(len, payloads))
    session = install_session(tenant, new, past, old, tail, live=live, size=size)
    pk = yield from insert_session(session)
    yield from _write_entries(pk, written, payloads, make_scope(tenant, new.user_id))
    yield from media_steps.keep_media(pk, entries, written, fresh_media, media)
    yield from keep_origins(pk, new.origins)
    if records:
        key = (tenant, new.user_id, pk)
        yield from write_record_plan((yield from plan_record_changes(key, records, new.timestamp)))
    if past.calls:
        yield Many("call_insert", [encode_call(pk, call) for call in past.calls])
    yield from _write_past_times(pk, session, past)
    return Appended(session, _drop_aliases(written), session.version, ended=ends), dropped


def _write_entries(pk: int, written: Sequence[Entry], payloads: Sequence[bytes], scope: bytes) -> Steps[None]:
    """Write entries, some of which may already be retired or erased."""
    rows = [(entry, encode_entry(pk, entry, payload, scope)) for entry, payload in zip(written, payloads, strict=True)]
    plain = [row for entry, row in rows if not _has_past(entry)]
    old = [(*row, entry.retired_by, 1 if entry.erased else 0) for entry, row in rows if _has_past(entry)]
    if plain:
        yield Many("entry_insert", plain)
    if old:
        yield Many("entry_install", old)


def _has_past(entry: Entry) -> bool:
    return entry.erased or entry.retired_by is not None


def _write_past_times(pk: int, session: Session, past: Past) -> Steps[None]:
    if session.accessed_at > past.updated_at:
        yield Query("session_used", (pk, session.accessed_at))
    if past.ended_at is not None:
        yield Query("session_end", (pk, session.version, past.ended_at, past.end_reason))


# -- the log -----------------------------------------------------------------


def append_entries(  # noqa: C901, PLR0912 - one list of the steps of a write, in order
    tenant: str, ref: SessionRef, write: Append, payloads: Sequence[bytes], changes: Sequence[EncodedChange] = ()
) -> Steps[Appended]:
    """Append to a log, and write everything else that is part of the write. All checks come before the first change."""
    rows = yield Query("session_get", (tenant, ref.id, ref.user_id, ref.withdrawn))
    if not rows:
        raise SessionNotFound(ref.id)
    row = rows[0]
    pk, session = row[0], decode_intact_session(row)
    if write.identity is not None and write.identity != session.identity:
        raise SessionNotFound(ref.id)
    if write.idempotency_key is not None:
        first = yield from _find_replay(pk, session, write.idempotency_key, write.fingerprint)
        if first is not None:
            return first
    claim = resolve_claim(session, write) if write.claim or write.release else session.claim
    refuse_stale(session, write)
    records = (
        (yield from plan_record_changes((tenant, session.user_id, pk), changes, write.timestamp)) if changes else None
    )
    has_media = bool(write.media) or any(map(_media_of, write.entries))
    fresh_media = (yield from media_steps.select_new_media(pk, write.entries, write.media)) if has_media else ()
    gone, base = 0, session.tail
    if write.retire_from is not None:
        gone, base = yield from rewind_tail(pk, base, write.retire_from)
    written, tail = continue_log(base, write.entries)
    after = advance_session(
        session, write, tail, claim, live=count_messages(written) - gone, size=sum(map(len, payloads))
    )
    delta = write.state_delta
    plans = (yield from state_steps.plan_changes(tenant, session.user_id, delta)) if delta else ()
    if write.retire_from is not None:
        after = yield from _retire_entries(pk, write.retire_from, session.tail.next_seq, after, gone)
    scope = make_scope(tenant, session.user_id)
    if len(written) == 1 and not _has_past(written[0]):
        yield Query("entry_insert", encode_entry(pk, written[0], payloads[0], scope))
    elif written:
        yield from _write_entries(pk, written, payloads, scope)
    if write.origins:
        yield from add_origins(pk, tenant, ref, session.identity, write.origins)
    if write.calls:
        yield Many("call_insert", [encode_call(pk, call) for call in write.calls])
    if has_media:
        yield from media_steps.keep_media(pk, write.entries, written, fresh_media, write.media)
    if after is not session:
        yield from _write_session(pk, session, after)
    if plans:
        yield from state_steps.write_plans(plans, write.timestamp)
    changed = (yield from write_record_plan(records)) if records is not None else None
    laid = (yield from record_compactions(pk, write.compactions, after.version)) if write.compactions else ()
    if write.views:
        yield from save_views(pk, write, 0 if gone else row[-1], laid)
    start = session.tail.next_seq
    if write.idempotency_key is not None:
        key = (write.idempotency_key, write.fingerprint, after.version, start, len(written))
        yield Query("idempotency_put", (pk, *key))
    reopened = session.status != after.status
    return Appended(
        after, _drop_aliases(written), after.version, start, compactions=laid, reopened=reopened, records=changed
    )


def annotate_entry(
    tenant: str,
    ref: SessionRef,
    seq: int,
    *,
    pinned: bool | None,
    importance: float | None | UnsetType,
    refused_by: Mapping[str, Any] | None,
    facts: Mapping[int, Choice] | None,
) -> Steps[Entry]:
    """Set annotations of a live entry, and delete the session's saved views. Raises `EntryNotFound` if there is no such live entry."""
    row = yield from read_session_row(tenant, ref)
    pk, session = row[0], decode_intact_session(row)
    rows = yield Query("entry_live", (pk, seq))
    if not rows:
        raise EntryNotFound(ref.id, seq)
    old = decode_entry(rows[0])
    metadata = old.metadata if refused_by is None else with_refusals(old.metadata, refused_by)
    entry = evolve(
        old,
        pinned=old.pinned if pinned is None else pinned,
        importance=fill_unset(importance, old.importance),
        metadata=metadata if facts is None else with_choices(metadata, facts),
    )
    changed = (1 if entry.pinned else 0, entry.importance, encode_metadata(entry.metadata))
    yield Query("entry_annotate", (pk, seq, *changed))
    yield Query("session_touch", (pk, session.version + 1, session.tail.total, session.bytes))
    yield from forget_views(pk, session.version + 1)
    return entry


def rate_entries(tenant: str, ref: SessionRef, importances: Mapping[int, float]) -> Steps[int]:
    """Set the importance of live entries that have none yet; return how many were set."""
    row = yield from read_session_row(tenant, ref)
    pk: int = row[0]
    rated: int = (yield Query("unrated_among", (pk, encode_array(importances))))[0][0]
    if rated:
        yield Many("entry_rate", [(pk, seq, float(importance)) for seq, importance in importances.items()])
    return rated


def erase_entry(tenant: str, ref: SessionRef, seq: int, tokens: int | None) -> Steps[Entry]:
    """Replace an entry's content, and update all totals that include it. Raises `EntryNotFound` if there is no such entry."""
    row = yield from read_session_row(tenant, ref)
    pk, session = row[0], decode_intact_session(row)
    rows = (yield Query("entry_live", (pk, seq))) or (yield Query("entry_retired", (pk, seq)))
    if not rows:
        raise EntryNotFound(ref.id, seq)
    old = decode_entry(rows[0])
    live = old.retired_by is None
    message = erased_message(old.message)
    payload = encode_payload(message)
    count = old.tokens if tokens is None or old.is_note else tokens
    shift = count - old.tokens
    yield Query("entry_erase_live" if live else "entry_erase_retired", (pk, seq, payload, count))
    # Entries that were written while this one was live include it in their totals, up to the entry that retired it.
    bounds = (pk, seq, ENDLESS if old.retired_by is None else old.retired_by, shift)
    if shift:
        yield Query("entries_shift_live", bounds)
        yield Query("entries_shift_retired", bounds)
    size = session.bytes - len(rows[0][-1]) + len(payload)
    yield Query("session_touch", (pk, session.version + 1, session.tail.total + (shift if live else 0), size))
    yield from update_after_erasure(pk, seq, session.version + 1, shift if live else 0)
    yield from media_steps.forget_media(pk, seq)
    return evolve(old, message=message, metadata=None, tokens=count, total=old.total + shift, erased=True)


def write_ping(room: int = 0) -> Steps[None]:
    """Write a row and delete it, to check that the disk is not full.

    Args:
        room: number of bytes to write. Needed if the database is a file, since a full disk may still accept a small write.
    """
    yield Query("ping_put", ("x" * room,))
    yield Query("ping_delete", ())


# -- parts of a write --------------------------------------------------------


def _find_replay(pk: int, session: Session, key: str, fingerprint: bytes) -> Steps[Appended | None]:
    """Return the result of an earlier write with the same idempotency key; None if there was none.

    Raises:
        IdempotencyConflict: the earlier write had another fingerprint.
    """
    rows = yield Query("idempotency_get", (pk, key))
    if not rows:
        return None
    stored, version, first_seq, count = rows[0]
    if stored != fingerprint:
        raise IdempotencyConflict(key)
    found: Sequence[Row] = ()
    if count:
        found = yield Query("log_forward", (pk, first_seq, first_seq + count, count))
    return Appended(session, tuple(decode_entry(row) for row in found), version, first_seq, replayed=True)


def _retire_entries(pk: int, start: int, by: int, after: Session, gone: int) -> Steps[Session]:
    """Mark live entries and notes as replaced by a later entry. Return the session afterwards.

    Args:
        pk: primary key of the session.
        start: lowest `seq` of the replaced entries.
        by: `seq` of the replacing entry, which becomes their `retired_by`.
        after: the session after the write.
        gone: number of live entries that are replaced.
    """
    if gone:
        after = evolve(after, reshaped=after.version)
        yield Query("entries_retire", (pk, start, by))
        yield from update_after_retirement(pk, start, after.version)
    yield Query("notes_retire", (pk, start, by))
    return after


def rewind_tail(pk: int, tail: Tail, before: int) -> Steps[tuple[int, Tail]]:
    """Return the number of live entries with a `seq` of at least `before`, and the tail of the log without these entries."""
    if tail.last_seq < before:
        return 0, tail
    retired = (yield Query("entries_count_from", (pk, before)))[0][0]
    begin = yield Query("last_not_result", (pk, before))
    kept = yield Query("live_forward", (pk, begin[0][0] if begin else 0, before, ENDLESS))
    visible = yield Query("last_visible", (pk, before))
    anchor = tail.anchor if tail.anchor is not None and tail.anchor < before else None
    digest = visible[0][0] if visible else GENESIS
    return retired, rewind(tail, [decode_entry(row) for row in kept], digest=digest, anchor=anchor)


def _write_session(pk: int, before: Session, after: Session) -> Steps[None]:
    claim = encode_claim(after.claim)
    if after.version == before.version:
        yield Query("session_claim", (pk, *claim))
        return
    yield Query("session_advance", (pk, after.version, after.updated_at, after.status, *encode_counters(after), *claim))
    if after.state is not before.state:
        yield from _save_profile(pk, after, before)


def _drop_aliases(written: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple([entry if entry.alias is None else evolve(entry, alias=None) for entry in written])


def insert_session(session: Session) -> Steps[int]:
    """Insert the rows of a session without a log, and return its primary key."""
    names = (session.tenant, session.user_id, session.id, session.agent)
    times = (session.version, session.created_at, session.updated_at, session.status, session.ttl)
    rows = yield Query("session_insert", (*names, *times, *encode_counters(session), session.identity))
    pk: int = rows[0][0]
    large = encode_profile(session)
    if large is not None:
        yield Query("profile_put", (pk, *large))
    return pk


def _save_profile(pk: int, after: Session, before: Session) -> Steps[None]:
    large = encode_profile(after)
    if large == encode_profile(before) and not before.damaged:
        return
    yield Query("profile_delete", (pk,)) if large is None else Query("profile_put", (pk, *large))


def _delete_session(pk: int) -> Steps[None]:
    for name in _SESSION_DELETES:
        yield Query(name, (pk,))


def mark_claim_wanted(tenant: str, ref: SessionRef, holder: str) -> Steps[None]:
    """Ask the holder of the session's claim to stop. Raises `SessionNotFound` if the session does not exist."""
    row = yield from read_session_row(tenant, ref)
    yield Query("claim_want", (row[0], holder))
