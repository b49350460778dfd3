"""The lifecycle of sessions: use without a write, ends, and the hooks that are notified of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace as evolve

from holdfast.domain.session import Ending, Session, SessionRef
from holdfast.errors import EndingNotFound
from holdfast.limits import ENDING_ERROR_CHARS
from holdfast.stores import checks
from holdfast.stores.redis.connection import Command, Key
from holdfast.stores.redis.database import Transaction, whose
from holdfast.stores.redis.handle import Handle, load_sessions
from holdfast.stores.redis.keys import names_of, number_part
from holdfast.stores.redis.records import decode_ending, encode_ending, fit

SCORES: Final = b"WITHSCORES"


class LifecycleMethods(Handle):
    """The lifecycle of sessions; see `holdfast.stores.lifecycle.LifecycleStore`."""

    async def touch(self, ref: SessionRef, *, timestamp: int) -> None:
        checks.check_ref(ref)

        async def work(tx: Transaction) -> None:
            session, _ = await tx.session()
            if session.accessed_at < timestamp:
                tx.save(evolve(session, accessed_at=fit(timestamp)))

        await self._write(self._session_keys(ref), work)

    async def end(self, ending: Ending, *, idle_since: int | None = None) -> bool:
        checks.check_ending(ending)

        async def work(tx: Transaction) -> bool:
            session, _ = await tx.session()
            if idle_since is not None and session.accessed_at > idle_since:
                return False
            if session.status == "closed" and not ending.withdrawn:
                return False
            put_end(tx, session, ending)
            return True

        return await self._write(self._session_keys(SessionRef(ending.user_id, ending.session_id)), work)

    async def record_ending(self, ending: Ending) -> None:
        checks.check_ending(ending)

        async def work(tx: Transaction) -> None:
            session, _ = await tx.session()
            _record(tx, session, ending)

        await self._write(self._session_keys(SessionRef(ending.user_id, ending.session_id)), work)

    async def endings(self, *, due: int, limit: int = 100) -> tuple[Ending, ...]:
        checks.check_limit(limit)
        await self._tidied()
        keys = self._tenant_keys

        async def work(tx: Transaction) -> tuple[Ending, ...]:
            (members,) = await tx.read((b"ZRANGEBYSCORE", keys.due, b"-inf", fit(due), b"LIMIT", 0, limit))
            found = await tx.read(*((b"HGET", keys.endings, member[8:]) for member in members))
            return tuple(decode_ending(data) for data in found if data is not None)

        return await self._read(None, work)

    async def endings_of(self, user_id: str, *, after: str = "", limit: int = 100) -> tuple[Ending, ...]:
        """Reads all of the tenant: there are few at any time."""
        checks.check_id(user_id, "user_id")
        checks.check_limit(limit)
        await self._tidied()
        keys = self._tenant_keys

        async def work(tx: Transaction) -> tuple[Ending, ...]:
            (found,) = await tx.read((b"HVALS", keys.endings))
            endings = sorted(map(decode_ending, found), key=lambda one: one.id.encode())
            mine = [one for one in endings if one.user_id == user_id and one.id.encode() > after.encode()]
            return tuple(mine[:limit])

        return await self._read(None, work)

    async def settle(
        self, ending_id: str, *, delivered: str | None = None, due_at: int | None = None, error: str | None = None
    ) -> Ending:
        checks.check_id(ending_id, "ending_id")
        keys = self._tenant_keys

        async def work(tx: Transaction) -> Ending:
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
            tx.do("HSET", keys.endings, ending_id, encode_ending(ending))
            tx.do("ZADD", keys.due, ending.due_at, _due(ending))
            return ending

        return await self._write(None, work)

    async def forget_ending(self, ending_id: str) -> None:
        checks.check_id(ending_id, "ending_id")
        keys = self._tenant_keys

        async def work(tx: Transaction) -> None:
            (stored,) = await tx.read((b"HGET", keys.endings, ending_id))
            if stored is not None:
                tx.tenant = keys
                tx.check(keys.endings, ending_id, stored)
                tx.do("f", b"", ending_id, _due(decode_ending(stored)))

        await self._write(None, work)

    async def idle(self, *, now: int, ttl: int | None, limit: int = 100) -> tuple[Session, ...]:
        checks.check_limit(limit)
        await self._tidied()
        keys = self._tenant_keys

        async def work(tx: Transaction) -> tuple[Session, ...]:
            until: list[Command] = [(b"ZRANGEBYSCORE", keys.expiring, b"-inf", fit(now), b"LIMIT", 0, limit)]
            if ttl:
                until.append((b"ZRANGEBYSCORE", keys.idle, b"-inf", fit(now - ttl), b"LIMIT", 0, limit))
            members = [member for some in await tx.read(*until) for member in some]
            return tuple((await self._active_among(tx, members))[:limit])

        return await self._read(None, work)

    async def oldest(self, *, limit: int = 100) -> tuple[Session, ...]:
        checks.check_limit(limit)
        await self._tidied()
        keys = self._tenant_keys

        async def work(tx: Transaction) -> tuple[Session, ...]:
            found = await tx.read(*((b"ZRANGE", key, 0, limit - 1, SCORES) for key in (keys.idle, keys.owned)))
            both = [
                (float(score), member) for flat in found for member, score in zip(flat[::2], flat[1::2], strict=True)
            ]
            return tuple(await self._active_among(tx, [member for _, member in sorted(both)[:limit]]))

        return await self._read(None, work)

    async def active(self) -> int:
        await self._tidied()
        keys = self._tenant_keys

        async def work(tx: Transaction) -> int:
            return sum(await tx.read((b"ZCARD", keys.idle), (b"ZCARD", keys.owned)))

        return await self._read(None, work)

    async def _active_among(self, tx: Transaction, members: Sequence[bytes]) -> list[Session]:
        keys = [self.database.keys.session(self.tenant, *names_of(member)) for member in members]
        return [one for one in await load_sessions(tx, keys) if one.status == "active"]


def put_end(tx: Transaction, session: Session, ending: Ending) -> None:
    """End a session, and record what hooks are to be notified of."""
    ended = {"status": "closed", "ended_at": ending.ended_at, "end_reason": ending.reason}
    withdrawn = ending.id if ending.withdrawn else session.withdrawn
    tx.save(evolve(session, version=session.version + 1, withdrawn=withdrawn, **ended))
    if ending.withdrawn:
        _withdraw(tx, ending)
    if ending.hooks:
        _record(tx, session, ending)


def _withdraw(tx: Transaction, ending: Ending) -> None:
    """Take a session's name away: all that belongs to it moves to other keys."""
    old = tx.keys
    new = tx.moved_to = tx.database.keys.session(old.tenant, old.user_id, old.id, ending.id)
    forget_marks(tx)
    tx.do("HDEL", old.shared, old.field)
    for before, after in zip((old.head, *old.hanging), (new.head, *new.hanging), strict=True):
        tx.do("move", before, Key(after))
    tx.do("HSET", new.head, b"i", whose(new))


def forget_marks(tx: Transaction) -> None:
    """Have nothing of the session found any more by what it said."""
    if not tx.keys.withdrawn and tx.record is not None:
        tx.do("unmark_all", tx.keys.marks, Key(tx.keys.numbers), tx.record.session.tail.next_seq)


def _record(tx: Transaction, session: Session, ending: Ending) -> None:
    recorded = evolve(ending, identity=session.identity)
    tx.tell(b"e", ending.id.encode(), fit(ending.due_at), _due(ending), encode_ending(recorded))


def _due(ending: Ending) -> bytes:
    return number_part(ending.ended_at) + ending.id.encode()
