"""Read memories: one by its id, a page of an owner's memories, or those that answer a question. Record which ones were recalled.

Each recall writes one signal (a record of the recall) per memory that it returns. Consolidation uses the signals. They are written in
the background, several at once. If a write fails, it is retried when the next signals are written and at shutdown. A killed process
loses its latest signals, which consolidation can tolerate.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from holdfast.domain.memory import Memory, MemoryDelta, Owner, Signal
from holdfast.errors import HoldfastError, InvalidRequest, MemoryNotFound
from holdfast.limits import PAGE, SEARCH_VECTOR_SECONDS, SIGNALS_WAITING
from holdfast.memory.checks import find_owners, to_tuple
from holdfast.memory.lookup import IndexService, MemoryFilters, MemorySettings, Recalled, RecalledMemories, Recaller
from holdfast.memory.ranking import digest_question
from holdfast.numbers import MOST, check_whole
from holdfast.recall.base import SEARCH_MODES, SearchMode
from holdfast.recall.questions import parse_question
from holdfast.secrets.guard import Guard
from holdfast.stores.logic.memories import MemoryStore, check_owner
from holdfast.stores.memories import OwnedMemories
from holdfast.stores.walk import iterate_memory_pages
from holdfast.wire.sendable import check_text

_log = logging.getLogger("holdfast.memories")


class SignalWriter:
    """Writes signals of recalls in the background.

    Args:
        store: the store of memories.
        clock: returns the current time, in milliseconds since the epoch.
        most: maximum number of signals in the queue. If there are more, the oldest are dropped.
    """

    def __init__(self, store: MemoryStore, clock: Callable[[], int], most: int = SIGNALS_WAITING) -> None:
        self._store = store
        self._clock = clock
        self._waiting: deque[tuple[Owner, Signal]] = deque(maxlen=most)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def schedule(self, signals: Iterable[tuple[Owner, Signal]]) -> None:
        """Queue signals, which are then written in the background."""
        self._waiting.extend(signals)
        if self._waiting and not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write(), name="signals of recalls")

    async def drain(self) -> None:
        """Wait until all signals are written or a write fails."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Write the remaining signals. Closing twice is allowed."""
        self._closed = True
        await self.drain()
        await self._write()

    async def _write(self) -> None:
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(PAGE, len(self._waiting)))]
            owners: dict[Owner, list[Signal]] = {}
            for owner, signal in some:
                owners.setdefault(owner, []).append(signal)
            while owners:
                owner, signals = next(iter(owners.items()))
                try:
                    delta = MemoryDelta(signals=tuple(signals))
                    await self._store.change_memories(owner, delta, timestamp=self._clock())
                except HoldfastError as exc:
                    _log.warning("%d recalls could not be recorded yet: %s", len(signals), exc.code)
                    self._put_back([(owner, signal) for owner, signal in some if owner in owners])
                    return
                del owners[owner]

    def _put_back(self, left: list[tuple[Owner, Signal]]) -> None:
        """Put signals back at the front of the queue. If there are too many, the oldest are dropped."""
        most = self._waiting.maxlen or 0
        room = max(0, most - len(self._waiting))
        self._waiting.extendleft(reversed(left[max(0, len(left) - room) :]))


