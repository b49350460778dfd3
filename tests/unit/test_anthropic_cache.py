"""Cache marks for Anthropic: every call reads what the previous call wrote, according to the documentation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.view import ViewState
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import BudgetTooSmall
from holdfast.testing import PromptCache
from holdfast.testing.anthropic_rules import check_request
from holdfast.testing.anthropic_upstream import CacheUse
from holdfast.tokens import STORED
from holdfast.wire.anthropic_requests import build_body
from holdfast.wire.openai import to_chat_message
from tests.amounts import examples

Json = dict[str, Any]
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]
SYSTEM = (Message(role="system", content="You are of help."),)
STRATEGIES = ("token_window", "digest", "none", "buffer_window", "clear_tool_results")

# -- sessions that grow -----------------------------------------------------------------

rounds = st.integers(1, 3) | st.integers(20, 30)
"""Parallel calls, including more than the lookback of the cache."""
turns = st.tuples(
    st.integers(1, 60), st.lists(rounds, max_size=3), st.sampled_from(["plain", "thinking", "twice", "none"])
)


def make_turn(turn: tuple[int, list[int], str], number: int) -> Iterator[Message]:
    """Yield the messages of one turn; texts contain the turn's number, so they are unique."""
    words, tool_rounds, ending = turn
    yield Message(role="user", content=f"#{number} " + "harbour " * words)
    for at, calls in enumerate(tool_rounds):
        ids = [f"c{number}-{at}-{call}" for call in range(calls)]
        extra = {"thinking_blocks": [{"type": "thinking", "thinking": f"{number}", "signature": "s"}]} if at % 2 else {}
        made = tuple(ToolCall(one, "look_up", f'{{"n": "{one}"}}') for one in ids)
        yield Message(role="assistant", content=None, tool_calls=made, extra=extra)
        yield from (Message(role="tool", content=f"{one} " + "kelp " * words, tool_call_id=one) for one in ids)
    if ending != "none":
        extra = {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
        yield Message(role="assistant", content=f"answer {number}", extra=extra if ending == "thinking" else {})
    if ending == "twice":
        yield Message(role="assistant", content=f"and more {number}")


def make_entries(messages: list[Message]) -> list[Entry]:
    new = [NewEntry(message=message, tokens=STORED.message(message), timestamp=0) for message in messages]
    return extend(Tail(), new)[0]


def build_calls(request: Request, session: list[tuple[int, list[int], str]]) -> Iterator[WorkingSet]:
    """Yield the working set for each call of a session, each continuing the previous one."""
    entries = make_entries([message for number, turn in enumerate(session) for message in make_turn(turn, number)])
    state: ViewState | None = None
    for until in range(1, len(entries) + 1):
        if entries[until - 1].message.role == "assistant" or (
            until < len(entries) and entries[until].message.role == "tool"
        ):
            continue
        kept = [entries[seq] for seq in state.keep] if state else []
        try:
            built = build(request, state, kept, entries[state.frontier if state else 0 : until])
        except BudgetTooSmall:
            continue
        state = built.state
        yield built


def body_of(built: WorkingSet, **fields: Any) -> Json:
    messages = [to_chat_message(message) for message in built.messages]
    return {"model": "claude-sonnet-4-5", "tools": TOOLS, "messages": messages, **fields}


def stable(built: WorkingSet) -> list[Message]:
    """Return the part of a prompt that the next one can start with, without an added `[continue]`."""
    messages = list(built.messages)
    return messages[:-1] if messages[-1].role == "user" and messages[-1].content == "[continue]" else messages


def count_cached(use: CacheUse) -> int:
    """Return the number of tokens in the cache after a call."""
    return use.cache_read_input_tokens + use.cache_creation_input_tokens


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=examples(40))
@given(session=st.lists(turns, min_size=1, max_size=8), budget=st.sampled_from([600, 1_500, 4_000]))
def test_every_call_reads_everything_the_previous_call_wrote(
    name: str, session: list[tuple[int, list[int], str]], budget: int
) -> None:
    """If the frontier moved, it still reads the common prefix."""
    options: Json = (
        {} if name == "none" else {"trigger": budget} if name == "clear_tool_results" else {"budget": budget}
    )
    rule = make_strategy(ContextSettings(name, options))
    request = Request(strategy=rule, count=STORED, input_budget=10**9, system=SYSTEM, tools=TOOLS, dialect="anthropic")
    cache, before, written = PromptCache(), None, 0
    for built in build_calls(request, session):
        body = build_body(body_of(built))
        assert check_request(body) == []
        use = cache.process(body)
        if before is not None and stable(built)[: len(stable(before))] == stable(before):
            assert use.cache_read_input_tokens >= written
        elif before is not None and built.messages[:2] == before.messages[:2]:
            task = {"role": "user", "content": body["messages"][0]["content"][:1]}
            assert use.cache_read_input_tokens >= count_cached(PromptCache().process({**body, "messages": [task]}))
        assert use.input_tokens == 0 or built.messages[-1].content == "[continue]"
        before, written = built, count_cached(use)


