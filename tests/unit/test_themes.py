"""Themes: recalled memories about the same subject are grouped and named by shared words."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.consolidation.promotion import MAX_TERMS, MAX_THEMES, group_themes
from holdfast.domain.memory import Memory, Owner


def memory(number: int, content: str, *tags: str) -> Memory:
    return Memory(
        id=f"mem_{number:032x}",
        owner=Owner("user", "ann"),
        number=number,
        content=content,
        tags=tags,
        created_at=0,
        updated_at=0,
    )


def once(memories: list[Memory]) -> dict[str, int]:
    return {one.id: 1 for one in memories}


TRAVEL = [
    memory(1, "Flights to Lisbon leave in the morning"),
    memory(2, "The hotel in Lisbon has a pool"),
    memory(3, "Lisbon flights"),
]
FOOD = [memory(4, "Peanut allergy, carry medicine"), memory(5, "No peanuts in the cake")]


def test_related_memories_are_grouped_and_named_by_shared_words() -> None:
    travel, food = group_themes([*TRAVEL, *FOOD], once([*TRAVEL, *FOOD]))
    assert set(travel.memory_ids) == {one.id for one in TRAVEL}
    assert set(food.memory_ids) == {one.id for one in FOOD}
    assert travel.terms[:2] == ("Lisbon", "flights")
    assert food.terms[0] == "Peanut"
    assert (travel.recalls, food.recalls) == (3, 2)


def describe_theme(*contents: str, tags: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The words of the one theme of some memories."""
    memories = [memory(number, content, *tags) for number, content in enumerate(contents, 1)]
    (theme,) = group_themes(memories, once(memories), near=0.0)
    return theme.terms


def test_themes_are_named_by_words_and_not_by_stems() -> None:
    """Each word has its most frequent form, with capitals and accents."""
    assert describe_theme("We deploy on Fridays", "deploying on Friday", "the deploying of Friday builds")[:2] == (
        "deploying",
        "Friday",
    )
    assert "universities" in describe_theme("Ana visited universities", "universities in Spain")
    assert "Bücher" in describe_theme("Ada verkauft ihre alten Bücher", "Die Bücher sind in der Kiste")
    assert "café" in describe_theme("Le café de Marie est dans la rue", "Un café noir pour Marie")
    assert "ORD-12345" in describe_theme("Order ORD-12345 is late", "ORD-12345 was sent")
    assert "Ana" in describe_theme("Ana's flat", "the flat is Ana's")
    assert "日本" in describe_theme("日本へ行く")


def test_each_word_appears_once_in_a_theme() -> None:
    """Even if a tag has another form of it."""
    found = describe_theme("Flights to Oslo", "flights", tags=("flights",))
    assert sorted(word.casefold() for word in found) == ["flights", "oslo"]


words = st.lists(
    st.sampled_from(["tea", "coffee", "lisbon", "flight", "hotel", "peanut", "cake", "dog", "日本", "42", "#", "the"]),
    max_size=6,
).map(" ".join)


@given(st.lists(words, max_size=30), st.randoms())
def test_themes_are_disjoint_and_independent_of_order(contents: list[str], shuffled: random.Random) -> None:
    memories = [memory(number, content) for number, content in enumerate(contents, 1)]
    counts = {one.id: one.number % 4 for one in memories}
    themes = group_themes(memories, counts)
    other = list(memories)
    shuffled.shuffle(other)
    assert group_themes(other, counts) == themes
    told = [name for theme in themes for name in theme.memory_ids]
    assert len(told) == len(set(told))
    assert all(counts[name] > 0 for name in told)
    assert len(themes) <= MAX_THEMES
    assert all(0 < len(theme.terms) <= MAX_TERMS for theme in themes)
