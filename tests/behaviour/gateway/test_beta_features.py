"""Beta features of Anthropic's API: each field is served, passed on with its header, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from holdfast.testing import Reply, ScriptedUpstream
from tests.behaviour.kit import CLAUDE, Served, apis, gateway
from tests.behaviour.kit.anthropic import AnthropicUpstream

TOOL = {"name": "read", "input_schema": {"type": "object"}}
REMOVAL = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read"}}
ASK: dict[str, Any] = {"role": "user", "content": "Hello."}
FUTURE = {"edits": [{"type": "clear_everything_20990101"}]}
FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "message-threads-2026-08-12": ("thread", {"thread": {"type": "create"}}),
    "cache-diagnosis-2026-04-07": ("diagnostics", {"diagnostics": {"previous_message_id": None}}),
    "mid-conversation-tool-changes-2026-07-01": (
        "messages",
        {"tools": [TOOL], "messages": [ASK, {"role": "system", "content": [REMOVAL]}]},
    ),
    "context-management-2025-06-27": ("context_management", {"context_management": FUTURE}),
    "compact-2026-09-04": ("compaction", {"compaction": {"type": "summarize"}}),
    "task-budgets-2026-03-13": ("output_config", {"output_config": {"task_budget": {"type": "tokens", "total": 9}}}),
    "fast-mode-2026-02-01": ("speed", {"speed": "fast"}),
    "mcp-client-2025-11-20": (
        "mcp_servers",
        {"mcp_servers": [{"type": "url", "url": "https://x.example", "name": "x"}]},
    ),
    "server-side-fallback-2026-07-01": ("fallbacks", {"fallbacks": "default"}),
    "mid-conversation-system-clear-at-2026-08-21": (
        "messages",
        {"messages": [ASK, {"role": "system", "content": "x", "clear_at": "next_user_message"}]},
    ),
    "mid-conversation-output-config-2026-07-01": (
        "messages",
        {"messages": [ASK, {"role": "system", "content": "x", "output_config": {"effort": "low"}}]},
    ),
}
"""For betas with fields: the name of the field, and a request that has it."""
HANDLING = {
    **dict.fromkeys(("message-threads-2026-08-12", "cache-diagnosis-2026-04-07"), "refused"),
    **dict.fromkeys(("mid-conversation-tool-changes-2026-07-01", "inline-tools-2026-09-15"), "served"),
    **dict.fromkeys(("context-management-2025-06-27", "compact-2026-01-12"), "per edit"),
    "compact-2026-09-04": "for others",
    **dict.fromkeys(("model-context-window-exceeded-2025-08-26", "task-budgets-2026-03-13"), "forwarded"),
    **dict.fromkeys(("fast-mode-2026-02-01", "mcp-client-2025-11-20"), "forwarded"),
    **dict.fromkeys(("server-side-fallback-2026-07-01", "agent-memory-2026-07-22"), "forwarded"),
    **dict.fromkeys(("dreaming-2026-04-21", "managed-agents-2026-04-01"), "forwarded"),
    "mid-conversation-system-clear-at-2026-08-21": "refused",
    "mid-conversation-output-config-2026-07-01": "refused",
}
"""What the documentation says about each beta: `for others` and `per edit` are passed on to an Anthropic model."""
NATIVE_FIELDS = (
    *("billing_policy", "compaction", "container", "fallback_credit_token", "fallbacks"),
    *("inference_geo", "mcp_servers"),
)
MODELS = {"openai": "gpt-4o", "anthropic": CLAUDE}


async def post(both: Served, model: str, fields: dict[str, Any], beta: str | None) -> Any:
    """Send a request with fields and a header; return the response."""
    headers = {"anthropic-version": "2023-06-01", **({"anthropic-beta": beta} if beta else {})}
    body = {"model": MODELS[model], "max_tokens": 50, "messages": [ASK], **fields}
    return await both.http.post("/v1/messages", json=body, headers=headers)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("with_header", [True, False], ids=["with header", "without header"])
@pytest.mark.parametrize("beta", FIELDS)
async def test_field_is_served_or_passed_on_or_refused(beta: str, model: str, with_header: bool) -> None:
    """No field is dropped: what is neither served nor passed on is refused by its name, before anything is stored."""
    name, fields = FIELDS[beta]
    handling = HANDLING[beta]
    async with apis(["ok"], ["ok"]) as both:
        response = await post(both, model, fields, beta if with_header else None)
        upstream = both.upstream if model == "openai" else both.claude
        if handling == "refused" or (model == "openai" and handling not in ("served", "for others")):
            assert response.status_code == 400
            assert name in response.json()["error"]["param"]
            assert not upstream.requests
            assert await both.rest.sessions() == []
            return
        if model == "openai" and handling == "for others":
            assert response.json()["stop_reason"] == "compaction"
            return
        (request,) = upstream.requests
        if handling == "served":
            assert response.status_code == 200
            assert name == "messages" or name not in request.body
            assert not request.body.get("tools")
            assert "anthropic-beta" not in request.headers
        else:  # the scripted upstream refuses what the API reference of 2025 does not have, as the provider would
            assert request.body[name] == fields[name]
            assert request.headers.get("anthropic-beta") == (beta if with_header else None)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("beta", [*HANDLING, "files-api-2025-04-14"])
async def test_header_without_field_changes_nothing(beta: str, model: str) -> None:
    """Every header is accepted. An Anthropic model gets it, unless Holdfast serves the feature."""
    async with apis(["ok"], ["ok"]) as both:
        response = await post(both, model, {}, beta)
        assert response.status_code == 200
        (request,) = (both.upstream if model == "openai" else both.claude).requests
        is_served = beta in HANDLING and HANDLING[beta] == "served"
        assert request.headers.get("anthropic-beta") == (None if is_served or model == "openai" else beta)


@pytest.mark.parametrize("field", NATIVE_FIELDS)
async def test_native_field_is_refused_for_a_fallback(field: str) -> None:
    """A request that only an Anthropic model can serve does not go to a fallback of another API without its field."""
    async with ScriptedUpstream(["never"]) as gpt, AnthropicUpstream(lambda _: Reply(status=500, error="down")) as one:
        first = {"provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": one.url, "fallbacks": ["other"]}
        llms = {"default": first, "other": {"model": "gpt-4o", "base_url": gpt.url}}
        async with gateway(None, f"llms: {json.dumps(llms)}") as served:
            for fields, reached in (({field: {"type": "x"}}, 0), ({}, 1)):
                body = {"model": "default", "max_tokens": 50, "messages": [ASK], **fields}
                response = await served.http.post("/v1/messages", json=body)
                assert response.is_success is bool(reached)
                assert len(gpt.requests) == reached


async def test_client_of_threads_goes_on_without_them() -> None:
    """A thread is refused with the code at which the SDK's helper sends the whole conversation instead; no model is called without its history."""
    async with apis(lambda _: "re", ["ok"]) as both:
        helper: Any = both.anthropic.beta.messages.thread
        with pytest.raises(anthropic.BadRequestError) as caught:
            await helper(model="gpt-4o", max_tokens=9).send(ASK)
        error: Any = caught.value.body["error"]  # type: ignore[index]
        assert error["details"]["error_code"] == "thread_unsupported_request"
        assert error["type"] == "invalid_request_error"
        assert "send the whole conversation without thread" in error["message"]
        assert not both.upstream.requests
        thread = helper(model="gpt-4o", max_tokens=9, unsupported_request_behavior="continue_unthreaded")
        for text in ("a", "b"):
            await thread.send({"role": "user", "content": text})
        assert [one["content"] for one in both.upstream.requests[-1].body["messages"]] == ["a", "re", "b"]


async def test_thread_is_refused_where_tokens_are_counted() -> None:
    async with apis(["ok"], ["ok"]) as both:
        body = {"model": "gpt-4o", "messages": [ASK], "thread": {"type": "create"}}
        response = await both.http.post("/v1/messages/count_tokens", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "thread")


async def test_comparison_of_responses_is_refused() -> None:
    """OpenAI's field of the same kind is refused by name, too; other cache options are accepted."""
    async with apis(["ok"], ["ok"]) as both:
        for options, status in (({"comparison_response_id": "resp_1"}, 400), ({"ttl": "30m"}, 200)):
            body = {"model": "gpt-4o", "input": "Hi", "prompt_cache_options": options}
            response = await both.http.post("/v1/responses", json=body)
            assert response.status_code == status, response.text
        assert len(both.upstream.requests) == 1
