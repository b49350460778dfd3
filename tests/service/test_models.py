"""The upstream client against a real server on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import (
    ModelError,
    ModelProtocolError,
    ModelRejected,
    ModelUnavailable,
)
from holdfast.models.base import closing
from holdfast.models.openai import OpenAIModel
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.chunks import collect
from tests.clocks import Pauses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KEY = "sk-test-0123456789abcdef"
HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@contextlib.asynccontextmanager
async def model_at(url: str, **options: Any) -> AsyncIterator[tuple[OpenAIModel, Pauses]]:
    pauses = Pauses()
    model = OpenAIModel(url, KEY, profile="openai", sleep=pauses, random=lambda: 0.0, **options)
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


# -- cancellation -----------------------------------------------------------------


async def test_closing_the_iterator_closes_the_connection_and_leaves_nothing_for_the_next_call() -> None:
    script: list[Reply | str] = [
        reply for n in range(30) for reply in (Reply(text=f"a{n} b c", hold=Gate(), hold_after=2), f"whole {n}")
    ]
    async with ScriptedUpstream(script) as upstream, model_at(upstream.url) as (model, _):
        for number in range(30):
            async with closing(model.stream(HI)) as chunks:
                await anext(chunks)
            answer = await collect(model.stream(HI))
            assert answer["choices"][0]["message"]["content"] == f"whole {number}"
        await upstream.until(lambda: all(one.disconnected for one in upstream.requests[::2]))


# -- configuration ------------------------------------------------------------------


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
