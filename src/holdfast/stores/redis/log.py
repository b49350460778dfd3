"""Append to logs, read them, and copy them for forks, in Redis. The live entries are in a list, and retired entries in a sorted set by `seq`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace as evolve

from holdfast.domain.fact_choices import STANDING_FACTS, Choice, with_choices
from holdfast.domain.history import Past, continue_log
from holdfast.domain.log import erase_content as erased_message
from holdfast.domain.log import rewind
from holdfast.domain.messages import GENESIS, encode_payload
from holdfast.domain.origins import copy_prefix_origins
from holdfast.domain.refusals import with_refusals
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef, StoredCompaction, Tail
from holdfast.errors import EntryNotFound, IdempotencyConflict, SessionExists, SessionNotFound
from holdfast.limits import VIEWS_KEPT
from holdfast.stores import checks
from holdfast.stores.log import Append, Appended, WindowRows
from holdfast.stores.record_checks import EncodedChange, encode_changes_off_loop
from holdfast.stores.redis import compactions, matching, media, records, state
from holdfast.stores.redis.connection import Command, Key
from holdfast.stores.redis.database import MAX_ARGUMENTS, Transaction, make_head_command
from holdfast.stores.redis.handle import Handle, read_transaction, resolve_session_keys, write_transaction
from holdfast.stores.redis.keys import ScopeKeys, SessionKeys
from holdfast.stores.redis.owned_records import write_record_changes
from holdfast.stores.redis.records import HEAD_BYTES, build_session, decode_record
from holdfast.stores.session_changes import (
    advance_session,
    count_messages,
    fill_unset,
    install_session,
    refuse_reshaped,
    refuse_stale,
    resolve_claim,
)
from holdfast.stores.sessions import NewSession

LOOKBACK: Final = 16
"""Number of entries that are read per round trip when a log is searched backwards."""


class LogMethods(Handle):
    """The methods of `holdfast.stores.log.LogStore`, without those that concern compactions."""

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        keys = resolve_session_keys(self, ref)
        checks.check_append(write)
        payloads = checks.encode_payloads(write.entries)
        record_changes = await encode_changes_off_loop(write.records) if write.records else ()
        work = partial(_append, write=write, payloads=payloads, record_changes=record_changes)
        return await self.run(keys, work, write=True, key=write.idempotency_key)

    @write_transaction(resolve_session_keys)
    async def annotate(
        self,
        tx: Transaction,
        ref: SessionRef,
        seq: int,
        *,
        pinned: bool | None = None,
        importance: float | None | UnsetType = UNSET,
        refused_by: Mapping[str, str] | None = None,
        facts: Mapping[int, Choice] | None = None,
    ) -> Entry:
        checks.check_int(seq, "seq")
        checks.check_importance(importance)
        session, (found,) = await tx.read_session(_make_at_command(tx.keys, [seq]))
        session.require_intact()
        if not found:
            raise EntryNotFound(ref.id, seq)
        old = records.decode_entry(found[0])
        metadata = old.metadata if refused_by is None else with_refusals(old.metadata, refused_by)
        metadata = metadata if facts is None else with_choices(metadata, facts)
        entry = evolve(
            old,
            pinned=old.pinned if pinned is None else pinned,
            importance=fill_unset(importance, old.importance),
            metadata=metadata,
        )
        stored = None if entry.metadata is None else records.to_json(entry.metadata)
        fields: dict[str, Any] = {"pinned": int(entry.pinned), "importance": entry.importance, "metadata": stored}
        tx.queue("rewrite", tx.keys.log, seq, records.change_entry(found[0], **fields))
        tx.save_session(evolve(session, version=session.version + 1, reshaped=session.version + 1))
        tx.queue("UNLINK", tx.keys.views)
        return entry

    @write_transaction(resolve_session_keys)
    async def rate(self, tx: Transaction, ref: SessionRef, importances: Mapping[int, float]) -> int:
        checks.check_importances(importances)
        _, found = await tx.read_session(*_make_at_commands(tx.keys, sorted(importances)))
        unrated = [entry for some in found for entry in some if records.decode_entry_field(entry, "importance") is None]
        for entry in unrated:
            seq = records.decode_entry_head(entry)[0]
            tx.queue("rewrite", tx.keys.log, seq, records.change_entry(entry, importance=float(importances[seq])))
        return len(unrated)

    @write_transaction(resolve_session_keys)
    async def erase(self, tx: Transaction, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        checks.check_int(seq, "seq")
        checks.check_int(tokens, "tokens", none=True, low=0)
        single = (b"ZRANGEBYSCORE", tx.keys.retired, seq, seq)
        session, (live, retired) = await tx.read_session(_make_at_command(tx.keys, [seq]), single)
        session.require_intact()
        if not live and not retired:
            raise EntryNotFound(session.id, seq)
        is_live, data = bool(live), (live or retired)[0]
        old = records.decode_entry(data, retired=not is_live)
        before = records.decode_entry_field(data, "payload", retired=not is_live)
        message = erased_message(old.message)
        payload, count = encode_payload(message), old.tokens if tokens is None or old.is_note else tokens
        shift = count - old.tokens
        changes = await compactions.CompactionChanges.load(tx, needed=True)
        uses = await media.read_uses(tx, seq)
        fields: dict[str, Any] = {"payload": payload, "tokens": count, "erased": 1, "metadata": None}
        changed = records.change_entry(data, retired=not is_live, **fields)
        if is_live:
            tx.queue("rewrite", tx.keys.log, seq, changed)
        else:
            tx.queue("ZREMRANGEBYSCORE", tx.keys.retired, seq, seq)
            tx.queue("ZADD", tx.keys.retired, seq, changed)
        matching.unmark_alias(tx, seq)
        if shift:
            # Entries that were written while this one was live include it in their totals, up to the entry that retired it.
            end = -1 if old.retired_by is None else old.retired_by
            tx.queue("shift", tx.keys.log, seq, end, shift)
            tx.queue("shift_retired", tx.keys.retired, seq, end, shift)
        moved = shift if is_live else 0
        tail = evolve(session.tail, total=session.tail.total + moved)
        version, size = session.version + 1, session.bytes - len(before) + len(payload)
        tx.save_session(evolve(session, version=version, tail=tail, bytes=size, reshaped=version))
        tx.queue("UNLINK", tx.keys.views)
        changes.erase(seq, moved, version)
        changes.save()
        media.release_uses(tx, seq, uses)
        return evolve(old, message=message, metadata=None, tokens=count, total=old.total + shift, erased=True)

    @read_transaction(resolve_session_keys)
    async def entries(
        self,
        tx: Transaction,
        ref: SessionRef,
        *,
        start: int = 0,
        stop: int | None = None,
        limit: int | None = None,
        descending: bool = False,
        retired: bool = False,
        notes: bool = False,
    ) -> tuple[Entry, ...]:
        if limit is not None:
            checks.check_limit(limit, lowest=0, highest=None)
        keys = tx.keys
        bounds = (max(start, 0), stop if stop is None else max(stop, 0), limit)
        commands = [make_live_range(keys, *bounds, descending=descending)]
        if retired:
            commands.append(_make_retired_range(keys, *bounds, descending=descending))
        elif notes:
            commands.append((b"notes", keys.retired, *commands[0][2:]))
        _, found = await tx.read_session(*commands)
        entries = [records.decode_entry(data) for data in found[0]]
        if retired or notes:
            entries += [records.decode_entry(data, retired=True) for data in found[1]]
            entries.sort(key=lambda entry: entry.seq, reverse=descending)
        return tuple(entries if limit is None else entries[:limit])

    @read_transaction(resolve_session_keys)
    async def window(self, tx: Transaction, ref: SessionRef, view: str | None) -> WindowRows:
        keys = tx.keys
        others = (Key(keys.lives), Key(keys.compactions), Key(keys.log))
        command: Command = make_live_range(keys) if view is None else (b"window", keys.views, view, *others)
        session, (found,) = await tx.read_session(command)
        session.require_intact()
        if view is None:
            return WindowRows(session, None, (), tuple(map(records.decode_entry, found)))
        saved, laid, kept, entries = found
        stored = records.decode_view(saved)
        if saved is not None and stored is None:  # the view is damaged and will be built again from the whole log
            (entries,) = await tx.read(make_live_range(keys))
        compaction = None if laid is None else records.decode_compaction(laid)[1]
        head, rest = tuple(map(records.decode_entry, kept)), tuple(map(records.decode_entry, entries))
        return WindowRows(session, stored, head if stored else (), rest, compaction)

    @read_transaction(resolve_session_keys)
    async def calls(
        self,
        tx: Transaction,
        ref: SessionRef,
        *,
        limit: int = 100,
        turn_id: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        descending: bool = True,
    ) -> tuple[ModelCall, ...]:
        checks.check_limit(limit)
        turns = checks.bound_turns(turn_id, start, stop, descending=descending)
        keys = tx.keys
        command: Command = (b"ZREVRANGE", keys.calls, 0, limit - 1)
        if turns is not None:
            ends, paging = (turns[0], turns[1] - 1), (b"LIMIT", 0, limit)
            command = (b"ZRANGEBYSCORE", keys.calls, *ends, *paging)
            if descending:
                command = (b"ZREVRANGEBYSCORE", keys.calls, *reversed(ends), *paging)
        _, (found,) = await tx.read_session(command)
        if turns is None and tx.record is not None and tx.record.calls_mixed:
            # The calls are not in the order of their turns, so all of them must be sorted.
            (found,) = await tx.read((b"ZRANGE", keys.calls, 0, -1))
            found = sorted(found, reverse=True)[:limit]
        return tuple(records.decode_call(data) for data in found)

    @read_transaction(resolve_session_keys)
    async def media(self, tx: Transaction, ref: SessionRef, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        found = await tx.read_fields(tx.keys.media, sorted(set(hashes)))
        await tx.read_session()
        return found


# -- commands ------------------------------------------------------------------


def make_live_range(
    keys: SessionKeys, start: int = 0, stop: int | None = None, limit: int | None = None, *, descending: bool = False
) -> Command:
    """Return the command that reads a range of the live entries."""
    bounds = (
        records.check_int64(start),
        -1 if stop is None else records.check_int64(stop),
        -1 if limit is None else records.check_int64(limit),
    )
    return (b"range", keys.log, *bounds, int(descending))


def _make_retired_range(
    keys: SessionKeys, start: int, stop: int | None, limit: int | None, *, descending: bool
) -> Command:
    ends: tuple[bytes, ...] = (b"%d" % start, b"+inf" if stop is None else b"(%d" % stop)
    name = b"ZREVRANGEBYSCORE" if descending else b"ZRANGEBYSCORE"
    limits: Command = () if limit is None else (b"LIMIT", 0, limit)
    return (name, keys.retired, *(ends[::-1] if descending else ends), *limits)


def _make_at_command(keys: SessionKeys, seqs: Sequence[int]) -> Command:
    return (b"at", keys.log, *map(records.check_int64, seqs))


def _make_at_commands(keys: SessionKeys, seqs: Sequence[int]) -> list[Command]:
    return [_make_at_command(keys, seqs[at : at + MAX_ARGUMENTS]) for at in range(0, len(seqs), MAX_ARGUMENTS)]


# -- append --------------------------------------------------------------------


async def _append(
    tx: Transaction, *, write: Append, payloads: Sequence[bytes], record_changes: Sequence[EncodedChange]
) -> Appended:
    session, _ = await tx.read_session()
    session.require_intact()
    if write.identity not in {None, session.identity}:
        raise SessionNotFound(session.id)
    if write.idempotency_key is not None:
        first = await _replay(tx, session, write.idempotency_key, write.fingerprint)
        if first is not None:
            return first
    claim = resolve_claim(session, write)
    refuse_stale(session, write)
    fresh_media = await media.load_media_uses(tx, write.entries, write.media)
    origins = await matching.load_origins(tx, session, write.origins)
    retired_count, base = await rewind_tail(tx, tx.keys, session.tail, write.retire_from)
    written, tail = continue_log(base, write.entries)
    after = advance_session(
        session, write, tail, claim, live=count_messages(written) - retired_count, size=sum(map(len, payloads))
    )
    after = evolve(after, reshaped=after.version) if retired_count else after
    start, cut = session.tail.next_seq, max(write.retire_from or 0, 0) if retired_count else None
    is_live = partial(_is_live, cut=cut, start=start, stop=start + len(written))
    changes = await compactions.CompactionChanges.load(tx, write.compactions, is_live, needed=cut is not None)
    await state.share_changes(tx, write.state_delta)
    changed = await write_record_changes(tx, record_changes, write.timestamp) if record_changes else None
    if cut is not None:
        tx.queue("retire", tx.keys.log, Key(tx.keys.retired), cut, records.encode_retired_by(start))
        changes.retire(cut)
    if write.retire_from is not None:
        tx.queue("retire_notes", tx.keys.retired, max(write.retire_from, 0), records.encode_retired_by(start))
    write_entries(tx, written, payloads)
    matching.store_origins(tx, origins)
    write_calls(tx, write.calls)
    media.store_media(tx, write.entries, written, fresh_media, write.media)
    if after is not session:
        matching.mark_end(tx, session.tail.digest, tail.digest)
        tx.save_session(after, profile=after.state is not session.state)
    views_from = 0 if retired_count else session.reshaped
    if cut is not None:
        tx.queue("UNLINK", tx.keys.views)
    laid = changes.record(write.compactions, after.version)
    changes.save()
    await _save_views(tx, write, views_from, laid)
    if write.idempotency_key is not None:
        result = (write.fingerprint, after.version, start, len(written))
        tx.queue("HSET", tx.keys.keyed, write.idempotency_key, records.pack(result))
    reopened = session.status != after.status
    entries = tuple(entry if entry.alias is None else evolve(entry, alias=None) for entry in written)
    return Appended(after, entries, after.version, start, compactions=laid, reopened=reopened, records=changed)


def _is_live(seq: int, *, cut: int | None, start: int, stop: int) -> bool | None:
    """Return True if a write appends an entry as live, False if it retires the entry, and None if it does neither.

    Args:
        seq: the entry.
        cut: the lowest `seq` that the write retires; None if it retires nothing.
        start: `seq` of the first entry that the write appends.
        stop: the exclusive end of the appended entries.
    """
    if seq >= start:
        return seq < stop
    return False if cut is not None and seq >= cut else None


async def _replay(tx: Transaction, session: Session, key: str, fingerprint: bytes) -> Appended | None:
    """Return the result of the earlier write with this idempotency key, or None if there was no such write.

    Raises:
        IdempotencyConflict: the earlier write had another fingerprint, so it was a different request.
    """
    found = None if tx.job.is_optimistic else (await tx.read((b"HGET", tx.keys.keyed, key)))[0]
    if found is None:
        tx.check(tx.keys.keyed, key, None)
        return None
    stored, version, first, count = records.unpack_list(found)
    if stored != fingerprint:
        raise IdempotencyConflict(key)
    entries: list[Entry] = []
    if count:
        bounds = (first, first + count, None)
        live, retired = await tx.read(
            make_live_range(tx.keys, *bounds), _make_retired_range(tx.keys, *bounds, descending=False)
        )
        entries = [records.decode_entry(data) for data in live] + [
            records.decode_entry(data, retired=True) for data in retired
        ]
        entries.sort(key=lambda entry: entry.seq)
    return Appended(session, tuple(entries), version, first, replayed=True)


async def rewind_tail(tx: Transaction, keys: SessionKeys, tail: Tail, before: int | None) -> tuple[int, Tail]:
    """Return the number of live entries whose `seq` is at least `before`, and the log's tail after these entries are removed.

    Args:
        tx: the transaction.
        keys: the keys of the log's session.
        tail: the log's tail.
        before: the first `seq` to remove; None to remove nothing.
    """
    if before is None or tail.last_seq < before:
        return 0, tail
    start = max(before, 0)
    newest = make_live_range(keys, 0, start, LOOKBACK, descending=True)
    count, page = await tx.read((b"count", keys.log, start), newest)
    begin, visible = (
        await _find_last(tx, keys, page, (records.RESULT,)),
        await _find_last(tx, keys, page, (records.CALLS, records.RESULT)),
    )
    first = 0 if begin is None else records.decode_entry_head(begin)[0]
    if len(page) == LOOKBACK and records.decode_entry_head(page[-1])[0] > first:
        (kept,) = await tx.read(make_live_range(keys, first, start))
    else:
        kept = [data for data in reversed(page) if records.decode_entry_head(data)[0] >= first]
    anchor = tail.anchor if tail.anchor is not None and tail.anchor < start else None
    digest = GENESIS if visible is None else records.decode_entry_head(visible)[2]
    return count, rewind(tail, [records.decode_entry(data) for data in kept], digest=digest, anchor=anchor)


async def _find_last(
    tx: Transaction, keys: SessionKeys, page: Sequence[bytes], passed: Collection[int]
) -> bytes | None:
    """Return the last live entry of a range whose kind is not in `passed`. Return None if there is no such entry.

    Args:
        tx: the transaction.
        keys: the keys of the log's session.
        page: the last `LOOKBACK` live entries of the range to search, newest first.
        passed: kinds of entries to skip. A kind is an index in `records.KINDS`.
    """
    while True:
        for data in page:
            if records.decode_entry_head(data)[1] not in passed:
                return bytes(data)
        if len(page) < LOOKBACK:
            return None
        (page,) = await tx.read(
            make_live_range(keys, 0, records.decode_entry_head(page[-1])[0], LOOKBACK, descending=True)
        )


def write_entries(tx: Transaction, written: Sequence[Entry], payloads: Sequence[bytes]) -> None:
    """Append entries to the log. Entries that are already retired, as in an import, are stored with the retired ones."""
    live: list[bytes] = []
    for entry, payload in zip(written, payloads, strict=True):
        data = records.encode_entry(entry, payload)
        if entry.retired_by is None:
            live.append(data)
        else:
            tx.queue("ZADD", tx.keys.retired, entry.seq, data)
        matching.mark_entry(tx, entry)
    for at in range(0, len(live), MAX_ARGUMENTS):
        tx.queue("RPUSH", tx.keys.log, *live[at : at + MAX_ARGUMENTS])


def write_calls(tx: Transaction, calls: Sequence[ModelCall]) -> None:
    """Record model calls. A call is sorted after the calls of the same turn that were recorded earlier."""
    for call in calls:
        assert tx.record is not None
        record = tx.record
        tx.queue("ZADD", tx.keys.calls, call.turn_id, records.encode_call(record.next_call, call))
        tx.update_record(
            next_call=record.next_call + 1,
            last_turn=max(record.last_turn, call.turn_id),
            calls_mixed=record.calls_mixed or call.turn_id < record.last_turn,
        )


async def _save_views(tx: Transaction, write: Append, views_from: int, laid: Sequence[StoredCompaction]) -> None:
    """Save those views of a write that are still valid.

    A view is valid if it was built after existing entries were last changed, and if it includes the view's live compaction.
    """
    assert tx.record is not None
    fates = {one.view: one.status for one in laid if one.status != "failed"}
    saved: dict[bytes, bytes] = {}
    for name, view in (write.views or {}).items():
        laid_at = tx.record.live.get(name, (0, -1))[1]
        knows = view.built_at is None or fates.get(name) == "live" or laid_at <= view.built_at
        if (view.built_at is None or view.built_at >= views_from) and fates.get(name) != "dead" and knows:
            saved[name.encode()] = records.encode_view(view, write.timestamp)
            tx.queue("HSET", tx.keys.views, name, saved[name.encode()])
    if saved and not (write.entries or write.calls or write.compactions):
        await _trim_views(tx, saved)


async def _trim_views(tx: Transaction, saved: Mapping[bytes, bytes]) -> None:
    """Delete the oldest saved views beyond `VIEWS_KEPT`."""
    (number,) = await tx.read((b"HLEN", tx.keys.views))
    if number + len(saved) <= VIEWS_KEPT:
        return
    (flat,) = await tx.read((b"HGETALL", tx.keys.views))
    views = {**dict(zip(flat[::2], flat[1::2], strict=True)), **saved}
    for name in sorted(sorted(views), key=lambda name: records.parse_view_order(views[name]), reverse=True)[
        VIEWS_KEPT:
    ]:
        tx.queue("HDEL", tx.keys.views, name)


def _resolve_new_keys(handle: Handle, new: NewSession) -> ScopeKeys:
    return resolve_session_keys(handle, new.ref)


class ForkMethods(Handle):
    """The method `fork` of `holdfast.stores.sessions.SessionStore`. It copies no media, and removes no pins."""

    @write_transaction(_resolve_new_keys)
    async def fork(
        self, tx: Transaction, new: NewSession, source: Session, stop: int, *, pins: bool = True
    ) -> Session | None:
        checks.check_new_session(new, past=True)
        checks.check_int(stop, "stop", low=0)
        checks.check_ref(source.ref)
        keys = self._make_session_keys(source.ref)
        (guard, record, profile), (live, end, size, notes, pinned), media, ranges = await tx.read(
            make_head_command(keys),
            (b"extent", keys.log, Key(keys.retired), stop, HEAD_BYTES, STANDING_FACTS),
            (b"HLEN", keys.media_uses),
            (b"HGET", keys.shared, keys.field),
        )
        if record is None:
            raise SessionNotFound(source.id)
        parent = build_session(decode_record(keys, record), profile).require_intact()
        if parent.identity != source.identity:
            raise SessionNotFound(source.id)
        refuse_reshaped(parent, source.version)
        if tx.record is not None:
            raise SessionExists(new.id)
        count = live + notes
        if not count or end != count or media or (pinned and not pins):
            return None
        _, tail = await rewind_tail(tx, keys, parent.tail, count)
        past = Past(created_at=new.timestamp, updated_at=new.timestamp)
        tail = evolve(tail, next_seq=count)
        session = install_session(self.tenant, new, past, None, tail, live=live, size=size)
        tx.insert_session(session)
        matching.mark_end(tx, None, tail.digest)
        _copy_log(tx, keys, count)
        tx.check(keys.head, b"g", guard)
        tx.check(keys.shared, keys.field, ranges)
        known = matching.decode_ranges(ranges, source.identity)
        if ranges is None:
            matching.store_origins(tx, known, keys)
        matching.store_origins(tx, copy_prefix_origins(known, count, new.identity))
        return session


def _copy_log(tx: Transaction, source: SessionKeys, count: int) -> None:
    """Queue the copies of the first `count` entries of a log, and of their places in the index of digests."""
    tx.queue("copy_log", tx.keys.log, Key(source.log), Key(tx.keys.retired), Key(source.retired), count)
    tx.late.append(("copy_marks", tx.keys.marks, Key(source.head), count))
