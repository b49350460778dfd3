"""Corrections: a later statement replaces only the earlier one that it is about."""

# ruff: noqa: RUF001 (punctuation of other scripts)

from __future__ import annotations

import pytest

from holdfast.context.standing_facts import find_corrections
from holdfast.context.statements import Statement, find_statements


def state(*said: str) -> list[Statement]:
    """Return the statements of messages that each consist of a remark and one of `said`."""
    found: list[Statement] = []
    for seq, text in enumerate(said):
        made = find_statements(f"A remark on that.\n{text}", seq)
        found += [one for one in made if one.place == 1]
    assert len(found) == len(said), "every sentence is a statement"
    return found


OTHERS = (
    "My sister Almudena lives near the harbour of Vigo.",
    "Keep the drawings in the folder of the architect.",
    "Our neighbour lends us the trailer on weekends.",
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("The van is booked for 12 December.", "We moved the van to 19 December instead."),
        ("The budget of the kitchen is 15,500 euros.", "Correction, the kitchen gets 12,000 euros."),
        ("Please use 9.81 for g in all of it.", "The booklet gives g as 9.8 this year, so forget about 9.81."),
        ("Paper one is on the 4th of June.", "Paper one is on the 2nd of June now, not the 4th."),
        ("He takes four milligrams of warfarin at night.", "Actually the warfarin is five milligrams now."),
        ("There are eleven flasks in the boat.", "Correction, there are nine flasks in the boat."),
        ("Wir fahren am Dienstag nach Bremen.", "Die Fahrt nach Bremen ist verschoben, jetzt am Donnerstag."),
        ("面谈是十二月九号下午。", "面谈改到十一号下午了，不是九号。"),
    ],
)
def test_a_changed_value_is_linked_to_the_replaced_one(before: str, after: str) -> None:
    first, *_, last = statements = state(before, *OTHERS, after)
    assert find_corrections(statements) == {first.position: last}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("GET /marinas takes 400 ms for the big one.", "The contract says 250 kg for a berth now."),
        ("I did one course in 2019 and made a graph.", "We are moving on Saturday instead, the course is full."),
        ("Never tell his mother about the new school.", "Shall we change the curtains now instead?"),
        ("The light from the garden is lovely.", "The fence of the garden was moved."),
    ],
)
def test_statements_that_only_share_a_word_are_not_corrections(before: str, after: str) -> None:
    assert find_corrections([*state(before, *OTHERS), *find_statements(f"A remark.\n{after}", 9)]) == {}


def test_a_question_corrects_nothing() -> None:
    asked = find_statements("A remark.\nShould the van not be booked for 19 December instead of the 12th?", 9)
    assert find_corrections([*state("The van is booked for 12 December."), *asked]) == {}


def test_a_correction_replaces_the_most_similar_statement() -> None:
    statements = state(
        "The first lorry comes on 3 May.", "The second lorry comes on 9 May.", "The second lorry was moved to 11 May."
    )
    assert find_corrections(statements) == {statements[1].position: statements[2]}
