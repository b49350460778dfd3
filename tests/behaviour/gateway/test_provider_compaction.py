"""Compaction items that a provider made, and not Holdfast: models with the Responses API get them, other models do not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import BadRequestError

from holdfast.testing import Reply, ResponsesUpstream, ScriptedUpstream
from tests.behaviour.kit import Served, gateway, user

ITEM: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed:" + "A" * 200}
SENT = {"type": "compaction", "encrypted_content": ITEM["encrypted_content"]}
UNKNOWN: Any = {**ITEM, "encrypted_content": "gAAAAA"}


@asynccontextmanager
async def serve_both(*, more: str = "") -> AsyncIterator[tuple[Served, ResponsesUpstream, ScriptedUpstream]]:
    """Run a server with the model `native`, which has the Responses API, and the model `chat`."""

    def answer(body: Mapping[str, Any]) -> str:
        last = [*(body.get("messages") or body["input"])][-1].get("content", "nothing")
        return f"Reply to {last if isinstance(last, str) else last[0]['text']}"

    async with ResponsesUpstream(answer) as native, ScriptedUpstream(answer) as chat:
        llms = {
            "default": {
                "model": "gpt-4o",
                "profile": "openai",
                "base_url": chat.url,
                "api_key": "sk-upstream-12345678",
            },
            "native": {"model": "gpt-5", "api": "responses", "base_url": native.url, "api_key": "sk-upstream-12345678"},
        }
        async with gateway(None, f"llms: {json.dumps(llms)}\n{more}") as served:
            yield served, native, chat


async def create(served: Served, stream: bool, **fields: Any) -> Any:
    """Create a response, whole or as a stream."""
    if not stream:
        return await served.openai.responses.create(**fields)
    async with served.openai.responses.stream(**fields) as events:
        return await events.get_final_response()


def list_kinds(upstream: ResponsesUpstream) -> list[Any]:
    """Return the items of the last request: the text of a message, or the type of another item."""
    found: list[Any] = []
    for item in upstream.requests[-1].body["input"]:
        content = item.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        found.append(parts[0]["text"] if item["type"] == "message" else item["type"])
    return found


def get_codes(response: Any) -> list[str]:
    """Return the codes of the warnings of a response."""
    return [warning["code"] for warning in response.session.get("warnings", ())]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_native_model_gets_the_item_at_its_place(stream: bool) -> None:
    """In the turn that sends it and in later turns. A model with another API gets the conversation without it, and a warning."""
    async with serve_both() as (served, native, chat):
        sent = [user("Kept."), ITEM, user("One.")]
        first = await create(served, stream, model="native", input=sent)
        assert list_kinds(native) == ["Kept.", "compaction", "One."]
        assert native.requests[-1].body["input"][1] == SENT
        assert get_codes(first) == []
        second = await create(served, stream, model="native", input="Two.", previous_response_id=first.id)
        assert list_kinds(native) == ["Kept.", "compaction", "One.", "Reply to One.", "Two."]
        third = await create(served, stream, model="gpt-4o", input="Three.", previous_response_id=second.id)
        assert [one["content"] for one in chat.requests[-1].body["messages"]] == [
            *("Kept.", "One.", "Reply to One.", "Two.", "Reply to Two.", "Three.")
        ]
        assert "sealed:" not in json.dumps(chat.requests[-1].body)
        assert get_codes(third) == ["compaction_not_read"]
        last = await create(served, stream, model="native", input="Four.", previous_response_id=third.id)
        assert list_kinds(native)[:4] == ["Kept.", "compaction", "One.", "Reply to One."]
        assert last.session_id == first.session_id
        listed = [item async for item in served.openai.responses.input_items.list(first.id, order="asc")]
        assert [item.type for item in listed] == ["message", "compaction", "message"]
        assert listed[1].encrypted_content == ITEM["encrypted_content"]


@pytest.mark.parametrize("model", ["native", "gpt-4o"])
@pytest.mark.parametrize("at", ["before the conversation", "within it", "before a reply"])
async def test_client_that_resends_the_item_continues_its_session(model: str, at: str) -> None:
    """A client without stored responses sends the item again with each request. It is in the log once."""
    async with serve_both() as (served, native, _):
        items = {
            "before the conversation": [ITEM, user("One.")],
            "within it": [user("Kept."), ITEM, user("One.")],
            "before a reply": [user("Kept."), ITEM, {"role": "assistant", "content": "Yes."}, user("One.")],
        }[at]
        ids, lengths = set(), []
        for number in range(3):
            response = await served.openai.responses.create(model=model, input=items, store=False)
            ids.add(response.session_id)
            lengths.append(len(await served.log(response.session_id)))
            items += [
                *(item.model_dump(mode="json", exclude_unset=True) for item in response.output),
                user(f"{number}?"),
            ]
        assert len(ids) == 1
        assert lengths == [lengths[0], lengths[0] + 2, lengths[0] + 4]
        if model == "native":
            assert list_kinds(native).count("compaction") == 1
            assert list_kinds(native)[-1] == "1?"


async def test_client_of_another_api_need_not_send_the_item() -> None:
    """A client that sends the whole conversation continues the session although it knows only the messages."""
    async with serve_both() as (served, native, _):
        first = await served.openai.responses.create(model="native", input=[ITEM, user("One.")])
        messages = [user("One."), {"role": "assistant", "content": first.output_text}, user("Two.")]
        done = await served.openai.chat.completions.create(
            model="native", messages=messages, extra_body={"session_id": first.session_id}
        )
        assert done.choices[0].message.content == "Reply to Two."
        assert list_kinds(native) == ["compaction", "One.", "Reply to One.", "Two."]


async def test_provider_that_refuses_the_item_gets_it_no_more() -> None:
    """The call is made again without the item. The refusal is recorded, and reported to the client."""
    async with serve_both() as (served, native, _):
        first = await served.openai.responses.create(model="native", input=[UNKNOWN, user("One.")])
        assert first.output_text == "Reply to One."
        assert get_codes(first) == ["message_left_out"]
        assert [UNKNOWN["encrypted_content"] in json.dumps(request.body) for request in native.requests] == [
            True,
            False,
        ]
        second = await served.openai.responses.create(model="native", input="Two.", previous_response_id=first.id)
        assert second.output_text == "Reply to Two."
        assert len(native.requests) == 3
        assert "gAAAAA" not in json.dumps(native.requests[-1].body)


@pytest.mark.parametrize("strategy", ["token_window", "digest", "salience"])
async def test_newest_item_stays_in_the_prompt(strategy: str) -> None:
    """Older messages are evicted, the item is not, until a newer one replaces it. `explain` has the reason."""
    context = f"context: {{strategy: {strategy}, budget: 500}}\n"
    async with serve_both(more=context) as (served, native, _):
        newer = {**ITEM, "encrypted_content": "sealed:" + "B" * 200}
        last = await served.openai.responses.create(model="native", input=[ITEM, user("Begin.")])
        for number in range(12):
            last = await served.openai.responses.create(
                model="native", input=f"Question {number}? " + "word " * 20, previous_response_id=last.id
            )
        assert SENT in native.requests[-1].body["input"]
        assert len(native.requests[-1].body["input"]) < 20
        path = f"/v1/sessions/{last.session_id}"
        for model, reason in (
            ("native", "the newest compaction item of the provider"),
            ("gpt-4o", "a compaction item, which only models with the Responses API can read"),
        ):
            asked = await served.http.post(f"{path}/context", json={"model": model, "explain": True})
            assert reason in [one["reason"] for one in asked.json()["decisions"]]
        last = await served.openai.responses.create(
            model="native", input=[newer, user("Again.")], previous_response_id=last.id
        )
        for number in range(12):
            last = await served.openai.responses.create(
                model="native", input=f"Question {number}? " + "word " * 20, previous_response_id=last.id
            )
        sent = [item for item in native.requests[-1].body["input"] if item["type"] == "compaction"]
        assert [item["encrypted_content"] for item in sent] == [newer["encrypted_content"]]


def make_events(item: Any) -> list[dict[str, Any]]:
    """Return the events of a reply that begins with a compaction item of the provider."""
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "output": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    where = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    done = {**message, "status": "completed", "content": [{**part, "text": "Hello."}]}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return [
        {"type": "response.created", "response": {**response, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.output_item.added", "output_index": 1, "item": message},
        {"type": "response.content_part.added", **where, "part": part},
        {"type": "response.output_text.delta", **where, "delta": "Hello."},
        {"type": "response.output_item.done", "output_index": 1, "item": done},
        {"type": "response.completed", "response": {**response, "status": "completed", "usage": usage}},
    ]


@pytest.mark.parametrize("store", [True, False], ids=["stored", "resent"])
async def test_item_that_the_provider_returns_goes_back_to_it(store: bool) -> None:
    """It is an item of the reply, and part of later prompts of this upstream, whether the client sends it again or not."""
    async with ResponsesUpstream([Reply(chunks=make_events(ITEM)), "One.", "Two."]) as native:
        llm = {"model": "gpt-5", "api": "responses", "base_url": native.url, "api_key": "sk-12345678"}
        async with gateway(None, f"llms: {json.dumps({'default': llm})}") as served:
            items = [user("Hello?")]
            first = await served.openai.responses.create(model="gpt-5", input=items, store=store)
            assert [item.type for item in first.output] == ["compaction", "message"]
            assert first.output[0].id.startswith("cmp_")
            if store:
                fields: Any = {"input": "And?", "previous_response_id": first.id}
            else:
                output = [item.model_dump(mode="json", exclude_unset=True) for item in first.output]
                fields = {"input": [*items, *output, user("And?")], "store": False}
            second = await served.openai.responses.create(model="gpt-5", **fields)
            assert second.session_id == first.session_id
            assert list_kinds(native) == ["Hello?", "compaction", "Hello.", "And?"]
            assert len(await served.log(first.session_id)) == 4


async def test_item_that_is_too_large_to_store_is_not_sent() -> None:
    large = {**ITEM, "encrypted_content": "sealed:" + "A" * 256 * 1024}
    async with ResponsesUpstream([Reply(chunks=make_events(large)), "Bye."]) as native:
        llm = {"model": "gpt-5", "api": "responses", "base_url": native.url, "api_key": "sk-12345678"}
        async with gateway(None, f"llms: {json.dumps({'default': llm})}") as served:
            first = await served.openai.responses.create(model="gpt-5", input="Hello?")
            await served.openai.responses.create(model="gpt-5", input="And?", previous_response_id=first.id)
            assert list_kinds(native) == ["Hello?", "Hello.", "And?"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_item_alone_is_refused_for_a_model_that_cannot_read_it(stream: bool) -> None:
    """The prompt would be empty. A system prompt alone is nothing to answer either. A native model reads the item."""
    async with serve_both() as (served, native, chat):
        for more in ({}, {"instructions": "Be brief."}):
            with pytest.raises(BadRequestError) as caught:
                await create(served, stream, model="gpt-4o", input=[ITEM], **more)
            assert caught.value.param == "input"
            assert "there is nothing to send to the model" in caught.value.message
        assert chat.requests == []
        await create(served, stream, model="native", input=[ITEM])
        assert list_kinds(native) == ["compaction"]
