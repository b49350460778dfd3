"""Read memories (one by id, a page of an owner's memories, or those that answer a question), and record recalls.

Each recall records a signal per hit. No caller waits for signals: signals that arrive together are written together, and a failed
write is retried with the next one and at shutdown. A killed process loses its latest signals, which consolidation can tolerate.
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
from holdfast.secrets import Guard
from holdfast.stores.memories import MemoryStore, OwnedMemories
from holdfast.stores.memory_checks import check_owner
from holdfast.wire.sendable import check_text

_log = logging.getLogger("holdfast.memories")


class SignalWriter:
    """Writes signals of recalls in the background.

    Args:
        store: the store of memories.
        clock: milliseconds since the epoch.
        most: maximum number of signals that may wait; the oldest are dropped.
    """

    def __init__(self, store: MemoryStore, clock: Callable[[], int], most: int = SIGNALS_WAITING) -> None:
        self._store = store
        self._clock = clock
        self._waiting: deque[tuple[Owner, Signal]] = deque(maxlen=most)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def schedule(self, signals: Iterable[tuple[Owner, Signal]]) -> None:
        """Queue signals to be written in the background."""
        self._waiting.extend(signals)
        if self._waiting and not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write(), name="signals of recalls")

    async def drain(self) -> None:
        """Wait until all signals are written or a write has failed."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Write the remaining signals. Closing twice is fine."""
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
        """Queue signals again, before newer ones; if there are too many, the oldest are dropped."""
        most = self._waiting.maxlen or 0
        room = max(0, most - len(self._waiting))
        self._waiting.extendleft(reversed(left[max(0, len(left) - room) :]))


class MemoryReader:
    """The memories of one tenant, for reading.

    Attributes:
        store: the store of memories.
        clock: milliseconds since the epoch.
        settings: how memories are found.

    Args:
        store: see above.
        clock: see above.
        guard: redacts secrets in queries before they are looked up or embedded. None: nothing is redacted.
        index: returns the index service, or None.
        settings: see above.
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
        self._recaller = Recaller(store, index, self.settings.half_lives)
        self._signals = SignalWriter(store, clock)

    @property
    def index(self) -> IndexService | None:
        """The index service; None: there is none."""
        return self._index()

    async def get(self, memory_id: str, *, owners: Collection[Owner] | None = None) -> Memory:
        """Return the memory with an id.

        Args:
            memory_id: the memory's id.
            owners: the owners it may belong to; None: any.

        Raises:
            MemoryNotFound: there is none, or it belongs to another owner.
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
            status: only memories with this status; None: any.
            types: only memories of these types.
            tags: only memories with all of these tags.
            agent: if the owner is not an agent, only memories that this agent remembered.
            after: continue after the memory with this id.
            limit: maximum number of memories to return, up to `PAGE`.
            descending: newest first.

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

        while True:
            page = await self.store.memories(owner, status=status, after=number, limit=limit, descending=descending)
            found += [one for one in page.memories if fits(one)]
            if not page.has_more or len(found) > limit:
                break
            number = page.memories[-1].number
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
            query: the question; it has no syntax.
            user_id: include this user's memories; None: exclude memories of users.
            agent: include this agent's memories; None: exclude memories of agents.
            owners: search these owners instead of the user, the agent and the app.
            mode: `keyword`, `vector` or `hybrid`; None: as configured. Without vectors, a configured mode becomes `keyword`, with
                a note; an explicit `vector` is refused.
            session: the session in which they are recalled, for the signals.
            signal: whether to record the recall, for consolidation.
            now: the time at which memories must be valid, milliseconds since the epoch; None: the current time.
            patience: seconds to wait for the question's vector; after that, only words are used.
            filters: fields of `MemoryFilters`, such as `limit`, `types`, `tags`, `min_score`, `include_quarantined`.

        Raises:
            InvalidRequest: an argument is invalid, or `vector` is requested and there are no vectors.
            EmbeddingFailed: `vector` is requested, and the embedder does not answer.
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
        """Wait until the signals of all recalls are written or a write has failed."""
        await self._signals.drain()

    async def close(self) -> None:
        """Write the remaining signals. Closing twice is fine."""
        await self._signals.close()


def _make_signal(one: Recalled, query: bytes, now: int, session: str) -> Signal:
    closeness = max(one.parts.get("keyword", 0.0), one.parts.get("vector", 0.0))
    return Signal(memory_id=one.memory.id, at=now, query=query, score=min(closeness, 1.0), session=session)
