"""Marks for Anthropic's prompt cache: what every call reads of what the call before wrote, as the cache is documented."""

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
"""Calls in parallel: more than are looked back over, too."""
turns = st.tuples(
    st.integers(1, 60), st.lists(rounds, max_size=3), st.sampled_from(["plain", "thinking", "twice", "none"])
)


def said(turn: tuple[int, list[int], str], number: int) -> Iterator[Message]:
    """The messages of one turn; texts are made of their number, so that no two are alike."""
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


def logged(messages: list[Message]) -> list[Entry]:
    new = [NewEntry(message=message, tokens=STORED.message(message), timestamp=0) for message in messages]
    return extend(Tail(), new)[0]


def calls(request: Request, session: list[tuple[int, list[int], str]]) -> Iterator[WorkingSet]:
    """What is built for each call of a session, carried on from call to call."""
    entries = logged([message for number, turn in enumerate(session) for message in said(turn, number)])
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
    """Of a prompt what the next one can begin with: without a word that the dialect wants at the end."""
    messages = list(built.messages)
    return messages[:-1] if messages[-1].role == "user" and messages[-1].content == "[continue]" else messages


def spent(use: CacheUse) -> int:
    """Tokens that are in the cache behind a call."""
    return use.cache_read_input_tokens + use.cache_creation_input_tokens


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=examples(40))
@given(session=st.lists(turns, min_size=1, max_size=8), budget=st.sampled_from([600, 1_500, 4_000]))
def test_every_call_reads_all_that_the_call_before_wrote(
    name: str, session: list[tuple[int, list[int], str]], budget: int
) -> None:
    """Unless the prompt before is no part of this one, because the frontier moved: then still what stands in front of both."""
    options: Json = (
        {} if name == "none" else {"trigger": budget} if name == "clear_tool_results" else {"budget": budget}
    )
    rule = make_strategy(ContextSettings(name, options))
    request = Request(strategy=rule, count=STORED, input_budget=10**9, system=SYSTEM, tools=TOOLS, dialect="anthropic")
    cache, before, written = PromptCache(), None, 0
    for built in calls(request, session):
        body = build_body(body_of(built))
        assert check_request(body) == []
        use = cache.process(body)
        if before is not None and stable(built)[: len(stable(before))] == stable(before):
            assert use.cache_read_input_tokens >= written
        elif before is not None and built.messages[:2] == before.messages[:2]:
            task = {"role": "user", "content": body["messages"][0]["content"][:1]}
            assert use.cache_read_input_tokens >= spent(PromptCache().process({**body, "messages": [task]}))
        assert use.input_tokens == 0 or built.messages[-1].content == "[continue]"
        before, written = built, spent(use)


# -- where marks stand ---------------------------------------------------------------------


def marked(body: Json) -> list[tuple[str, Any]]:
    """What bears a mark, and the mark, in the order of the request."""
    places: list[tuple[str, Json]] = [(f"tools.{at}", tool) for at, tool in enumerate(body.get("tools", ()))]
    places += [(f"system.{at}", block) for at, block in enumerate(body.get("system", ()))]
    for number, message in enumerate(body["messages"]):
        for at, block in enumerate(message["content"]):
            inner = block.get("content") or [] if block["type"] == "tool_result" else []
            places += [(f"{number}.{at}.{deep}", one) for deep, one in enumerate(inner)]
            places.append((f"{number}.{at}", block))
    return [(place, block["cache_control"]) for place, block in places if "cache_control" in block]


def conversation(*contents: Any) -> list[Json]:
    """User and assistant in turn, a system prompt before them."""
    told = [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)]
    return [{"role": "system", "content": "Sys."}, *told]


def test_four_marks_of_ours() -> None:
    """Behind the system prompt, behind the task, at the end of the prompt before and of this one."""
    body = build_body({"model": "m", "tools": TOOLS, "messages": conversation("task", "a", "b", "c", "d", "e", "f")})
    assert marked(body) == [("system.0", MARK), ("0.0", MARK), ("4.0", MARK), ("6.0", MARK)]


def test_without_a_system_prompt_the_last_tool_is_marked() -> None:
    """One that is loaded later cannot be."""
    later = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}
    body = build_body({"model": "m", "tools": [*TOOLS, later], "messages": conversation("task")[1:]})
    assert marked(body) == [("tools.0", MARK), ("0.0", MARK)]


def test_the_word_that_a_dialect_adds_at_the_end_is_not_written_to_the_cache() -> None:
    """The next prompt has what was said instead."""
    body = build_body({"model": "m", "messages": conversation("task", "said")})
    assert body["messages"][-1]["content"][0]["text"] == "[continue]"
    assert marked(body)[-1][0] == "1.0"


@pytest.mark.parametrize(("said_", "marks"), [(False, 0), (None, 3), (True, 3), ({}, 3)])
def test_they_can_be_turned_off(said_: Any, marks: int) -> None:
    """By `cache_control: false`, in the request or in the params of an llm; it does not travel."""
    body = build_body({"model": "m", "cache_control": said_, "messages": conversation("task", "a", "b")})
    assert len(marked(body)) == marks
    assert "cache_control" not in body


def test_turned_off_the_clients_own_stay() -> None:
    block = {"type": "text", "text": "task", "cache_control": MARK}
    body = build_body({"model": "m", "cache_control": False, "messages": conversation([block], "a", "b")})
    assert marked(body) == [("0.0", MARK)]


def test_a_request_says_how_long_they_last() -> None:
    """Anthropic's top-level `cache_control` is what ours say."""
    body = build_body({"model": "m", "cache_control": HOUR, "messages": conversation("task")})
    assert marked(body) == [("system.0", HOUR), ("0.0", HOUR)]


def test_a_mark_for_an_hour_is_not_behind_one_for_five_minutes() -> None:
    """The API refuses that: those before it are for an hour, too."""
    block = {"type": "text", "text": "e", "cache_control": HOUR}
    body = build_body({"model": "m", "messages": conversation("task", "a", "b", "c", [block])})
    assert [mark for _, mark in marked(body)] == [HOUR] * 4
    assert check_request(body) == []


def test_reasoning_is_never_marked() -> None:
    thought = {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    told = conversation("task", "a", "b")
    told.insert(2, {"role": "assistant", "content": None, **thought})
    body = build_body({"model": "m", "messages": told})
    assert check_request(body) == []


own = st.lists(st.booleans(), min_size=1, max_size=9)


@given(own, st.booleans(), st.booleans(), st.sampled_from([MARK, HOUR]))
def test_no_mark_of_the_clients_is_lost_while_there_are_four(
    texts: list[bool], in_system: bool, in_tools: bool, mark: Json
) -> None:
    """Wherever they stand in what is new, in tools and in the system prompt; never more than four in all."""
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
    places = [place for place, _ in marked(body)]
    theirs = ["tools.0"] * in_tools + ["system.0"] * in_system + [f"2.{at}" for at, on in enumerate(texts) if on]
    assert [place for place in places if place in theirs] == theirs[-4:]
    assert len(places) == max(min(4, len(theirs)), len(places)) <= 4
