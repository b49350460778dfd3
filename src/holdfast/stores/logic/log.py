"""Append to logs, read logs, and annotate and erase entries.

Most checks that can refuse a write come before its first change, so a rollback is rarely needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace as evolve

from holdfast.domain.fact_choices import Choice, with_choices
from holdfast.domain.history import continue_log
from holdfast.domain.log import erase_content as erased_message
from holdfast.domain.log import rewind
from holdfast.domain.messages import GENESIS, encode_payload
from holdfast.domain.refusals import with_refusals
from holdfast.domain.session import Entry, ModelCall, PromptText, Session, SessionRef, StoredCompaction, Tail
from holdfast.errors import EntryNotFound, IdempotencyConflict, StaleSession, StoreCorrupt
from holdfast.limits import INLINE_MESSAGES, KEY_MILLISECONDS, RETRY_MILLISECONDS
from holdfast.stores import checks
from holdfast.stores.log import Append, Appended, FoundEntries, KeyedTurn, SavedView, TurnKey, WindowRows
from holdfast.stores.logic import media as media_steps
from holdfast.stores.logic.compactions import (
    drop_compaction,
    forget_views,
    record_compactions,
    save_views,
    update_after_erasure,
    update_after_retirement,
)
from holdfast.stores.logic.due import note_removed_session
from holdfast.stores.logic.handle import Handle, add_session, read_session_row, reads, writes
from holdfast.stores.logic.matching import add_origins
from holdfast.stores.logic.records import EncodedChange, change_owned, encode_changes_off_loop, make_record_key
from holdfast.stores.logic.rows import (
    ENDLESS,
    decode_call,
    decode_compaction,
    decode_entry,
    decode_intact_session,
    decode_prompt_text,
    decode_text,
    decode_view,
    encode_array,
    encode_call,
    encode_claim,
    encode_counters,
    encode_entries,
    encode_entry,
    encode_life,
    encode_metadata,
    encode_profile,
    encode_prompt_text,
)
from holdfast.stores.logic.state import change_scopes
from holdfast.stores.logic.steps import Many, Query, Row, Steps
from holdfast.stores.matching import make_scope
from holdfast.stores.session_changes import (
    advance_session,
    count_messages,
    fill_unset,
    refuse_stale,
    resolve_claim,
)

_media_of: Final = attrgetter("media")


class LogStore(Handle):
    """Append to logs, read logs, and store data derived from them. `holdfast.stores.log` describes what all methods promise."""

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """Write to a log.

        A write that only saves views and compactions, or changes claims, is not a use of the session and never raises
        `SessionExpired`.

        Raises:
            SessionNotFound: no such session.
            StaleSession: the session's version is not `expect`.
            IdempotencyConflict: the idempotency key was used with another fingerprint.
            SessionBusy: another holder has claimed the session.
            StaleState: the session's state has other values than `state_expect`.
            StaleRecord: a record does not have the version that a change of `records` expects.
            SessionExpired: with `ttl`: the session has been idle for too long, although it has not been ended yet.
        """
        checks.check_ref(ref)
        checks.check_append(write)
        payloads = checks.encode_payloads(write.entries)
        named = any(map(_media_of, write.entries))
        light = write.retire_from is None and not write.compactions and not write.records and not named
        changes = await encode_changes_off_loop(write.records) if write.records else ()
        steps = partial(_append_entries, self.tenant, ref, write, payloads, changes)
        long = len(write.entries) > INLINE_MESSAGES
        return await self._write(steps, ref, light=light, long=long, sharing=write.state_delta)

    @reads(single=True)
    def find_turn(self, user_id: str, key: TurnKey) -> Steps[KeyedTurn | None]:
        """Return the turn of a key of a user; None if the key was never used, or its session is gone for long."""
        rows = yield Query("turn_key_get", (make_key_id(self.tenant, user_id, key),))
        if not rows:
            return None
        user, id_, identity, *rest = rows[0]
        ref = None if id_ is None else SessionRef(decode_text(user), decode_text(id_))
        return KeyedTurn(ref, decode_text(identity or b""), *rest)

    @writes()
    def sweep_turn_keys(self, *, now: int) -> Steps[None]:
        """Delete the keys of turns whose sessions are gone for more than a week, and those that count only for minutes."""
        yield Query("turn_keys_bury", (now + KEY_MILLISECONDS,))
        yield Query("turn_keys_expire", (now,))

    @reads()
    def entries(
        self,
        ref: SessionRef,
        *,
        start: int = 0,
        stop: int | None = None,
        limit: int | None = None,
        descending: bool = False,
        retired: bool = False,
        notes: bool = False,
    ) -> Steps[tuple[Entry, ...]]:
        """Return at most `limit` entries with `start <= seq < stop`, in order of `seq`.

        Args:
            ref: the session.
            start: the lowest `seq`.
            stop: the end of the range, exclusive; None: the end of the log.
            limit: maximum number of entries; None: no limit.
            descending: if True, return the entries newest first; `limit` then selects the newest ones of the range.
            retired: if True, return the whole log, including retired entries and notes; if False, return only the live path.
            notes: if True, include notes that are not retired.
        """
        checks.check_ref(ref)
        if limit is not None:
            checks.check_limit(limit, lowest=0, highest=None)
        name = ("log" if retired else "noted" if notes else "live") + ("_backward" if descending else "_forward")
        bounds = (start, ENDLESS if stop is None else stop, ENDLESS if limit is None else limit)
        row = yield from read_session_row(self.tenant, ref)
        rows = yield Query(name, (row[0], *bounds))
        return tuple(decode_entry(found) for found in rows)

    @reads(single=True)
    def entries_at(
        self, user_id: str, places: Collection[tuple[str, int]], *, around: int = 0
    ) -> Steps[Mapping[tuple[str, int], FoundEntries]]:
        """Return live entries of several sessions of a user by place, in one statement. Places without any are left out.

        Args:
            user_id: the user of the sessions. Withdrawn sessions are not read.
            places: session id and `seq` of the entries.
            around: live entries are also returned if their `seq` differs by at most this number.
        """
        wanted = encode_array((id_.encode().hex(), seq) for id_, seq in places)
        params = (self.tenant, user_id, wanted, encode_array(range(-around, around + 1)))
        found: dict[tuple[str, int], FoundEntries] = {}
        for id_, seq, identity, end, *row in (yield Query("entries_at", params)):
            ref = SessionRef(user_id, decode_text(id_))
            one = found.setdefault((ref.id, seq), FoundEntries(decode_text(identity), end))
            try:
                one.entries[row[1]] = decode_entry(row)
            except StoreCorrupt as exc:
                one.damage = add_session(exc, ref)
        return found

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        """Return all data that is needed to build a working set, as of one moment.

        Args:
            ref: the session.
            view: the view's key; None: return the whole live path.
        """
        checks.check_ref(ref)

        def steps() -> Steps[WindowRows]:
            row = yield from read_session_row(self.tenant, ref)
            session, pk = decode_intact_session(row), row[0]
            saved, compaction = (yield from _read_view(pk, view)) if view is not None else (None, None)
            head = (yield Query("entries_among", (pk, encode_array(saved.keep)))) if saved and saved.keep else ()
            rows = yield Query("live_forward", (pk, saved.frontier if saved else 0, ENDLESS, ENDLESS))
            kept, live = (tuple(decode_entry(found) for found in some) for some in (head, rows))
            return WindowRows(session, saved, kept, live, compaction)

        return await self._read(steps, short=view is not None, ref=ref)

    @writes()
    def annotate(
        self,
        ref: SessionRef,
        seq: int,
        *,
        pinned: bool | None = None,
        importance: float | None | UnsetType = UNSET,
        refused_by: Mapping[str, Any] | None = None,
        facts: Mapping[int, Choice] | None = None,
    ) -> Steps[Entry]:
        """Set annotations of an entry, and delete the session's saved views. Annotations that are not passed stay unchanged.

        Args:
            ref: the session.
            seq: the entry, which must be live.
            pinned: True if the entry must stay in the prompt.
            importance: the entry's rating; None removes it.
            refused_by, facts: values for the entry's metadata; empty ones remove it, see `holdfast.domain.refusals` and
                `fact_choices`.

        Raises:
            EntryNotFound: the entry does not exist or is retired.
        """
        checks.check_ref(ref)
        checks.check_int(seq, "seq")
        checks.check_importance(importance)
        row = yield from read_session_row(self.tenant, ref)
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

    @writes()
    def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> Steps[int]:
        """Set the importance of entries that are live and have none yet; return how many were set.

        Used for the results of a scorer, which must not replace a value that a caller set. Changes neither the session's
        version nor its views. Raises `SessionNotFound` if the session does not exist.

        Args:
            ref: the session.
            importances: the importance by `seq`; at most `PAGE` entries, else `TooLarge`.
        """
        checks.check_ref(ref)
        checks.check_importances(importances)
        row = yield from read_session_row(self.tenant, ref)
        rated: int = (yield Query("unrated_among", (row[0], encode_array(importances))))[0][0]
        if rated:
            ratings = [(row[0], seq, float(importance)) for seq, importance in importances.items()]
            yield Many("entry_rate", ratings)
        return rated

    @writes(scrub=True)
    def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Steps[Entry]:
        """Erase an entry's content, as `holdfast.domain.log.erase_content` does. Its digest stays, so the digest chain stays valid.

        SQLite removes the content from its files at once. On a server, dead rows stay on the disk until the server cleans up
        (docs/storage.md). The entry's metadata is removed too, because it may quote the content. A retired entry can be erased
        as well. The method also deletes the session's saved views and adjusts the running totals after the entry.

        Args:
            ref: the session.
            seq: the entry.
            tokens: new token count of the entry; None: the count stays unchanged.

        Raises:
            EntryNotFound: no such entry.
        """
        checks.check_ref(ref)
        checks.check_int(seq, "seq")
        checks.check_int(tokens, "tokens", none=True, low=0)
        row = yield from read_session_row(self.tenant, ref)
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
        yield Query("prompt_texts_quoting", (pk, seq))
        yield Query("prompt_texts_of", (self.tenant, ref.user_id, ref.id, seq))
        yield from media_steps.forget_media(pk, seq)
        yield Query("turn_keys_forget", (pk,))
        yield from note_removed_session(self.tenant, ref, seq)
        return evolve(old, message=message, metadata=None, tokens=count, total=old.total + shift, erased=True)

    @reads()
    def compactions(
        self, ref: SessionRef, *, view: str | None = None, live: bool = False
    ) -> Steps[tuple[StoredCompaction, ...]]:
        """Return the session's compactions in order of id.

        Args:
            ref: the session.
            view: return only compactions of this view; None: compactions of all views.
            live: if True, return only live compactions.
        """
        checks.check_ref(ref)
        row = yield from read_session_row(self.tenant, ref)
        rows = yield Query("compactions_list", (row[0], view, 1 if live else 0))
        return tuple(decode_compaction(found) for found in rows)

    @writes()
    def drop_compaction(self, ref: SessionRef, id: int, *, timestamp: int) -> Steps[StoredCompaction]:  # noqa: A002 - its name in the API
        """Drop a live or superseded compaction, and return it. Deletes the session's saved views.

        Args:
            ref: the session.
            id: the compaction's id.
            timestamp: milliseconds since the epoch; becomes the session's `updated_at`.

        Raises:
            CompactionNotFound: no such compaction, or it is already dropped, dead or failed.
        """
        checks.check_ref(ref)
        checks.check_int(id, "compaction_id")
        return (yield from drop_compaction(self.tenant, ref, id, timestamp))

    @reads()
    def calls(
        self,
        ref: SessionRef,
        *,
        limit: int = 100,
        turn_id: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        descending: bool = True,
    ) -> Steps[tuple[ModelCall, ...]]:
        """Return the session's newest `limit` model calls, newest first.

        Args:
            ref: the session.
            limit: maximum number of calls.
            turn_id: only calls of this turn; short for `start=turn_id, stop=turn_id + 1`.
            start: only calls of this turn and later ones. With `start` or `stop`, calls are in the order of their turns.
            stop: only calls of turns before this one.
            descending: False: the oldest calls, oldest first.
        """
        checks.check_ref(ref)
        checks.check_limit(limit)
        turns = checks.bound_turns(turn_id, start, stop, descending=descending)
        name = "calls_newest" if turns is None else "calls_backward" if descending else "calls_forward"
        row = yield from read_session_row(self.tenant, ref)
        rows = yield Query(name, (row[0], *(turns or ()), limit))
        return tuple(decode_call(found) for found in rows)

    @reads()
    def prompt_texts(self, ref: SessionRef, ids: Collection[int] | None = None) -> Steps[tuple[PromptText, ...]]:
        """Return texts of the session's recorded prompts. Texts of erased messages are missing.

        Args:
            ref: the session.
            ids: return only the texts with these ids; None: all.
        """
        checks.check_ref(ref)
        row = yield from read_session_row(self.tenant, ref)
        if ids is None:
            rows = yield Query("prompt_texts_all", (row[0],))
        else:
            rows = (yield Query("prompt_texts_among", (row[0], encode_array(ids)))) if ids else ()
        return tuple(decode_prompt_text(found) for found in rows)

    @reads()
    def media(self, ref: SessionRef, hashes: Collection[bytes]) -> Steps[Mapping[bytes, bytes]]:
        """Return contents by SHA-256. Hashes that the session has no content for are left out.

        Raises:
            SessionNotFound: the session does not exist.
        """
        checks.check_ref(ref)
        return (yield from media_steps.read_media(self.tenant, ref, hashes))


def _read_view(pk: int, view: str) -> Steps[tuple[SavedView | None, StoredCompaction | None]]:
    saved, *compaction = (yield Query("view_get", (pk, view)))[0]
    return decode_view(saved), None if compaction[0] is None else decode_compaction(compaction)


# -- writing -----------------------------------------------------------------


def _append_entries(  # noqa: C901, PLR0912 - one list of the steps of a write, in order
    tenant: str, ref: SessionRef, write: Append, payloads: Sequence[bytes], changes: Sequence[EncodedChange] = ()
) -> Steps[Appended]:
    """Append to a log, and write everything else that is part of the write."""
    row = yield from read_session_row(tenant, ref, write.identity)
    pk, session = row[0], decode_intact_session(row)
    if write.idempotency_key is not None:
        first = yield from _find_replay(pk, session, write.idempotency_key, write.fingerprint)
        if first is not None:
            return first
    if write.key is not None and write.key.name and not write.key.is_moved:
        yield from _refuse_known_key(session, write.key)
    claim = resolve_claim(session, write) if write.claim or write.release else session.claim
    refuse_stale(session, write)
    changed = (
        (yield from change_owned(make_record_key(tenant, ref, pk), ref, changes, write.timestamp)) if changes else None
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
    if write.state_delta:
        yield from change_scopes(tenant, session.user_id, write.state_delta, write.timestamp)
    if write.retire_from is not None:
        after = yield from _retire_entries(pk, write.retire_from, session.tail.next_seq, after, gone)
    scope = make_scope(tenant, session.user_id)
    if len(written) == 1:
        yield Query("entry_insert", encode_entry(pk, written[0], payloads[0], scope))
    elif written:
        yield Many("entry_insert", encode_entries(pk, written, payloads, scope))
    if write.origins:
        yield from add_origins(pk, tenant, ref, session.identity, write.origins)
    if write.calls:
        yield from insert_calls(pk, write.calls, session.reshaped)
    if has_media:
        yield from media_steps.keep_media(pk, write.entries, written, fresh_media, write.media)
    if after is not session:
        yield from _write_session(pk, session, after)
    laid = (yield from record_compactions(pk, write.compactions, after.version)) if write.compactions else ()
    if write.views:
        yield from save_views(pk, write, 0 if gone else row[-1], laid)
    start = session.tail.next_seq
    if write.idempotency_key is not None:
        key = (write.idempotency_key, write.fingerprint, after.version, start, len(written))
        yield Query("idempotency_put", (pk, *key))
    if write.key is not None:
        yield from _put_turn_key(pk, session, write, write.key, len(written))
    reopened = session.status != after.status
    return Appended(
        after, drop_aliases(written), after.version, start, compactions=laid, reopened=reopened, records=changed
    )


# -- parts of a write --------------------------------------------------------


def insert_calls(pk: int, calls: Sequence[ModelCall], reshaped: int = 0) -> Steps[None]:
    """Record model calls, and those texts of their prompts that are not stored yet.

    Args:
        pk: primary key of the session.
        calls: the calls.
        reshaped: version of the session in which an entry was last retired, erased or pinned. A prompt that was built before may quote
            what was erased.
    """
    yield Many("call_insert", [encode_call(pk, call) for call in calls])
    texts = [
        encode_prompt_text(pk, text)
        for call in calls
        for text in call.texts
        if text.first < 0 or text.source is not None or call.built_at is None or call.built_at >= reshaped
    ]
    if texts:
        yield Many("prompt_text_put", texts)


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


def make_key_id(tenant: str, user_id: str, key: TurnKey) -> bytes:
    """Return the hash under which the turn of a key is stored."""
    data = msgspec.json.encode([tenant, user_id, key.name or key.fingerprint])
    return hashlib.blake2b(data, digest_size=16, person=b"name" if key.name else b"request").digest()


def _refuse_known_key(session: Session, key: TurnKey) -> Steps[None]:
    """Raise `StaleSession` if there is a turn of the key already."""
    if (yield Query("turn_key_get", (make_key_id(session.tenant, session.user_id, key),))):
        raise StaleSession(session.id, expected=session.version, version=session.version)


def _put_turn_key(pk: int, session: Session, write: Append, key: TurnKey, number: int) -> Steps[None]:
    """Store the key of a turn whose opening has written a number of entries to a session that was read before."""
    count = number - key.first if key.entries is None else key.entries
    place = (
        make_key_id(session.tenant, session.user_id, key),
        pk,
        key.fingerprint,
        session.tail.next_seq + key.first,
        count,
    )
    expires_at = None if key.name else write.timestamp + RETRY_MILLISECONDS
    # `turn_key_new` fails if another write of the key was faster; this write is then run again.
    is_new = key.name and not key.is_moved
    yield Query("turn_key_new" if is_new else "turn_key_put", (*place, write.timestamp, expires_at))


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
    yield Query("session_advance", (pk, after.version, *encode_life(after), *encode_counters(after), *claim))
    if after.state is not before.state:
        yield from save_profile(pk, after, before)


def drop_aliases(written: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries without their aliases, which callers do not see."""
    return tuple([entry if entry.alias is None else evolve(entry, alias=None) for entry in written])


def save_profile(pk: int, after: Session, before: Session) -> Steps[None]:
    """Write the large fields of a session if they have changed."""
    large = encode_profile(after)
    if large == encode_profile(before) and not before.damaged:
        return
    yield Query("profile_delete", (pk,)) if large is None else Query("profile_put", (pk, *large))
