"""Behaviours of functions that shorten a conversation: the same tests for LangChain's `trim_messages` (the oracle) and for our middleware."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import pytest

pytest.importorskip("langchain.agents", reason="LangChain is not installed here: make adapters")

from langchain.agents import create_agent
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_openai_messages,
    trim_messages,
)
from langgraph.checkpoint.memory import InMemorySaver

import holdfast
from holdfast.adapters.langchain import HoldfastMiddleware
from tests.adapters.oracle import expect_difference
from tests.adapters.test_langchain import CONFIG, ScriptedModel, ask, check_prompt, find, play_orders

SHORTENED: Final = "a message of the working set may be a digest or a shortened message"
NO_ROOM: Final = "the call fails with `BudgetTooSmall` instead of sending nothing"
OURS: Final = {
    "test_every_message_is_one_of_the_conversation": SHORTENED,
    "test_too_small_a_limit_sends_nothing": NO_ROOM,
}
REASONS: Final[dict[str, dict[str, str]]] = {
    "trim_messages": {
        "test_the_question_stays_while_its_tools_are_called": "only whole messages at the end are kept, from a question on",
        "test_the_question_stays_if_a_result_is_large": "a message that does not fit removes all messages before it",
        "test_old_facts_are_still_mentioned": "old messages are left out without a digest",
    },
    "fitted": OURS,
    "stored": {
        **OURS,
        "test_the_same_conversation_is_shortened_equally": "each session marks its digest with a text of its own",
    },
}
"""The known differences of each function, by the name of the test."""
Trim = Callable[[Sequence[BaseMessage], int], Awaitable[list[BaseMessage]]]
"""Returns the messages that a model gets, within a number of tokens."""


def count_tokens(messages: Sequence[BaseMessage]) -> int:
    """Return the tokens of messages, as Holdfast counts them, so that both kinds get the same limit."""
    if not messages:
        return 0
    return holdfast.fit(convert_to_openai_messages(messages), budget=2**31).conversation_tokens


async def trim_as_langchain(messages: Sequence[BaseMessage], limit: int) -> list[BaseMessage]:
    """Trim messages as LangChain's documentation advises: the newest ones, from a question on."""
    return trim_messages(
        list(messages),
        max_tokens=limit,
        token_counter=count_tokens,
        strategy="last",
        start_on="human",
        include_system=True,
    )


@pytest.fixture(params=list(REASONS))
async def service(request: pytest.FixtureRequest) -> AsyncIterator[Trim]:
    """Each function in turn. A test that fails for a known reason is expected to fail."""
    expect_difference(request, REASONS[request.param])
    if request.param == "trim_messages":
        yield trim_as_langchain
        return
    names = (f"t{number}" for number in itertools.count())
    async with holdfast.open("sqlite://:memory:") as hf:
        stored = hf if request.param == "stored" else None

        async def trim(messages: Sequence[BaseMessage], limit: int) -> list[BaseMessage]:
            sent: list[list[BaseMessage]] = []

            async def handle(given: ModelRequest[Any]) -> ModelResponse[Any]:
                sent.append(list(given.messages))
                return ModelResponse(result=[AIMessage("Yes.")])

            middleware = HoldfastMiddleware(
                stored, budget=limit, session_id=next(names), user_id="ada", model="unknown"
            )
            model = ScriptedModel(messages=play_orders(), prompts=[])
            await middleware.awrap_model_call(ModelRequest(model=model, messages=list(messages)), handle)
            return sent[0]

        yield trim


def make_turn(number: int, *, calls: int = 1, size: int = 20) -> list[BaseMessage]:
    """Return a question, calls made together, their results, and an answer."""
    names = [f"c{number}-{at}" for at in range(calls)]
    called = [{"name": "find", "args": {"order": number}, "id": name} for name in names]
    return [
        HumanMessage(f"Where is order {number}?", id=f"h{number}"),
        AIMessage("", tool_calls=called, id=f"a{number}", additional_kwargs={"signature": f"s{number}"}),
        *(ToolMessage(f"Order {number} is on its way. " * size, tool_call_id=name, id=f"r{name}") for name in names),
        AIMessage(f"Order {number} is on its way.", id=f"b{number}"),
    ]


