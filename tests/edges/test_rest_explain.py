"""`GET /v1/sessions/{id}/explain`: the state of messages over HTTP, access, and refused requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from holdfast.limits import EXPLAIN_QUERY_CHARS
from tests.edges.rest_kit import assert_error
from tests.edges.schema import Schemas
from tests.edges.server import Served, gateway

PATH = "/v1/sessions/trip/explain"
CONFIG = "context: {strategy: digest, budget: 500}"
SEASICK = "By the way, I get seasick. Find me a way around all ferries."
TURNS = 24


@asynccontextmanager
async def server_with_talk(*config: str) -> AsyncIterator[Served]:
    """Run a server with a conversation of the official client, in turns."""
    reply = "That is fine: a boat with a large sail takes you there in an afternoon. " * 2
    async with gateway(lambda _: reply, *(config or (CONFIG,))) as (served, _):
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused") as client:
            for n in range(TURNS):
                text = SEASICK if n == 2 else f"What about harbour number {n} and its {n * 7} boats? " * 2
                await client.chat.completions.create(
                    model="default",
                    messages=[{"role": "user", "content": text}],
                    extra_body={"session_id": "trip", "session_mode": "delta"},
                )
        yield served


async def explain(served: Served, **parameters: Any) -> dict[str, Any]:
    response = await served.http.get(PATH, params=parameters)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    document = (await served.http.get("/openapi.json")).json()
    assert Schemas(document).problems(document["components"]["schemas"]["Explanation"], answer) == []
    return answer


async def test_another_strategy_and_budget_are_explained() -> None:
    """Without a model call, and without changing the session's own prompt."""
    async with server_with_talk() as served:
        before = await explain(served)
        answer = await explain(served, seq=4, strategy="token_window", budget=2000)
        assert (answer["strategy"], answer["budget"]) == ("token_window", 2000)
        assert (await explain(served, seq=4, budget=20_000))["messages"][0]["state"] == "whole"
        assert await explain(served) == before
        assert_error(await served.http.get(PATH, params={"strategy": "digets"}), 400)
        assert_error(await served.http.get(PATH, params={"budget": "0"}), 400)


async def test_message_is_explained_for_the_next_and_past_prompts() -> None:
    """As in the library, by seq or by text."""
    async with server_with_talk() as served:
        answer = await explain(served, seq=4)
        (one,) = answer["messages"]
        assert (one["seq"], one["turn_id"], one["role"], one["text"]) == (4, 2, "user", SEASICK)
        assert one["state"] != "whole"
        assert one["departure"]["turn_id"] > 2
        assert {remedy["kind"] for remedy in one["remedies"]} == {"pin", "budget", "recall"}
        assert answer["compactions"][0]["source_tokens"] > answer["compactions"][0]["tokens"]
        left = one["departure"]["turn_id"]
        for turn, states in ((left - 1, {"whole"}), (left, {"part", "no"})):
            then = await explain(served, seq=4, turn=turn)
            assert (then["turn"], then["exact"]) == (turn, True)
            assert then["messages"][0]["state"] in states
        by_words = await explain(served, q="get  SEASICK")
        assert [message["seq"] for message in by_words["messages"]] == [4]
        session = await served.hf.session("trip")
        assert msgspec.json.decode(msgspec.json.encode(await session.explain(seq=4))) == answer


async def test_turn_is_explained_with_the_strategy_of_its_request() -> None:
    """Without a strategy in the request for the context, too."""
    async with server_with_talk("context: {strategy: digest, budget: 20000}") as served:
        chat: dict[str, Any] = {
            "model": "default",
            "messages": [{"role": "user", "content": "And now?"}],
            "session_id": "trip",
        }
        chat |= {"session_mode": "delta", "strategy": "token_window", "budget": 500}
        assert (await served.http.post("/v1/chat/completions", json=chat)).status_code == 200
        answer = await explain(served, seq=4, turn=TURNS)
        assert (answer["exact"], answer["strategy"], answer["budget"]) == (True, "token_window", 500)
        assert answer["messages"][0]["state"] == "no"
        assert (await explain(served, seq=4))["messages"][0]["state"] == "whole"
        path = "/v1/sessions/trip/context"
        found = (await served.http.post(path, json={"at_turn": TURNS, "explain": True})).json()
        assert found["hash"] == found["sent_hash"]
        assert "not_sent" not in found["build"]
        named = {"at_turn": TURNS, "strategy": "none", "explain": True}
        found = (await served.http.post(path, json=named)).json()
        assert "sent_hash" not in found
        assert found["build"]["not_sent"].startswith("no call of this turn was sent with the requested settings")


