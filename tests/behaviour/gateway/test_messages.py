"""`POST /v1/messages` with the official Anthropic client, in front of an upstream of either kind: text, tools,
reasoning, media.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import anthropic
import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import CLAUDE, CLIENT_KEY, answer_of, apis, gateway

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 64}}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather in a town.",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    "cache_control": {"type": "ephemeral"},
}
CALLS = [("weather", {"town": "Oslo"}), ("weather", {"town": "Bergen", "days": [1, 2]})]
THOUGHT = {"type": "thinking", "thinking": "Oslo is in Norway.", "signature": "c2lnbmVk"}
SEALED = {"type": "redacted_thinking", "data": "c2VhbGVk"}
PIXEL = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde"
).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}

streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
either = pytest.mark.parametrize("model", ["gpt-4o", CLAUDE])


# -- text --------------------------------------------------------------------


@streamed
@either
async def test_text_answer(model: str, stream: bool) -> None:
    """With its stop reason and usage; both messages are in the log."""
    reply = Reply(text="Hello there, you.", usage=USAGE)
    async with apis([reply], [reply]) as both:
        told = await both.ask("Hi", stream=stream, model=model, session_id="s", system="Be kind.")
        assert (told.type, told.role, told.stop_reason) == ("message", "assistant", "end_turn")
        assert [block.to_dict() for block in told.content] == [{"type": "text", "text": "Hello there, you."}]
        assert told.id.startswith("msg_")
        assert told.usage.output_tokens == 20
        if model != CLAUDE:
            assert (told.usage.input_tokens, told.usage.cache_read_input_tokens) == (36, 64)
        assert await both.log() == [("user", "Hi"), ("assistant", "Hello there, you.")]
        (sent,) = (both.claude if model == CLAUDE else both.upstream).requests
        assert sent.body["max_tokens"] == 100
        assert CLIENT_KEY.encode() not in sent.raw
        assert both.claude.violations == []


async def test_session_is_reported() -> None:
    """Whole: in the body. Streamed: in the `message_delta`, and in a header from the start."""
    async with apis(["one", "two"]) as both:
        told = await both.ask("Hi", session_id="s")
        assert told.session_id == "s"
        assert told.session["version"] == 2
        fields: dict[str, Any] = {
            "model": "gpt-4o",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Go on"}],
        }
        async with both.anthropic.messages.stream(**fields, extra_headers={"x-session-id": "s"}) as events:
            seen = [event async for event in events]
            assert events.response.headers["x-session-id"] == "s"
            assert events.response.headers["request-id"] == events.response.headers["x-request-id"]
        (delta,) = [event for event in seen if event.type == "message_delta"]
        assert (delta.session_id, delta.session["turn"]) == ("s", 1)


async def test_parameters_reach_an_anthropic_model_unchanged() -> None:
    """Including cache marks, beta features and Anthropic's own tools."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    fields: dict[str, Any] = {
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "stop_sequences": ["END"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 4000,
        "tools": [{**WEATHER, "input_examples": [{"town": "Oslo"}]}, search],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "metadata": {"user_id": "u-1"},
        "extra_headers": {"anthropic-beta": "a-1,b-2"},
    }
    async with apis((), ["Yes.", "No."]) as both:
        await both.ask("Hi", model=CLAUDE, **fields)
        await both.ask("Hi", model=CLAUDE, top_k=5, temperature=0.2)
        sent, other = both.claude.requests
        assert (other.body["top_k"], other.body["temperature"]) == (5, 0.2)
        for name in ("stop_sequences", "thinking", "max_tokens", "tool_choice", "metadata"):
            assert sent.body[name] == fields[name], name
        weather, searching = sent.body["tools"]
        assert {name: weather[name] for name in WEATHER} == WEATHER
        assert weather["input_examples"] == [{"town": "Oslo"}]
        assert {name: searching[name] for name in search} == search
        assert sent.body["system"][0]["cache_control"] == {"type": "ephemeral"}
        assert {"a-1", "b-2"} <= set(sent.headers["anthropic-beta"].split(","))
        assert both.claude.violations == []


# -- tools -------------------------------------------------------------------


