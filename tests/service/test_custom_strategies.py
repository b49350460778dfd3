"""Custom strategies: what they choose is kept, and what must stay is kept whatever they choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Agent, Roster, StrategyUnit
from holdfast.context.build import Request, build
from holdfast.context.settings import ContextSettings, parse
from holdfast.context.strategies import Strategy, forget_strategies, make_strategy
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import BudgetTooSmall, InvalidRequest, StoreUnavailable
from holdfast.tokens import STORED


def every_third(units: Sequence[StrategyUnit], budget: int) -> Iterable[int]:
    """Keep every third unit and ignore the budget."""
    return [unit.seq for unit in units if unit.seq % 3 == 0]


def keep_nothing(units: Sequence[StrategyUnit], budget: int) -> Iterable[int]:
    """Keep no unit."""
    return ()


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


async def test_strategy_chooses_what_stays_and_explain_reports_it() -> None:
    """Selected for the whole store, and by an agent."""
    with register_strategies(every_third=every_third):
        roster = Roster(agents={"own": Agent(name="own", context=ContextSettings("every_third", {"budget": 200}))})
    async with holdfast.open("sqlite://:memory:", roster=roster, strategies={"every_third": every_third}) as hf:
        session = await hf.session("s", agent="own")
        for at in range(30):
            await session.append({"role": "user", "content": f"Question {at}: where is my order of last week?"})
        shown = await session.context()
        kept = [run for run in shown.decisions if run.reason == "chosen by the strategy every_third"]
        left = [
            run
            for run in shown.decisions
            if run.reason == "over the budget, and not chosen by the strategy every_third"
        ]
        assert all(run.first % 3 == 0 for run in kept)
        assert left
        assert shown.conversation_tokens <= 200
        turn = await session.send("And now?", strategy="every_third", budget=180)
        assert turn is not None


async def test_strategy_that_keeps_nothing_still_leaves_the_required_messages() -> None:
    """The task, the pin, and the current message."""
    async with holdfast.open("sqlite://:memory:", strategies={"nothing": keep_nothing}) as hf:
        session = await hf.session("s")
        await session.append({"role": "user", "content": "The task."})
        await session.append({"role": "user", "content": "A pinned message."})
        await session.annotate(1, pinned=True)
        for at in range(30):
            await session.append({"role": "user", "content": f"Question {at}: where is my order of last week?"})
        shown = await session.context("nothing", budget=150)
        texts = [message["content"] for message in shown.messages]
        assert texts[:2] == ["The task.", "A pinned message."]
        newest = range(30 - len(texts[2:]), 30)
        assert texts[2:] == [f"Question {at}: where is my order of last week?" for at in newest]


@pytest.mark.parametrize(("options", "share"), [({}, 1.0), ({"threshold": 0.5}, 0.5)])
def test_function_is_called_past_the_threshold(options: dict[str, Any], share: float) -> None:
    """By default, only when the prompt is over its budget. The function may use the whole budget in both cases."""
    called: list[tuple[int, int]] = []

    def keep_all(units: Sequence[StrategyUnit], budget: int) -> list[int]:
        called.append((sum(unit.tokens for unit in units), budget))
        return [unit.seq for unit in units]

    sizes = []
    with register_strategies(keep_all=keep_all):
        made = make_strategy(parse({"strategy": "keep_all", "budget": 1_000, **options}))
        for length in range(1, 60):
            entries = make_log(["x"] * length)
            before = len(called)
            built = build(Request(strategy=made, count=STORED, input_budget=100_000), None, (), entries)
            if len(called) > before:
                break
            sizes.append(built.tokens)
    assert sizes[-1] <= share * 1_000 < called[0][0]
    assert called[0][1] == 1_000


def test_threshold_must_be_a_share() -> None:
    with register_strategies(mine=keep_nothing):
        assert parse({"strategy": "mine", "threshold": 0.9}).options == {"threshold": 0.9}
        with pytest.raises(InvalidRequest, match="threshold: expected a number above 0 and below 1, got 1"):
            parse({"strategy": "mine", "threshold": 1})


@pytest.mark.parametrize(
    ("strategies", "words"),
    [
        ({"digest": keep_nothing}, "is a built-in strategy"),
        ({"my strategy": keep_nothing}, "letters, digits and underscores"),
        ({"mine": 3}, "must be a function, not int"),
        ([keep_nothing], "must be an object, not list"),
    ],
)
def test_invalid_strategies_are_rejected(strategies: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        holdfast.open("sqlite://:memory:", strategies=strategies)


async def test_name_belongs_to_one_function_at_a_time() -> None:
    """A second function would change the prompts of sessions that use the first."""

    def other(units: Sequence[StrategyUnit], budget: int) -> list[int]:
        return []

    async with holdfast.open("sqlite://:memory:", strategies={"mine": keep_nothing}):
        with pytest.raises(InvalidRequest, match="registered for another function"):
            holdfast.open("sqlite://:memory:", strategies={"mine": other})
        async with holdfast.open("sqlite://:memory:", strategies={"mine": keep_nothing}):
            pass
        with pytest.raises(InvalidRequest, match="registered for another function"):
            holdfast.open("sqlite://:memory:", strategies={"mine": other})
    async with holdfast.open("sqlite://:memory:", strategies={"mine": other}):
        pass


async def test_failed_opening_registers_no_strategy(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            async with holdfast.open(
                f"sqlite:///{tmp_path}/no/folder.db", strategies={"mine": lambda units, budget: []}
            ):
                pass


async def test_unknown_strategy_is_rejected() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        with pytest.raises(InvalidRequest, match="unknown strategy 'not_there'"):
            await session.context("not_there")
        with pytest.raises(InvalidRequest, match="unknown strategy 'not_there'"):
            await session.send("Hello", strategy="not_there")


@pytest.mark.parametrize("answer", [lambda units, budget: None, lambda units, budget: 3])
async def test_invalid_choice_is_rejected(answer: Callable[..., Any]) -> None:
    """The error names the strategy."""
    async with holdfast.open("sqlite://:memory:", strategies={"odd_answer": answer}) as hf:
        session = await hf.session("s")
        for at in range(30):
            await session.append({"role": "user", "content": f"Question {at}: where is my order of last week?"})
        with pytest.raises(InvalidRequest, match="strategy 'odd_answer' must return the seq"):
            await session.context("odd_answer", budget=150)
