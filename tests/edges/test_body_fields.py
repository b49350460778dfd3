"""Fields of chat bodies in both APIs: misspelt ones, unknown ones, and `strategy` and `budget` within the allowed
range.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.config.loader import load
from holdfast.errors import ConfigError
from tests.edges.apis import CLAUDE, serve_apis
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

PATHS = ("/v1/chat/completions", "/v1/messages")
LONG = [{"role": role, "content": "word " * 60} for _ in range(10) for role in ("user", "assistant")]


async def post(served: Served, path: str, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 50, **fields}
    response = await served.http.post(path, json=body, headers=headers)
    return {"status": response.status_code, **response.json()}


# -- names ---------------------------------------------------------------------------


async def test_unknown_field_is_passed_on_with_a_warning() -> None:
    async with gateway(lambda _: "ok") as (served, upstream):
        answer = await post(served, PATHS[0], session_id="s", frobnicate=3, temperature=0.5, top_k=4)
        assert upstream.requests[0].body["frobnicate"] == 3
        (warning,) = answer["session"]["warnings"]
        assert (warning["code"], warning["param"]) == ("unknown_field", "frobnicate")
        streamed = await served.http.post(
            PATHS[0], json={"messages": [{"role": "user", "content": "more"}], "stream": True, "frobnicate": 3}
        )
        last = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")][-1]
        assert last["session"]["warnings"] == [warning]


async def test_messages_api_refuses_unknown_fields_for_models_of_another_api() -> None:
    """A model with another API cannot get the field, so it is refused by name. `pass_fields` allows to leave it out."""
    async with serve_apis(["ok"], ["ok"]) as both:
        answer = await post(both.served, PATHS[1], model="gpt-4o", context_hint="x")
        assert answer["error"]["param"] == "context_hint"
        answer = await post(both.served, PATHS[1], model="gpt-4o", conversation_id="x")
        assert "did you mean 'session_id'?" in answer["error"]["message"]
        assert not (await both.served.hf.sessions()).sessions
        await post(both.served, PATHS[1], model=CLAUDE, context_hint="x")
        assert both.claude.requests[0].body["context_hint"] == "x"
    async with serve_apis(["ok"], [], "gateway: {pass_fields: [context_hint]}") as both:
        answer = await post(both.served, PATHS[1], model="gpt-4o", context_hint="x")
        assert "warnings" not in answer["session"]


# -- strategy and budget -------------------------------------------------------------


async def test_allowed_strategies_are_configurable() -> None:
    text = "gateway: {allowed_strategies: [digest]}\ncontext: {strategy: token_window}"
    async with gateway(lambda _: "ok", text) as (served, _):
        for strategy, status in (("digest", 200), ("token_window", 200), ("head_tail", 400)):
            assert (await post(served, PATHS[0], strategy=strategy))["status"] == status
    with pytest.raises(ConfigError, match="unknown strategy 'digets'"):
        load("gateway: {allowed_strategies: [digets]}", env={})


async def test_key_has_a_budget() -> None:
    """It applies to every request with the key, and a request may only lower it."""
    async with gateway(lambda _: "ok", "agents: {all: {context: {strategy: none}}}") as (served, _):
        key = bearer(await create_stored_key(served.hf, budget=400))
        await (await served.hf.session("s")).append(LONG)
        for fields, budget in (({}, 400), ({"budget": 300}, 300), ({"agent": "all"}, 400)):
            answer = await post(served, PATHS[0], key, session_id="s", **fields)
            assert answer["session"]["working_set"]["budget"] == budget
        assert (await post(served, PATHS[0], key, session_id="s", budget=401))["status"] == 400
