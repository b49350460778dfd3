"""Decide which memories a sweep promotes, and group recalled memories into themes. Pure functions.

A sweep is a consolidation of the memories of one owner. Each memory gets a score from its recalls, which is a weighted sum:

    .24 frequency + .30 relevance + .15 recency + .15 diversity + .10 consolidation

A session cannot promote a memory by repeating it within a day, for two reasons. Recalls within one session and one day (UTC) count as one,
whatever their questions. And recalls in a session from which the memory was made count only from the day after the memory's creation.

To find themes, each memory is represented as a vector of its terms, weighted by their rarity among the memories. Memories are added in
order, the most recalled first. Each joins the theme whose sum of vectors is most similar (cosine), or begins a new theme if none is
similar enough. The same memories and recalls always give the same themes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.domain.memory import REVIEWED_ORIGINS, Memory, Signal, is_awaiting_review
from holdfast.memory.ranking import DAY, HALF_LIVES
from holdfast.recall.terms import Spelling, extract_terms

WEIGHTS: Final[Mapping[str, float]] = {
    "frequency": 0.24,
    "relevance": 0.30,
    "recency": 0.15,
    "diversity": 0.15,
    "consolidation": 0.10,
}
"""Weights of the figures in the score of a memory."""
MIN_RECALLS: Final = 3
"""Minimum number of recalls that count."""
MIN_QUERIES: Final = 2
"""Minimum number of questions that differ in their terms."""
MIN_SCORE: Final = 0.35
"""Minimum score of a memory that is promoted."""
MAX_PROMOTIONS: Final = 20
"""Maximum number of promotions in one sweep. The best memories are promoted."""
_ENOUGH_RECALLS: Final = 7
_ENOUGH_QUERIES: Final = 5
_ENOUGH_DAYS: Final = 5

Verdict = Literal["promoted", "already", "held", "over", "gated"]
"""Decision about a memory. `promoted`: it is promoted now. `already`: it was promoted before. `held`: it is held for review because of its
origin. `over`: it is good enough, but the sweep promoted better memories up to its limit. `gated`: it does not meet the requirements."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures about a memory's recalls. `recalls`, `queries` and `days` are counts. The other figures are from 0 to 1."""

    recalls: int = 0
    """Number of recalls that count; see `select_recalls`."""
    queries: int = 0
    """Number of questions in these recalls that differ in their terms."""
    days: int = 0
    """Number of days (UTC) with these recalls."""
    frequency: float = 0.0
    """Number of recalls, on a logarithmic scale. Six recalls and more count the same."""
    relevance: float = 0.0
    """Average score with which the memory was recalled."""
    recency: float = 0.0
    """Time since the last recall, by the half-life of the memory's type."""
    diversity: float = 0.0
    """Number of different questions. Five questions and more count the same."""
    consolidation: float = 0.0
    """Number of days with recalls. Five days and more count the same."""

    @property
    def score(self) -> float:
        """The weighted sum of the figures from 0 to 1."""
        return float(sum(weight * getattr(self, name) for name, weight in WEIGHTS.items()))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a sweep about one memory."""

    memory_id: str
    number: int
    figures: Figures
    score: float
    verdict: Verdict
    gates: tuple[str, ...] = ()
    """Reasons why the memory is not promoted, such as a requirement with the actual and the required value."""

    def to_wire(self) -> dict[str, Any]:
        """Return the decision as JSON data for the diary. The text of the memory is not included."""
        figures = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in msgspec.structs.asdict(self.figures).items()
        }
        return {
            "memory_id": self.memory_id,
            "verdict": self.verdict,
            "score": round(self.score, 4),
            "gates": list(self.gates),
            **figures,
        }


def select_recalls(memory: Memory, signals: Iterable[Signal]) -> list[Signal]:
    """Return the recalls of a memory that count, oldest first.

    For each session and day, only the recall with the best score counts. Of recalls without a session, the best one for each question and
    day counts. Recalls in a session that is a source of the memory do not count on the day of the memory's creation.
    """
    sources = {source.session_id for source in memory.sources}
    best: dict[tuple[Any, ...], Signal] = {}
    for signal in signals:
        day = signal.at // DAY
        if signal.session and signal.session in sources and day <= memory.created_at // DAY:
            continue
        key = (day, signal.session) if signal.session else (day, "", signal.query)
        known = best.get(key)
        if known is None or _is_better(signal, known):
            best[key] = signal
    return sorted(best.values(), key=lambda one: (one.at, one.query, one.session))


def compute_figures(memory: Memory, signals: Iterable[Signal], now: int) -> Figures:
    """Compute the figures about a memory's recalls. Without recalls, all of them are 0.

    Args:
        memory: the memory.
        signals: the records of its recalls.
        now: milliseconds since the epoch.
    """
    own = select_recalls(memory, signals)
    if not own:
        return Figures()
    recalls, queries = len(own), len({signal.query for signal in own})
    days = len({signal.at // DAY for signal in own})
    age = max(0.0, (now - own[-1].at) / DAY)
    return Figures(
        recalls=recalls,
        queries=queries,
        days=days,
        frequency=min(math.log1p(recalls) / math.log(_ENOUGH_RECALLS), 1.0),
        relevance=sum(_clamp(signal.score) for signal in own) / recalls,
        recency=_clamp(2.0 ** (-age / HALF_LIVES[memory.type])),
        diversity=min(queries / _ENOUGH_QUERIES, 1.0),
        consolidation=min(days / _ENOUGH_DAYS, 1.0),
    )


def make_findings(memories: Iterable[Memory], signals: Mapping[str, Sequence[Signal]], now: int) -> list[Finding]:
    """Decide for each recalled memory whether to promote it, and return the decisions, highest score first.

    Of two memories with equal scores, the one with the lower number is first.

    Args:
        memories: memories of one owner. Left out are superseded and rejected memories, memories that are not valid at `now`, and
            memories without signals.
        signals: records of recalls, by id of the memory.
        now: milliseconds since the epoch.
    """
    found = [
        _make_finding(memory, compute_figures(memory, signals[memory.id], now))
        for memory in memories
        if memory.is_valid_at(now) and signals.get(memory.id)
    ]
    found.sort(key=lambda one: (-one.score, one.number))
    good = [one for one in found if one.verdict == "promoted"]
    over = {one.memory_id for one in good[MAX_PROMOTIONS:]}
    why = (f"more than {MAX_PROMOTIONS} were good enough; this one is considered next time",)
    return [msgspec.structs.replace(one, verdict="over", gates=why) if one.memory_id in over else one for one in found]


def promote(memory: Memory, finding: Finding, now: int) -> Memory:
    """Return a promoted copy of a memory, with the time and the score of its promotion."""
    return msgspec.structs.replace(memory, promoted_at=now, score=round(finding.score, 4), updated_at=now)


def _make_finding(memory: Memory, figures: Figures) -> Finding:
    gates = tuple(_list_failed_gates(figures))
    verdict: Verdict = "gated" if gates else "promoted"
    if memory.promoted_at is not None:
        verdict, gates = "already", ()
    elif is_awaiting_review(memory):
        verdict, gates = "held", (f"its origin is {_get_held_origin(memory)}: it waits for a review", *gates)
    return Finding(
        memory_id=memory.id, number=memory.number, figures=figures, score=figures.score, verdict=verdict, gates=gates
    )


def _list_failed_gates(figures: Figures) -> Iterable[str]:
    if figures.recalls < MIN_RECALLS:
        yield f"{figures.recalls} of {MIN_RECALLS} recalls"
    if figures.queries < MIN_QUERIES:
        yield f"{figures.queries} of {MIN_QUERIES} different questions"
    if figures.score < MIN_SCORE:
        yield f"score {figures.score:.2f} of {MIN_SCORE:.2f}"


def _get_held_origin(memory: Memory) -> str:
    origins = [memory.origin, *(source.origin for source in memory.sources)]
    return next((origin for origin in origins if origin in REVIEWED_ORIGINS), memory.origin)


def _is_better(one: Signal, other: Signal) -> bool:
    return (_clamp(one.score), one.at, one.query) > (_clamp(other.score), other.at, other.query)


def _clamp(value: float) -> float:
    """Return a number limited to the range from 0 to 1. NaN and infinity become 0."""
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


NEAR: Final = 0.1
"""Minimum cosine between a memory and its theme."""
MAX_THEMES: Final = 8
"""Maximum number of themes in a report."""
MAX_TERMS: Final = 4
"""Maximum number of terms that describe a theme."""
MAX_MEMORIES: Final = 500
"""Maximum number of memories that are grouped into themes. If there are more, the most recalled ones are used."""

_Vector = dict[str, float]


class Theme(msgspec.Struct, frozen=True):
    """A group of memories about the same topic."""

    terms: tuple[str, ...]
    """Terms that the memories share, in their usual spelling, the most shared ones first. For a single memory, its rarest terms."""
    memory_ids: tuple[str, ...]
    """Ids of the memories, most recalled first."""
    recalls: int
    """Number of recalls, added up over the memories of the theme."""

    def to_wire(self) -> dict[str, Any]:
        """Return the theme as JSON data for the diary. The data contain single words of the memories (`terms`)."""
        return {
            "terms": list(self.terms),
            "memory_ids": list(self.memory_ids),
            "size": len(self.memory_ids),
            "recalls": self.recalls,
        }


def group_themes(memories: Sequence[Memory], recalls: Mapping[str, int], *, near: float = NEAR) -> list[Theme]:
    """Group recalled memories into themes, largest first.

    Args:
        memories: existing memories of one owner.
        recalls: number of recalls, by id of the memory. Memories without recalls are left out.
        near: minimum cosine between a memory and its theme; 0: all memories are in one theme.
    """
    ranked = sorted(
        (one for one in memories if recalls.get(one.id, 0) > 0), key=lambda one: (-recalls[one.id], one.number)
    )
    ranked = ranked[:MAX_MEMORIES]
    vectors = _make_vectors(ranked)
    groups: list[tuple[_Vector, list[Memory]]] = []
    for memory in ranked:
        own = vectors[memory.id]
        best = max(groups, key=lambda group: _compute_cosine(own, group[0]), default=None)
        if best is None or _compute_cosine(own, best[0]) < near:
            groups.append((dict(own), [memory]))
        else:
            best[1].append(memory)
            for term, weight in own.items():
                best[0][term] = best[0].get(term, 0.0) + weight
    themes = [_make_theme(total, members, vectors, recalls) for total, members in groups]
    themes = [theme for theme in themes if theme.terms]
    themes.sort(key=lambda theme: (-len(theme.memory_ids), -theme.recalls, theme.terms))
    return themes[:MAX_THEMES]


def _make_theme(
    total: _Vector, members: Sequence[Memory], vectors: Mapping[str, _Vector], recalls: Mapping[str, int]
) -> Theme:
    shared = Counter(term for member in members for term in vectors[member.id])
    terms = sorted(total, key=lambda term: (-shared[term], -total[term], term))
    return Theme(
        terms=_collect_spellings(members).list_forms(terms, MAX_TERMS),
        memory_ids=tuple(member.id for member in members),
        recalls=sum(recalls[member.id] for member in members),
    )


def _collect_spellings(memories: Sequence[Memory]) -> Spelling:
    spelling = Spelling()
    for memory in memories:
        spelling.read(memory.content)
        for tag in memory.tags:
            spelling.note(tag.casefold(), tag)
    return spelling


def _make_vectors(memories: Sequence[Memory]) -> dict[str, _Vector]:
    analysed = {one.id: {*extract_terms(one.content).counts, *(tag.casefold() for tag in one.tags)} for one in memories}
    among = Counter(term for terms in analysed.values() for term in terms)
    rarity = {term: math.log(1.0 + len(memories) / count) for term, count in among.items()}
    return {name: {term: rarity[term] for term in sorted(terms)} for name, terms in analysed.items()}


def _compute_cosine(one: _Vector, other: _Vector) -> float:
    product = sum(weight * other.get(term, 0.0) for term, weight in one.items())
    sizes = math.sqrt(_sum_squares(one) * _sum_squares(other))
    return product / sizes if sizes else 0.0


def _sum_squares(vector: _Vector) -> float:
    return sum(weight * weight for weight in vector.values())
