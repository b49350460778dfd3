"""The upstream client against a real server on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import (
    InvalidRequest,
    ModelError,
    ModelProtocolError,
    ModelRejected,
    ModelUnavailable,
)
from holdfast.models import OpenAIModel, closing, collect
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.clocks import Pauses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KEY = "sk-test-0123456789abcdef"
HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@contextlib.asynccontextmanager
async def model_at(url: str, **options: Any) -> AsyncIterator[tuple[OpenAIModel, Pauses]]:
    pauses = Pauses()
    model = OpenAIModel(url, KEY, sleep=pauses, random=lambda: 0.0, **options)
    try:
        yield model, pauses
    finally:
        await model.close()


async def failure(model: OpenAIModel, request: dict[str, Any] = HI) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await collect(model.stream(request))
    for error in whole_chain(caught.value):
        assert KEY not in repr(error)
        assert KEY not in str(error)
    assert KEY not in "".join(traceback.format_exception(caught.value))
    return caught.value


def whole_chain(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


@contextlib.asynccontextmanager
async def bare_server(answer: bytes) -> AsyncIterator[str]:
    """Run a server below HTTP: it reads something, writes `answer` and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


# -- requests and replies ---------------------------------------------------------


async def test_answer_is_streamed_and_collected() -> None:
    async with ScriptedUpstream(["Hello there, Ada."]) as upstream, model_at(upstream.url) as (model, _):
        chunks = [chunk async for chunk in model.stream(HI)]
        contents = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
        assert contents == ["", "Hello ", "there, ", "Ada.", None]
        assert chunks[-1]["usage"]["prompt_tokens"] == 10
        received = upstream.requests[0]
        assert received.headers["authorization"] == f"Bearer {KEY}"
        assert received.path == "/v1/chat/completions"
        assert received.body == HI | {"stream": True, "stream_options": {"include_usage": True}}


async def test_unknown_fields_pass_in_both_directions() -> None:
    chunk = {
        "id": "c",
        "new": {"a": [1, None]},
        "choices": [{"index": 0, "delta": {"content": "é☃", "odd": 1.5}, "finish_reason": "stop", "native": "x"}],
    }
    request = HI | {
        "stream": False,
        "stream_options": {"include_obfuscation": False},
        "prompt_cache_key": "k",
        "vendor": {"deep": ["ü"]},
    }
    before = json.dumps(request)
    async with ScriptedUpstream([Reply(chunks=[chunk])]) as upstream, model_at(upstream.url) as (model, _):
        assert [found async for found in model.stream(request)] == [chunk]
        sent = upstream.requests[0].body
        assert sent == request | {
            "stream": True,
            "stream_options": {"include_obfuscation": False, "include_usage": True},
        }
    assert json.dumps(request) == before


