"""List sessions: by rank in a sorted set, so that a page costs the same at any depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from holdfast.domain.session import Session, SessionRef
from holdfast.stores import checks
from holdfast.stores.redis.connection import Command, Key
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle, load_sessions, read_transaction
from holdfast.stores.redis.keys import name_part, names_of
from holdfast.stores.sessions import SessionPage

PAGE: Final = 500
"""Members that are looked at in one go, where not each is wanted."""
SCANNED: Final = 5000
"""Members that a script looks at before it lets others on."""


class ListMethods(Handle):
    """`SessionStore.list`."""

    @read_transaction()
    async def list(
        self,
        tx: Transaction,
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
        tenant = await self._tidied()
        last = None if after is None else await self.get(after)  # type: ignore[attr-defined]  # the handle has it
        idle_since = now - ttl if now is not None and ttl else None
        key = tenant.recent if user_id is None else self._scope_keys(user_id).recent
        times = ["" if time is None else time for time in (now, idle_since)]
        by_status = None if user_id is not None else status
        pages = _Pages(self, tx, key, by_status, times, limit + 1, descending)
        found: dict[SessionRef, Session] = {}
        async for session in pages.sessions(last, filtered=agent is not None or status is not None):
            if agent is not None and session.agent != agent:
                continue
            if status is None or _status(session, now, idle_since) == status:
                found.setdefault(session.ref, session)  # one that was used meanwhile may come again
            if len(found) > limit:
                break
        return SessionPage(tuple(found.values())[:limit], len(found) > limit)


class _Pages(NamedTuple):
    """Sessions in order, a page at a time."""

    handle: Handle
    tx: Transaction
    key: bytes
    """Of the sorted set that has them."""
    by_status: str | None
    """The status that they are to have, where the tenant's indexes tell it."""
    times: Sequence[int | str]
    limit: int
    descending: bool

    async def sessions(self, last: Session | None, *, filtered: bool) -> Any:
        """Yield sessions after `last`, wherever it is now."""
        begin: int | None = 0 if last is None else await self._rank_after(_member(last), last.updated_at)
        while begin is not None:
            members, begin = await self._page(begin, max(self.limit, PAGE) if filtered else self.limit)
            keys = [self.handle.database.keys.session(self.handle.tenant, *names_of(member)) for member in members]
            for session in await load_sessions(self.tx, keys):
                yield session

    async def _page(self, begin: int, size: int) -> tuple[Sequence[bytes], int | None]:
        """Return the members of a page, and where the next one begins."""
        if self.by_status is not None:
            tenant = self.handle.database.keys.tenant(self.handle.tenant)
            others = (Key(tenant.idle), Key(tenant.owned), Key(tenant.expiring))
            limits = (self.limit, SCANNED, int(self.descending))
            command: Command = (b"standing", self.key, *others, begin, *limits, self.by_status, *self.times)
            ((after, members),) = await self.tx.read(command)
            return members, None if after < 0 else after
        name = b"ZREVRANGE" if self.descending else b"ZRANGE"
        (members,) = await self.tx.read((name, self.key, begin, begin + size - 1))
        if len(members) < size:
            return members, None
        found = await self._rank(members[-1])
        return members, begin + size if found is None else found + 1

    async def _rank(self, member: bytes) -> int | None:
        name = b"ZREVRANK" if self.descending else b"ZRANK"
        found: int | None = (await self.tx.read((name, self.key, member)))[0]
        return found

    async def _rank_after(self, member: bytes, score: int) -> int:
        """Return the rank after a session; if it is not there any more, it is looked for among those of the same time."""
        found = await self._rank(member)
        if found is not None:
            return found + 1
        behind, command = (b"+inf", b"ZREVRANGE") if self.descending else (b"-inf", b"ZRANGE")
        ends = (b"(%d" % score, behind) if self.descending else (behind, b"(%d" % score)
        begin, same = await self.tx.read((b"ZCOUNT", self.key, *ends), (b"ZCOUNT", self.key, score, score))
        low, high = begin, begin + same
        while low < high:
            middle = (low + high) // 2
            ((other,),) = await self.tx.read((command, self.key, middle, middle))
            low, high = (middle + 1, high) if (other > member) == self.descending else (low, middle)
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
