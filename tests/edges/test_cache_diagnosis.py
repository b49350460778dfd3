"""Diagnosis of the prompt cache in Anthropic's and OpenAI's API, for models of every provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from holdfast.domain.session import SessionRef
from holdfast.testing import Reply
from tests.edges.server import Served, gateway
from tests.edges.test_anthropic_upstream import claude
from tests.stores.servers import place

BETA = "cache-diagnosis-2026-04-07"
READ: Any = {"name": "read", "input_schema": {"type": "object"}}
WRITE: Any = {"name": "write", "input_schema": {"type": "object"}}
USAGE = {"prompt_tokens": 1_234, "completion_tokens": 5, "total_tokens": 1_239}


def answer(_: dict[str, Any]) -> Reply:
    """Answer every request with the same text and usage."""
    return Reply(text="Yes.", usage=USAGE)


def sdk(served: Served) -> Any:
    """Return Anthropic's client for a server."""
    http = httpx2.AsyncClient(trust_env=False, timeout=60)
    return anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0, http_client=http)


async def send(client: Any, messages: list[Any], previous: str | None, *, stream: bool, **fields: Any) -> Any:
    """Send a request with `diagnostics`; return the message."""
    extra = {"session_id": "s", **fields.pop("extra_body", {})}
    request: Any = {"model": "gpt-4o", "max_tokens": 99, "messages": messages, "extra_body": extra, **fields}
    request |= {"diagnostics": {"previous_message_id": previous}, "betas": [BETA]}
    if not stream:
        return await client.beta.messages.create(**request)
    async with client.beta.messages.stream(**request) as events:
        return await events.get_final_message()


def say(text: str) -> list[Any]:
    """Return one user message."""
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, None),
        ({"model": "gpt-4.1"}, "model_changed"),
        ({"system": "Be long."}, "system_changed"),
        ({"tools": [WRITE]}, "tools_changed"),
        ({"tools": [READ, WRITE]}, "tools_changed"),
        ({"tool_choice": {"type": "any"}}, "unavailable"),
        ({"model": "gpt-4.1", "system": "Be long.", "tools": [WRITE]}, "model_changed"),
        ({"system": "Be long.", "tools": [WRITE]}, "system_changed"),
    ],
)
async def test_anthropic_reason_for_each_change(changed: dict[str, Any], kind: str | None, stream: bool) -> None:
    """The first difference is reported, with the tokens of the earlier prompt; without a difference, nothing is."""
    async with gateway(answer) as (served, _), sdk(served) as client:
        fields: dict[str, Any] = {"system": "Be brief.", "tools": [READ], "stream": stream}
        first = await send(client, say("a"), None, **fields)
        assert first.diagnostics is None
        second = await send(client, say("b"), first.id, **{**fields, **changed})
        if kind is None:
            assert second.diagnostics is None
            return
        reason = second.diagnostics.cache_miss_reason
        assert reason.type == kind
        assert getattr(reason, "cache_missed_input_tokens", None) == (None if kind == "unavailable" else 1_234)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_changed_message_is_reported(stream: bool) -> None:
    """An edited conversation does not begin with the earlier prompt."""
    async with gateway(answer) as (served, _), sdk(served) as client:
        first = await send(client, say("a"), None, stream=stream)
        edited = [*say("other"), {"role": "assistant", "content": "Yes."}, *say("b")]
        second = await send(client, edited, first.id, stream=stream)
        assert second.diagnostics.cache_miss_reason.type == "messages_changed"
        assert second.diagnostics.cache_miss_reason.cache_missed_input_tokens == 1_234
        third = await send(
            client, [*edited, {"role": "assistant", "content": "Yes."}, *say("c")], second.id, stream=stream
        )
        assert third.diagnostics is None


async def test_message_of_another_session_is_compared() -> None:
    """The earlier message may be in another session of the user: its prompt is compared by its hash."""
    async with gateway(answer) as (served, _), sdk(served) as client:
        first = await send(client, say("a"), None, stream=False, system="Be brief.")
        whole = [*say("a"), {"role": "assistant", "content": "Yes."}, *say("b")]
        second = await send(client, whole, first.id, stream=False, system="Be brief.", extra_body={"session_id": "t"})
        assert second.diagnostics is None
        third = await send(
            client, say("a."), first.id, stream=False, system="Be brief.", extra_body={"session_id": "u"}
        )
        assert third.diagnostics.cache_miss_reason.type == "messages_changed"


