"""Deliver changes to a tenant's indexes in a cluster, where a user and the tenant may be on different servers.

A write to a user's keys also causes changes of the tenant's indexes, called news. The script that commits the write stores them
in the user's outbox, together with the number of the write. Afterwards the news are applied to the indexes and removed from the
outbox. An index ignores news that are older than what it contains.

If a process crashes after the commit and before that, the news stay in the outbox. Other processes find them there, because every
user is marked in the tenant's keys before a write that may store news. The mark is removed when the outbox is empty, but not
earlier than an hour after the mark was last set.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Sequence
from time import monotonic
from typing import Any, Final

from holdfast.errors import StoreError
from holdfast.stores.logic.network import PATIENCE
from holdfast.stores.redis.connection import Argument
from holdfast.stores.redis.keys import Keys, ScopeKeys
from holdfast.stores.redis.nodes import Nodes, load_script
from holdfast.stores.redis.records import pack, unpack_list

MARKED_SECONDS: Final = 600.0
"""Seconds after marking a user during which this process does not mark the user again."""
MARK_SECONDS: Final = 3600
"""Minimum number of seconds for which a user stays marked."""
MARK_COUNT: Final = 10_000
"""Maximum number of users that this process remembers as marked."""
TIDYING: Final = 300.0
"""Minimum seconds between two checks of a tenant for news that crashed processes left."""
PAGE: Final = 200

_MARK = load_script("mark")
_UNMARK = load_script("unmark")
_APPLY = load_script("news", "apply")
_APPLY_WITH_STATE = load_script("news", "state", "apply")
"""The script that applies news, some of which change the tenant's state."""
_DISCARD = load_script("discard")
_SETTLE = load_script("settle")
_STATE: Final = b"v"
"""The kind of news that change the tenant's state. They may be applied only once, unlike others, so each has a unique name."""
News = tuple[bytes, bytes, tuple[bytes | int, ...]]
"""One change of the tenant's indexes: kind, name and arguments, as `news.lua` describes them."""