@streamed
@either
async def test_tool_calls_and_results(model: str, stream: bool) -> None:
    """Several calls at once with parsed input; the results come back in one message with text after them."""
    script = [Reply(text="Let me see.", tool_calls=CALLS), "Rain, and rain."]
    async with apis(script, script) as both:
        options: dict[str, Any] = {"model": model, "tools": [WEATHER], "stream": stream, "session_id": "s"}
        asked = await both.ask("Is it raining?", **options)
        assert asked.stop_reason == "tool_use"
        assert [block.type for block in asked.content] == ["text", "tool_use", "tool_use"]
        calls = asked.content[1:]
        assert [(call.name, call.input) for call in calls] == CALLS
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
            for call in calls
        ]
        results[1]["is_error"] = True
        answer = await both.ask(
            [{"role": "user", "content": [*results, {"type": "text", "text": "In short?"}]}], **options
        )
        assert answer.content[0].text == "Rain, and rain."
        roles = [(entry["role"], entry["turn_id"]) for entry in await both.entries("s")]
        assert roles == [("user", 0), ("assistant", 0), ("tool", 0), ("tool", 0), ("user", 1), ("assistant", 1)]
        upstream = both.claude if model == CLAUDE else both.upstream
        ids = [call.id for call in calls]
        if model == CLAUDE:
            last = upstream.requests[1].body["messages"][-1]["content"]
            assert [block["tool_use_id"] for block in last[:2]] == ids
            assert last[1]["is_error"] is True
        else:
            told = upstream.requests[1].body["messages"]
            assert [message["tool_call_id"] for message in told if message["role"] == "tool"] == ids
            assert not any("is_error" in message for message in told)
        assert both.claude.violations == []


@streamed
async def test_server_tools_run_inside_the_turn(stream: bool) -> None:
    """The client sees one message with the reasoning and text of each round; resent, it matches the stored reply."""
    rounds = [
        Reply(text="Counting.", tool_calls=[("count", {})], message={"thinking_blocks": [THOUGHT]}),
        Reply(text="It is one.", message={"thinking_blocks": [{**THOUGHT, "thinking": "so"}]}),
        "You are welcome.",
    ]

    def count() -> int:
        """Count."""
        return 1

    async with apis((), rounds, tools=[count]) as both:
        history: list[Any] = [{"role": "user", "content": "How many?"}]
        asked = await both.ask(
            history, stream=stream, model=CLAUDE, max_tokens=3000, thinking={"type": "enabled", "budget_tokens": 1024}
        )
        thoughts = [block.thinking for block in asked.content if block.type == "thinking"]
        assert thoughts == [THOUGHT["thinking"], "so"]
        assert "".join(block.text for block in asked.content if block.type == "text") == "Counting.\n\nIt is one."
        assert asked.stop_reason == "end_turn"
        history += [{"role": "assistant", "content": asked.content}, {"role": "user", "content": "Thanks"}]
        again = await both.ask(history, model=CLAUDE)
        assert again.session["reconciled"] == "continued"
        assert both.claude.violations == []


# -- reasoning ---------------------------------------------------------------


@streamed
async def test_reasoning_is_sent_back_signed(stream: bool) -> None:
    """And only once: the client resends what is already in the log."""
    blocks = [THOUGHT, SEALED]
    script = [Reply(text="Let me see.", tool_calls=CALLS[:1], message={"thinking_blocks": blocks}), "Rain.", "Yes."]
    async with apis((), script) as both:
        options: dict[str, Any] = {
            "model": CLAUDE,
            "tools": [WEATHER],
            "stream": stream,
            "max_tokens": 3000,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }
        history: list[Any] = [{"role": "user", "content": "Is it raining?"}]
        asked = await both.ask(history, **options)
        assert [block.to_dict(exclude_none=True) for block in asked.content[:2]] == blocks
        call = asked.content[-1]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        history += [{"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}]
        answer = await both.ask(history, **options)
        history += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "Sure?"}]
        await both.ask(history, **options)
        for request in both.claude.requests[1:]:
            kinds = [block["type"] for block in request.body["messages"][1]["content"]]
            assert kinds == ["thinking", "redacted_thinking", "text", "tool_use"]
            assert request.body["messages"][1]["content"][:2] == blocks
        assert both.claude.violations == []


@streamed
async def test_unsigned_reasoning_is_shown(stream: bool) -> None:
    """For models whose provider signs nothing; resent, it is not part of the reply's text."""
    script = [Reply(text="Four.", message={"reasoning_content": "two and two"}), "Yes."]
    async with apis(script) as both:
        history: list[Any] = [{"role": "user", "content": "2 + 2?"}]
        asked = await both.ask(history, stream=stream)
        assert [block.type for block in asked.content] == ["thinking", "text"]
        assert (asked.content[0].thinking, asked.content[0].signature) == ("two and two", "")
        history += [{"role": "assistant", "content": asked.content}, {"role": "user", "content": "Sure?"}]
        again = await both.ask(history)
        assert again.session["reconciled"] == "continued"
        assert all(isinstance(message["content"], str) for message in both.upstream.requests[1].body["messages"])