@pytest.mark.parametrize("name", ["sqlite", "postgres", "mysql"])
async def test_prompts_of_two_servers_are_compared(name: str, tmp_path: Path) -> None:
    """The hashes are in the store, so a server compares with a prompt that another one has sent."""
    with place(name, tmp_path) as url:
        async with (
            gateway(answer, store=url) as (one, _),
            gateway(answer, store=url) as (other, _),
            sdk(one) as first_client,
            sdk(other) as second_client,
        ):
            first = await send(first_client, say("a"), None, stream=False, system="Be brief.")
            second = await send(second_client, say("b"), first.id, stream=False, system="Be brief.")
            assert second.diagnostics is None
            third = await send(first_client, say("c"), second.id, stream=False, system="Be long.")
            assert third.diagnostics.cache_miss_reason.type == "system_changed"


async def test_messages_that_cannot_be_compared() -> None:
    """A message of another user and one without diagnosis are not found; one whose call failed has no prompt."""
    async with gateway([*["Yes."] * 4, Reply(status=500, error="down"), "Yes."]) as (served, _), sdk(served) as client:
        own = await send(client, say("a"), None, stream=False, extra_body={"session_id": "ada", "user_id": "ada"})
        foreign = await send(client, say("a"), own.id, stream=False, extra_body={"session_id": "bob", "user_id": "bob"})
        plain = await client.messages.create(model="gpt-4o", max_tokens=9, messages=say("a"))
        missing = await send(client, say("b"), plain.id, stream=False)
        for message in (foreign, missing):
            assert message.diagnostics.cache_miss_reason.type == "previous_message_not_found"
        with pytest.raises(anthropic.APIStatusError):
            await send(client, say("c"), None, stream=False)
        entries = await served.hf.store.entries(SessionRef("default", "s"), notes=True, descending=True, limit=1)
        failed = missing.id.rpartition("_")[0] + f"_{entries[0].seq:x}z{entries[0].message.origin['message']['secret']}"
        later = await send(client, say("d"), failed, stream=False)
        assert later.diagnostics.cache_miss_reason.type == "unavailable"


async def test_anthropic_model_gets_neither_field_nor_beta() -> None:
    """Holdfast diagnoses for Anthropic models, too: their provider does not know the ids."""
    async with claude(["Yes.", "Yes."]) as (served, upstream), sdk(served) as client:
        first = await send(client, say("a"), None, stream=False, model="default", thinking={"type": "disabled"})
        second = await send(client, say("b"), first.id, stream=True, model="default")
        assert second.diagnostics.cache_miss_reason.type == "unavailable"
        assert all("diagnostics" not in request.body for request in upstream.requests)
        assert all("anthropic-beta" not in request.headers for request in upstream.requests)


async def test_repeated_request_has_the_first_diagnosis() -> None:
    """A repetition of a request gets its stored message with the report of the first attempt, in both APIs."""
    async with gateway(answer) as (served, upstream), sdk(served) as client:
        first = await send(client, say("a"), None, stream=False, system="Be brief.")
        keyed: dict[str, Any] = {"system": "Be long.", "extra_headers": {"Idempotency-Key": "k1"}}
        again = [await send(client, say("b"), first.id, stream=stream, **keyed) for stream in (False, True)]
        assert [one.diagnostics.cache_miss_reason.type for one in again] == ["system_changed"] * 2
        before = await respond(served, "a", prompt_cache_key="x")
        twice: dict[str, Any] = {"prompt_cache_key": "y", "extra_headers": {"Idempotency-Key": "k2"}}
        responses = [await respond(served, "b", before.id, **twice) for _ in range(2)]
        assert [one.prompt_cache_diagnostics.reason for one in responses] == ["prompt_cache_key_changed"] * 2
        assert responses[0].id == responses[1].id
        assert len(upstream.requests) == 4


async def test_threads_are_diagnosed() -> None:
    """A request can continue a thread and ask for a diagnosis."""
    async with gateway(answer) as (served, _), sdk(served) as client:
        thread = client.beta.messages.thread(model="gpt-4o", max_tokens=99, system="Be brief.")
        first = await thread.send(*say("a"))
        second = await thread.send(*say("b"), diagnostics={"previous_message_id": first.id})
        assert second.diagnostics is None
        missing = await thread.send(*say("c"), diagnostics={"previous_message_id": "msg_1"})
        assert missing.diagnostics.cache_miss_reason.type == "previous_message_not_found"


