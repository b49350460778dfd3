"""Memories as a session sees them: those of its user, its agent and the app; what is remembered in it is the user's.

Where several users take part, the owner's are not for them: only the agent's and the app's are seen, and nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from holdfast.errors import InvalidRequest, StoreError
from holdfast.memories import MemorySource, MemoryType, Origin, Owner
from holdfast.memory_checks import seen_by
from holdfast.provenance import Heard, terms_in, traced
from holdfast.recall.base import Candidate, Channel, Filters, Lookup, Space
from holdfast.recalling import RecalledMemories
from holdfast.recollecting import Mode
from holdfast.remembering import Memories, Remembered
from holdfast.session import SessionRef

USUAL: Final = 5
_ELSEWHERE: Final = 8
"""Entries of the user's other sessions that are compared with a new memory, of each channel."""


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
    ) -> None:
        self._service = service
        self._most = most or USUAL
        self.told = told
        self.shared = shared
        self.ref = ref
        self.identity = identity
        self._agent = agent

    @property
    def owners(self) -> tuple[Owner, ...]:
        """Whose memories are seen."""
        return seen_by(None if self.shared else self.ref.user_id, self._agent)

    async def remember(
        self,
        content: str,
        known: Collection[Heard],
        own: MemorySource,
        *,
        before: int = 0,
        tags: Collection[str] = (),
        **fields: Any,
    ) -> Remembered:
        """Remember something for the user, trusted as where its words come from.

        Args:
            content: what it says.
            known: what was said in the session.
            own: the entry that asks for it.
            before: `seq` of the first entry of the session that `known` may have.
            tags: see `Memories.remember`, as `fields`.
            fields: `type`, `importance`.
        """
        elsewhere = await self._elsewhere("\n".join((content, *tags)), before)
        trace = traced(content, [*known, *elsewhere], own, tags)
        return await self._service.remember(
            content,
            user_id=self.ref.user_id,
            agent=self._agent,
            origin=trace.origin,
            sources=trace.sources,
            tags=tags,
            **fields,
        )

    async def recall(
        self,
        query: str,
        *,
        limit: int | None = None,
        mode: Mode | None = None,
        types: Collection[MemoryType] = (),
        **more: Any,
    ) -> RecalledMemories:
        """What answers a question; see `Memories.recall`."""
        return await self._service.recall(
            query, owners=self.owners, limit=limit or self._most, mode=mode, types=types, session=self.ref.id, **more
        )

    async def forget(self, memory_id: str) -> tuple[str, ...]:
        """Forget a memory of the user's. Raises `MemoryNotFound`, for another's too; `InvalidRequest` where several take part."""
        if self.shared:
            raise InvalidRequest("several users take part in this conversation: nothing is forgotten here")
        return await self._service.forget(memory_id, owners=(Owner("user", self.ref.user_id),))

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
            found += [self._heard(one, channel) for one in best]
        return found

    def _heard(self, one: Candidate, channel: Channel) -> Heard:
        """An entry as the index has it: the user's, unless another one is named as who speaks."""
        user = self.ref.user_id
        origin: Origin = "tool" if channel == "tool" else "user" if one.name in (None, user) else "import"
        source = MemorySource(
            session_id=one.session, user_id=user, identity=one.identity, seqs=(one.seq,), origin=origin
        )
        return Heard(origin, frozenset(one.counts), source)
