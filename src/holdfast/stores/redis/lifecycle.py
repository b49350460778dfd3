"""The lifecycle of sessions in Redis: their use without a write, their end, and the notification of hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace as evolve

from holdfast.domain.session import Ending, Session, SessionRef
from holdfast.errors import EndingNotFound
from holdfast.limits import ENDING_ERROR_CHARS
from holdfast.stores import checks
from holdfast.stores.redis.connection import Command, Key
from holdfast.stores.redis.database import Transaction, encode_identity
from holdfast.stores.redis.handle import (
    Handle,
    load_sessions,
    read_transaction,
    resolve_session_keys,
    write_transaction,
)
from holdfast.stores.redis.keys import ScopeKeys, decode_names, encode_number
from holdfast.stores.redis.records import check_int64, decode_ending, encode_ending

SCORES: Final = b"WITHSCORES"


def _resolve_ending_keys(handle: Handle, ending: Ending) -> ScopeKeys:
    checks.check_ending(ending)
    return resolve_session_keys(handle, SessionRef(ending.user_id, ending.session_id))


class LifecycleMethods(Handle):
    """The methods of `holdfast.stores.lifecycle.LifecycleStore`."""

    @write_transaction(resolve_session_keys)
    async def touch(self, tx: Transaction, ref: SessionRef, *, timestamp: int) -> None:
        session, _ = await tx.read_session()
        if session.accessed_at < timestamp:
            tx.save_session(evolve(session, accessed_at=check_int64(timestamp)))

    @write_transaction(_resolve_ending_keys)
    async def end(self, tx: Transaction, ending: Ending, *, idle_since: int | None = None) -> bool:
        session, _ = await tx.read_session()
        if idle_since is not None and session.accessed_at > idle_since:
            return False
        if session.status == "closed" and not ending.withdrawn:
            return False
        end_session(tx, session, ending)
        return True

    @write_transaction(_resolve_ending_keys)
    async def record_ending(self, tx: Transaction, ending: Ending) -> None:
        session, _ = await tx.read_session()
        _record_ending(tx, session, ending)

    @read_transaction()
    async def endings(self, tx: Transaction, *, due: int, limit: int = 100) -> tuple[Ending, ...]:
        checks.check_limit(limit)
        keys = await self._tidy()
        (members,) = await tx.read((b"ZRANGEBYSCORE", keys.due, b"-inf", check_int64(due), b"LIMIT", 0, limit))
        return tuple(
            map(decode_ending, (await tx.read_fields(keys.endings, [member[8:] for member in members])).values())
        )

    @read_transaction()
    async def endings_of(
        self, tx: Transaction, user_id: str, *, after: str = "", limit: int = 100
    ) -> tuple[Ending, ...]:
        """Return recorded endings of a user's sessions. Reads all endings of the tenant, of which there are few at any time."""
        checks.check_id(user_id, "user_id")
        checks.check_limit(limit)
        keys = await self._tidy()
        (found,) = await tx.read((b"HVALS", keys.endings))
        endings = sorted(map(decode_ending, found), key=lambda one: one.id.encode())
        mine = [one for one in endings if one.user_id == user_id and one.id.encode() > after.encode()]
        return tuple(mine[:limit])

    @write_transaction()
    async def settle(
        self,
        tx: Transaction,
        ending_id: str,
        *,
        delivered: str | None = None,
        due_at: int | None = None,
        error: str | None = None,
    ) -> Ending:
        checks.check_id(ending_id, "ending_id")
        keys = self._tenant_keys
        (stored,) = await tx.read((b"HGET", keys.endings, ending_id))
        if stored is None:
            raise EndingNotFound(ending_id)
        old = decode_ending(stored)
        ending = evolve(
            old,
            due_at=old.due_at if due_at is None else due_at,
            attempts=old.attempts + (error is not None),
            hooks=tuple(hook for hook in old.hooks if hook != delivered),
            error=None if error is None else error[:ENDING_ERROR_CHARS],
        )
        tx.check(keys.endings, ending_id, stored)
        tx.queue("HSET", keys.endings, ending_id, encode_ending(ending))
        tx.queue("ZADD", keys.due, ending.due_at, _encode_due_member(ending))
        return ending

    @write_transaction()
    async def forget_ending(self, tx: Transaction, ending_id: str) -> None:
        checks.check_id(ending_id, "ending_id")
        keys = self._tenant_keys
        (stored,) = await tx.read((b"HGET", keys.endings, ending_id))
        if stored is not None:
            tx.tenant = keys
            tx.check(keys.endings, ending_id, stored)
            tx.queue("f", b"", ending_id, _encode_due_member(decode_ending(stored)))

    @read_transaction()
    async def idle(self, tx: Transaction, *, now: int, ttl: int | None, limit: int = 100) -> tuple[Session, ...]:
        checks.check_limit(limit)
        keys = await self._tidy()
        until: list[Command] = [(b"ZRANGEBYSCORE", keys.expiring, b"-inf", check_int64(now), b"LIMIT", 0, limit)]
        if ttl:
            until.append((b"ZRANGEBYSCORE", keys.idle, b"-inf", check_int64(now - ttl), b"LIMIT", 0, limit))
        members = [member for some in await tx.read(*until) for member in some]
        return tuple((await self._active_among(tx, members))[:limit])

    @read_transaction()
    async def oldest(self, tx: Transaction, *, limit: int = 100) -> tuple[Session, ...]:
        checks.check_limit(limit)
        keys = await self._tidy()
        found = await tx.read(*((b"ZRANGE", key, 0, limit - 1, SCORES) for key in (keys.idle, keys.owned)))
        both = [(float(score), member) for flat in found for member, score in zip(flat[::2], flat[1::2], strict=True)]
        return tuple(await self._active_among(tx, [member for _, member in sorted(both)[:limit]]))

    @read_transaction()
    async def active(self, tx: Transaction) -> int:
        keys = await self._tidy()
        return sum(await tx.read((b"ZCARD", keys.idle), (b"ZCARD", keys.owned)))

    async def _active_among(self, tx: Transaction, members: Sequence[bytes]) -> list[Session]:
        keys = [self.database.keys.session(self.tenant, *decode_names(member)) for member in members]
        return [one for one in await load_sessions(tx, keys) if one.status == "active"]


