"""The client for Anthropic's Messages API, against a real server on a socket: requests, replies and connections."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.models import AnthropicModel, Collector, closing, collect
from holdfast.models.anthropic import THREAD_MESSAGES
from holdfast.models.anthropic_stream import MessageReader, ReplyChunks
from holdfast.testing import AnthropicUpstream, Gate, Reply
from holdfast.wire import anthropic_requests
from tests.amounts import examples
from tests.service.anthropic_kit import HI, KEY, SEALED, SEARCH, THOUGHT, Json, get_message, open_model

FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


# -- requests --------------------------------------------------------------------------


async def test_request_has_key_version_and_max_tokens() -> None:
    async with open_model(["Hello."]) as (upstream, model, _):
        assert (await get_message(model))["content"] == "Hello."
        received = upstream.requests[0]
    assert received.path == "/v1/messages"
    assert received.headers["x-api-key"] == KEY
    assert received.headers["anthropic-version"] == "2023-06-01"
    assert received.body["stream"] is True
    assert received.body["max_tokens"] == 4_096
    assert received.body["messages"][0]["content"][0]["text"] == "Hi"


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
        ("https://router.example/api", "https://router.example/api/v1/messages"),
        ("https://router.example/api/v1/messages", "https://router.example/api/v1/messages"),
        ("http://127.0.0.1:1/v2beta?a=b", "http://127.0.0.1:1/v2beta/messages?a=b"),
    ],
)
def test_base_url_may_include_the_version(base_url: str, url: str) -> None:
    assert AnthropicModel(base_url)._url == url


@pytest.mark.parametrize("url", ["", "localhost", "http://me:secret-word@host"])
def test_invalid_base_url_is_rejected(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        AnthropicModel(url)
    assert "secret-word" not in str(caught.value)


def test_repr_does_not_contain_the_key() -> None:
    assert repr(AnthropicModel(api_key=KEY, model="m")) == "AnthropicModel('m', at 'https://api.anthropic.com')"


async def test_headers_and_betas_are_merged() -> None:
    """From the configuration, the call and the request."""
    configured = {"headers": {"Anthropic-Beta": "a-1", "x-team": "t"}}
    async with open_model(["ok"], model=configured) as (upstream, model, _):
        request = {**HI, "betas": ["c-3", "a-1"]}
        await collect(model.stream(request, headers={"anthropic-beta": "b-2,c-3", "X-Call": "1"}))
        headers = upstream.requests[0].headers
    assert headers["anthropic-beta"] == "a-1,b-2,c-3"
    assert (headers["x-team"], headers["x-call"], headers["x-api-key"]) == ("t", "1", KEY)


@pytest.mark.parametrize(
    ("host", "handed", "sent"),
    [
        ("api.anthropic.com", {"Authorization": "Bearer sk-ant-api03-client"}, {"x-api-key": "sk-ant-api03-client"}),
        ("api.anthropic.com", {"x-api-key": "sk-ant-api03-client"}, {"x-api-key": "sk-ant-api03-client"}),
        ("api.anthropic.com", {"Authorization": "Bearer sk-ant-oat01-x"}, {"authorization": "Bearer sk-ant-oat01-x"}),
        ("router.example", {"Authorization": "Bearer k"}, {"x-api-key": "k", "authorization": "Bearer k"}),
        ("api.anthropic.com", {"Authorization": "Basic eA=="}, {"authorization": "Basic eA=="}),
        ("api.anthropic.com", {}, {"x-api-key": KEY}),
    ],
)
def test_clients_key_replaces_the_configured_key(host: str, handed: dict[str, str], sent: dict[str, str]) -> None:
    """In the header that the host accepts. Errors do not contain it."""
    call = AnthropicModel(f"https://{host}", KEY)._build_request(HI, handed)
    assert {name: call.headers[name] for name in ("x-api-key", "authorization") if name in call.headers} == sent
    assert all(value.rpartition(" ")[2] in call.secrets for value in sent.values())


async def test_inexpressible_request_is_rejected_before_sending() -> None:
    async with open_model(["never"]) as (upstream, model, _):
        with pytest.raises(InvalidRequest):
            await collect(model.stream({**HI, "n": 2}))
        assert upstream.requests == []


# -- replies -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_server_tools_and_citations_are_kept_with_the_text(stream: bool) -> None:
    """Chat Completions clients see text; Anthropic gets its own blocks back."""
    async with open_model([Reply(message={"content": SEARCH}, stream=stream), "ok"]) as (upstream, model, _):
        message = await get_message(model)
        assert message["content"] == "Searching. It is kelp."
        assert message["content_blocks"] == [{**block, "index": at} for at, block in enumerate(SEARCH)]
        told = [*HI["messages"], message, {"role": "user", "content": "Sure?"}]
        await get_message(model, {**HI, "messages": told})
        assert upstream.requests[1].body["messages"][1]["content"] == SEARCH
        assert upstream.violations == []


@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_between_texts_keeps_its_position(stream: bool) -> None:
    """Signed reasoning must not be changed, and its position is part of it."""
    said: list[Json] = [
        THOUGHT,
        {"type": "text", "text": "One. "},
        {**THOUGHT, "thinking": "and now"},
        {"type": "text", "text": "Two."},
        SEALED,
        {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}},
    ]
    async with open_model([Reply(message={"content": said}, stream=stream), "ok"]) as (upstream, model, _):
        message = await get_message(model, {**HI, "tools": [FIND]})
        assert message["content"] == "One. Two."
        told = [*HI["messages"], message, {"role": "tool", "tool_call_id": "toolu_1", "content": "x"}]
        await get_message(model, {**HI, "tools": [FIND], "messages": told})
        assert upstream.requests[1].body["messages"][1]["content"] == said
        assert upstream.violations == []


def test_compaction_block_is_kept() -> None:
    """A beta block that consists of one delta."""
    reply = ReplyChunks()
    reply.begin_part()
    events: list[Json] = [
        {"type": "content_block_start", "content_block": {"type": "compaction", "content": None}},
        {"type": "content_block_delta", "delta": {"type": "compaction_delta", "content": "So far: kelp."}},
        {"type": "content_block_stop"},
    ]
    chunks = [chunk for event in events for chunk in reply.convert(event)]
    assert chunks[-1]["choices"][0]["delta"]["content_blocks"] == [
        {"type": "compaction", "content": "So far: kelp.", "index": 0}
    ]


@pytest.mark.parametrize(("turns", "threads"), [(1, 0), (THREAD_MESSAGES, 1)])
async def test_long_request_is_built_off_the_event_loop(
    turns: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def build_body(*given: Any, **options: Any) -> Json:
        made.append(threading.get_ident())
        return anthropic_requests.build_body(*given, **options)

    monkeypatch.setattr("holdfast.models.anthropic.build_body", build_body)
    async with open_model(["ok"]) as (upstream, model, _):
        messages = [{"role": "assistant" if at % 2 else "user", "content": f"{at}"} for at in range(turns)]
        await get_message(model, {**HI, "messages": messages})
        assert upstream.violations == []
    assert len({*made} - {threading.get_ident()}) == threads
    assert len(made) == 1


async def test_paused_reply_is_continued() -> None:
    """The caller gets one reply. Its usage has the prompt of the first request and the completions of both."""
    paused = Reply(message={"content": SEARCH[:2]}, finish_reason="pause_turn", usage={"prompt_tokens": 10})
    async with open_model([paused, Reply(message={"content": SEARCH[2:]}, usage={"prompt_tokens": 50})]) as (
        upstream,
        model,
        _,
    ):
        completion = await collect(model.stream(HI))
        first, second = (received.body for received in upstream.requests)
    assert upstream.violations == []
    assert second == {**first, "messages": [*first["messages"], {"role": "assistant", "content": SEARCH[:2]}]}
    message = completion["choices"][0]["message"]
    assert message["content"] == "Searching. It is kelp."
    assert message["content_blocks"] == [{**block, "index": at} for at, block in enumerate(SEARCH)]
    assert completion["choices"][0]["finish_reason"] == "stop"
    usage = completion["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["input_tokens"]) == (10, 10, 60)


async def test_continuations_of_a_paused_reply_are_limited() -> None:
    async with open_model(lambda _: Reply(message={"content": SEARCH[:2]}, finish_reason="pause_turn")) as (
        upstream,
        model,
        _,
    ):
        completion = await collect(model.stream(HI))
        assert len(upstream.requests) == 11
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert completion["choices"][0]["native_finish_reason"] == "pause_turn"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("something_new", "stop"),
    ],
)
async def test_finish_reasons_are_translated(reason: str, expected: str) -> None:
    """Anthropic's own reason is kept as well."""
    async with open_model([Reply(text="x", finish_reason=reason)]) as (_, model, _pauses):
        choice = (await collect(model.stream(HI)))["choices"][0]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == (expected, reason)


