"""Ranking memories by relevance, age, importance and trust, and keys of questions."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.memory import TYPES, Memory, MemoryType, Owner
from holdfast.memory.ranking import DAY, HALF_LIVES, compute_recency, compute_standing, digest_question, rank_matches
from holdfast.recall.base import Candidate, Candidates, Similar
from holdfast.recall.questions import parse_question
from holdfast.recall.scoring import WEIGHTS
from holdfast.recall.terms import extract_terms

NOW = 1_700_000_000_000


def memory(**fields: Any) -> Memory:
    given: dict[str, Any] = {"created_at": NOW, "updated_at": NOW, **fields}
    return Memory(id="mem_" + "0" * 32, owner=Owner("user", "ann"), content="x", **given)


def candidate(number: int, text: str = "") -> Candidate:
    terms = extract_terms(text)
    return Candidate(0, number, number, "", "", "user", None, None, NOW, terms.length, terms.counts)


def candidates(*texts: str) -> Candidates:
    found = [candidate(number, text) for number, text in enumerate(texts, 1)]
    terms = {term for one in found for term in one.counts}
    frequencies = {term: sum(term in one.counts for one in found) for term in terms}
    return Candidates(found, len(found), sum(one.length for one in found), frequencies)


def rank(query: str, *texts: str) -> list[int]:
    return [one.number for one in rank_matches(parse_question(query, now=NOW, narrow=False), candidates(*texts))]


def test_more_and_rarer_matching_words_rank_first() -> None:
    assert rank("green tea", "green hat", "green tea", "the sea", "green door") == [2, 4, 1]


def test_ties_rank_the_newest_first() -> None:
    assert rank("tea", "tea", "tea", "tea") == [3, 2, 1]


def test_ranks_of_both_lists_are_fused_and_each_counts_alone() -> None:
    question = parse_question("green tea", now=NOW, narrow=False)
    similar = [Similar(candidate(3), 0.9), Similar(candidate(2), 0.5), Similar(candidate(1), float("nan"))]
    both = rank_matches(question, candidates("green hat", "green tea", "nothing"), similar)
    assert [one.number for one in both] == [2, 3, 1]
    assert all(0 < one.relevance <= 1 for one in both)
    assert [one.number for one in rank_matches(question, None, similar)] == [3, 2]


def test_a_floor_is_for_what_vectors_alone_find() -> None:
    """Something has to be as near as that, each two thirds of it; what words find stays, and says whether that is enough."""
    question = parse_question("green tea from a small garden", now=NOW, narrow=False)
    found = candidates("green hat", "nothing")
    many = [Similar(candidate(number), 0.0) for number in range(10, 10 + WEIGHTS.few)]
    far = [Similar(candidate(1), 0.1), Similar(candidate(2), 0.29), *many]
    near = [Similar(candidate(2), 0.31), Similar(candidate(3), 0.21), Similar(candidate(4), 0.19), *far[:1], *many]
    assert [(one.number, one.sure) for one in rank_matches(question, found, far, 0.3)] == [(1, False)]
    assert rank_matches(question, None, far, 0.3) == []
    assert [(one.number, one.sure) for one in rank_matches(question, None, near, 0.3)] == [(2, True), (3, False)]
    assert {one.number: one.sure for one in rank_matches(question, found, near, 0.3)} == {2: True, 1: False, 3: False}
    assert all(one.sure for one in rank_matches(question, found, near))
    assert [one.sure for one in rank_matches(parse_question("green", now=NOW), found, far, 0.3)] == [True]


@given(st.lists(st.text(max_size=40), max_size=8), st.text(max_size=60))
def test_every_share_is_one(texts: list[str], query: str) -> None:
    for one in rank_matches(parse_question(query, now=NOW, narrow=False), candidates(*texts)):
        assert 0 < one.relevance <= 1
        assert 0 < (one.keyword or 0) <= 1


@pytest.mark.parametrize("kind", TYPES)
def test_half_is_left_after_the_half_life_of_the_type(kind: MemoryType) -> None:
    days = int(HALF_LIVES[kind])
    assert compute_recency(memory(type=kind), NOW) == 1
    assert compute_recency(memory(type=kind), NOW + days * DAY) == 0.5
    assert compute_recency(memory(type=kind), NOW - DAY) == 1


@given(st.floats(0, 1), st.floats(0, 1))
def test_importance_and_trust_weigh_mildly(importance: float, trust: float) -> None:
    stands = compute_standing(memory(importance=importance, trust=trust))
    assert 0.55 < stands <= 1
    assert stands <= compute_standing(memory(importance=1, trust=trust))
    assert math.isclose(compute_standing(memory(importance=1, trust=1)), 1)


def test_question_keys_ignore_order_and_inflection() -> None:
    def digest(query: str) -> bytes:
        return digest_question(query, parse_question(query, now=NOW, narrow=False))

    assert digest("Peanut allergies?") == digest("the allergy ... PEANUTS")
    assert digest("peanut allergy") != digest("peanut butter")
    assert digest("the") == digest(" THE ")
    assert digest("the") != digest("a")