def end_session(tx: Transaction, session: Session, ending: Ending) -> None:
    """End a session. If hooks must be notified, also record the ending."""
    ended = {"status": "closed", "ended_at": ending.ended_at, "end_reason": ending.reason}
    withdrawn = ending.id if ending.withdrawn else session.withdrawn
    tx.save_session(evolve(session, version=session.version + 1, withdrawn=withdrawn, **ended))
    if ending.withdrawn:
        _withdraw(tx, ending)
    if ending.hooks:
        _record_ending(tx, session, ending)


def _withdraw(tx: Transaction, ending: Ending) -> None:
    """Withdraw a session: move its data to other keys, so that a new session can use its id."""
    old = tx.keys
    new = tx.moved_to = tx.database.keys.session(old.tenant, old.user_id, old.id, ending.id)
    remove_marks(tx)
    tx.queue("HDEL", old.shared, old.field)
    for before, after in zip((old.head, *old.dependents), (new.head, *new.dependents), strict=True):
        tx.queue("move", before, Key(after))
    tx.queue("HSET", new.head, b"i", encode_identity(new))


def remove_marks(tx: Transaction) -> None:
    """Remove all entries of the session from the index of digests."""
    if not tx.keys.withdrawn and tx.record is not None:
        tx.queue("unmark_all", tx.keys.marks, Key(tx.keys.numbers), tx.record.session.tail.next_seq)


def _record_ending(tx: Transaction, session: Session, ending: Ending) -> None:
    recorded = evolve(ending, identity=session.identity)
    tx.add_news(
        b"e", ending.id.encode(), check_int64(ending.due_at), _encode_due_member(ending), encode_ending(recorded)
    )


def _encode_due_member(ending: Ending) -> bytes:
    return encode_number(ending.ended_at) + ending.id.encode()