# -- connections --------------------------------------------------------------------------------


async def test_closing_the_stream_disconnects_from_the_upstream() -> None:
    """At once, even while the upstream is silent."""
    async with open_model([Reply(text="Hello there.", hold=Gate(), hold_after=4)]) as (upstream, model, _):
        async with closing(model.stream(HI)) as chunks:
            async for chunk in chunks:
                if chunk["choices"][0]["delta"].get("content"):
                    break
        await upstream.until(lambda: upstream.requests[0].disconnected)


async def test_connection_is_reused_after_a_complete_reply() -> None:
    async with open_model(["one", "two"]) as (_, model, _pauses):
        for _ in range(2):
            await get_message(model)
        assert model._pool is not None
        assert model._pool.connector is not None
        assert sum(map(len, model._pool.connector._conns.values())) == 1


# -- the reader -----------------------------------------------------------------------------------

blocks = st.lists(st.sampled_from([THOUGHT, SEALED, *SEARCH]), max_size=6)


@settings(max_examples=examples(50))
@given(blocks, st.lists(st.integers(1, 60), max_size=30))
def test_reader_result_does_not_depend_on_chunk_boundaries(content: list[Json], cuts: list[int]) -> None:
    """The result equals that of one message that is not streamed."""
    upstream = AnthropicUpstream()
    reply = Reply(message={"content": content}, tool_calls=[])
    data = b"".join(upstream.format_events(reply, {}, 1))

    def read(pieces: list[bytes]) -> Json:
        reader, collector = MessageReader("there", ReplyChunks()), Collector()
        for piece in pieces:
            for chunk in reader.feed(piece):
                collector.add(chunk)
        for chunk in () if reader.done else reader.end():
            collector.add(chunk)
        return collector.build_completion()

    pieces, rest = [], data
    for size in cuts:
        pieces.append(rest[:size])
        rest = rest[size:]
    whole = read([upstream.format_reply(reply, {}, 1)])
    assert read([*(piece for piece in pieces if piece), *([rest] if rest else [])]) == read([data]) == whole
