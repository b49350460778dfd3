"""Keys under which stores find things again, as an earlier release wrote them; and which documents a question looks at first."""

from __future__ import annotations

import math
import random

from holdfast.stores.logic import index_reads
from holdfast.stores.matching import make_key, make_scope


def test_marks_have_stable_keys_per_scope() -> None:
    """Another scope, another key; and the same in every release."""
    scope = make_scope("acme", "ada")
    assert (scope.hex()[:16], make_key(scope, b"mark")) == ("663f6fa41ae3950a", 8549765747470066457)
    assert make_scope("acme", "bob") != scope != make_scope("acm", "eada")


def best(lists: dict[str, list[int]], often: dict[str, int], documents: int, limit: int) -> list[int]:
    """The same order worked out one by one: what is rare, half of what stands beside, a quarter of what stands one further."""
    ids = {id_ for found in lists.values() for id_ in found}
    score = {id_: sum(math.log1p(documents / often[term]) for term in lists if id_ in lists[term]) for id_ in ids}
    foremost = sorted(ids, key=lambda id_: (-score[id_], -id_))[: 2 * limit]
    if len(ids) <= limit:
        return sorted(ids)

    def rate(id_: int) -> float:
        beside = sum(score.get(id_ + step, 0.0) for step in (-1, 1))
        return score[id_] + 0.5 * beside + 0.25 * sum(score.get(id_ + step, 0.0) for step in (-2, 2))

    return sorted(sorted(foremost, key=lambda id_: (-rate(id_), -id_))[:limit])


def test_rare_terms_and_their_neighbours_are_read_first() -> None:
    chance = random.Random(7)
    for _ in range(200):
        lists = {term: chance.sample(range(40), chance.randint(1, 18)) for term in "ab"}
        often = {term: chance.choice([1, 2, 4, 8, 64]) for term in "ab"}
        limit = chance.randint(1, 12)
        assert index_reads._choose_best(lists, often, 100, limit) == best(lists, often, 100, limit)
