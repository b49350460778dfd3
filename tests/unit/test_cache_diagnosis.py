"""Comparing a prompt with an earlier one by recorded hashes, on random prompts and settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.context.cache_diagnosis import Comparison, diagnose, make_comparison, make_fingerprint
from holdfast.context.explain import BuildRecord, Diagnosis, Fingerprint, encode_record
from holdfast.context.prefix_diff import hash_messages
from holdfast.domain.messages import Message
from holdfast.domain.session import ModelCall
from holdfast.wire.cache_reports import report_to_anthropic, report_to_openai

messages = st.lists(st.sampled_from("abc"), max_size=4).map(
    lambda texts: tuple(Message(role="user", content=text) for text in texts)
)
FIELDS: dict[str, Any] = {
    "model": ["m", "n"],
    "tools": [None, [{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}]],
    "prompt_cache_key": [None, "k"],
    "reasoning_effort": [None, "low"],
    "verbosity": [None, "low"],
    "service_tier": [None, "flex"],
    "response_format": [None, {"type": "json_object"}],
    "tool_choice": [None, "auto"],
}
bodies = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in FIELDS.items()})


def working_set(conversation: tuple[Message, ...], frontier: int = 0) -> Any:
    """Return what a comparison reads of a working set, with one system message."""
    window = SimpleNamespace(cuts={}, list_compactions=list)
    sent = (Message(role="system", content="Be brief."), *conversation)
    view = SimpleNamespace(frontier=frontier)
    return SimpleNamespace(messages=sent, leading=1, window=window, total_tokens=50, view=view)


def record_call(built: Any, fingerprint: Fingerprint | None, prompt_tokens: int = 100) -> ModelCall:
    """Return the stored record of a call."""
    record = BuildRecord(
        limit=1, input_budget=2, overhead=7, factor=1.0, dialect="openai", messages=len(built.messages), common=-1,
        frontier=built.view.frontier, fingerprint=fingerprint,
    )  # fmt: skip
    prompt = bytes.fromhex(hash_messages(built.messages))
    return ModelCall(model="m", timestamp=0, prompt_tokens=prompt_tokens, hash=prompt, build=encode_record(record))


def compare(
    before: tuple[Any, Any], now: tuple[Any, Any], *, session_id: str = "s", prompt_tokens: int = 100
) -> Diagnosis:
    """Compare two prompts, each given by its working set and its body."""
    call = record_call(before[0], make_fingerprint(before[1], before[0], "llm"), prompt_tokens)
    return diagnose(make_comparison(call, "s"), now[0], make_fingerprint(now[1], now[0], "llm"), session_id)


@given(messages, messages, bodies, bodies, st.booleans())
def test_hit_means_that_prompt_and_settings_begin_with_the_earlier_ones(
    first: tuple[Message, ...], rest: tuple[Message, ...], body: dict[str, Any], other: dict[str, Any], appends: bool
) -> None:
    """Nothing is reported exactly if all settings are equal and the prompt begins with the earlier one."""
    second = (*first, *rest) if appends else rest
    found = compare((working_set(first), body), (working_set(second), other))
    differs = {name for name in FIELDS if body[name] != other[name]}
    begins = second[: len(first)] == first
    assert (report_to_openai(found)["type"] == "cache_hit") is (begins and not differs - {"tool_choice"})
    ignored = {"prompt_cache_key", "service_tier"}
    assert (report_to_anthropic(found) is None) is (begins and not differs - ignored)
    assert ("messages" in found.changed) is not begins


def test_order_of_the_fields_of_an_object_does_not_matter() -> None:
    """Two JSON objects with the same fields are equal; two lists with another order are not."""
    tools: Any = [{"name": "a", "description": "x"}]
    turned: Any = [{"description": "x", "name": "a"}]
    built = working_set(())
    assert compare((built, {"tools": tools}), (built, {"tools": turned})).changed == ()


def test_moved_frontier_is_a_compaction_only_in_the_same_session() -> None:
    """Positions in the logs of two sessions cannot be compared."""
    before = working_set((Message(role="user", content="a"),))
    now = working_set((Message(role="user", content="b"),), frontier=4)
    assert compare((before, {}), (now, {})).changed == ("compaction", "messages")
    assert compare((before, {}), (now, {}), session_id="t").changed == ("messages",)


def test_tokens_are_those_of_the_provider_or_else_counted() -> None:
    """Tools and system prompt are left out of the missed tokens if they are unchanged."""
    before, now = working_set((Message(role="user", content="a"),)), working_set(())
    assert report_to_openai(compare((before, {}), (now, {})))["cache_missed_tokens"] == 100 - 7
    assert report_to_openai(compare((before, {}), (now, {}), prompt_tokens=0))["cache_missed_tokens"] == 50 - 7
    changed = compare((before, {}), (now, {"tools": [{"name": "a"}]}))
    assert report_to_openai(changed)["cache_missed_tokens"] == 100
    assert report_to_anthropic(changed) == {
        "cache_miss_reason": {"type": "tools_changed", "cache_missed_input_tokens": 100}
    }


@pytest.mark.parametrize("call", [None, ModelCall(model="m", timestamp=0), record_call(working_set(()), None)])
def test_call_without_hashes_cannot_be_compared(call: ModelCall | None) -> None:
    """Calls of older releases, and calls that were not recorded, are reported as unavailable."""
    built = working_set(())
    found = diagnose(make_comparison(call, "s"), built, make_fingerprint({}, built, "llm"), "s")
    assert report_to_openai(found) == {"type": "unavailable"}
    assert report_to_anthropic(found) == {"cache_miss_reason": {"type": "unavailable"}}
    assert report_to_anthropic(diagnose(Comparison("none"), built, make_fingerprint({}, built, "llm"), "s")) is None
