"""Search a dataset with Holdfast's ranking alone, without a store or an index.

This search is used to try other weights in seconds, and to verify the results of `benchmarks.evaluation.library`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmarks.evaluation.dataset import Dataset, Query, Sample, SearchResult, Turn
from benchmarks.evaluation.measures import list_sessions
from benchmarks.evaluation.plain import TOOL
from holdfast.embedders import Embedder
from holdfast.embedders.base import can_read_language, get_floor, make_query_vectors
from holdfast.recall.base import NEAR, NEAREST, Candidate, Candidates, SearchMode, Similar
from holdfast.recall.details import analyse
from holdfast.recall.questions import Question, parse_question
from holdfast.recall.ranking import Ranking
from holdfast.recall.scoring import WEIGHTS, Weights
from holdfast.recall.terms import Terms
from holdfast.recall.vectors import compute_similarities


class Direct:
    """Search of a dataset in memory. The turns are analysed once, so that the search can be run many times.

    Args:
        dataset: The dataset.
        embedder: Embedder for the modes `vector` and `hybrid`. None: only `keyword` can be used.
        weights: Weights of the ranking. For experiments, the attribute `weights` may be changed between runs.
    """

    def __init__(self, dataset: Dataset, *, embedder: Embedder | None = None, weights: Weights = WEIGHTS) -> None:
        self.weights = weights
        self._embedder = embedder
        self._spaces = [{tool: _Space(sample, tool=tool) for tool in (False, True)} for sample in dataset.samples]

    async def find(
        self, mode: SearchMode, number: int, query: Query, enough: Callable[[Sequence[int]], bool]
    ) -> SearchResult:
        """Return all turns that match a question, best first. The arguments are those of `Finder.find`; `enough` is ignored."""
        space = self._spaces[number][query.role == TOOL]
        question = parse_question(query.text, now=query.asked or space.last, everyday=True)
        if query.role == TOOL and mode != "keyword":
            mode = "keyword"  # tool results have no vectors
        similar = None if mode == "keyword" else await self._find_similar(space, query.text)
        found = space.lookup(question) if mode != "vector" else None
        floor = 0.0 if self._embedder is None else get_floor(self._embedder)
        knows = self._embedder is None or can_read_language(self._embedder, question.language)
        ranking = Ranking(question, found, similar, self.weights, floor, knows=knows)
        missing = ranking.list_missing(len(space.candidates))
        ranking.fill(space.list_turns(missing), missing)
        turns = [hit.candidate.seq for hit in ranking.list_hits()]
        return SearchResult(turns, list_sessions(space.sample, turns))

    async def _find_similar(self, space: _Space, text: str) -> list[Similar]:
        assert self._embedder is not None, "vectors need an embedder"
        if not space.vectors:
            space.vectors = b"".join(await self._embedder.embed(space.texts))
        (vector,) = await make_query_vectors(self._embedder, [text])
        return space.find_nearest(compute_similarities(vector, space.vectors, len(vector) // 4))


class _Space:
    """Either the tool results or all other turns of a sample, analysed as an index stores them."""

    def __init__(self, sample: Sample, *, tool: bool) -> None:
        self.sample = sample
        self.last = max(turn.at for turn in sample.turns)
        self.vectors = b""
        chosen = [at for at, turn in enumerate(sample.turns) if (turn.role == TOOL) == tool]
        turns = [sample.turns[at] for at in chosen]
        self.texts = [turn.text.strip() or "-" for turn in turns]
        analysed = [analyse(turn.text, turn.at) for turn in turns]
        self.candidates = [
            _make_candidate(sample, at, place, terms, detail)
            for at, place, (terms, detail) in zip(chosen, _number_turns(turns), analysed, strict=True)
        ]
        self._by_place = {(one.source, one.place): one for one in self.candidates}
        self._length = sum(terms.length for terms, _ in analysed)
        self._terms = [terms.counts for terms, _ in analysed]
        self._holders: dict[str, list[int]] = {}
        for at, (terms, _) in enumerate(analysed):
            for term in terms.counts:
                self._holders.setdefault(term, []).append(at)

    def lookup(self, question: Question) -> Candidates:
        """Return every turn that contains a term of the question, or whose time the question names."""
        matched: dict[int, dict[str, int]] = {
            at: {} for at, one in enumerate(self.candidates) if question.has_time(one.at)
        }
        for term in question.terms:
            for at in self._holders.get(term, ()):
                matched.setdefault(at, {})[term] = self._terms[at][term]
        found = [
            Candidate(**{name: getattr(self.candidates[at], name) for name in _FIELDS}, counts=matched[at])
            for at in sorted(matched)
        ]
        frequencies = {term: len(self._holders.get(term, ())) for term in question.terms}
        return Candidates(found, len(self.candidates), self._length, frequencies)

    def find_nearest(self, numbers: Sequence[float]) -> list[Similar]:
        """Return the turns that an index would return: those with the highest similarities, and the turns next to them.

        Args:
            numbers: Similarity of each turn to the question, in the order of the turns.
        """
        order = sorted(range(len(numbers)), key=lambda at: -numbers[at])[:NEAREST]
        kept = {near for at in order for near in range(at - NEAR, at + NEAR + 1) if 0 <= near < len(numbers)}
        return [Similar(self.candidates[at], numbers[at]) for at in sorted(kept)]

    def list_turns(self, places: Sequence[tuple[int, int]]) -> Iterator[Candidate]:
        """Return the turns at the given pairs of session index and position in the session. Unknown positions are left out."""
        return (self._by_place[place] for place in places if place in self._by_place)


_FIELDS: Final = tuple(name for name in Candidate.__struct_fields__ if name != "counts")


def _number_turns(turns: Sequence[Turn]) -> Iterator[int]:
    """Yield, for each turn, its position in its session, counted from 0."""
    counts: dict[int, int] = {}
    for turn in turns:
        place = counts[turn.session] = counts.get(turn.session, -1) + 1
        yield place


def _make_candidate(sample: Sample, at: int, place: int, terms: Terms, detail: str) -> Candidate:
    turn = sample.turns[at]
    return Candidate(
        source=turn.session,
        place=place,
        seq=at,
        session=sample.sessions[turn.session],
        identity="",
        role=turn.role,
        agent=None,
        name=turn.name,
        at=turn.at,
        length=terms.length,
        counts={},
        traits=terms.traits,
        detail=detail,
    )
