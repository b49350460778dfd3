"""Prompts are assembled from their records exactly, and records explain each message of the log."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.context.build import Request, WorkingSet, build, build_from_view
from holdfast.context.explain import PrefixChange, find_change, list_decisions
from holdfast.context.parts import Part, assemble_prompt, decode_record, expand_record, list_text_ids
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.view import make_view
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from tests.unit.strategies import events, log_of, requests, team_events, team_requests


def check_record(built: WorkingSet, entries: list[Entry]) -> None:
    """Check that what is stored with the call gives the messages of the prompt."""
    data, listed = built.encode_record(ContextSettings(), None)
    texts = {text.id: text for text in listed}
    record = decode_record(data)
    assert record is not None
    if record.base:
        record = expand_record(record, texts[record.base])
    assert {*list_text_ids(record)} <= texts.keys()
    prompt = assemble_prompt(record, {entry.seq: entry for entry in entries}, texts)
    assert tuple(one.message for one in prompt.messages) == built.messages
    assert prompt.hash == built.hash
    assert list_decisions(record) == built.list_decisions()


def build_or_skip(request: Request, entries: list[Entry]) -> WorkingSet:
    try:
        return build(request, None, (), entries)
    except BudgetTooSmall:
        assume(False)
        raise


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_a_prompt_is_assembled_from_its_record(name: str, data: st.DataObject) -> None:
    request, entries = data.draw(requests(name)), log_of(data.draw(events)).entries
    check_record(build_or_skip(request, entries), entries)


@given(data=st.data())
def test_a_prompt_of_an_agent_is_assembled_from_its_record(data: st.DataObject) -> None:
    request, entries = data.draw(team_requests()), log_of(data.draw(team_events)).entries
    check_record(build_or_skip(request, entries), entries)


@given(data=st.data())
def test_records_of_a_view_that_grows_are_those_of_a_new_one(data: st.DataObject) -> None:
    """Their parts are listed once, and not again while the window only grows. A record does not change when its view does."""
    request, entries = data.draw(requests("token_window")), log_of(data.draw(events)).entries
    try:
        view = make_view(request.strategy, request.make_widest_room(), None, (), ())
    except BudgetTooSmall:
        return
    earlier: list[tuple[WorkingSet, list[object]]] = []
    for at, entry in enumerate(entries):
        view.extend([entry])
        try:
            built = build_from_view(request, view)
        except BudgetTooSmall:
            continue
        check_record(built, entries[: at + 1])
        earlier.append((built, [*built.list_decisions()]))
    for built, decisions in earlier:
        assert built.list_decisions() == decisions


def test_the_reason_for_a_change_is_found_and_worded() -> None:
    built = build(
        Request(strategy=make_strategy(ContextSettings("token_window")), count=STORED, input_budget=9_000), None, (), ()
    )
    record = built.record
    assert find_change(None, record) == PrefixChange("unknown")
    assert find_change(record, record) == PrefixChange("message")
    moved = find_change(record, replace(record, frontier=2))
    assert (moved.kind, moved.frontier) == ("frontier", (0, 2))
    assert str(moved) == "the frontier moved from 0 to 2: the room was full"
    slid = find_change(record, replace(record, frontier=1, slides=True))
    assert str(slid) == "the frontier moved from 0 to 1: newer messages took the place of older ones"
    summary, digest = Part("summary", 0, 1, texts=(7,)), Part("digest", -1, 1, texts=(8,))
    assert find_change(record, replace(record, parts=(summary,))).kind == "summarized"
    assert find_change(replace(record, parts=(summary,)), record).kind == "unsummarized"
    assert find_change(record, replace(record, parts=(digest,))).kind == "older"
    for form, kind in (("cleared", "cleared"), ("trimmed", "cleared"), ("cut", "cut")):
        shortened = Part("recent", 1, 1, form=form, texts=(9,))  # type: ignore[arg-type]
        assert find_change(record, replace(record, parts=(shortened,))).kind == kind