@streamed
async def test_server_tool_blocks_are_passed_unchanged(stream: bool) -> None:
    """With text and citations around them, and sent back unchanged; the other API shows only the text."""
    content = [
        {"type": "text", "text": "Let me search. "},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rain"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "url": "https://x.io", "title": "X", "encrypted_content": "e"}],
        },
        {
            "type": "text",
            "text": "It rains.",
            "citations": [
                {
                    "type": "web_search_result_location",
                    "url": "https://x.io",
                    "title": "X",
                    "encrypted_index": "i",
                    "cited_text": "rain",
                }
            ],
        },
    ]
    script = [Reply(message={"content": content}), "Yes.", "Still."]
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    async with apis(["It did."], script) as both:
        history: list[Any] = [{"role": "user", "content": "Is it raining?"}]
        asked = await both.ask(history, stream=stream, model=CLAUDE, tools=tools, session_id="s")
        assert [block.to_dict(exclude_none=True) for block in asked.content] == content
        history += [{"role": "assistant", "content": asked.content}, {"role": "user", "content": "Sure?"}]
        again = await both.ask(history, model=CLAUDE, tools=tools)
        assert (again.session_id, again.session["reconciled"]) == ("s", "continued")
        told = both.claude.requests[1].body["messages"][1]["content"]
        assert [{k: v for k, v in block.items() if k != "cache_control"} for block in told] == content
        plain = [history[0], {"role": "assistant", "content": "Let me search. It rains."}, history[2]]
        plain += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And before?"}]
        assert answer_of(await both.chat(plain, None)) == "It did."
        assert both.upstream.requests[0].body["messages"][1] == {
            "role": "assistant",
            "content": "Let me search. It rains.",
        }
        assert both.claude.violations == []


# -- media -------------------------------------------------------------------


@either
async def test_images_are_stored_once(model: str) -> None:
    """In messages and tool results, stored by content and sent in the model's own format."""
    script = [Reply(tool_calls=CALLS[:1]), "A pixel.", "Still."]
    async with apis(script, script) as both:
        options: dict[str, Any] = {"model": model, "tools": [WEATHER], "session_id": "s"}
        large = base64.b64encode(base64.b64decode(PIXEL) + bytes(3000)).decode()
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": large}}
        asked = await both.ask(
            [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}], **options
        )
        result = {"type": "tool_result", "tool_use_id": asked.content[0].id, "content": [image]}
        await both.ask([{"role": "user", "content": [result]}], **options)
        images = (await both.rest.session().export())["images"]
        assert [one["seq"] for one in images] == [0, 2]
        assert len({one["sha256"] for one in images}) == 1
        sent = (both.claude if model == CLAUDE else both.upstream).requests[1].body["messages"]
        assert sum(json.dumps(message).count(large) for message in sent) == 2
        assert both.claude.violations == []
        if model != CLAUDE:  # it accepts only text in a result
            assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
            assert large not in json.dumps(sent[2])
            assert [part["type"] for part in sent[3]["content"]] == ["text", "image_url"]


async def test_media_are_checked_everywhere_in_a_request() -> None:
    """Too many, too large or not base64: refused with their place, before anything is stored."""
    async with apis((), (), "gateway: {max_media: 2048}") as both:
        big = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 4000}}
        bad = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}
        for content, error, place in (
            ([big], anthropic.ContentTooLargeError, "messages[0].content[0]"),
            (
                [{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE, big]}],
                anthropic.ContentTooLargeError,
                "messages[0].content[0].content[1]",
            ),
            (
                [{"type": "tool_result", "tool_use_id": "a", "content": [bad]}],
                anthropic.BadRequestError,
                "messages[0].content[0].content[0]",
            ),
            (
                [*[IMAGE] * 60, {"type": "tool_result", "tool_use_id": "a", "content": [IMAGE] * 41}],
                anthropic.ContentTooLargeError,
                "messages",
            ),
        ):
            with pytest.raises(error) as told:
                await both.ask([{"role": "user", "content": content}])
            body: Any = told.value.body
            assert body["error"]["param"] == place
        assert await both.rest.sessions() == []


@pytest.mark.parametrize("given", [(1, 2), (2,), (0,), ()])
async def test_calls_that_a_model_streams_side_by_side_reach_the_client_whole(given: tuple[int, ...]) -> None:
    """Anthropic's streams have one block at a time, so the parts of later calls wait until the earlier ones end."""
    starts = [
        {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": ""}}
        for at, name in enumerate(("first", "second", "third"))
    ]
    parts = [{"index": at, "function": {"arguments": text}} for text in ('{"n":', " 1}") for at in given]
    deltas = [{"role": "assistant"}, {"tool_calls": starts}, *({"tool_calls": [part]} for part in parts), {}]
    reasons = [*[None] * (len(deltas) - 1), "tool_calls"]
    chunks = [
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o",
         "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in zip(deltas, reasons, strict=True)
    ]  # fmt: skip
    async with gateway([Reply(chunks=chunks)]) as served:
        fields = {"model": "default", "max_tokens": 100, "messages": [{"role": "user", "content": "Go."}]}
        async with served.anthropic.messages.stream(**fields) as events:
            made = await events.get_final_message()
        found = [(block.name, block.input) for block in made.content if block.type == "tool_use"]
        assert found == [
            (name, {"n": 1} if at in given else {}) for at, name in enumerate(("first", "second", "third"))
        ]
