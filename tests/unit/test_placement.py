"""A matched session may be edited only as it was when it was matched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.turns.placement import MatchLost, Placement


def session(version: int) -> Any:
    """As much of a session as a placement looks at."""
    return SimpleNamespace(version=version, id="s")


async def find_nothing(_: bool) -> Placement:
    """A function that is not called here."""
    raise AssertionError


def is_lost(match: Placement, version: int, retire_from: int | None) -> bool:
    try:
        match.check(session(version), retire_from)
    except MatchLost:
        return True
    return False


def test_a_matched_session_may_be_appended_to_in_any_case_and_edited_if_it_did_not_change() -> None:
    match = Placement(session(1), "continuation", find_again=find_nothing)
    assert not is_lost(match, 2, None)
    assert not is_lost(match, 1, 3)
    assert is_lost(match, 2, 3)


def test_a_session_that_was_named_is_never_lost() -> None:
    assert not is_lost(Placement(session(1), "new"), 2, 3)
    assert not is_lost(Placement(session(1), "new", follows=4, find_again=find_nothing), 2, 3)
