"""Tools that run at the provider, through `/v1/responses` and a model with the Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Reply, ResponsesUpstream
from tests.behaviour.kit import assistant, gateway, user

SEARCH: Any = {"type": "web_search", "search_context_size": "low"}
ACTION = {"type": "search", "query": "weather in Oslo"}


def make_events(*, size: int = 0) -> list[dict[str, Any]]:
    """Return the events of a reply with a call of `web_search`, then a text."""
    call = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": ACTION}
    if size:
        call["results"] = "x" * size
    part = {"type": "output_text", "text": "", "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "output": []}
    where = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    done = {**message, "status": "completed", "content": [{**part, "text": "It is cold."}]}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return [
        {"type": "response.created", "response": {**response, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**call, "status": "in_progress"}},
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"},
        {"type": "response.output_item.done", "output_index": 0, "item": call},
        {"type": "response.output_item.added", "output_index": 1, "item": message},
        {"type": "response.content_part.added", **where, "part": part},
        {"type": "response.output_text.delta", **where, "delta": "It is cold."},
        {"type": "response.output_item.done", "output_index": 1, "item": done},
        {"type": "response.completed", "response": {**response, "status": "completed", "usage": usage}},
    ]


def serve_native(script: list[Any]) -> Any:
    """Run a server whose model has the Responses API."""
    return gateway((), upstream=ResponsesUpstream(script), llm={"model": "gpt-5", "api": "responses"})


@pytest.mark.parametrize("stream", [False, True])
async def test_call_at_the_provider_is_an_item_of_the_reply(stream: bool) -> None:
    """The tool is sent unchanged, its call is listed and stored, and goes back to the provider."""
    async with serve_native([Reply(chunks=make_events()), "Bye."]) as served:
        given: dict[str, Any] = {"model": "gpt-5", "input": "Weather in Oslo?", "tools": [SEARCH]}
        if stream:
            async with served.openai.responses.stream(**given) as events:
                reply = await events.get_final_response()
        else:
            reply = await served.openai.responses.create(**given)
        assert served.upstream.requests[0].body["tools"] == [SEARCH]
        assert [item.type for item in reply.output] == ["web_search_call", "message"]
        assert reply.output[0].action.query == "weather in Oslo"
        assert reply.output_text == "It is cold."
        stored = await served.openai.responses.retrieve(reply.id)
        assert [item.id for item in stored.output] == [item.id for item in reply.output]
        assert stored.output[0] == reply.output[0]
        await served.openai.responses.create(model="gpt-5", input="Thanks.", previous_response_id=reply.id)
        sent = [{**item, "content": None} for item in served.upstream.requests[1].body["input"]]
        assert [item["type"] for item in sent] == ["message", "web_search_call", "message", "message"]
        assert sent[1] == {"type": "web_search_call", "status": "completed", "action": ACTION, "content": None}


async def test_large_result_at_the_provider_is_not_stored() -> None:
    async with serve_native([Reply(chunks=make_events(size=256 * 1024))]) as served:
        reply = await served.openai.responses.create(model="gpt-5", input="Weather?", tools=[SEARCH])
        assert reply.output[0].to_dict().keys() == {"type", "id", "status"}


async def test_other_models_do_not_get_the_tool() -> None:
    async with gateway(["I cannot search."]) as served:
        reply = await served.openai.responses.create(model="gpt-4o", input="Weather?", tools=[SEARCH])
        assert "tools" not in served.upstream.requests[0].body
        assert [warning["code"] for warning in reply.session["warnings"]] == ["tool_not_served"]


async def test_another_upstream_does_not_get_the_call() -> None:
    """Other APIs and models continue the session with its text."""
    async with serve_native([Reply(chunks=make_events()), "Bye."]) as served:
        await served.openai.responses.create(
            model="gpt-5", input="Weather?", tools=[SEARCH], extra_body={"session_id": "s"}
        )
        completion = await served.openai.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": "Thanks."}], extra_body={"session_id": "s"}
        )
        assert completion.choices[0].message.content == "Bye."
        assert "tools" not in served.upstream.requests[1].body


async def test_a_router_to_claude_gets_the_other_reasoning_of_a_message_with_a_call() -> None:
    call = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": ACTION}
    item = {"type": "response.item", "format": "openai-responses-v1", "index": 0, "item": call}
    thought = {"type": "reasoning.text", "text": "hm", "signature": "c2ln", "format": "anthropic-claude-v1"}
    async with gateway(
        ["Bye.", "Bye."], llm={"model": "anthropic/claude-sonnet-4.5", "profile": "openrouter"}
    ) as served:
        for name, details in (("s", [item, thought]), ("t", [item])):
            await served.rest.given(name, user("Weather?"), assistant("It is cold.", reasoning_details=details))
            await served.chat("Thanks.", name)
            assert served.sent["messages"][1].get("reasoning_details", []) == details[1:]
