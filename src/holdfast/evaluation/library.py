"""A set through the library: its conversations imported into a store in memory, and its questions asked of `Holdfast.search`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from holdfast.context.recalled import RecallSettings
from holdfast.errors import EmbeddingFailed
from holdfast.evaluation.dataset import Dataset, Query, Sample
from holdfast.evaluation.finders import Found
from holdfast.evaluation.plain import TOOL
from holdfast.holdfast import Holdfast
from holdfast.indexes.settings import IndexSettings
from holdfast.lifecycle.settings import LifeSettings
from holdfast.limits import SEARCH_RESULTS
from holdfast.recall.base import SearchMode
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import Asked, SearchResults
from holdfast.turns.recall import LEAST_SHARE

_ROLES: Final = ("user", "assistant")
_DAY: Final = 86_400_000


class Library:
    """The conversations of a set in a Holdfast of their own, a user for each sample; an async context.

    Args:
        dataset: the set. What has another role than `user` and `assistant` counts as the user's.
        embedder: for the modes `vector` and `hybrid`; see `holdfast.embedders.embedder_of`.
        on_session: called behind each session that is imported.
    """

    def __init__(
        self, dataset: Dataset, *, embedder: Any = None, on_session: Callable[[], None] = lambda: None
    ) -> None:
        self._samples = dataset.samples
        self._on_session = on_session
        self._now = max((turn.at for sample in self._samples for turn in sample.turns), default=0) + _DAY
        index = IndexSettings(embedder=embedder)
        life = LifeSettings(session_ttl=0)  # questions may come months after the last message
        self._holdfast = Holdfast("sqlite://:memory:", index=index, life=life, clock=lambda: self._now)
        self._places: list[dict[tuple[str, int], int]] = []

    async def __aenter__(self) -> Self:
        await self._holdfast.__aenter__()
        try:
            for number, sample in enumerate(self._samples):
                self._places.append({})
                for session in range(len(sample.sessions)):
                    await self._import(number, sample, session)
                    self._on_session()
            index = self._holdfast.engine.index
            assert index is not None, "an index was asked for"
            await index.settled()
        except BaseException:
            await self._holdfast.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._holdfast.close()

    async def find(self, mode: SearchMode, number: int, query: Query, enough: Callable[[Sequence[int]], bool]) -> Found:
        """The turns that a search finds for a question, page by page until there are enough, and the sessions.

        Raises:
            EmbeddingFailed: the question got no vector, and was searched by keyword only.
        """
        turns: list[int] = []
        after = None
        while True:
            page = await self._search(mode, number, query, after=after)
            turns += self._turns(number, page)
            after = page.cursor
            if after is None or enough(turns):
                break
        best = await self._search(mode, number, query, session_level=True)
        return Found(turns, [int(hit.session_id) for hit in best.hits])

    async def first(self, mode: SearchMode, number: int, query: Query, limit: int) -> Sequence[int]:
        """The first turns that a search finds in a sample, also for a question of another one. Raises like `find`."""
        return self._turns(number, await self._search(mode, number, query, limit=limit))

    async def recalled(self, mode: SearchMode, number: int, query: Query) -> Sequence[int]:
        """The turns that would come into a prompt of the sample's user by themselves: see `holdfast.turns.recall`. Raises like `find`."""
        most = RecallSettings().max_results
        asked = Asked(mode=mode, limit=most, bare=True, least=LEAST_SHARE, sure=True)
        self._set_clock(number, query)
        page = await search_conversations(self._holdfast.engine, str(number), query.text, asked)
        return self._turns(number, _by(mode, page))

    async def _search(
        self, mode: SearchMode, number: int, query: Query, *, limit: int = SEARCH_RESULTS, **how: Any
    ) -> SearchResults:
        self._set_clock(number, query)
        mode = "keyword" if query.role == TOOL else mode  # results of tools have no vectors
        page = await self._holdfast.search(
            query.text, user_id=str(number), mode=mode, limit=limit, role=query.role, **how
        )
        return _by(mode, page)

    def _set_clock(self, number: int, query: Query) -> None:
        """The question is asked when it says, else when the last thing was said."""
        self._now = query.asked or max(turn.at for turn in self._samples[number].turns)

    def _turns(self, number: int, page: SearchResults) -> list[int]:
        return [self._places[number][hit.session_id, hit.seq] for hit in page.hits]

    async def _import(self, number: int, sample: Sample, session: int) -> None:
        """Import one session."""
        chosen = [at for at, turn in enumerate(sample.turns) if turn.session == session]
        messages, places = messages_of_turns(sample, chosen)
        self._places[number] |= {(str(session), seq): at for seq, at in places.items()}
        if messages:
            await self._holdfast.import_({"messages": messages}, session_id=str(session), user_id=str(number))


def messages_of_turns(sample: Sample, chosen: Iterable[int]) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Return turns as messages of a log, and by place in the log which turn a message is.

    A result of a tool follows a call that was made up for it. Turns without a text have no place in a log, and nothing finds them.

    Args:
        sample: whose turns.
        chosen: their places in the sample.
    """
    messages: list[dict[str, Any]] = []
    places: dict[int, int] = {}
    for at in chosen:
        turn = sample.turns[at]
        if not turn.text.strip():
            continue
        message: dict[str, Any] = {"content": turn.text, "timestamp": turn.at}
        if turn.role == TOOL:
            message |= {"role": TOOL, "tool_call_id": _call(messages, turn.at)}
        else:
            message["role"] = turn.role if turn.role in _ROLES else "user"
            if turn.name is not None:
                message["name"] = turn.name
        places[len(messages)] = at
        messages.append(message)
    return messages, places


def _call(messages: list[dict[str, Any]], at: int) -> str:
    """Have the assistant call a tool, as a result follows that a provider would refuse without; the id of the call."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None, "timestamp": at})
    id_ = f"call_{len(messages)}"
    messages[-1]["tool_calls"] = [{"id": id_, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]
    return id_


def _by(mode: SearchMode, page: SearchResults) -> SearchResults:
    """The page, if that was searched by. Raises `EmbeddingFailed`."""
    if page.mode != mode:
        raise EmbeddingFailed(f"a question could not be searched by {mode}: {'; '.join(page.notes)}", again=True)
    return page
