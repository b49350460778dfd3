"""Themes: what the memories that were recalled have in common, found without a model. Pure.

Each memory is the set of its terms, weighed by how few of the others have them; one joins the first theme, of the most recalled on, to whose
sum it is near enough (cosine). Deterministic: the same memories and recalls give the same themes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.memory import Memory
from holdfast.recall.spelling import Spelling
from holdfast.recall.terms import terms_of

NEAR: Final = 0.1
"""Cosine from which on a memory belongs to a theme."""
MOST: Final = 8
"""Themes that are told."""
TOLD: Final = 4
"""Terms that a theme is told by."""
LOOKED_AT: Final = 500
"""Memories that are sorted into themes, the most recalled."""

_Vector = dict[str, float]


class Theme(msgspec.Struct, frozen=True):
    """Some memories that are about the same."""

    terms: tuple[str, ...]
    """What they share, the weightiest first, as it is mostly written there; a theme of one memory has the rarest of its words."""
    memory_ids: tuple[str, ...]
    """The most recalled first."""
    recalls: int
    """Of all of them."""

    def to_wire(self) -> dict[str, Any]:
        """As the diary keeps it: by what is in `terms` it quotes single words."""
        return {
            "terms": list(self.terms),
            "memory_ids": list(self.memory_ids),
            "size": len(self.memory_ids),
            "recalls": self.recalls,
        }


def themes_of(memories: Sequence[Memory], recalls: Mapping[str, int], *, near: float = NEAR) -> list[Theme]:
    """Themes of what was recalled, the most recalled first.

    Args:
        memories: of one owner, those that there still are.
        recalls: how often each was recalled in the time that is looked at, by id; the others are left out.
        near: cosine from which on one belongs to a theme; 0: all are of one.
    """
    ranked = sorted(
        (one for one in memories if recalls.get(one.id, 0) > 0), key=lambda one: (-recalls[one.id], one.number)
    )
    ranked = ranked[:LOOKED_AT]
    vectors = _vectors(ranked)
    groups: list[tuple[_Vector, list[Memory]]] = []
    for memory in ranked:
        own = vectors[memory.id]
        best = max(groups, key=lambda group: _cosine(own, group[0]), default=None)
        if best is None or _cosine(own, best[0]) < near:
            groups.append((dict(own), [memory]))
        else:
            best[1].append(memory)
            for term, weight in own.items():
                best[0][term] = best[0].get(term, 0.0) + weight
    themes = [_theme(total, members, vectors, recalls) for total, members in groups]
    themes = [theme for theme in themes if theme.terms]
    themes.sort(key=lambda theme: (-len(theme.memory_ids), -theme.recalls, theme.terms))
    return themes[:MOST]


def _theme(
    total: _Vector, members: Sequence[Memory], vectors: Mapping[str, _Vector], recalls: Mapping[str, int]
) -> Theme:
    shared = Counter(term for member in members for term in vectors[member.id])
    terms = sorted(total, key=lambda term: (-shared[term], -total[term], term))
    return Theme(
        terms=_spelling(members).words(terms, TOLD),
        memory_ids=tuple(member.id for member in members),
        recalls=sum(recalls[member.id] for member in members),
    )


def _spelling(memories: Sequence[Memory]) -> Spelling:
    """How what some memories have in common is written in them."""
    spelling = Spelling()
    for memory in memories:
        spelling.read(memory.content)
        for tag in memory.tags:
            spelling.note(tag.casefold(), tag)
    return spelling


def _vectors(memories: Sequence[Memory]) -> dict[str, _Vector]:
    analysed = {one.id: {*terms_of(one.content).counts, *(tag.casefold() for tag in one.tags)} for one in memories}
    among = Counter(term for terms in analysed.values() for term in terms)
    rarity = {term: math.log(1.0 + len(memories) / count) for term, count in among.items()}
    return {name: {term: rarity[term] for term in sorted(terms)} for name, terms in analysed.items()}


def _cosine(one: _Vector, other: _Vector) -> float:
    product = sum(weight * other.get(term, 0.0) for term, weight in one.items())
    sizes = math.sqrt(_square(one) * _square(other))
    return product / sizes if sizes else 0.0


def _square(vector: _Vector) -> float:
    return sum(weight * weight for weight in vector.values())
