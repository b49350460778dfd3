"""Several models behind one server: which is called, with which key, and what is reported when a fallback answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.behaviour.kit import Served, bearer, count_queued, gateway, until
from tests.behaviour.kit.anthropic import AnthropicUpstream

OPENAI_KEY, ANTHROPIC_KEY = "sk-openai-0123456789", "sk-ant-api-0123456789"
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
]  # fmt: skip
THOUGHT = {"type": "thinking", "thinking": "Let me think.", "signature": "c2lnbmVkIGJ5IGFudGhyb3BpYw=="}

HASTY = ("gateway: {queue_timeout: 250ms}",)


@asynccontextmanager
async def two_models(
    gpt: Sequence[Any] = (), claude: Sequence[Any] = (), *more: str, **fields: Any
) -> AsyncIterator[tuple[Served, ScriptedUpstream, AnthropicUpstream]]:
    """Run a server with `gpt`, the default, and `claude`; `fields` are further settings of gpt."""
    async with ScriptedUpstream(gpt) as one, AnthropicUpstream(claude) as other:
        llms = {
            "default": {
                "model": "gpt-4o",
                "base_url": one.url,
                "api_key": OPENAI_KEY,
                "headers": {"x-team": "gulls"},
                "params": {"seed": 7},
                **fields,
            },
            "claude": {
                "provider": "anthropic",
                "model": "claude-sonnet-4-5",
                "base_url": other.url,
                "api_key": ANTHROPIC_KEY,
                "headers": {"x-team": "terns"},
                "params": {"top_k": 5},
            },
        }
        agents = "agents: {ada: {llm: claude, instruction: Be Ada.}, bob: {instruction: Be Bob.}}"
        async with gateway(None, f"llms: {json.dumps(llms)}", agents, *more) as served:
            yield served, one, other


def text_of(answer: Any) -> str:
    assert answer["status"] == 200, answer
    return str(answer["choices"][0]["message"]["content"])


async def test_each_model_gets_its_own_key_headers_and_parameters() -> None:
    """Selected by agent, by an agent named as model, by llm, or by model name."""
    async with two_models(["a", "b", "c"], ["d", "e", "f"], max_tokens=500) as (served, gpt, claude):
        said = [
            text_of(await served.chat("hi", None)),
            text_of(await served.chat("hi", None, agent="bob")),
            text_of(await served.chat("hi", None, model="gpt-4.1-mini")),
            text_of(await served.chat("hi", None, agent="ada")),
            text_of(await served.chat("hi", None, model="ada")),
            text_of(await served.chat("hi", None, model="claude", agent="bob")),
        ]
        assert said == ["a", "b", "c", "d", "e", "f"]
        assert [one.body["model"] for one in gpt.requests] == ["gpt-4o", "gpt-4o", "gpt-4.1-mini"]
        assert [one.body.get("seed") for one in gpt.requests] == [7, 7, None]
        assert [one.body.get("max_tokens") for one in gpt.requests] == [500, 500, None]
        for one in gpt.requests:
            assert (one.headers["authorization"], one.headers["x-team"]) == (f"Bearer {OPENAI_KEY}", "gulls")
        assert claude.violations == []
        for one in claude.requests:
            assert (one.headers["x-api-key"], one.headers["x-team"]) == (ANTHROPIC_KEY, "terns")
            assert (one.body["model"], one.body["top_k"]) == ("claude-sonnet-4-5", 5)
            assert "seed" not in one.body
        assert "Be Ada." in str(claude.requests[0].body["system"])
        assert "Be Bob." in str(claude.requests[2].body["system"])


async def test_session_alternates_between_dialects() -> None:
    """Calls, results and reasoning in the log: each model gets what it accepts, with only its own signed reasoning."""
    first = Reply(text="I look.", tool_calls=[("look", {"at": "reef"})], message={"thinking_blocks": [THOUGHT]})
    async with two_models(["It is calm.", "Still calm."], [first, "Kelp.", "More kelp."]) as (served, gpt, claude):
        answer = await served.chat("look", model="claude", tools=TOOLS)
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        result = [{"role": "tool", "tool_call_id": call["id"], "content": "kelp"}]
        assert text_of(await served.chat(result, model="claude", tools=TOOLS)) == "Kelp."
        assert text_of(await served.chat("and the sea?", tools=TOOLS)) == "It is calm."
        assert text_of(await served.chat("again?", model="claude", tools=TOOLS)) == "More kelp."
        assert text_of(await served.chat("and now?", tools=TOOLS)) == "Still calm."
        assert claude.violations == []
        for one in gpt.requests:
            roles = [message["role"] for message in one.body["messages"]]
            assert roles[:4] == ["user", "assistant", "tool", "assistant"]
            known = {"role", "content", "tool_calls", "tool_call_id", "name"}
            assert {key for message in one.body["messages"] for key in message} <= known
            assert THOUGHT["signature"] not in one.raw.decode()
        for one in claude.requests[1:]:
            assert THOUGHT["signature"] in one.raw.decode()


async def test_fallback_of_another_dialect_answers() -> None:
    """Also in the middle of a tool round; OpenAI's client sees one consistent shape."""
    down = Reply(status=503, error="down")
    async with two_models([down, "back"], ["I am Claude.", "Still."], fallbacks=["claude"]) as (served, gpt, claude):
        stream = await served.openai.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "hi"}], stream=True, extra_body={"session_id": "s"}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "I am Claude."
        failed = {"model": "gpt-4o", "code": "upstream_unavailable", "status": 503}
        assert chunks[-1].session["upstream"] == {"model": "claude", "failed": [failed]}
        assert claude.violations == []
        calls = (await served.http.get("/v1/sessions/s?calls=true&retired=true")).json()["calls"]
        assert [one["model"] for one in calls] == ["claude-sonnet-4-5"]
        metrics = (await served.http.get("/metrics")).text
        for line in (
            'holdfast_upstream_calls_total{llm="default"} 1.0',
            'holdfast_upstream_failures_total{code="upstream_unavailable",llm="default"} 1.0',
            'holdfast_upstream_failovers_total{llm="default"} 1.0',
            'holdfast_upstream_calls_total{llm="claude"} 1.0',
        ):
            assert line in metrics
        assert len(gpt.requests) == 1