class Outbox:
    """Delivers news from users' outboxes to tenants' indexes."""

    def __init__(self, nodes: Nodes, keys: Keys) -> None:
        self._nodes = nodes
        self._keys = keys
        self._marked: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._tidied: dict[str, float] = {}
        self._tidying: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, asyncio.Task[None]] = {}
        """By tenant: the newest task that delivers delayed changes of the tenant's state."""

    # -- a write -----------------------------------------------------------------

    async def mark_user(self, scope: ScopeKeys) -> None:
        """Mark the user in the tenant's keys before a write, unless this process did so recently."""
        name, now = (scope.tenant, scope.user_id), monotonic()
        if self._marked.get(name, 0.0) > now - MARKED_SECONDS:
            return
        await self._nodes.run(_MARK, [self._keys.tenant(scope.tenant).dirty], [scope.user_id], once=False)
        self._marked[name] = now
        self._marked.move_to_end(name)
        if len(self._marked) > MARK_COUNT:
            self._marked.popitem(last=False)

    async def deliver(self, scope: ScopeKeys, number: bytes, news: Sequence[News]) -> None:
        """Deliver the news of a write to the tenant's indexes.

        The write is already committed, so this method raises no error. If the tenant's server cannot be reached, a background
        task delivers the news later. Changes of the tenant's state also wait until earlier, delayed changes were delivered.
        """
        changes = any(kind == _STATE for kind, *_ in news)
        before = self._waiting.get(scope.tenant) if changes else None
        if before is None:
            try:
                await self._apply(scope.tenant, [(number, one) for one in news])
            except StoreError:
                pass
            else:
                self._start_task(self._clear(scope, number, news))
                return
        task = self._start_task(self._persist(scope, number, news, before))
        if changes:
            self._waiting[scope.tenant] = task
            task.add_done_callback(lambda task: self._remove_waiting(scope.tenant, task))

    def _remove_waiting(self, tenant: str, task: asyncio.Task[None]) -> None:
        if self._waiting.get(tenant) is task:
            del self._waiting[tenant]

    async def _persist(
        self, scope: ScopeKeys, number: bytes, news: Sequence[News], before: asyncio.Task[None] | None
    ) -> None:
        """Deliver news in the background, after the delivery `before` has ended.

        If this process ends first, another process finds the news in the outbox.
        """
        if before is not None:
            await asyncio.wait([before])
        try:
            await self._apply(scope.tenant, [(number, one) for one in news])
            await self._clear(scope, number, news)
        except StoreError:
            self._tidied.pop(scope.tenant, None)

    async def _apply(self, tenant: str, news: Iterable[tuple[bytes, News]]) -> None:
        arguments: list[Argument] = []
        keys, shares = self._keys.tenant(tenant), False
        for number, (kind, name, rest) in news:
            arguments += (kind, number, 1 + len(rest), name, *rest)
            shares = shares or kind == _STATE
        places = [*keys.indexes]
        if shares:
            places += (self._keys.user(tenant, "").state, keys.delivered)
        await self._nodes.run(_APPLY_WITH_STATE if shares else _APPLY, places, arguments, once=False)

    async def _clear(self, scope: ScopeKeys, number: bytes, news: Sequence[News]) -> None:
        arguments = [part for one in news for part in (one[0] + one[1], number + b" " + encode_news(one))]
        changes = [name for kind, name, _ in news if kind == _STATE]
        try:
            await self._nodes.run(_DISCARD, [scope.outbox], arguments, once=False)
            if changes:
                await self._nodes.run(_SETTLE, [self._keys.tenant(scope.tenant).delivered], changes, once=False)
        except StoreError:  # the next process that finds the news applies them again, without effect
            return

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait for the background deliveries."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)

    # -- news of crashed processes -------------------------------------------------

    async def tidy(self, tenant: str) -> None:
        """Deliver the news that crashed processes left in the outboxes of the tenant's users, unless that was checked recently."""
        if self._tidied.get(tenant, -TIDYING) > monotonic() - TIDYING:
            return
        if tenant not in self._tidying:
            task = self._tidying[tenant] = asyncio.get_running_loop().create_task(self._tidy(tenant))
            task.add_done_callback(lambda _: self._tidying.pop(tenant, None))
        await asyncio.shield(self._tidying[tenant])

    async def _tidy(self, tenant: str) -> None:
        dirty = self._keys.tenant(tenant).dirty
        at = 0
        while users := await self._nodes.call(dirty, (b"ZRANGE", dirty, at, at + PAGE - 1)):
            empty = await self._deliver_outboxes(tenant, [user.decode() for user in users])
            if empty:
                await self._nodes.run(_UNMARK, [dirty], [MARK_SECONDS, *empty], once=False)
            left = await self._nodes.call(dirty, (b"ZRANGE", dirty, at, at + PAGE - 1))
            at += sum(user in set(users) for user in left)
            if len(users) < PAGE:
                break
        self._tidied[tenant] = monotonic()

    async def _deliver_outboxes(self, tenant: str, users: Sequence[str]) -> list[str]:
        """Deliver the news in some users' outboxes; return the users whose outboxes were empty."""
        scopes = [self._keys.user(tenant, user) for user in users]
        found = await asyncio.gather(*(self._nodes.call(scope.outbox, (b"HGETALL", scope.outbox)) for scope in scopes))
        for scope, flat in zip(scopes, found, strict=True):
            if flat:
                await self._deliver_stored(tenant, scope, flat[1::2])
        return [scope.user_id for scope, flat in zip(scopes, found, strict=True) if not flat]

    async def _deliver_stored(self, tenant: str, scope: ScopeKeys, values: Sequence[bytes]) -> None:
        for value in values:
            number, _, data = value.partition(b" ")
            kind, name, *rest = unpack_list(data)
            one: News = (kind, name, tuple(rest))
            await self._apply(tenant, [(number, one)])
            await self._clear(scope, number, [one])


def encode_news(news: News) -> bytes:
    """Encode one change of the tenant's indexes. In an outbox, these bytes follow the number of the write."""
    kind, name, rest = news
    return pack([kind, name, *rest])
