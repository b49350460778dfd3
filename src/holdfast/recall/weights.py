"""Every number that the ranking depends on, tuned on conversations of our own making: see docs/evaluation.md."""

from __future__ import annotations

from typing import Final

import msgspec


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that the ranking depends on."""

    k1: float = 1.2
    b: float = 0.4
    """BM25's saturation, and how far length counts: among turns of people half of the usual 0.75 is enough."""
    before: tuple[float, ...] = (0.65, 0.35)
    behind: tuple[float, ...] = (0.35, 0.1)
    """What a neighbour counts, by its distance, where the turn's own words say less: those before a turn, those behind it."""
    session: float = 0.4
    """What the best session adds, as a share of what the best place has by itself."""
    covered: float = 0.4
    """How much more a place counts that holds all concepts of the question, its neighbours included."""
    long: float = 0.25
    """How much more a longer turn counts, by the logarithm of its length in average ones, at most one and a half."""
    asks: float = 0.2
    asked: float = 0.35
    """How much less a turn counts that ends in a question, and one that is all questions."""
    yours: float = 0.1
    """How much less one counts that speaks of the other."""
    time: float = 0.4
    number: float = 0.4
    """How much more one counts that holds a time, or a number, where the question asks for one."""
    speaker: float = 0.3
    """How much more one counts of whom the question names, or whose role it tells."""
    name: float = 0.4
    """What such a name counts as a word: it stands in every greeting."""
    coded: float = 1.0
    """How much more one counts that holds a code of the question itself: around `ORD-12345` nobody answers but who names it."""
    then: float = 0.25
    """How much more one counts of the time that the question names."""
    rrf: float = 15.0
    """The constant of reciprocal ranks: the smaller, the more the first places count."""
    fused: tuple[float, float] = (1.0, 1.0)
    """Hybrid: what the lists count: keyword, vector."""
    vector_before: tuple[float, ...] = (0.5, 0.25)
    vector_behind: tuple[float, ...] = (0.25,)
    """What a neighbour's similarity adds to a turn's."""
    traits: float = 0.5
    """How far a turn's traits count for similarities: as a power."""
    few: int = 200
    lowered: float = 0.2
    """Places with similarities below which the floor is lower, by that power of what is there of them: the nearest of few is farther
    away, whatever is asked."""
    beside: float = 2 / 3
    """Part of the floor that is near enough, of a turn or a neighbour, for what vectors alone find where something reaches the floor."""
    held: float = 1 / 3
    """Part of a question, each concept by its rarity, that a turn states itself where words are an answer though nothing is near."""

    def floor_among(self, floor: float, compared: int) -> float:
        """What is left of an embedder's floor where so many similarities are compared; 0 where there are none."""
        return floor * min(compared / self.few, 1.0) ** self.lowered if compared else 0.0


WEIGHTS: Final = Weights()
