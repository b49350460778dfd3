"""A matched session may be used only as it was when it was matched, unless the client is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.turns.placement import MatchLost, Placement


def session(version: int) -> Any:
    """As much of a session as a placement looks at."""
    return SimpleNamespace(version=version, id="s")


async def find_nothing(_: bool) -> Placement:
    """A function that is not called here."""
    raise AssertionError


def make_placement(*, identified: bool) -> Placement:
    """A match with version 1 of a session."""
    return Placement(session(1), "continuation", find_again=find_nothing, may_edit=identified)


def is_lost(match: Placement, version: int, retire_from: int | None) -> bool:
    try:
        match.check(session(version), retire_from)
    except MatchLost:
        return True
    return False


@pytest.mark.parametrize("retire_from", [None, 3])
def test_an_unnamed_client_loses_its_match_with_every_change(retire_from: int | None) -> None:
    """A turn that ran meanwhile may have been another client's: its log has results of tools that are not this one's."""
    assert is_lost(make_placement(identified=False), 2, retire_from)


def test_an_unnamed_client_may_append_to_what_did_not_change_and_retire_nothing() -> None:
    assert not is_lost(make_placement(identified=False), 1, None)
    assert is_lost(make_placement(identified=False), 1, 3)


def test_a_named_user_may_append_in_any_case_and_edit_what_did_not_change() -> None:
    assert not is_lost(make_placement(identified=True), 2, None)
    assert not is_lost(make_placement(identified=True), 1, 3)
    assert is_lost(make_placement(identified=True), 2, 3)


def test_a_session_that_was_named_is_never_lost() -> None:
    assert not is_lost(Placement(session(1), "new"), 2, 3)
    assert not is_lost(Placement(session(1), "new", follows=4, find_again=find_nothing), 2, 3)