def play(turns: int, **options: int) -> list[BaseMessage]:
    """Return a conversation of turns with tools that ends with a question."""
    return [
        *(one for number in range(turns) for one in make_turn(number, **options)),
        HumanMessage("And now?", id="last"),
    ]


def get_ids(messages: Sequence[BaseMessage], of: Sequence[BaseMessage]) -> list[str]:
    """Return the ids of those messages that are in a conversation."""
    known = {message.id for message in of}
    return [str(message.id) for message in messages if message.id in known]


async def test_a_conversation_that_fits_is_sent_as_it_is(service: Trim) -> None:
    messages = play(3)
    assert await service(messages, 100_000) == messages


async def test_the_newest_messages_are_kept(service: Trim) -> None:
    messages = play(20)
    kept = get_ids(await service(messages, 1_500), messages)
    assert kept[-2:] == ["b19", "last"]
    assert "h0" not in kept or "h19" in kept


async def test_more_tokens_keep_at_least_as_many_messages(service: Trim) -> None:
    messages = play(20)
    kept = [len(get_ids(await service(messages, limit), messages)) for limit in (500, 1_000, 2_000, 4_000, 100_000)]
    assert kept == sorted(kept)
    assert kept[-1] == len(messages)


async def test_kept_messages_are_unchanged(service: Trim) -> None:
    messages = play(20)
    known = {message.id: message for message in messages}
    sent = [
        message
        for message in await service(messages, 4_000)
        if message.id in known and message.content == known[message.id].content
    ]
    assert len(sent) >= 8
    assert all(message == known[message.id] for message in sent)
    assert any(message.additional_kwargs.get("signature") for message in sent)


async def test_the_same_conversation_is_shortened_equally(service: Trim) -> None:
    messages = play(20)
    first, second = [await service(messages, 1_000) for _ in range(2)]
    assert [(one.type, one.content) for one in first] == [(one.type, one.content) for one in second]


async def test_the_question_stays_while_its_tools_are_called(service: Trim) -> None:
    loop = [one for number in range(15) for one in make_turn(number)[1:3]]
    question = HumanMessage("Where are my orders?", id="question")
    sent = await service([question, *loop], 900)
    assert "question" in get_ids(sent, [question])


async def test_the_question_stays_if_a_result_is_large(service: Trim) -> None:
    turn = make_turn(1, size=2_000)[:3]
    sent = await service([*play(5)[:-1], *turn], 900)
    assert sent
    assert "h1" in get_ids(sent, turn)
    check_prompt(sent)


async def test_old_facts_are_still_mentioned(service: Trim) -> None:
    fact = [HumanMessage("My booking code is QX7RTZ, please remember it."), AIMessage("Noted.")]
    assert "QX7RTZ" in str(await service([*fact, *play(30)], 1_000))


async def test_every_message_is_one_of_the_conversation(service: Trim) -> None:
    messages = play(30)
    assert all(message in messages for message in await service(messages, 900))


async def test_too_small_a_limit_sends_nothing(service: Trim) -> None:
    assert await service([HumanMessage("word " * 5_000)], 50) == []


async def test_an_agent_leaves_the_same_state_as_without_the_middleware() -> None:
    async def describe(*middleware: Any) -> list[Any]:
        model = ScriptedModel(messages=play_orders(), prompts=[])
        agent = create_agent(
            model, [find], system_prompt="You help.", middleware=middleware, checkpointer=InMemorySaver()
        )
        for number in range(6):
            state = await ask(agent, number)
        stored = (await agent.aget_state(CONFIG)).values["messages"]
        assert stored == state
        return [(one.type, one.content, getattr(one, "tool_calls", None)) for one in state]

    async with holdfast.open("sqlite://:memory:", budget=700) as hf:
        expected = await describe()
        assert await describe(HoldfastMiddleware(hf)) == expected
        assert await describe(HoldfastMiddleware(budget=700)) == expected
