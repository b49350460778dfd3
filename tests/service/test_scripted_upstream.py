"""The scripted upstream that other tests use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import ModelError, ModelRejected
from holdfast.models import OpenAIModel, closing, collect
from holdfast.testing import Gate, Reply, ScriptedUpstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@contextlib.asynccontextmanager
async def model_at(url: str) -> AsyncIterator[OpenAIModel]:
    model = OpenAIModel(url, max_retries=0)
    try:
        yield model
    finally:
        await model.close()


def test_scripted_upstream_runs_in_a_thread() -> None:
    upstream = ScriptedUpstream(["Hello."], models=["a", "b"])
    before = set(threading.enumerate())
    with upstream.in_thread():
        with urllib.request.urlopen(f"{upstream.url}/models") as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["a", "b"]
        body = json.dumps(HI).encode()
        request = urllib.request.Request(f"{upstream.url}/chat/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            assert json.load(response)["choices"][0]["message"]["content"] == "Hello."
    assert upstream.requests[0].body == HI
    # Threads of earlier tests may end meanwhile, so the number of threads may fall.
    assert set(threading.enumerate()) <= before


async def test_exhausted_script_is_reported() -> None:
    async with ScriptedUpstream([]) as upstream, model_at(upstream.url) as model:
        with pytest.raises(ModelRejected, match="the script has 0 replies"):
            await collect(model.stream(HI))


async def test_held_reply_continues_when_the_gate_opens() -> None:
    gate = Gate()
    reply = Reply(text="one two", hold=gate, hold_after=2)
    async with ScriptedUpstream([reply]) as upstream, model_at(upstream.url) as model:
        async with closing(model.stream(HI)) as chunks:
            await anext(chunks)
            await anext(chunks)
            gate.open()
            assert [chunk async for chunk in chunks][-1]["usage"]["total_tokens"] == 15
        await upstream.until(lambda: upstream.requests[0].answered)
        assert upstream.disconnects == 0


async def test_closing_does_not_wait_for_held_replies() -> None:
    gate = Gate()
    async with ScriptedUpstream([Reply(text="never", hold=gate)]) as upstream, model_at(upstream.url) as model:
        task = asyncio.create_task(collect(model.stream(HI)))
        await upstream.until(lambda: upstream.requests)
        await upstream.__aexit__(None, None, None)
        with pytest.raises(ModelError):
            await task
    assert upstream.disconnects == 0