async def test_passthrough_key_is_not_sent_to_a_fallback() -> None:
    async with two_models(
        [Reply(status=503)], ["never"], "gateway: {upstream_auth: passthrough}", fallbacks=["claude"]
    ) as (
        served,
        gpt,
        claude,
    ):
        answer = await served.chat("hi", headers=bearer("sk-the-clients-own-key"))
        assert (answer["status"], answer["error"]["code"]) == (503, "upstream_unavailable")
        assert gpt.requests[0].headers["authorization"] == "Bearer sk-the-clients-own-key"
        assert claude.requests == []


async def test_key_of_the_client_that_a_provider_refuses_is_not_tried_with_its_other_model() -> None:
    async with ScriptedUpstream([Reply(status=401), "never"]) as one:
        other = {"model": "b", "base_url": one.url}
        llms = {"default": {**other, "model": "a", "fallbacks": ["b"]}, "b": other}
        async with gateway(None, f"llms: {json.dumps(llms)}", "gateway: {upstream_auth: passthrough}") as served:
            assert (await served.chat("hi", headers=bearer("sk-the-clients-own-key")))["status"] == 401
        assert len(one.requests) == 1


async def test_call_above_the_concurrency_limit_gets_a_503() -> None:
    """After `gateway.queue_timeout`; clients retry it, and the next call works."""
    gate = Gate()
    fields: dict[str, Any] = {"max_requests": 1}
    async with two_models([Reply(text="slow", hold=gate), "quick"], (), *HASTY, **fields) as (served, gpt, _):
        running = asyncio.create_task(served.chat("a", "one"))
        await gpt.until(lambda: gpt.requests)
        answer = await served.chat("b", "two")
        assert (answer["status"], answer["error"]["code"]) == (503, "upstream_busy")
        assert answer["headers"]["retry-after"] == "1"
        assert await served.log("two") == [("user", "b")]
        metrics = (await served.http.get("/metrics")).text
        assert 'holdfast_upstream_running{llm="default"} 1.0' in metrics
        assert 'holdfast_upstream_waits_total{llm="default"} 1.0' in metrics
        waited = re.search(r'holdfast_upstream_wait_seconds_total\{llm="default"\} (\S+)', metrics)
        assert waited is not None
        assert float(waited[1]) > 0
        gate.open()
        assert text_of(await running) == "slow"
        assert text_of(await served.chat("c", "two")) == "quick"


async def test_busy_model_falls_back_and_is_used_again_later() -> None:
    gate = Gate()
    fields: dict[str, Any] = {"max_requests": 1, "fallbacks": ["claude"]}
    async with two_models([Reply(text="slow", hold=gate), "quick"], ["I do."], *HASTY, **fields) as (served, gpt, _):
        running = asyncio.create_task(served.chat("a", "one"))
        await gpt.until(lambda: gpt.requests)
        answer = await served.chat("b", "two")
        assert text_of(answer) == "I do."
        assert answer["session"]["upstream"]["failed"][0]["code"] == "upstream_busy"
        gate.open()
        await running
        assert text_of(await served.chat("c", "two")) == "quick"


async def test_client_that_disconnects_while_waiting_leaves_the_model_queue() -> None:
    gate = Gate()
    async with two_models([Reply(text="slow", hold=gate), "quick"], max_requests=1, timeout="20s") as (served, gpt, _):
        running = asyncio.create_task(served.chat("a", "one"))
        await gpt.until(lambda: gpt.requests)
        waits = asyncio.create_task(served.chat("b", "two"))
        await until(lambda: count_queued(served.native))
        waits.cancel()
        await until(lambda: count_queued(served.native) == 0)
        gate.open()
        await running
        assert text_of(await served.chat("c", "three")) == "quick"
        assert await served.log("two") == [("user", "b")]