class MemoryReader:
    """The memories of one tenant, for reading. The arguments `store`, `clock` and `settings` become attributes.

    Args:
        store: the store of memories.
        clock: returns the current time, in milliseconds since the epoch.
        guard: redacts secrets in questions before they are looked up or embedded. None: nothing is redacted.
        index: returns the index service; None if there is no index.
        settings: settings for finding memories.
    """

    def __init__(
        self,
        store: MemoryStore,
        clock: Callable[[], int],
        *,
        guard: Guard | None = None,
        index: Callable[[], IndexService | None] = lambda: None,
        settings: MemorySettings | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings or MemorySettings()
        self._guard = guard
        self._index = index
        self._recaller = Recaller(store, index)
        self._signals = SignalWriter(store, clock)

    @property
    def index(self) -> IndexService | None:
        """The index service; None if there is no index."""
        return self._index()

    async def get(self, memory_id: str, *, owners: Collection[Owner] | None = None) -> Memory:
        """Return a memory.

        Args:
            memory_id: the memory's id.
            owners: the owners that the memory may belong to; None: any owner.

        Raises:
            MemoryNotFound: there is no memory with this id, or it belongs to another owner.
        """
        check_text(memory_id, "id")
        found = await self.store.find_memory(memory_id)
        if owners is not None and found.owner not in to_tuple(owners, Owner, "owners"):
            raise MemoryNotFound(memory_id)
        return found

    async def page(
        self,
        owner: Owner,
        *,
        status: str | None = None,
        types: Collection[str] = (),
        tags: Collection[str] = (),
        agent: str | None = None,
        after: str | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> OwnedMemories:
        """Return a page of an owner's memories.

        Args:
            owner: the owner.
            status: only memories with this status; None: any status.
            types: only memories of these types; empty: any type.
            tags: only memories with all of these tags.
            agent: only memories that this agent remembered. It is ignored if the owner is an agent.
            after: start after the memory with this id.
            limit: maximum number of memories to return, up to `PAGE`.
            descending: True: newest first; False: oldest first.

        Raises:
            MemoryNotFound: the owner has no memory with the id `after`.
        """
        types, tags = to_tuple(types, str, "types"), to_tuple(tags, str, "tags")
        for name, value, none in (("status", status, True), ("agent", agent, True)):
            check_text(value, name, none=none)
        check_owner(owner)
        number = None if after is None else (await self.get(after, owners=(owner,))).number
        found: list[Memory] = []

        def fits(one: Memory) -> bool:
            remembered = agent is None or owner.kind == "agent" or one.agent == agent
            return remembered and (not types or one.type in types) and set(tags) <= set(one.tags)

        filters = {"status": status, "limit": limit, "descending": descending}
        async for page in iterate_memory_pages(self.store, owner, after=number, **filters):
            found += [one for one in page.memories if fits(one)]
            if len(found) > limit:
                break
        more = len(found) > limit
        return OwnedMemories(page.version, tuple(found[:limit]), page.total, has_more=more)

    async def recall(
        self,
        query: str,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        owners: Sequence[Owner] | None = None,
        mode: SearchMode | None = None,
        session: str = "",
        signal: bool = True,
        now: int | None = None,
        patience: float = SEARCH_VECTOR_SECONDS,
        **filters: Any,
    ) -> RecalledMemories:
        """Return the memories of the user, the agent and the app that answer a question, best first.

        Args:
            query: the question, in plain words.
            user_id: the user whose memories are searched; None: no user's memories.
            agent: the agent whose memories are searched; None: no agent's memories.
            owners: the owners to search instead of the user, the agent and the app.
            mode: `keyword`, `vector` or `hybrid`; None: the configured mode. If vectors are not available, `vector` raises an error;
                in all other cases the memories are searched by words, and the result has a note.
            session: the id of the session that recalls the memories, for the signals.
            signal: True: record the recall, for consolidation.
            now: the time at which memories must be valid, in milliseconds since the epoch; None: the current time.
            patience: seconds to wait for the question's vector. After that, vectors are not available.
            filters: fields of `MemoryFilters`, such as `limit`, `types`, `tags`, `min_score` or `include_quarantined`.

        Raises:
            InvalidRequest: an argument is invalid, or `mode` is `vector` and no embedder is configured.
            EmbeddingFailed: `mode` is `vector`, and the embedder fails or takes too long.
        """
        check_text(query, "query")
        if not query.strip():
            raise InvalidRequest("query is empty: say what to recall", param="query")
        wanted = MemoryFilters(**filters)
        strict, mode = mode == "vector", self._choose_mode(mode)
        owners = find_owners(user_id, agent) if owners is None else to_tuple(owners, Owner, "owners")
        check_text(session, "session")
        if now is not None:
            check_whole(now, "now", -MOST)
        masked = query if self._guard is None else self._guard.mask_text(query)
        at = self.clock() if now is None else now
        found = await self._recaller.recall(masked, owners, mode, wanted, at, strict=strict, patience=patience)
        if signal and found.found:
            self._record_signals(masked, found.found, session)
        return found

    def _choose_mode(self, mode: SearchMode | None) -> SearchMode:
        wanted = mode or self.settings.mode or getattr(self._index(), "mode", None) or "keyword"
        if wanted not in SEARCH_MODES:
            raise InvalidRequest(f"mode must be one of {', '.join(SEARCH_MODES)}, not {wanted!r:.80}", param="mode")
        return wanted

    def _record_signals(self, query: str, found: Sequence[Recalled], session: str) -> None:
        now = self.clock()
        question = parse_question(query, now=now, narrow=False)
        if question.terms:  # a question without terms is not about any topic
            digest = digest_question(query, question)
            self._signals.schedule((one.memory.owner, _make_signal(one, digest, now, session)) for one in found)

    async def settled(self) -> None:
        """Wait until the signals of all recalls are written or a write fails."""
        await self._signals.drain()

    async def close(self) -> None:
        """Write the remaining signals. Closing twice is allowed."""
        await self._signals.close()


def _make_signal(one: Recalled, query: bytes, now: int, session: str) -> Signal:
    closeness = max(one.parts.get("keyword", 0.0), one.parts.get("vector", 0.0))
    return Signal(memory_id=one.memory.id, at=now, query=query, score=min(closeness, 1.0), session=session)