@pytest.mark.parametrize("value", [7, [], {"previous": "x"}, {"previous_message_id": 7}])
async def test_invalid_diagnostics_are_refused_by_name(value: Any) -> None:
    """The error names the field."""
    async with gateway(answer) as (served, upstream):
        body = {"model": "gpt-4o", "max_tokens": 9, "messages": say("a"), "diagnostics": value}
        response = await served.http.post("/v1/messages", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("diagnostics")
        assert not upstream.requests


# -- OpenAI ----------------------------------------------------------------------

FORMAT: Any = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
TOOL: Any = {"type": "function", "name": "read", "parameters": {"type": "object"}}


async def respond(
    served: Served, said: str, compared: str | None = None, *, stream: bool = False, **fields: Any
) -> Any:
    """Create a response, with a comparison if an id is given."""
    options = {"prompt_cache_options": {"comparison_response_id": compared}} if compared else {}
    options |= {name: fields.pop(name) for name in ("budget", "strategy") if name in fields}
    request: Any = {"model": "gpt-4o", "input": said, **fields}
    if not stream:
        return await served.client.responses.create(**request, extra_body=options)
    async with served.client.responses.stream(**request, extra_body=options) as events:
        async for _ in events:
            pass
        return await events.get_final_response()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"model": "gpt-4.1"}, "model_changed"),
        ({"prompt_cache_key": "other"}, "prompt_cache_key_changed"),
        ({"service_tier": "flex"}, "service_tier_changed"),
        ({"tools": []}, "tools_changed"),
        ({"text": {"format": FORMAT}}, "text_format_changed"),
        ({"reasoning": {"effort": "high"}}, "reasoning_effort_changed"),
        ({"text": {"verbosity": "low"}}, "verbosity_changed"),
        ({"instructions": "Be long."}, "input_changed"),
        ({"model": "gpt-4.1", "tools": []}, "model_changed"),
    ],
)
async def test_openai_reason_for_each_change(changed: dict[str, Any], reason: str | None, stream: bool) -> None:
    """The first difference is reported, in the reply and in the stored response."""
    fields: dict[str, Any] = {"instructions": "Be brief.", "tools": [TOOL], "prompt_cache_key": "mine"}
    fields |= {"reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}}
    async with gateway(answer) as (served, _):
        first = await respond(served, "a", **fields)
        assert "prompt_cache_diagnostics" not in first.model_fields_set
        second = await respond(
            served, "b", first.id, stream=stream, previous_response_id=first.id, **{**fields, **changed}
        )
        found = second.prompt_cache_diagnostics
        if reason is None:
            assert found.type == "cache_hit"
        else:
            assert (found.type, found.reason) == ("cache_miss", reason)
            assert found.comparison_reusable_tokens == 1_234
            assert 0 < found.cache_missed_tokens <= 1_234
        stored = await served.client.responses.retrieve(second.id)
        assert stored.prompt_cache_diagnostics == found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_compaction_is_told_from_changed_input(stream: bool) -> None:
    """If Holdfast made room, the reason is `context_compacted`; for a conversation with other messages it is not."""
    async with gateway(answer) as (served, _):
        last = await respond(served, "word " * 200)
        smaller = {"budget": 300, "strategy": "token_window", "previous_response_id": last.id}
        second = await respond(served, "word " * 200, last.id, stream=stream, **smaller)
        assert second.prompt_cache_diagnostics.reason == "context_compacted"
        other = await respond(served, "something else", last.id)
        assert other.prompt_cache_diagnostics.reason == "prompt_cache_key_changed"
        keyed = await respond(served, "a", prompt_cache_key="k")
        changed = await respond(
            served, "b", keyed.id, prompt_cache_key="k", conversation=(await served.client.conversations.create()).id
        )
        assert changed.prompt_cache_diagnostics.reason == "input_changed"


async def test_responses_that_cannot_be_compared() -> None:
    """A response of another user is not found; an invalid field is refused by name."""
    async with gateway(answer) as (served, _):
        own = await respond(served, "a", user="ada")
        foreign = await respond(served, "a", own.id, user="bob")
        assert foreign.prompt_cache_diagnostics.type == "comparison_response_not_found"
        for value in (7, {"comparison_response_id": 7}):
            body = {"model": "gpt-4o", "input": "a", "prompt_cache_options": value}
            response = await served.http.post("/v1/responses", json=body)
            assert response.status_code == 400
            assert response.json()["error"]["param"].startswith("prompt_cache_options")
