"""Custom strategies: what they choose is kept, and what must stay is kept whatever they choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import StrategyUnit
from holdfast.context.build import Request, build
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import Strategy, forget_strategies, make_strategy
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED


@contextmanager
def register_strategies(**functions: Callable[[Sequence[StrategyUnit], int], Iterable[int]]) -> Iterator[None]:
    """Register strategies for the duration of the block."""
    holdfast.register_strategies(functions)
    try:
        yield
    finally:
        forget_strategies(functions)


def make_log(texts: Sequence[str]) -> list[Entry]:
    """Return a question, then calls with results alternating with replies."""
    messages: list[Message] = [Message(role="user", content="Find my order, please.")]
    for at, text in enumerate(texts):
        call = ToolCall(id=f"c{at}", name="look", arguments="{}")
        messages += [
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content=text, tool_call_id=call.id),
            Message(role="assistant", content=f"I found {text}"),
            Message(role="user", content=f"And then? {at}"),
        ]
    return list(extend(Tail(), [NewEntry(message=one, tokens=STORED.message(one), timestamp=0) for one in messages])[0])


@given(st.lists(st.text(max_size=300), max_size=12), st.integers(150, 2_000), st.lists(st.integers(-5, 80)))
def test_prompt_is_legal_and_within_budget_for_any_choice(texts: list[str], budget: int, choice: list[int]) -> None:
    """Task, current message and newest unit are in it; each call has its result, each result its call."""
    entries = make_log(texts)
    with register_strategies(random_choice=lambda units, budget: choice):
        _check(entries, budget, make_strategy(ContextSettings("random_choice", {"budget": budget})))


def _check(entries: Sequence[Entry], budget: int, made: Strategy) -> None:
    request = Request(strategy=made, count=STORED, input_budget=100_000)
    try:
        built = build(request, None, (), entries)
    except BudgetTooSmall:
        return
    assert built.tokens <= budget
    assert built.messages[-1].text.startswith(entries[-1].message.text[:8])
    assert any("Find my order" in message.text for message in built.messages)
    open_calls: list[str] = []
    for message in built.messages:
        if message.role == "tool":
            assert message.tool_call_id in open_calls
            open_calls.remove(str(message.tool_call_id))
        else:
            assert not open_calls
            open_calls = [call.id for call in message.tool_calls]
