"""The memories that an agent can use in a session: those of the session's user, of the agent and of the app.

New memories belong to the user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from holdfast.accounting import run_cpu
from holdfast.domain.memory import MemorySource, MemoryType, Origin, Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import MemoryNotFound, StoreError
from holdfast.memory.checks import find_owners
from holdfast.memory.lookup import RecalledMemories
from holdfast.memory.memories import Memories, Remembered
from holdfast.memory.provenance import SAID_AT_ONCE, HeardText, Trace, extract_origin_terms, find_origin, make_heard
from holdfast.recall.base import Candidate, Channel, Filters, Lookup, SearchMode, Space

USUAL: Final = 5
_ELSEWHERE: Final = 8
"""Maximum number of entries from the index, per channel, with which a new memory is compared, in addition to the texts that the caller
passes."""
Reading = Callable[[str, str, int], Awaitable[str | None]]
"""Type of functions that return the text of an entry in a session of the user, or None if the entry no longer exists. The arguments are
the session's id, the session's identity and the entry's `seq`."""


async def _read_nothing(session: str, identity: str, seq: int) -> str | None:
    return None


async def _return_false(before: int) -> bool:
    return False


class SessionMemories:
    """The memories that can be used in a session. No call can reach another user's memories.

    The arguments `ref`, `identity` and `is_in_prompt` become attributes.

    Args:
        service: the tenant's memories.
        ref: the session.
        identity: the session's identity (`Session.identity`).
        agent: the agent that answers in the session; None: no agent.
        most: the default limit of a recall; None: `USUAL`.
        is_in_prompt: returns True if the prompt contains a memory's content already.
        quotes: returns True if the prompt contains recalled words that are not the user's own.
        read: reads an entry; see `Reading`.
        root: id of the session that signals of recalls name. It differs from this session's id if this session works on behalf of another
            one. None: this session.
    """

    def __init__(
        self,
        service: Memories,
        ref: SessionRef,
        identity: str,
        agent: str | None,
        *,
        most: int | None = None,
        is_in_prompt: Callable[[str], bool] = lambda _: False,
        quotes: Callable[[], bool] = lambda: False,
        read: Reading = _read_nothing,
        root: str | None = None,
    ) -> None:
        self._service = service
        self._most = most or USUAL
        self.is_in_prompt = is_in_prompt
        self.ref = ref
        self.identity = identity
        self._agent = agent
        self._quotes = quotes
        self._read = read
        self._root = root or ref.id

    @property
    def owners(self) -> tuple[Owner, ...]:
        """The owners whose memories are visible in the session."""
        return find_owners(self.ref.user_id, self._agent)

    async def remember(
        self,
        content: str,
        known: Collection[HeardText],
        own: MemorySource,
        *,
        before: int = 0,
        earlier: Callable[[int], Awaitable[bool]] = _return_false,
        tags: Collection[str] = (),
        **fields: Any,
    ) -> Remembered:
        """Remember a statement for the user. First determine who said its words (the origin), because the memory's trust depends on it.

        Args:
            content: the text of the memory.
            known: the texts that the model has seen in the session.
            own: the model's entry that requests the memory.
            before: the lowest `seq` of this session's entries in `known`. Earlier entries are searched in the index.
            earlier: returns True if the session's entries before this `seq` have content from other sources.
            tags: as in `Memories.remember`.
            fields: `type` and `importance`, as in `Memories.remember`.
        """
        trace = await self.trace(content, known, own, before=before, earlier=earlier, tags=tags)
        return await self._service.remember(
            content,
            user_id=self.ref.user_id,
            agent=self._agent,
            origin=trace.origin,
            sources=trace.sources,
            tags=tags,
            held=trace.doubtful,
            **fields,
        )

    async def trace(
        self,
        content: str,
        known: Collection[HeardText],
        own: MemorySource,
        *,
        before: int = 0,
        earlier: Callable[[int], Awaitable[bool]] = _return_false,
        tags: Collection[str] = (),
    ) -> Trace:
        """Determine who said the words of a text, and whether they may be rephrased content from outside. The arguments are those of `remember`."""
        elsewhere = await self._find_elsewhere("\n".join((content, *tags)), before)
        found = find_origin(content, [*known, *elsewhere], own, tags)
        doubtful = found.doubtful or (found.origin == "assistant" and (self._quotes() or await earlier(before)))
        return found._replace(doubtful=doubtful)

    async def recall(
        self,
        query: str,
        *,
        limit: int | None = None,
        mode: SearchMode | None = None,
        types: Collection[MemoryType] = (),
        **more: Any,
    ) -> RecalledMemories:
        """Return the visible memories that answer a question, best first. The arguments are the same as those of `MemoryReader.recall`."""
        return await self._service.recall(
            query, owners=self.owners, limit=limit or self._most, mode=mode, types=types, session=self._root, **more
        )

    async def forget(self, memory_id: str) -> tuple[str, ...]:
        """Delete a memory of the user and its history; return the ids of all deleted memories.

        Raises:
            MemoryNotFound: the user has no memory with this id, or the memory is rejected. A rejected memory must be
                kept, because otherwise the rejection would be forgotten.
        """
        owners = (Owner("user", self.ref.user_id),)
        found = await self._service.get(memory_id, owners=owners)
        if found.status == "rejected":
            raise MemoryNotFound(memory_id)
        return await self._service.forget(memory_id, owners=owners)

    async def _find_elsewhere(self, content: str, before: int) -> list[HeardText]:
        """Search the index for entries that have words in common with a new memory.

        The user's other sessions are searched, and the entries of this session whose `seq` is lower than `before`.
        """
        service = self._service.index
        terms = tuple(sorted(extract_origin_terms(content)))
        if service is None or not terms:
            return []
        found: list[HeardText] = []
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
            found += [await self._make_heard(one, channel, len(terms)) for one in best]
        return found

    async def _make_heard(self, one: Candidate, channel: Channel, terms: int) -> HeardText:
        """Make a `HeardText` from an entry that the index found.

        An entry of channel `talk` is treated as the user's own unless it names another speaker. If a user's entry contains many of the
        memory's terms, its text is read to find out which words it only asks about.

        Args:
            one: the entry.
            channel: the channel of the entry.
            terms: the number of terms of the memory.
        """
        user = self.ref.user_id
        origin: Origin = "tool" if channel == "tool" else "user" if one.name in (None, user) else "import"
        source = MemorySource(
            session_id=one.session, user_id=user, identity=one.identity, seqs=(one.seq,), origin=origin
        )
        made = HeardText(origin, frozenset(one.counts), source)
        if origin != "user" or len(made.terms) < SAID_AT_ONCE * terms:
            return made
        text = await self._read(one.session, one.identity, one.seq)
        if text is None:
            return made._replace(terms=frozenset())
        return await run_cpu(make_heard, text, origin, source)
