"""The upstream client against a real server on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import (
    ContextTooLong,
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


async def test_upstream_that_does_not_stream_is_supported() -> None:
    async with ScriptedUpstream([Reply(text="Whole.", stream=False)]) as upstream, model_at(upstream.url) as (model, _):
        completion = await collect(model.stream(HI))
    assert completion["choices"][0]["message"]["content"] == "Whole."
    assert completion["usage"]["total_tokens"] == 15


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


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
async def test_busy_upstream_is_retried(status: int) -> None:
    script: list[Reply | str] = [Reply(status=status), Reply(status=status), "at last"]
    async with ScriptedUpstream(script) as upstream, model_at(upstream.url) as (model, pauses):
        assert (await collect(model.stream(HI)))["choices"][0]["message"]["content"] == "at last"
        assert pauses == [0.25, 0.5]
        first, *others = upstream.requests
        assert [other.raw for other in others] == [first.raw] * 2


async def test_retries_of_a_busy_upstream_are_limited() -> None:
    error = {"error": {"message": "overloaded", "code": "busy"}}
    script = [Reply(status=529, error=error)] * 3
    async with ScriptedUpstream(script) as upstream, model_at(upstream.url) as (model, _):
        caught = await failure(model)
        assert type(caught) is ModelUnavailable
        assert (caught.status, caught.body) == (529, {"message": "overloaded", "code": "busy"})
        assert "overloaded" in str(caught)
        assert len(upstream.requests) == 3


async def test_retry_after_is_obeyed_and_reported() -> None:
    slow = Reply(status=429, headers={"retry-after": "7"})
    quick = Reply(status=429, headers={"retry-after-ms": "1500"})
    async with ScriptedUpstream([slow, quick, slow]) as upstream, model_at(upstream.url) as (model, pauses):
        caught = await failure(model)
        assert pauses == [7, 1.5]
        assert caught.retry_after == 7


async def test_long_retry_after_is_left_to_the_caller() -> None:
    script = [Reply(status=429, headers={"retry-after": "3600"})]
    async with ScriptedUpstream(script) as upstream, model_at(upstream.url) as (model, pauses):
        assert (await failure(model)).retry_after == 3600
        assert pauses == []
        assert len(upstream.requests) == 1


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


async def test_prompt_too_long_error_has_the_limit() -> None:
    error = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens."
    async with ScriptedUpstream([Reply(status=400, error=error)]) as upstream, model_at(upstream.url) as (model, _):
        caught = await failure(model)
    assert isinstance(caught, ContextTooLong)
    assert caught.context_limit == 8192


@pytest.mark.parametrize(("status", "kind"), [(404, ModelRejected), (502, ModelUnavailable), (200, ModelProtocolError)])
async def test_html_page_is_an_error(status: int, kind: type[ModelError]) -> None:
    page = Reply(status=status, raw=[b"<html>", b"<h1>nginx</h1>"], content_type="text/html")
    async with ScriptedUpstream([page]) as upstream, model_at(upstream.url, max_retries=0) as (model, _):
        caught = await failure(model)
    assert type(caught) is kind
    assert caught.body is None


@pytest.mark.parametrize(
    "reply",
    [
        Reply(raw=[]),
        Reply(raw=[b"garbage\n\n", b"\x00\xff"]),
        Reply(status=204, raw=[]),
        Reply(text="a b c", cut_after=3),
        Reply(text="a b c", end=b"", finish_reason="", cut_after=0),
        Reply(chunks=[{"choices": [{"index": 0, "delta": {"content": "a"}}]}], end=b""),
        Reply(chunks=[], end=b"data: [DONE]\n\n"),
        Reply(text="a", stream=False, cut_after=0),
    ],
)
async def test_incomplete_answer_is_an_error_and_not_retried(reply: Reply) -> None:
    async with ScriptedUpstream([reply]) as upstream, model_at(upstream.url) as (model, pauses):
        assert type(await failure(model)) is ModelProtocolError
        assert pauses == []


async def test_chunks_before_a_cut_are_delivered() -> None:
    async with (
        ScriptedUpstream([Reply(text="one two three", cut_after=3)]) as upstream,
        model_at(upstream.url) as (m, _),
    ):
        contents = []
        with pytest.raises(ModelProtocolError):  # noqa: PT012  (the loop is what raises, in its fourth round)
            async for chunk in m.stream(HI):
                contents.append(chunk["choices"][0]["delta"].get("content"))
        assert contents == ["", "one ", "two "]


async def test_complete_answer_without_done_is_accepted() -> None:
    async with ScriptedUpstream([Reply(text="ok", end=b"")]) as upstream, model_at(upstream.url) as (model, _):
        assert (await collect(model.stream(HI)))["choices"][0]["message"]["content"] == "ok"


async def test_error_in_mid_stream_is_raised_and_not_retried() -> None:
    reply = Reply(text="one two", cut_after=2, error={"error": {"message": "out of memory", "code": 500}})
    async with ScriptedUpstream([reply]) as upstream, model_at(upstream.url) as (model, pauses):
        caught = await failure(model)
        assert type(caught) is ModelUnavailable
        assert caught.body == {"message": "out of memory", "code": 500}
        assert pauses == []


async def test_endless_event_is_rejected() -> None:
    flood = Reply(raw=[b"data: " + b"x" * 50_000] * 10)
    async with ScriptedUpstream([flood]) as upstream, model_at(upstream.url, max_event_bytes=100_000) as (model, _):
        assert "too much" in str(await failure(model))


async def test_redirects_are_not_followed() -> None:
    async with ScriptedUpstream(["stolen"]) as other:
        away = Reply(status=307, headers={"location": f"{other.url}/chat/completions"})
        async with ScriptedUpstream([away]) as upstream, model_at(upstream.url) as (model, _):
            assert type(await failure(model)) is ModelProtocolError
        assert other.requests == []


async def test_unreachable_upstream_is_retried_and_then_reported() -> None:
    async with ScriptedUpstream() as upstream:
        url = upstream.url
    async with model_at(url) as (model, pauses):
        caught = await failure(model)
        assert type(caught) is ModelUnavailable
        assert "cannot be reached" in str(caught)
        assert len(pauses) == 2


async def test_unknown_host_is_reported() -> None:
    async with model_at("http://no-such-host.invalid/v1", max_retries=0) as (model, _):
        assert type(await failure(model)) is ModelUnavailable


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


@pytest.mark.parametrize("hold_after", [0, 2])
async def test_silent_upstream_times_out_and_is_not_retried(hold_after: int) -> None:
    gate = Gate()
    reply = Reply(text="one two three", hold=gate, hold_after=hold_after)
    async with ScriptedUpstream([reply]) as upstream, model_at(upstream.url, read_timeout=0.05) as (model, pauses):
        caught = await failure(model)
        assert type(caught) is ModelUnavailable
        assert "sent nothing for" in str(caught)
        assert pauses == []
        await upstream.until(lambda: upstream.disconnects)


async def test_answer_beyond_the_total_timeout_is_an_error() -> None:
    gate = Gate()
    reply = Reply(text="one two three", hold=gate, hold_after=2)
    async with ScriptedUpstream([reply]) as upstream, model_at(upstream.url, total_timeout=0.05) as (model, pauses):
        caught = await failure(model)
        assert type(caught) is ModelUnavailable
        assert "did not end its answer within 0.05 s" in str(caught)
        assert pauses == []


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
