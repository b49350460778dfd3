"""The library's own tests over HTTP: each runs with `holdfast.open` replaced by a server and `holdfast.connect`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import holdfast
from holdfast.remote.session import RemoteSession
from tests.clocks import Clock
from tests.edges.connect_kit import open_remote, open_remote_desk, verify_on_server
from tests.service import (
    test_begin_turn,
    test_compaction_lifecycle,
    test_interruptions,
    test_library,
    test_library_turns,
    test_log_operations,
    test_message_replacement,
    test_notes_and_origins,
    test_records,
    test_session_facts,
    test_speech,
)

MODULES: Final = (
    test_library,
    test_library_turns,
    test_begin_turn,
    test_log_operations,
    test_notes_and_origins,
    test_message_replacement,
    test_records,
    test_session_facts,
    test_compaction_lifecycle,
    test_interruptions,
    test_speech,
)
LOCAL: Final[dict[str, str]] = {
    # turns
    "test_explain_shows_the_outcome_of_each_message": "a turn over HTTP has no explain",
    "test_library_example_works_twice_on_one_database": "a turn over HTTP has no explain",
    "test_strategy_and_budget_apply_to_one_turn": "a turn over HTTP has no explanation",
    "test_tool_loop_is_one_turn": "entries have no unit",
    "test_turn_stores_fields_of_its_messages": "send is a chat request, which takes no pins",
    # turns are not queued: they hold nothing on the server
    "test_nested_turn_of_the_same_session_is_rejected": "a turn blocks no other",
    "test_turns_of_one_session_queue": "a turn blocks no other",
    "test_a_turn_that_is_lost_is_ended_with_a_warning": "a turn blocks no other",
    "test_other_turns_wait_until_the_turn_has_ended": "a turn blocks no other",
    "test_the_same_task_cannot_wait_for_itself": "a turn blocks no other",
    "test_pop_takes_the_newest_message": "a turn blocks no other",
    "test_a_message_is_replaced_and_later_ones_stay": "a turn blocks no other",
    "test_a_tool_unit_stays_complete": "entries have no unit",
    "test_the_prompt_of_an_earlier_turn_shows_the_replacement": "a turn over HTTP records no prompt",
    # what the client does not offer
    "test_facts_depend_on_the_requested_strategy": "a list of facts takes a strategy and a budget, but no other settings",
    "test_a_handle_follows_a_session_that_lapsed_in_memory": "a server does not create a lapsed session again",
    "test_a_handle_does_not_reach_a_later_session_of_the_name": "a handle holds no identity of its session",
    "test_owners_are_separate": "the key decides the tenant",
    "test_records_are_deleted_with_their_owner": "delete returns no receipt",
    "test_records_expire": "sweep is no operation of clients",
    # inside of the library
    "test_a_message_with_too_many_after_it_is_not_replaced": "a session has no tail.last_seq",
    "test_agent_sees_only_facts_of_users": "it reads the roster",
    "test_fact_id_must_be_a_string": "the error has other words",
    "test_unknown_fact_is_rejected": "it makes a handle from the engine",
    "test_fact_of_a_retired_message_leaves_the_prompt_and_cannot_be_pinned": "it writes to the store",
    "test_fact_of_an_erased_message_leaves_the_prompt_and_the_files": "it reads the store",
    "test_fork_for_a_request_copies_no_choices": "it uses the engine",
    "test_explained_context_reports_failed_summaries": "it reads the responder",
    "test_calls_of_an_erased_message_are_not_left_open": "it erases in the store",
    "test_concurrent_append_is_not_lost": "it replaces the store",
    "test_deleted_session_is_not_found": "it reads the locks",
    "test_erased_reply_cannot_be_interrupted_by_its_text": "it erases in the store",
    "test_history_is_a_consistent_snapshot": "it replaces the store",
    "test_interruption_does_not_read_the_whole_log": "it replaces the store",
    "test_invalid_message_rejects_the_whole_batch": "it reads the locks",
    "test_invalid_interruptions_are_rejected": "it reads the locks",
    "test_session_begins_with_the_greeting_of_its_agent": "it reads the roster",
    "test_an_origin_counts_toward_the_size_of_its_message": "a request has a lower limit",
    "test_media_in_an_origin_are_stored_once_and_deleted_with_it": "it reads the store",
    "test_failed_write_is_retried_when_the_block_ends": "it replaces the store",
    "test_a_saved_context_reads_only_what_is_new": "it replaces the store",
    "test_offline_is_always_the_built_in_model": "it reads the roster",
    "test_use_before_opening_is_rejected": "it opens a store",
    "test_parameter_of_wrong_type_is_named_in_the_error": "the user may be None",
}
"""Tests that do not apply, with the reason."""
STILL: Final = test_records.STILL


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
    function: Callable[..., Any],
    given: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(holdfast, "open", open_remote)
    monkeypatch.setattr(test_compaction_lifecycle, "desk", open_remote_desk)
    monkeypatch.setattr(RemoteSession, "verify", verify_on_server, raising=False)
    clock = Clock()
    known = {"monkeypatch": monkeypatch, "tmp_path": tmp_path, "clock": clock, "caplog": caplog}
    wanted = inspect.signature(function).parameters
    found = {name: value for name, value in known.items() if name in wanted}
    if "hf" not in wanted:
        await function(**given, **found)
        return
    module = inspect.getmodule(function)
    roster = test_session_facts.make_roster() if module is test_session_facts else None
    async with open_remote(f"sqlite:///{tmp_path}/chat.db", clock=clock, roster=roster, life=STILL) as hf:
        await function(**given, **found, hf=hf)
