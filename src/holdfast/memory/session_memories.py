"""Memories as a session sees them: those of its user, its agent and the app; what is remembered in it is the user's.

Where several users take part, the owner's are not for them: only the agent's and the app's are seen, and nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from holdfast.accounting import run_cpu
from holdfast.domain.memory import MemorySource, MemoryType, Origin, Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, MemoryNotFound, StoreError
from holdfast.memory.checks import find_owners
from holdfast.memory.lookup import RecalledMemories
from holdfast.memory.memories import Memories, Remembered
from holdfast.memory.provenance import SAID_AT_ONCE, Heard, find_origin, make_heard, terms_in
from holdfast.recall.base import Candidate, Channel, Filters, Lookup, SearchMode, Space

USUAL: Final = 5
_ELSEWHERE: Final = 8
"""Entries of the user's other sessions that are compared with a new memory, of each channel."""
Reading = Callable[[str, str, int], Awaitable[str | None]]
"""What an entry of one of the user's sessions says, by the session's id and identity and its `seq`; None: it is not there any more."""


async def _unread(session: str, identity: str, seq: int) -> str | None:
    return None


async def _nothing(before: int) -> bool:
    return False


class SessionMemories:
    """Memories within a session: nobody who calls this reaches another user's, whatever is asked for.

    Attributes:
        ref: the session.
        identity: its, see `Session.identity`.
        shared: whether others than its user may read what is said in it.

    Args:
        service: the tenant's.
        ref: see there.
        identity: see there.
        shared: see there.
        agent: who answers in it; None: no agent.
        most: memories that a recall gives where nobody says how many; None: the usual number.
        told: whether the prompt has a content already.
        quotes: whether the prompt has something recalled in it that others than the user said.
        read: see `Reading`.
        root: id of the session for whose sake things are recalled here, where it is another one.
    """

    def __init__(
        self,
        service: Memories,
        ref: SessionRef,
        identity: str,
        agent: str | None,
        *,
        most: int | None = None,
        told: Callable[[str], bool] = lambda _: False,
        shared: bool = False,
        quotes: Callable[[], bool] = lambda: False,
        read: Reading = _unread,
        root: str | None = None,
    ) -> None:
        self._service = service
        self._most = most or USUAL
        self.told = told
        self.shared = shared
        self.ref = ref
        self.identity = identity
        self._agent = agent
        self._quotes = quotes
        self._read = read
        self._root = root or ref.id

    @property
    def owners(self) -> tuple[Owner, ...]:
        """Whose memories are seen."""
        return find_owners(None if self.shared else self.ref.user_id, self._agent)

    async def remember(
        self,
        content: str,
        known: Collection[Heard],
        own: MemorySource,
        *,
        before: int = 0,
        earlier: Callable[[int], Awaitable[bool]] = _nothing,
        tags: Collection[str] = (),
        **fields: Any,
    ) -> Remembered:
        """Remember something for the user, trusted as where its words come from.

        Args:
            content: what it says.
            known: what was said in the session.
            own: the entry that asks for it.
            before: `seq` of the first entry of the session that `known` may have.
            earlier: whether something from elsewhere stands in the session before a `seq`.
            tags: see `Memories.remember`, as `fields`.
            fields: `type`, `importance`.
        """
        elsewhere = await self._elsewhere("\n".join((content, *tags)), before)
        trace = find_origin(content, [*known, *elsewhere], own, tags)
        doubtful = trace.doubtful or (trace.origin == "assistant" and (self._quotes() or await earlier(before)))
        return await self._service.remember(
            content,
            user_id=self.ref.user_id,
            agent=self._agent,
            origin=trace.origin,
            sources=trace.sources,
            tags=tags,
            held=doubtful,
            **fields,
        )

    async def recall(
        self,
        query: str,
        *,
        limit: int | None = None,
        mode: SearchMode | None = None,
        types: Collection[MemoryType] = (),
        **more: Any,
    ) -> RecalledMemories:
        """What answers a question; see `Memories.recall`."""
        return await self._service.recall(
            query, owners=self.owners, limit=limit or self._most, mode=mode, types=types, session=self._root, **more
        )

    async def forget(self, memory_id: str) -> tuple[str, ...]:
        """Forget a memory of the user's that may be recalled: what was rejected stays rejected.

        Raises:
            MemoryNotFound: there is none, or it is another's.
            InvalidRequest: several take part.
        """
        if self.shared:
            raise InvalidRequest("several users take part in this conversation: nothing is forgotten here")
        owners = (Owner("user", self.ref.user_id),)
        found = await self._service.get(memory_id, owners=owners)
        if found.status == "rejected" or found.is_proposal:
            raise MemoryNotFound(memory_id)
        return await self._service.forget(memory_id, owners=owners)

    async def _elsewhere(self, content: str, before: int) -> list[Heard]:
        """What was said of it in the user's other sessions, and in this one before a `seq`, as far as an index knows."""
        service = self._service.index
        terms = tuple(sorted(terms_in(content)))
        if service is None or not terms:
            return []
        found: list[Heard] = []
        channels: tuple[tuple[Channel, tuple[str, ...]], ...] = (("talk", ("user",)), ("tool", ()))
        for channel, roles in channels:
            lookup = Lookup(
                space=Space("talk", self.ref.user_id), terms=terms, channel=channel, filters=Filters(roles=roles)
            )
            try:
                candidates = (await service.index.lookup(lookup)).found
            except StoreError:
                return []
            others = (one for one in candidates if one.session != self.ref.id or one.seq < before)
            best = sorted(others, key=lambda one: (-len(one.counts), -one.at))[:_ELSEWHERE]
            found += [await self._heard(one, channel, len(terms)) for one in best]
        return found

    async def _heard(self, one: Candidate, channel: Channel, terms: int) -> Heard:
        """An entry as the index has it: the user's, unless another one is named as who speaks.

        Where it is the user's and has much of the `terms`, it is read again: what it only asks about is not what it states.
        """
        user = self.ref.user_id
        origin: Origin = "tool" if channel == "tool" else "user" if one.name in (None, user) else "import"
        source = MemorySource(
            session_id=one.session, user_id=user, identity=one.identity, seqs=(one.seq,), origin=origin
        )
        made = Heard(origin, frozenset(one.counts), source)
        if origin != "user" or len(made.terms) < SAID_AT_ONCE * terms:
            return made
        text = await self._read(one.session, one.identity, one.seq)
        if text is None:
            return made._replace(terms=frozenset())
        return await run_cpu(make_heard, text, origin, source)