async def test_excerpts_of_a_truncated_message_are_in_the_prompt() -> None:
    async with server_with_talk() as served:
        left = (await explain(served, seq=4))["messages"][0]["departure"]["turn_id"]
        answer = await explain(served, seq=4, turn=left)
        body = {"at_turn": left}
        prompt = (await served.http.post("/v1/sessions/trip/context", json=body)).json()["messages"]
        (one,) = answer["messages"]
        assert one["state"] == "part"
        for excerpt in one["excerpts"]:
            assert excerpt["words"]
            assert any(excerpt["words"] in str(message["content"]) for message in prompt)


async def test_messages_are_paged() -> None:
    async with server_with_talk() as served:
        seen: list[int] = []
        more: dict[str, int] = {}
        while True:
            answer = await explain(served, q="boats", limit=10, **more)
            seen += [one["seq"] for one in answer["messages"]]
            assert answer["has_more"] is (answer["before"] is not None)
            if not answer["has_more"]:
                break
            more = {"before": answer["before"]}
        assert seen == [2 * n for n in reversed(range(TURNS)) if n != 2]


async def test_prompt_is_described_without_a_message() -> None:
    async with server_with_talk() as served:
        answer = await explain(served)
        assert (answer["messages"], answer["has_more"], answer["strategy"]) == ([], False, "digest")
        context = (await served.http.post("/v1/sessions/trip/context", json={"explain": True})).json()
        assert answer["decisions"] == context["decisions"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("seq=x", "seq"),
        ("seq=-1", "seq"),
        ("turn=99", "turn"),
        ("turn=1.5", "turn"),
        ("q=", "q"),
        ("q=%20", "q"),
        (f"q={'x' * (EXPLAIN_QUERY_CHARS + 1)}", "q"),
        ("q=a&seq=1", "seq"),
        ("before=3", "before"),
        ("q=a&limit=51", "limit"),
        ("text=a", "text"),
        ("seq=1&agent=nobody", "agent"),
    ],
)
async def test_invalid_parameters_are_named(query: str, param: str) -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await served.http.put("/v1/sessions/trip", json={"messages": [{"role": "user", "content": "hi"}]})
        response = await served.http.get(f"{PATH}?{query}")
        assert assert_error(response, 400, 404)["param"] in (param, None if param == "agent" else param)


async def test_missing_session_or_message_is_not_found() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        assert assert_error(await served.http.get(f"{PATH}?seq=0"), 404)["code"] == "session_not_found"
        await served.http.put("/v1/sessions/trip", json={"messages": [{"role": "user", "content": "hi"}]})
        assert assert_error(await served.http.get(f"{PATH}?seq=7"), 404)["code"] == "message_not_found"


async def test_erased_message_text_is_not_shown() -> None:
    async with server_with_talk() as served:
        assert (await served.http.delete("/v1/sessions/trip/messages/4")).status_code == 200
        for turn in ({}, {"turn": 4}, {"turn": TURNS - 1}):
            response = await served.http.get(PATH, params={"seq": 4, **turn})
            assert response.json()["messages"][0]["decision"] == "erased"
            assert "seasick" not in response.text
        assert (await explain(served, q="seasick"))["messages"] == []


async def test_agent_parameter_explains_the_agents_prompt() -> None:
    agents = "agents: {brief: {llm: default, context: {strategy: head_tail, window_size: 3}}}"
    async with server_with_talk(CONFIG, agents) as served:
        answer = await explain(served, seq=4, agent="brief")
        assert answer["strategy"] == "head_tail"
        assert {one["kind"] for one in answer["messages"][0]["remedies"]} == {"pin", "window_size", "recall"}
