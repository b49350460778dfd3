"""List sessions: by rank in a sorted set, so that a page costs the same at any depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.domain.session import Session, SessionRef
from holdfast.stores import checks
from holdfast.stores.redis.connection import Command, Key
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle, load_sessions
from holdfast.stores.redis.keys import name_part, names_of
from holdfast.stores.sessions import SessionPage

PAGE: Final = 500
"""Members that are looked at in one go, where not each is wanted."""
SCANNED: Final = 5000
"""Members that a script looks at before it lets others on."""


class ListMethods(Handle):
    """`SessionStore.list`."""

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        now: int | None = None,
        ttl: int | None = None,
        limit: int = 20,
        after: SessionRef | None = None,
        descending: bool = True,
    ) -> SessionPage:
        checks.check_limit(limit)
        filters = {"user_id": user_id, "agent": agent, "status": status, "now": now, "ttl": ttl, "after": after}
        checks.check_filters(filters)
        await self._tidied()
        last = None if after is None else await self.get(after)  # type: ignore[attr-defined]  # the handle has it
        idle_since = now - ttl if now is not None and ttl else None

        async def work(tx: Transaction) -> SessionPage:
            pages = _Pages(self, tx, user_id, status, now, idle_since, limit + 1, descending=descending)
            found: dict[SessionRef, Session] = {}
            async for session in pages.sessions(last, filtered=agent is not None or status is not None):
                if agent is not None and session.agent != agent:
                    continue
                if status is None or _status(session, now, idle_since) == status:
                    found.setdefault(session.ref, session)  # one that was used meanwhile may come again
                if len(found) > limit:
                    break
            return SessionPage(tuple(found.values())[:limit], len(found) > limit)

        return await self._read(None, work)


class _Pages:
    """Sessions in order, a page at a time."""

    def __init__(
        self,
        handle: Handle,
        tx: Transaction,
        user_id: str | None,
        status: str | None,
        now: int | None,
        idle_since: int | None,
        limit: int,
        *,
        descending: bool,
    ) -> None:
        self._tenant = handle.tenant
        self._keys = tx.database.keys
        self._tenant_keys = self._keys.tenant(handle.tenant)
        self._key = self._tenant_keys.recent if user_id is None else self._keys.user(handle.tenant, user_id).recent
        self._by_status = status if user_id is None else None
        self._times = ["" if time is None else time for time in (now, idle_since)]
        self._tx = tx
        self._limit = limit
        self._descending = descending

    async def sessions(self, last: Session | None, *, filtered: bool) -> Any:
        """Yield sessions after `last`, wherever it is now."""
        begin: int | None = 0 if last is None else await self._rank_after(_member(last), last.updated_at)
        while begin is not None:
            members, begin = await self._page(begin, max(self._limit, PAGE) if filtered else self._limit)
            keys = [self._keys.session(self._tenant, *names_of(member)) for member in members]
            for session in await load_sessions(self._tx, keys):
                yield session

    async def _page(self, begin: int, size: int) -> tuple[Sequence[bytes], int | None]:
        """Return the members of a page, and where the next one begins."""
        if self._by_status is not None:
            others = (Key(self._tenant_keys.idle), Key(self._tenant_keys.owned), Key(self._tenant_keys.expiring))
            limits = (self._limit, SCANNED, int(self._descending))
            command: Command = (b"standing", self._key, *others, begin, *limits, self._by_status, *self._times)
            ((after, members),) = await self._tx.read(command)
            return members, None if after < 0 else after
        name = b"ZREVRANGE" if self._descending else b"ZRANGE"
        (members,) = await self._tx.read((name, self._key, begin, begin + size - 1))
        if len(members) < size:
            return members, None
        found = await self._rank(members[-1])
        return members, begin + size if found is None else found + 1

    async def _rank(self, member: bytes) -> int | None:
        name = b"ZREVRANK" if self._descending else b"ZRANK"
        found: int | None = (await self._tx.read((name, self._key, member)))[0]
        return found

    async def _rank_after(self, member: bytes, score: int) -> int:
        """Return the rank after a session; if it is not there any more, it is looked for among those of the same time."""
        found = await self._rank(member)
        if found is not None:
            return found + 1
        behind, command = (b"+inf", b"ZREVRANGE") if self._descending else (b"-inf", b"ZRANGE")
        ends = (b"(%d" % score, behind) if self._descending else (behind, b"(%d" % score)
        begin, same = await self._tx.read((b"ZCOUNT", self._key, *ends), (b"ZCOUNT", self._key, score, score))
        low, high = begin, begin + same
        while low < high:
            middle = (low + high) // 2
            ((other,),) = await self._tx.read((command, self._key, middle, middle))
            low, high = (middle + 1, high) if (other > member) == self._descending else (low, middle)
        return int(low)


def _member(session: Session) -> bytes:
    return name_part(session.user_id) + name_part(session.id) + name_part("")


def _status(session: Session, now: int | None, idle_since: int | None) -> str:
    """Return a session's status as a list counts it: one that has expired is closed."""
    if session.status != "active":
        return session.status
    if session.ttl:
        return "closed" if now is not None and session.accessed_at + session.ttl <= now else "active"
    idle = session.ttl is None and idle_since is not None and session.accessed_at <= idle_since
    return "closed" if idle else "active"
