"""Explanations of a build, in the form that the API returns."""

from __future__ import annotations

import pytest

from holdfast.context import explain
from holdfast.context.digest.pool import EMPTY
from holdfast.context.explain import RECALLED_BYTES, BuildRecord, Run, decode_record, encode_record
from holdfast.context.prefix_diff import Prefix, PrefixBreak, describe_prefix
from holdfast.context.settings import parse
from holdfast.context.strategies import make_strategy
from holdfast.context.window import Block, Compaction, Room, Window
from holdfast.tokens import STORED


def test_a_run_is_serialized_with_its_first_and_last_message() -> None:
    assert Run(3, 5, "evicted", "too old", 70).to_wire() == {
        "from": 3, "to": 5, "decision": "evicted", "reason": "too old", "tokens": 70
    }  # fmt: skip


def test_recall_is_described_only_if_there_is_any() -> None:
    """By ids and tokens, with missed memories and the memories known from the start."""
    assert explain.describe_recalled([], 0, []) == {}
    assert explain.describe_recalled(["a", "b"], 9, []) == {"ids": ["a", "b"], "tokens": 9}
    assert explain.describe_recalled([], 0, ["no room"], ["c"]) == {"missed": ["no room"], "known": ["c"]}


def test_ids_are_truncated_to_the_size_of_a_record() -> None:
    """The first ids are kept, to the byte."""
    whole = ["x" * 1024] * 4
    assert explain.truncate_ids(whole) == tuple(whole)
    assert explain.truncate_ids([*whole, "y"]) == tuple(whole)
    assert explain.truncate_ids(["é" * (RECALLED_BYTES // 2)]) != ()
    assert explain.truncate_ids(["é" * (RECALLED_BYTES // 2) + "x", "y"]) == ()
    assert explain.truncate_ids(["\ud800"]) == ("\ud800",)


def test_compactions_are_listed_in_log_order() -> None:
    """Each with the tokens of exactly the messages that it replaces."""
    window = Window(Room(100, STORED))
    assert explain.measure_compactions(window, []) == []
    window.digest = Block(Compaction(4, 9, "kelp", 7), EMPTY, most=7, last=9)
    window.summary = Compaction(0, 3, "They spoke.", 5, "summary")
    runs = [
        explain.Run(0, 0, "anchored", "the task", 1000),
        explain.Run(1, 3, "compacted", "summarized", 200),
        explain.Run(4, 5, "compacted", "condensed", 40),
        explain.Run(6, 6, "pinned", "pinned", 1000),
        explain.Run(7, 9, "compacted", "condensed", 8),
        explain.Run(10, 12, "kept", "recent", 1000),
    ]
    found = explain.measure_compactions(window, runs)
    assert [one.to_wire() for one in found] == [
        {"kind": "summary", "from": 0, "to": 3, "tokens": 5, "source_tokens": 200},
        {"kind": "digest", "from": 4, "to": 9, "tokens": 7, "source_tokens": 48},
    ]
    assert str(found[0]) == "summary of messages 0 to 3: 200 tokens in 5"


@pytest.mark.parametrize(("before", "whole"), [(None, None), (3, True), (4, False)])
def test_a_prefix_is_whole_if_it_equals_the_previous_prompt(before: int | None, whole: bool | None) -> None:
    """If the previous prompt is unknown, `whole` is None."""
    told = describe_prefix(Prefix(3, before), None)
    assert told == {"messages": 3, "before": before, "whole": whole, "broken": None}
    broke = PrefixBreak(3, 7, "the room was full")
    assert describe_prefix(Prefix(3, before), broke)["broken"] == {"message": 3, "seq": 7, "why": "the room was full"}


def test_a_strategy_is_described_as_valid_configuration() -> None:
    """Including defaults; the agent's own model has no name."""
    for given in (
        {"strategy": "token_window", "budget": 900, "preserve_recent": 3, "target": 0.5},
        {"strategy": "summary_buffer", "budget": 900, "threshold": 0.9, "target": 0.4, "summarizer_llm": "none"},
        {"strategy": "summary_buffer", "budget": 900, "threshold": 0.9, "target": 0.4, "summarizer_llm": "fast"},
        {"strategy": "clear_tool_results", "keep": 2, "trigger": 50},
    ):
        told = explain.describe_strategy(make_strategy(parse(given)))
        assert {key: told[key] for key in given} == given
        told.pop("max_history_turns", None)
        assert explain.describe_strategy(make_strategy(parse(told))) == told
    own = explain.describe_strategy(make_strategy(parse({"strategy": "summary_buffer"})))
    assert "summarizer_llm" not in own


def test_a_record_round_trips_and_other_versions_decode_to_none() -> None:
    record = BuildRecord(
        limit=1, input_budget=2, overhead=3, factor=1.5, dialect="openai", messages=4, common=5, frontier=6, summary="s",
        recalled=("a",), recalled_tokens=7, missed=("no room",), known=("c",),
    )  # fmt: skip
    assert decode_record(encode_record(record)) == record
    assert record.describe_recalled() == {"ids": ["a"], "tokens": 7, "missed": ["no room"], "known": ["c"]}
    assert decode_record(b"{}") is None
