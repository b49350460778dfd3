"""Reading memories: one, a page of an owner's, or what answers a question, of all owners that may be seen.

Every recall leaves a signal for each hit, behind; see `holdfast.memory.signalling`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from holdfast.domain.memory import Memory, Owner, Signal
from holdfast.errors import InvalidRequest, MemoryNotFound
from holdfast.limits import SEARCH_VECTOR_SECONDS
from holdfast.memory.checks import list_of, seen_by
from holdfast.memory.lookup import IndexService, MemorySettings, Recalled, RecalledMemories, Recaller, Wanted
from holdfast.memory.ranking import asked
from holdfast.memory.signalling import Signals
from holdfast.numbers import MOST, check_whole
from holdfast.recall.base import SEARCH_MODES, SearchMode
from holdfast.recall.questions import question_of
from holdfast.secrets import Guard
from holdfast.stores.memories import MemoryStore, OwnedMemories
from holdfast.stores.memory_checks import check_owner
from holdfast.wire.sendable import check_text


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
        owners = seen_by(user_id, agent) if owners is None else list_of(owners, Owner, "owners")
        check_text(session, "session")
        if now is not None:
            check_whole(now, "now", -MOST)
        told = query if self._guard is None else self._guard.told(query)
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
            digest = asked(query, question)
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
