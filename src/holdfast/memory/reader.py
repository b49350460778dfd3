"""Read memories: one, a page of an owner's, or those that answer a question; and record that they were recalled.

Each recall records a signal for each hit. No caller waits for signals: those that arrive together are written together, and a failed write
is tried again with the next one and at shutdown. A process that is killed loses the signals of its last moments, which promotion can
do without.
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
from holdfast.memory.checks import find_owners, list_of
from holdfast.memory.lookup import IndexService, MemorySettings, Recalled, RecalledMemories, Recaller, Wanted
from holdfast.memory.ranking import digest_question
from holdfast.numbers import MOST, check_whole
from holdfast.recall.base import SEARCH_MODES, SearchMode
from holdfast.recall.questions import question_of
from holdfast.secrets import Guard
from holdfast.stores.memories import MemoryStore, OwnedMemories
from holdfast.stores.memory_checks import check_owner
from holdfast.wire.sendable import check_text

_log = logging.getLogger("holdfast.memories")


class Signals:
    """Writes down what was recalled.

    Args:
        store: where to.
        clock: milliseconds since the epoch.
        most: how many may wait; the oldest are let go.
    """

    def __init__(self, store: MemoryStore, clock: Callable[[], int], most: int = SIGNALS_WAITING) -> None:
        self._store = store
        self._clock = clock
        self._waiting: deque[tuple[Owner, Signal]] = deque(maxlen=most)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def soon(self, signals: Iterable[tuple[Owner, Signal]]) -> None:
        """Have signals written, behind whatever is going on."""
        self._waiting.extend(signals)
        if self._waiting and not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write(), name="signals of recalls")

    async def settled(self) -> None:
        """Return when there is nothing left to write, or it cannot be written now."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Write what is left. Closing twice is fine."""
        self._closed = True
        await self.settled()
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
                    _log.warning("%d recalls could not be written down yet: %s", len(signals), exc.code)
                    self._put_back([(owner, signal) for owner, signal in some if owner in owners])
                    return
                del owners[owner]

    def _put_back(self, left: list[tuple[Owner, Signal]]) -> None:
        """Have them wait on, before those that came meanwhile; where these leave too little room, the oldest are let go."""
        most = self._waiting.maxlen or 0
        room = max(0, most - len(self._waiting))
        self._waiting.extendleft(reversed(left[max(0, len(left) - room) :]))


class Recollection:
    """The memories of one tenant, to be read.

    Attributes:
        store: where they are.
        clock: milliseconds since the epoch.
        settings: how they are found.

    Args:
        store: see there.
        clock: see there.
        guard: what happens to secrets in what is asked, before it is looked up or embedded. None: nothing.
        index: the index service; None: there is none.
        settings: see there.
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
        self._signals = Signals(store, clock)

    @property
    def index(self) -> IndexService | None:
        """The index service; None: there is none."""
        return self._index()

    async def get(self, memory_id: str, *, owners: Collection[Owner] | None = None) -> Memory:
        """The memory of that id.

        Args:
            memory_id: which.
            owners: whose it may be; None: anybody's.

        Raises:
            MemoryNotFound: there is none, or it is another owner's.
        """
        check_text(memory_id, "id")
        found = await self.store.find_memory(memory_id)
        if owners is not None and found.owner not in list_of(owners, Owner, "owners"):
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
        """A page of an owner's memories.

        Args:
            owner: whose.
            status: only those; None: of any.
            types: only of these.
            tags: only with all of these.
            agent: only what this agent remembered, of what is another's.
            after: continue behind the memory of that id.
            limit: at most so many, up to `PAGE`.
            descending: the newest first.

        Raises:
            MemoryNotFound: the owner has none of the id `after`.
        """
        types, tags = list_of(types, str, "types"), list_of(tags, str, "tags")
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
        """The memories that answer a question, of the user, the agent and the app, the best first.

        Args:
            query: what is asked; nothing in it is syntax.
            user_id: whose; None: nobody's.
            agent: an agent's, too; None: none's.
            owners: instead of these and the app.
            mode: `keyword`, `vector`, `hybrid`; None: as configured. Without vectors it is `keyword`, and says so; `vector` that is
                asked for here is refused then.
            session: where they are recalled, for the signals.
            signal: whether that is noted, for dreams.
            now: milliseconds since the epoch at which they hold; None: the clock's.
            patience: seconds to wait for the question's vector; then its words have to do.
            filters: `limit`, `types`, `tags`, `min_score`, `include_quarantined` and others of `Wanted`.

        Raises:
            InvalidRequest: something of it cannot be, or `vector` is asked for, and there are none.
            EmbeddingFailed: `vector` is asked for, and the embedder does not answer.
        """
        check_text(query, "query")
        if not query.strip():
            raise InvalidRequest("query is empty: say what is to be recalled", param="query")
        wanted = Wanted(**filters)
        strict, mode = mode == "vector", self._mode(mode)
        owners = find_owners(user_id, agent) if owners is None else list_of(owners, Owner, "owners")
        check_text(session, "session")
        if now is not None:
            check_whole(now, "now", -MOST)
        told = query if self._guard is None else self._guard.mask_text(query)
        at = self.clock() if now is None else now
        found = await self._recaller.recall(told, owners, mode, wanted, at, strict=strict, patience=patience)
        if signal and found.found:
            self._signal(told, found.found, session)
        return found

    def _mode(self, mode: SearchMode | None) -> SearchMode:
        wanted = mode or self.settings.mode or getattr(self._index(), "mode", None) or "keyword"
        if wanted not in SEARCH_MODES:
            raise InvalidRequest(f"mode must be one of {', '.join(SEARCH_MODES)}, not {wanted!r:.80}", param="mode")
        return wanted

    def _signal(self, query: str, found: Sequence[Recalled], session: str) -> None:
        now = self.clock()
        question = question_of(query, now=now, narrow=False)
        if question.terms:  # else nothing in particular was asked for
            digest = digest_question(query, question)
            self._signals.soon((one.memory.owner, _signal(one, digest, now, session)) for one in found)

    async def settled(self) -> None:
        """Return when the signals of all recalls are written, as far as they can be."""
        await self._signals.settled()

    async def close(self) -> None:
        """Write the signals that are left. Closing twice is fine."""
        await self._signals.close()


def _signal(one: Recalled, query: bytes, now: int, session: str) -> Signal:
    closeness = max(one.parts.get("keyword", 0.0), one.parts.get("vector", 0.0))
    return Signal(memory_id=one.memory.id, at=now, query=query, score=min(closeness, 1.0), session=session)