async def test_tool_calls_and_reasoning_are_complete() -> None:
    reply = Reply(tool_calls=[("find", {"order": "A 17"}), ("now", {})], message={"reasoning_content": "hm"})
    async with ScriptedUpstream([reply]) as upstream, model_at(upstream.url) as (model, _):
        message = (await collect(model.stream(HI)))["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["find", "now"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"order": "A 17"}
    assert message["reasoning_content"] == "hm"


async def test_model_name_and_headers_of_model_and_call_are_sent() -> None:
    headers = {"X-Team": "a", "X-Title": "t", "Host": "elsewhere", "Content-Length": "3"}
    async with (
        ScriptedUpstream(["a", "b"]) as upstream,
        model_at(upstream.url + "?api-version=2", model="big", headers=headers) as (model, _),
    ):
        await collect(model.stream(HI, headers={"x-team": "b", "Authorization": "Bearer the-clients-own"}))
        await collect(model.stream({"messages": []}))
        first, second = upstream.requests
    assert (first.body["model"], second.body["model"]) == ("big", "big")
    assert first.headers["x-team"] == "b"
    assert first.headers["x-title"] == "t"
    assert first.headers["authorization"] == "Bearer the-clients-own"
    assert first.headers["host"].startswith("127.0.0.1:")
    assert first.path == "/v1/chat/completions?api-version=2"
    assert second.headers["authorization"] == f"Bearer {KEY}"


async def test_large_request_is_sent_completely() -> None:
    request = {"messages": [{"role": "user", "content": "x" * 3_000_000}]}
    async with ScriptedUpstream(["ok"]) as upstream, model_at(upstream.url) as (model, _):
        await collect(model.stream(request))
        assert upstream.requests[0].body["messages"] == request["messages"]


async def test_calls_share_a_connection() -> None:
    async with ScriptedUpstream(lambda body: "ok") as upstream, model_at(upstream.url) as (model, _):
        for _ in range(5):
            await collect(model.stream(HI))
        assert model._pool is not None
        assert model._pool.connector is not None
        pooled = [connection for group in model._pool.connector._conns.values() for connection in group]
        assert len(pooled) == 1


async def test_concurrent_streams_do_not_mix() -> None:
    async with (
        ScriptedUpstream(lambda body: body["messages"][0]["content"]) as upstream,
        model_at(upstream.url) as (m, _),
    ):

        async def ask(number: int) -> str:
            request = {"messages": [{"role": "user", "content": f"marker {number} " * 20}]}
            completion = await collect(m.stream(request))
            return str(completion["choices"][0]["message"]["content"])

        answers = await asyncio.gather(*(ask(number) for number in range(100)))
    assert answers == [f"marker {number} " * 20 for number in range(100)]


# -- failures ---------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_rejection_is_final_and_keeps_the_upstream_message(status: int) -> None:
    error = {"error": {"message": f"no, and your key is {KEY}", "type": "invalid_request_error", "param": "messages"}}
    async with ScriptedUpstream([Reply(status=status, error=error)]) as upstream, model_at(upstream.url) as (model, _):
        caught = await failure(model)
        assert type(caught) is ModelRejected
        assert caught.status == status
        assert caught.body == {
            "message": "no, and your key is [redacted]",
            "type": "invalid_request_error",
            "param": "messages",
        }
        assert len(upstream.requests) == 1


async def test_key_of_the_client_is_redacted_in_errors() -> None:
    error = {"error": {"message": "bad key client-key-987654321"}}
    async with ScriptedUpstream([Reply(status=401, error=error)]) as upstream, model_at(upstream.url) as (model, _):
        with pytest.raises(ModelRejected) as caught:
            await collect(model.stream(HI, headers={"authorization": "Bearer client-key-987654321"}))
    assert caught.value.body == {"message": "bad key [redacted]"}


@pytest.mark.parametrize(
    ("answer", "kind", "pauses"),
    [
        (b"", ModelUnavailable, 2),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ModelProtocolError, 0),
        (b"HTTP/1.1 200 OK\r\nbad header\x00\r\n\r\n", ModelProtocolError, 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\ndata: {", ModelProtocolError, 0),
    ],
)
async def test_malformed_http_is_reported_without_the_key(answer: bytes, kind: type[ModelError], pauses: int) -> None:
    async with bare_server(answer) as url, model_at(url) as (model, slept):
        assert type(await failure(model)) is kind
        assert len(slept) == pauses


async def test_exhausted_connection_pool_is_reported() -> None:
    gate = Gate()
    async with ScriptedUpstream([Reply(text="a", hold=gate, hold_after=1), "b"]) as upstream:
        options = {"max_connections": 1, "connect_timeout": 0.05, "max_retries": 0}
        async with model_at(upstream.url, **options) as (model, _), closing(model.stream(HI)) as first:
            await anext(first)
            assert "did not accept a connection within" in str(await failure(model))


# -- cancellation -----------------------------------------------------------------


async def test_closing_the_iterator_closes_the_connection() -> None:
    reply = Reply(text="one two three", hold=Gate(), hold_after=2)
    async with ScriptedUpstream([reply]) as upstream, model_at(upstream.url) as (model, _):
        async with closing(model.stream(HI)) as chunks:
            await anext(chunks)
        await upstream.until(lambda: upstream.requests[0].disconnected)


@pytest.mark.parametrize("hold_after", [0, 2])
async def test_cancelling_the_task_closes_the_connection(hold_after: int) -> None:
    reply = Reply(text="one two three", hold=Gate(), hold_after=hold_after)
    async with ScriptedUpstream([reply]) as upstream, model_at(upstream.url) as (model, _):
        task = asyncio.create_task(collect(model.stream(HI)))
        await upstream.until(lambda: upstream.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upstream.until(lambda: upstream.requests[0].disconnected)


async def test_cancelled_call_leaves_nothing_for_the_next_one() -> None:
    script: list[Reply | str] = [
        reply for n in range(30) for reply in (Reply(text=f"a{n} b c", hold=Gate(), hold_after=2), f"whole {n}")
    ]
    async with ScriptedUpstream(script) as upstream, model_at(upstream.url) as (model, _):
        for number in range(30):
            async with closing(model.stream(HI)) as chunks:
                await anext(chunks)
            answer = await collect(model.stream(HI))
            assert answer["choices"][0]["message"]["content"] == f"whole {number}"


async def test_close_ends_running_streams_and_forbids_new_ones() -> None:
    reply = Reply(text="one two three", hold=Gate(), hold_after=2)
    async with ScriptedUpstream([reply]) as upstream, model_at(upstream.url) as (model, _):
        async with closing(model.stream(HI)) as chunks:
            await anext(chunks)
            await model.close()
            with pytest.raises(ModelError):
                async for _ in chunks:
                    pass
        await model.close()
        assert "closed" in str(await failure(model))


# -- configuration ------------------------------------------------------------------


async def test_header_with_a_line_break_is_rejected() -> None:
    async with model_at("http://127.0.0.1:9/v1") as (model, _):
        with pytest.raises(InvalidRequest):
            await collect(model.stream(HI, headers={"x-a": "1\r\nx-b: 2"}))


async def test_request_that_is_not_json_is_rejected() -> None:
    async with model_at("http://127.0.0.1:9/v1") as (model, _):
        for request in ({"messages": [object()]}, {"messages": ["\ud800"]}):
            with pytest.raises(InvalidRequest):
                await collect(model.stream(request))


async def test_proxy_from_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedUpstream(["by proxy"]) as proxy:
        host = proxy.url.removesuffix("/v1")
        monkeypatch.setenv("HTTP_PROXY", host.replace("http://", "http://me:proxy-password@"))
        async with model_at("http://upstream.test/v1") as (model, _):
            monkeypatch.delenv("REQUEST_METHOD", raising=False)
            assert (await collect(model.stream(HI)))["choices"][0]["message"]["content"] == "by proxy"
        received = proxy.requests[0]
        assert received.headers["host"] == "upstream.test"
        assert received.headers["proxy-authorization"].startswith("Basic ")


async def test_no_proxy_is_obeyed_and_the_proxy_password_is_not_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:proxy-password@127.0.0.1:9")
    async with model_at("http://upstream.test/v1", max_retries=0) as (model, _):
        caught = await failure(model)
    assert all("proxy-password" not in repr(error) for error in whole_chain(caught))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with ScriptedUpstream(["direct"]) as upstream, model_at(upstream.url) as (model, _):
        await collect(model.stream(HI))


async def test_netrc_does_not_override_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    async with ScriptedUpstream(["ok"]) as upstream, model_at(upstream.url) as (model, _):
        await collect(model.stream(HI))
        assert upstream.requests[0].headers["authorization"] == f"Bearer {KEY}"
