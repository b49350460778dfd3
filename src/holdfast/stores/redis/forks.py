"""Copy the beginning of a session's log to a new session, in Redis. The entries are copied by a script, and not read into this process."""

from __future__ import annotations

from msgspec.structs import replace as evolve

from holdfast.domain.fact_choices import STANDING_FACTS
from holdfast.domain.history import Past
from holdfast.domain.origins import copy_prefix_origins
from holdfast.domain.session import Session
from holdfast.errors import SessionExists, SessionNotFound
from holdfast.stores import checks
from holdfast.stores.redis import matching
from holdfast.stores.redis.connection import Key
from holdfast.stores.redis.database import Transaction, make_head_command
from holdfast.stores.redis.handle import Handle, resolve_session_keys, write_transaction
from holdfast.stores.redis.keys import ScopeKeys, SessionKeys
from holdfast.stores.redis.log import rewind_tail
from holdfast.stores.redis.records import HEAD_BYTES, build_session, decode_record
from holdfast.stores.session_changes import install_session, refuse_reshaped
from holdfast.stores.sessions import NewSession


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
