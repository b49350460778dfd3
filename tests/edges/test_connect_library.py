"""The library's own tests over HTTP: each runs with `holdfast.open` replaced by a server and `holdfast.connect`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import holdfast
from tests.edges.connect_kit import open_remote
from tests.service import (
    test_begin_turn,
    test_library,
    test_library_turns,
    test_log_operations,
    test_notes_and_origins,
)

MODULES: Final = (test_library, test_library_turns, test_begin_turn, test_log_operations, test_notes_and_origins)
LOCAL: Final[dict[str, str]] = {
    # what the client does not offer
    "test_a_note_is_explained_erased_and_cannot_be_pinned": "imports go over REST",
    "test_notes_go_where_their_messages_go": "imports go over REST",
    "test_an_origin_comes_back_unchanged_and_is_never_sent": "imports go over REST",
    "test_import_accepts_sdk_messages": "imports go over REST",
    "test_invalid_export_is_rejected": "imports go over REST",
    "test_explain_shows_the_outcome_of_each_message": "a turn over HTTP has no explain",
    "test_library_example_works_twice_on_one_database": "a turn over HTTP has no explain",
    "test_strategy_and_budget_apply_to_one_turn": "a turn over HTTP has no explanation",
    "test_tool_loop_is_one_turn": "entries have no unit, and a session has no verify",
    "test_turn_stores_fields_of_its_messages": "send is a chat request, which takes no pins",
    # turns are not queued: they hold nothing on the server
    "test_nested_turn_of_the_same_session_is_rejected": "a turn blocks no other",
    "test_turns_of_one_session_queue": "a turn blocks no other",
    "test_a_turn_that_is_lost_is_ended_with_a_warning": "a turn blocks no other",
    "test_other_turns_wait_until_the_turn_has_ended": "a turn blocks no other",
    "test_the_same_task_cannot_wait_for_itself": "a turn blocks no other",
    "test_pop_takes_the_newest_message": "a turn blocks no other",
    # inside of the library
    "test_a_note_is_written_with_messages_and_state_in_one_write": "a session has no verify",
    "test_an_edit_that_is_undone_brings_messages_back_without_notes": "a session has no verify",
    "test_an_origin_counts_toward_the_size_of_its_message": "a request has a lower limit",
    "test_media_in_an_origin_are_stored_once_and_deleted_with_it": "it reads the store",
    "test_failed_write_is_retried_when_the_block_ends": "it replaces the store",
    "test_a_saved_context_reads_only_what_is_new": "it replaces the store",
    "test_offline_is_always_the_built_in_model": "it reads the roster",
    "test_use_before_opening_is_rejected": "it opens a store",
    "test_parameter_of_wrong_type_is_named_in_the_error": "the user may be None",
}
"""Tests that do not apply, with the reason."""


def list_tests() -> Iterator[Any]:
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.iscoroutinefunction):
            if name.startswith("test_") and name not in LOCAL:
                yield from list_cases(module, name, function)


def list_cases(module: ModuleType, name: str, function: Callable[..., Any]) -> Iterator[Any]:
    """Return one case for each combination of the test's own parameters."""
    cases: list[tuple[str, dict[str, Any]]] = [("", {})]
    for mark in (one for one in getattr(function, "pytestmark", ()) if one.name == "parametrize"):
        names, values = mark.args
        names = [one.strip() for one in names.split(",")] if isinstance(names, str) else list(names)
        rows = [row if len(names) > 1 else (row,) for row in values]
        cases = [
            (f"{label}-{at}", {**given, **dict(zip(names, row, strict=True))})
            for label, given in cases
            for at, row in enumerate(rows)
        ]
    for label, given in cases:
        yield pytest.param(function, given, id=f"{module.__name__.rpartition('.')[2]}-{name}{label}")


@pytest.mark.parametrize(("function", "given"), [*list_tests()])
async def test_library_behaves_the_same_over_http(
    function: Callable[..., Any], given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(holdfast, "open", open_remote)
    known = {"monkeypatch": monkeypatch, "tmp_path": tmp_path}
    wanted = inspect.signature(function).parameters
    await function(**given, **{name: value for name, value in known.items() if name in wanted})
