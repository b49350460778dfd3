"""The OpenAI Agents SDK's own `OpenAIConversationsSession` and server-side state, against a server with another provider's model."""

from __future__ import annotations

import json
from typing import Any

import pytest

agents = pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed here: make adapters")
from openai import AsyncOpenAI  # noqa: E402 - after the check

from holdfast.testing import Reply  # noqa: E402 - after the check
from tests.edges.server import Served, gateway  # noqa: E402 - after the check

TURNS = 12


@agents.function_tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"{city}: {len(city)} degrees"


def answer(body: dict[str, Any]) -> Reply:
    """Call the tool for two cities at once, then repeat both results."""
    messages = body["messages"]
    results = []
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        results.append(message["content"])
    if results:
        return Reply(text=" and ".join(reversed(results)))
    city = messages[-1]["content"]
    return Reply(tool_calls=[("get_weather", {"city": city}), ("get_weather", {"city": f"New {city}"})])


def make_agent(served: Served) -> tuple[Any, Any]:
    """Return an agent whose model is the server, and the client that it uses."""
    client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)
    model = agents.OpenAIResponsesModel(model="gpt-4o", openai_client=client)
    return agents.Agent(name="Weather", instructions="Be brief.", model=model, tools=[get_weather]), client


@pytest.fixture(autouse=True)
def _no_tracing() -> None:
    agents.set_tracing_disabled(True)


def check_prompt(messages: list[dict[str, Any]]) -> None:
    """Check that each call has its result directly after it."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
            continue
        assert not open_calls
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    assert not open_calls


@pytest.mark.parametrize("stream", [False, True])
async def test_conversations_session_in_an_agent_loop(stream: bool) -> None:
    async with gateway(answer) as (served, upstream):
        agent, client = make_agent(served)
        session = agents.OpenAIConversationsSession(openai_client=client)
        for number in range(TURNS):
            if stream:
                result = agents.Runner.run_streamed(agent, f"City {number}", session=session)
                async for _ in result.stream_events():
                    pass
            else:
                result = await agents.Runner.run(agent, f"City {number}", session=session)
            size = len(f"City {number}")
            assert result.final_output == f"City {number}: {size} degrees and New City {number}: {size + 4} degrees"
        for received in upstream.requests:
            check_prompt(received.body["messages"])
        items = await session.get_items()
        assert [item["type"] for item in items] == TURNS * [
            "message",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "message",
        ]
        newest = await session.get_items(limit=3)
        assert newest == items[-3:]
        users = [item["content"][0]["text"] for item in items if item.get("role") == "user"]
        assert users == [f"City {number}" for number in range(TURNS)]
        # The SDK does not name the conversation in its requests: one session has the items, another one the turns.
        assert len((await served.http.get("/v1/sessions")).json()["data"]) == 2
        await client.close()


async def test_newest_items_are_popped_and_the_session_is_cleared() -> None:
    async with gateway(answer) as (served, upstream):
        agent, client = make_agent(served)
        session = agents.OpenAIConversationsSession(openai_client=client)
        await agents.Runner.run(agent, "Oslo", session=session)
        items = await session.get_items()
        popped = [await session.pop_item() for _ in range(len(items))]
        # The rest of a message with several items is stored anew, so the ids of its items change.
        assert [{**item, "id": ""} for item in popped] == [{**item, "id": ""} for item in items[::-1]]
        assert await session.pop_item() is None
        result = await agents.Runner.run(agent, "Rome", session=session)
        assert result.final_output == "Rome: 4 degrees and New Rome: 8 degrees"
        assert "Oslo" not in json.dumps(upstream.requests[-1].body)
        await session.clear_session()
        assert await session.get_items() == []
        await client.close()


@pytest.mark.parametrize("state", ["previous_response_id", "conversation_id"])
async def test_state_on_the_server(state: str) -> None:
    """The SDK sends only new items; each prompt has the whole conversation, with calls and results together."""
    async with gateway(answer) as (served, upstream):
        agent, client = make_agent(served)
        given: dict[str, Any] = {}
        if state == "conversation_id":
            given = {state: (await client.conversations.create()).id}
        for number in range(TURNS):
            result = await agents.Runner.run(agent, f"City {number}", **given)
            if state == "previous_response_id":
                given = {state: result.last_response_id}
        for received in upstream.requests:
            check_prompt(received.body["messages"])
        users = [one["content"] for one in upstream.requests[-1].body["messages"] if one["role"] == "user"]
        assert users == [f"City {number}" for number in range(TURNS)]
        assert len((await served.http.get("/v1/sessions")).json()["data"]) == 1
        await client.close()
