"""Search a dataset with the library: import its conversations into a store in memory, and pass its questions to `Holdfast.search`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.evaluation.dataset import Dataset, Query, Sample, SearchResult
from benchmarks.evaluation.plain import TOOL
from holdfast.context.recalled import RecallSettings
from holdfast.errors import EmbeddingFailed
from holdfast.holdfast import Holdfast
from holdfast.indexes.settings import IndexSettings
from holdfast.lifecycle.settings import LifeSettings
from holdfast.limits import SEARCH_RESULTS
from holdfast.recall.base import SearchMode
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions, SearchResults
from holdfast.turns.recall import LEAST_SHARE

_ROLES: Final = ("user", "assistant")
_DAY: Final = 86_400_000


class Library:
    """A `Holdfast` in memory that contains the conversations of a dataset. Each sample belongs to a user of its own.

    It is an async context manager, which imports the conversations when it is entered.

    Args:
        dataset: The dataset. Messages with another role than `user`, `assistant` or `tool` are imported as user messages.
        embedder: Embedder for the modes `vector` and `hybrid`, in any form that `holdfast.embedders` accepts. None: only `keyword` can be
            used.
        on_session: Function that is called after each imported session.
    """

    def __init__(
        self, dataset: Dataset, *, embedder: Any = None, on_session: Callable[[], None] = lambda: None
    ) -> None:
        self._samples = dataset.samples
        self._on_session = on_session
        self._now = max((turn.at for sample in self._samples for turn in sample.turns), default=0) + _DAY
        index = IndexSettings(embedder=embedder)
        life = LifeSettings(session_ttl=0)  # questions may be asked months after the last message
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

    async def find(
        self, mode: SearchMode, number: int, query: Query, enough: Callable[[Sequence[int]], bool]
    ) -> SearchResult:
        """Return the turns and the sessions that a search finds for a question. The arguments are those of `Finder.find`.

        Turns are read page by page until `enough` returns True.

        Raises:
            EmbeddingFailed: The embedder returned no vector for the question, so that the search used only words.
        """
        turns: list[int] = []
        after = None
        while True:
            page = await self._search(mode, number, query, after=after)
            turns += self._get_turns(number, page)
            after = page.cursor
            if after is None or enough(turns):
                break
        best = await self._search(mode, number, query, session_level=True)
        return SearchResult(turns, [int(hit.session_id) for hit in best.hits])

    async def find_first(self, mode: SearchMode, number: int, query: Query, limit: int) -> Sequence[int]:
        """Return the first turns that a search finds in a sample. The question may belong to another sample.

        Args:
            mode: Mode of the search.
            number: Index of the sample that is searched.
            query: The question.
            limit: Maximum number of turns.

        Raises:
            EmbeddingFailed: The embedder returned no vector for the question, so that the search used only words.
        """
        return self._get_turns(number, await self._search(mode, number, query, limit=limit))

    async def recall(self, mode: SearchMode, number: int, query: Query) -> Sequence[int]:
        """Return the turns that `holdfast.turns.recall` would add to the prompt if the user of a sample asked the question.

        Args:
            mode: Mode of the search.
            number: Index of the sample.
            query: The question.

        Raises:
            EmbeddingFailed: The embedder returned no vector for the question, so that the search used only words.
        """
        most = RecallSettings().max_results
        asked = SearchOptions(mode=mode, limit=most, bare=True, least=LEAST_SHARE, sure=True)
        self._set_clock(number, query)
        page = await search_conversations(self._holdfast.engine, str(number), query.text, asked)
        return self._get_turns(number, _check_mode(mode, page))

    async def _search(
        self, mode: SearchMode, number: int, query: Query, *, limit: int = SEARCH_RESULTS, **how: Any
    ) -> SearchResults:
        self._set_clock(number, query)
        mode = "keyword" if query.role == TOOL else mode  # tool results have no vectors
        page = await self._holdfast.search(
            query.text, user_id=str(number), mode=mode, limit=limit, role=query.role, **how
        )
        return _check_mode(mode, page)

    def _set_clock(self, number: int, query: Query) -> None:
        """Set the clock of the `Holdfast` to the time of the question, or of the sample's last message if the question has no time."""
        self._now = query.asked or max(turn.at for turn in self._samples[number].turns)

    def _get_turns(self, number: int, page: SearchResults) -> list[int]:
        return [self._places[number][hit.session_id, hit.seq] for hit in page.hits]

    async def _import(self, number: int, sample: Sample, session: int) -> None:
        """Import one session of a sample, and record for each position in the session's log the index of its turn."""
        chosen = [at for at, turn in enumerate(sample.turns) if turn.session == session]
        messages, places = make_messages(sample, chosen)
        self._places[number] |= {(str(session), seq): at for seq, at in places.items()}
        if messages:
            await self._holdfast.import_({"messages": messages}, session_id=str(session), user_id=str(number))


def make_messages(sample: Sample, chosen: Iterable[int]) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Convert turns to messages that can be imported.

    A tool call is generated before each tool result. Turns without text are left out, because a log cannot contain them, and no search
    finds them.

    Args:
        sample: The sample.
        chosen: Indexes of the turns in the sample.

    Returns:
        The messages, and for each position in the log the index of its turn.
    """
    messages: list[dict[str, Any]] = []
    places: dict[int, int] = {}
    for at in chosen:
        turn = sample.turns[at]
        if not turn.text.strip():
            continue
        message: dict[str, Any] = {"content": turn.text, "timestamp": turn.at}
        if turn.role == TOOL:
            message |= {"role": TOOL, "tool_call_id": _add_call(messages, turn.at)}
        else:
            message["role"] = turn.role if turn.role in _ROLES else "user"
            if turn.name is not None:
                message["name"] = turn.name
        places[len(messages)] = at
        messages.append(message)
    return messages, places


def _add_call(messages: list[dict[str, Any]], at: int) -> str:
    """Add a generated tool call to the last assistant message, and return the id of the call.

    If the last message is not an assistant message, one is appended. Providers reject a tool result without a call.
    """
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None, "timestamp": at})
    id_ = f"call_{len(messages)}"
    messages[-1]["tool_calls"] = [{"id": id_, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]
    return id_


def _check_mode(mode: SearchMode, page: SearchResults) -> SearchResults:
    """Return a page of results if the search ran in the requested mode.

    Raises:
        EmbeddingFailed: The search ran in another mode.
    """
    if page.mode != mode:
        raise EmbeddingFailed(f"a question could not be searched by {mode}: {'; '.join(page.notes)}", again=True)
    return page
