"""Every number that the ranking depends on. They are in `holdfast/data/recall/weights.json`, with how they were found."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import msgspec

_FILE: Final = Path(__file__).parents[1] / "data" / "recall" / "weights.json"
_PARTS: Final = 32
"""Into how many steps the way from a dialogue to a chat is divided."""


class FormWeights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers that depend on the form of a session: a dialogue of short turns, or a chat with long ones."""

    b: float
    """How far length counts in BM25."""
    before: tuple[float, ...]
    after: tuple[float, ...]
    """What a neighbour counts, by its distance, where the turn's own words say less: those before a turn, those after it."""
    session: float
    """What the best session adds, as a share of what the best place has by itself."""
    covered: float
    """How much more a place counts that holds all concepts of the question, its neighbours included."""
    long: float
    """How much more a longer turn counts, by the logarithm of its length in average ones, at most one and a half."""
    asks: float
    asked: float
    """How much less a turn counts that ends in a question, and one that is all questions."""
    yours: float
    """How much less one counts that speaks of the other."""
    time: float
    number: float
    """How much more one counts that holds a time, or a number, where the question asks for one."""
    speaker: float
    """How much more one counts of whom the question names, or whose role it tells."""
    user: float
    """How much more a turn of the user counts, unless the question asks what the assistant said."""
    vector_before: tuple[float, ...]
    vector_after: tuple[float, ...]
    """What a neighbour's similarity adds to a turn's."""
    traits: float
    """How far a turn's traits count for similarities: as a power."""
    rrf: float
    """The constant of reciprocal ranks: the smaller, the more the first places count."""

    @property
    def steps(self) -> tuple[tuple[int, float], ...]:
        """Return where a place's neighbours are, seen from it, and what each counts."""
        return _steps(self.before, self.after)

    @property
    def vector_steps(self) -> tuple[tuple[int, float], ...]:
        """Return the same for similarities."""
        return _steps(self.vector_before, self.vector_after)


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every number that the ranking depends on."""

    k1: float
    """BM25's saturation."""
    name: float
    """What the name of a speaker counts as a word of a question: it stands in every greeting."""
    coded: float
    """How much more a turn counts that holds a code of the question itself: an answer about `ORD-12345` names it."""
    then: float
    said: float
    """How much more one counts that was said at a time that the question names, and at the one that it asks for."""
    about: float
    """How much more one counts that names a time of the question."""
    dated: float
    """What such a time counts as a concept of its own, so that turns are found that share nothing else with the question."""
    middle: float
    """Terms of an average turn at which a session is half dialogue, half chat."""
    steepness: float
    """How fast the one becomes the other, by the logarithm of that average."""
    few_turns: float
    """Turns of the space's average length that are added to those of a session, as few say little."""
    chunk: float
    """What the best chunk of a long turn counts, as a share, beside the whole turn."""
    chunk_b: float
    """How far its length counts."""
    echo: float
    """What a turn next to a better one counts, where a question asks for many things."""
    dialogue: FormWeights
    chat: FormWeights
    foreign: float
    """Hybrid: what the list by vectors counts beside the one by words where the question is in a language that the model does not know."""
    few: int
    lowered: float
    """Places with similarities below which the floor is lower, by that power of what is there of them: the nearest of few is farther
    away, whatever is asked."""
    beside: float
    """Part of the floor that is near enough, of a turn or a neighbour, for what vectors alone find where something reaches the floor."""
    held: float
    """Part of a question, each concept by its rarity, that a turn states itself where words are an answer though nothing is near."""

    def floor_among(self, floor: float, compared: int) -> float:
        """Return what is left of an embedder's floor where so many similarities are compared; 0 where there are none."""
        return floor * min(compared / self.few, 1.0) ** self.lowered if compared else 0.0

    def form(self, chat: float) -> FormWeights:
        """Return the numbers of a session.

        Args:
            chat: how far it is a chat, 0 to 1; in steps, so that few sessions have numbers of their own.
        """
        return _mix(self.dialogue, self.chat, round(chat * _PARTS))


@lru_cache(maxsize=1_024)
def _mix(dialogue: FormWeights, chat: FormWeights, part: int) -> FormWeights:
    share = part / _PARTS

    def mix(first: float, second: float) -> float:
        return first * (1 - share) + second * share

    found: dict[str, float | tuple[float, ...]] = {}
    for name in FormWeights.__struct_fields__:
        one, other = getattr(dialogue, name), getattr(chat, name)
        if isinstance(one, tuple):
            count = max(len(one), len(other))
            one, other = (some + (0.0,) * (count - len(some)) for some in (one, other))
            found[name] = tuple(map(mix, one, other))
        else:
            found[name] = mix(one, other)
    return FormWeights(**found)  # type: ignore[arg-type]  # each as its field has it


@cache
def _steps(before: tuple[float, ...], after: tuple[float, ...]) -> tuple[tuple[int, float], ...]:
    """Return distances and what each counts; those that count nothing are left out."""
    steps = (
        *((-distance, weight) for distance, weight in enumerate(before, start=1)),
        *((distance, weight) for distance, weight in enumerate(after, start=1)),
    )
    return tuple(step for step in steps if step[1])


class _File(msgspec.Struct, frozen=True):
    provenance: tuple[str, ...]
    weights: Weights


WEIGHTS: Final = msgspec.json.decode(_FILE.read_bytes(), type=_File).weights
