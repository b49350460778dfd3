"""`ResponsesModel` against a scripted server with the Responses API."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from holdfast.errors import InvalidRequest, ModelError, ModelUnavailable
from holdfast.models import ResponsesModel, collect
from holdfast.testing import Reply, ResponsesUpstream

HI = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


async def answer(upstream: ResponsesUpstream, body: dict[str, Any]) -> dict[str, Any]:
    """Return the completion of one call."""
    model = ResponsesModel(upstream.url, "any-key", max_retries=0)
    try:
        return await collect(model.stream(body))
    finally:
        await model.close()


async def test_parallel_calls_go_and_come_back() -> None:
    """Calls are tool calls of one message; the next request has each call before its output."""
    calls = [("look", {"at": 1}), ("look", {"at": 2})]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    async with ResponsesUpstream([Reply(text="Wait.", tool_calls=calls), "Done."]) as upstream:
        first = (await answer(upstream, {**HI, "tools": [tool]}))["choices"][0]
        assert first["finish_reason"] == "tool_calls"
        ids = [call["id"] for call in first["message"]["tool_calls"]]
        results = [{"role": "tool", "tool_call_id": id_, "content": "seen"} for id_ in ids]
        await answer(upstream, {**HI, "tools": [tool], "messages": [*HI["messages"], first["message"], *results]})
        kinds = [item["type"] for item in upstream.requests[1].body["input"]]
        assert kinds == ["message", "message", *["function_call"] * 2, *["function_call_output"] * 2]
        assert upstream.requests[1].body["tools"] == [
            {"type": "function", "name": "look", "parameters": {"type": "object"}}
        ]


async def test_calls_of_other_models_get_ids_and_names_that_the_api_accepts() -> None:
    """The API refuses ids of over 64 characters, and names with other signs than letters, digits, _ and -."""
    long = ["call_" + "x" * 80 + end for end in "ab"]
    given = [(long[0], "orders.find"), (long[1], ""), ("c1", "a.declared.name")]
    calls = [{"id": at, "type": "function", "function": {"name": name, "arguments": "{}"}} for at, name in given]
    results = [{"role": "tool", "tool_call_id": at, "content": name} for at, name in given]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    tool = {"type": "function", "function": {"name": "a.declared.name"}}
    async with ResponsesUpstream(["Done."]) as upstream:
        await answer(upstream, {**HI, "messages": [*HI["messages"], asked, *results], "tools": [tool]})
        called, outputs = upstream.requests[0].body["input"][1:4], upstream.requests[0].body["input"][4:]
        assert [item["name"] for item in called] == ["orders_find", "tool", "a.declared.name"]
        ids = [item["call_id"] for item in called]
        assert ids[2] == "c1"
        assert [len(one) for one in ids[:2]] == [64, 64]
        assert len(set(ids)) == 3
        assert [item["call_id"] for item in outputs] == ids
        assert [item["output"] for item in outputs] == ["orders.find", "", "a.declared.name"]


async def test_encrypted_reasoning_returns_to_its_upstream_only() -> None:
    """The server that sealed it gets it back; another one does not."""
    async with ResponsesUpstream(
        [Reply(text="42.", message={"reasoning_content": "Six by seven."}), "Yes."]
    ) as upstream:
        reply = (await answer(upstream, HI))["choices"][0]["message"]
        assert reply["reasoning_content"] == "Six by seven."
        again = {**HI, "messages": [*HI["messages"], reply, {"role": "user", "content": "Sure?"}]}
        await answer(upstream, again)
        reasoning = next(item for item in upstream.requests[1].body["input"] if item["type"] == "reasoning")
        assert reasoning["encrypted_content"] == "sealed:Six by seven."
        async with ResponsesUpstream(["Yes."]) as other:
            await answer(other, again)
            assert [item["type"] for item in other.requests[0].body["input"]] == ["message"] * 3


async def test_structured_answers_and_limits() -> None:
    """Fields have the names and positions of the Responses API."""
    form: dict[str, Any] = {
        "type": "json_schema",
        "json_schema": {"name": "order", "schema": {"type": "object"}, "strict": True},
    }
    async with ResponsesUpstream([Reply(text="{}", finish_reason="length")]) as upstream:
        completion = await answer(
            upstream, {**HI, "response_format": form, "max_completion_tokens": 7, "reasoning_effort": "low"}
        )
        assert completion["choices"][0]["finish_reason"] == "length"
        sent = upstream.requests[0].body
        assert sent["text"]["format"] == {"type": "json_schema", **form["json_schema"]}
        assert (sent["max_output_tokens"], sent["reasoning"]) == (7, {"effort": "low"})


@pytest.mark.parametrize("body", [{"stop": "x"}, {"n": 2}, {"logit_bias": {"1": 2}}])
async def test_fields_without_equivalent_are_refused(body: dict[str, Any]) -> None:
    """Nothing is sent, and the error names the field."""
    async with ResponsesUpstream() as upstream:
        with pytest.raises(InvalidRequest) as caught:
            await answer(upstream, {**HI, **body})
        assert caught.value.param == next(iter(body))
        assert not upstream.requests


async def test_error_in_the_stream() -> None:
    """An error event after a part of the answer ends the call; a refusal has its status."""
    async with ResponsesUpstream([Reply(text="One two.", error="broken", cut_after=6), Reply(status=429)]) as upstream:
        with pytest.raises(ModelError, match="broken"):
            await answer(upstream, HI)
        with pytest.raises(ModelUnavailable):
            await answer(upstream, HI)


async def test_cut_stream_is_no_answer() -> None:
    """A stream without its last event is an error."""
    async with ResponsesUpstream([Reply(text="One two three.", cut_after=7)]) as upstream:
        with pytest.raises(ModelError):
            await answer(upstream, HI)


async def test_the_scripted_server_speaks_the_protocol() -> None:
    """OpenAI's own client accepts its streams and its whole responses."""
    async with (
        ResponsesUpstream(["One two.", "Three."]) as upstream,
        openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0) as client,
    ):
        async with client.responses.stream(model="m", input="Count.") as stream:
            assert (await stream.get_final_response()).output_text == "One two."
        assert (await client.responses.create(model="m", input="On.")).output_text == "Three."