# -- positions of marks ---------------------------------------------------------------------


def list_marks(body: Json) -> list[tuple[str, Any]]:
    """Return the positions of all marks with the marks, in request order."""
    places: list[tuple[str, Json]] = [(f"tools.{at}", tool) for at, tool in enumerate(body.get("tools", ()))]
    places += [(f"system.{at}", block) for at, block in enumerate(body.get("system", ()))]
    for number, message in enumerate(body["messages"]):
        for at, block in enumerate(message["content"]):
            inner = block.get("content") or [] if block["type"] == "tool_result" else []
            places += [(f"{number}.{at}.{deep}", one) for deep, one in enumerate(inner)]
            places.append((f"{number}.{at}", block))
    return [(place, block["cache_control"]) for place, block in places if "cache_control" in block]


def conversation(*contents: Any) -> list[Json]:
    """Return alternating user and assistant messages after a system prompt."""
    told = [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)]
    return [{"role": "system", "content": "Sys."}, *told]


def test_four_marks_are_set_by_default() -> None:
    """After the system prompt, the task, the previous prompt and this prompt."""
    body = build_body({"model": "m", "tools": TOOLS, "messages": conversation("task", "a", "b", "c", "d", "e", "f")})
    assert list_marks(body) == [("system.0", MARK), ("0.0", MARK), ("4.0", MARK), ("6.0", MARK)]


def test_without_a_system_prompt_the_last_tool_is_marked() -> None:
    """A tool with deferred loading cannot be marked."""
    later = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}
    body = build_body({"model": "m", "tools": [*TOOLS, later], "messages": conversation("task")[1:]})
    assert list_marks(body) == [("tools.0", MARK), ("0.0", MARK)]


def test_an_added_continue_message_is_not_cached() -> None:
    """The next prompt has the real message in its place."""
    body = build_body({"model": "m", "messages": conversation("task", "said")})
    assert body["messages"][-1]["content"][0]["text"] == "[continue]"
    assert list_marks(body)[-1][0] == "1.0"


@pytest.mark.parametrize(("said_", "marks"), [(False, 0), (None, 3), (True, 3), ({}, 3)])
def test_marks_can_be_disabled(said_: Any, marks: int) -> None:
    """With `cache_control: false` in the request or in the params of an llm; the key is not forwarded."""
    body = build_body({"model": "m", "cache_control": said_, "messages": conversation("task", "a", "b")})
    assert len(list_marks(body)) == marks
    assert "cache_control" not in body


def test_marks_of_the_client_are_kept_if_ours_are_disabled() -> None:
    block = {"type": "text", "text": "task", "cache_control": MARK}
    body = build_body({"model": "m", "cache_control": False, "messages": conversation([block], "a", "b")})
    assert list_marks(body) == [("0.0", MARK)]


def test_the_request_sets_the_lifetime_of_marks() -> None:
    """Our marks copy Anthropic's top-level `cache_control`."""
    body = build_body({"model": "m", "cache_control": HOUR, "messages": conversation("task")})
    assert list_marks(body) == [("system.0", HOUR), ("0.0", HOUR)]


def test_marks_before_a_one_hour_mark_last_one_hour_too() -> None:
    """The API rejects a five-minute mark before a one-hour mark."""
    block = {"type": "text", "text": "e", "cache_control": HOUR}
    body = build_body({"model": "m", "messages": conversation("task", "a", "b", "c", [block])})
    assert [mark for _, mark in list_marks(body)] == [HOUR] * 4
    assert check_request(body) == []


def test_reasoning_is_never_marked() -> None:
    thought = {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    told = conversation("task", "a", "b")
    told.insert(2, {"role": "assistant", "content": None, **thought})
    body = build_body({"model": "m", "messages": told})
    assert check_request(body) == []


own = st.lists(st.booleans(), min_size=1, max_size=9)


@given(own, st.booleans(), st.booleans(), st.sampled_from([MARK, HOUR]))
def test_up_to_four_marks_of_the_client_are_kept(
    texts: list[bool], in_system: bool, in_tools: bool, mark: Json
) -> None:
    """In new messages, tools and the system prompt; never more than four in total."""
    text = [{"type": "text", "text": str(at), **({"cache_control": mark} if on else {})} for at, on in enumerate(texts)]
    system = {"type": "text", "text": "Sys.", **({"cache_control": mark} if in_system else {})}
    tool = {**TOOLS[0], **({"cache_control": mark} if in_tools else {})}
    told = conversation("task", "said", text)
    told[0]["content"] = [system]
    given_ = {"model": "m", "tools": [tool], "messages": told}
    before = copy.deepcopy(given_)
    body = build_body(given_)
    assert given_ == before
    assert check_request(body) == []
    places = [place for place, _ in list_marks(body)]
    theirs = ["tools.0"] * in_tools + ["system.0"] * in_system + [f"2.{at}" for at, on in enumerate(texts) if on]
    assert [place for place in places if place in theirs] == theirs[-4:]
    assert len(places) == max(min(4, len(theirs)), len(places)) <= 4
