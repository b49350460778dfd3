"""Similarity of memories: equal content, replaced values, and neither."""

from __future__ import annotations

import pytest

from holdfast.memory.similarity import is_newer_value, is_same

SAME = [
    ("Ada likes green tea", "ada likes  green tea."),
    ("The user prefers dark mode", "User prefers using dark mode"),
    ("Ada doesn't like tea", "Ada does not like tea"),
    ("Ada does not like tea", "Ada doesn\u2019t like teas"),
    ("I can't swim", "I cannot swim"),
    ("Ada won't come", "Ada will not come"),
    ("Ada likes tea", "Ada li\u200bkes t\u00adea"),
    ("明日の会議", "明日の会議。"),
    ("the", "The"),
]
APART = [
    ("likes tea", "does not like tea"),
    ("room 12", "room 13"),
    ("from Rome to Paris", "to Rome from Paris"),
    ("Alice owes Bob money", "Bob owes Alice money"),
    ("it is -5 degrees", "it is 5 degrees"),
    ("costs 5\u20ac", "costs 5$"),
    ("order ORD-123", "order ORD-124"),
    ("Ada has a dog", "Ada has a dog allergy"),
    ("never call before 9", "call before 9"),
    ("C++ is hard", "C# is hard"),
    ("\u2615", "\U0001f375"),
    ("with sugar", "without sugar"),
    ("Ada likes tea", "Ada liked coffee"),
]
NEW_VALUES = [
    ("My favourite colour is blue", "My favourite colour is green"),
    ("My favorite color is blue.", "My favourite color is now green"),
    ("The user's email is a@b.example", "user's email: d@b.example"),
    ("The deadline for the report is Friday", "The deadline for the report is Monday"),
    ("Ada's phone number is 123 456", "Ada's phone number: 555"),
]
BOTH_HOLD = [
    ("My sister is Anna", "My sister is a doctor"),
    ("My friend's name is Bob", "My friend's name is Carl"),
    ("Ada's hobby is chess", "Ada's hobby is tennis"),
    ("My favourite colour is blue in winter", "My favourite colour is green"),
    ("My favourite colour is blue", "My favourite colour is not green"),
    ("My favourite colour is blue", "My favourite colours are green and red"),
    ("My favourite colour is blue", "Her favourite colour is green"),
    ("My favourite colour was blue", "My favourite colour is green"),
    ("My favourite colour is blue", "My favourite food is fish"),
    ("My favourite colour is blue", "My favourite colour is blue"),
    ("The user's work email is a@b.example", "The user's email is d@b.example"),
    ("note: buy milk", "note: call Bob"),
    ("The address of the manager who left is X", "The address of the manager who left is Y"),
]


@pytest.mark.parametrize(("text", "other"), SAME)
def test_rephrased_memories_are_equal(text: str, other: str) -> None:
    assert is_same(text, other)
    assert is_same(other, text)


@pytest.mark.parametrize(("text", "other"), APART)
def test_numbers_negations_and_names_make_memories_different(text: str, other: str) -> None:
    assert not is_same(text, other)
    assert not is_same(other, text)


@pytest.mark.parametrize(("old", "new"), NEW_VALUES)
def test_a_new_value_for_the_same_subject_replaces_the_old_one(old: str, new: str) -> None:
    assert is_newer_value(new, old)
    assert not is_same(new, old)


@pytest.mark.parametrize(("old", "new"), BOTH_HOLD)
def test_values_that_can_both_be_true_are_kept(old: str, new: str) -> None:
    assert not is_newer_value(new, old)
    assert not is_newer_value(old, new)


def test_first_person_values_of_other_speakers_are_not_replaced() -> None:
    assert not is_newer_value("My name is Bob", "My name is Ada", personal=False)
    assert is_newer_value("My name is Bob", "My name is Ada")
