"""Failures at named points of the product: what is written, and what a caller who tries again gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import holdfast
from holdfast.errors import ArtifactNotFound, ModelUnavailable, StoreUnavailable
from holdfast.testing import Reply, ScriptedUpstream
from tests.behaviour.kit import Process, inject

MEMORY = {"HOLDFAST_STORE": "sqlite://:memory:"}
LOST = StoreUnavailable("no answer")


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no failure point 'afer-commit'"), inject("afer-commit", LOST):
        pass


async def texts(session: Any) -> list[str]:
    return [message["content"] for message in await session.messages()]


# -- the store -------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before-commit", "after-commit"])
async def test_a_write_without_an_answer_is_made_once(point: str) -> None:
    """`next` raises if it is not there, and the end of the block writes what is missing."""
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        async with session.turn("a") as turn:
            turn.add("answer")
            with inject(point, LOST) as fault:
                try:
                    await turn.next()
                except StoreUnavailable:
                    assert point == "before-commit"
            assert fault.hits
            turn.add("more")
        assert await texts(session) == ["a", "answer", "more"]


async def test_reads_that_fail_are_an_error_and_change_nothing() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append("hello")
        with inject("before-read", LOST, times=2):
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="no answer"):
                    await session.messages()
            assert await texts(session) == ["hello"]


async def test_an_erasure_that_failed_is_finished_by_repeating_it() -> None:
    """The named message is erased after its copies, so it can be named again."""
    for point in ("before-message-erased", "after-message-erased"):
        for at in (1, 2, 3):
            async with holdfast.open("sqlite://:memory:") as hf:
                one = await hf.session("one")
                await one.append("secret word")
                forks = [await hf.fork(one.ref, id=name) for name in ("two", "three")]
                with inject(point, LOST, at=at), pytest.raises(StoreUnavailable):
                    await hf.erase(one.ref, 0)
                await hf.erase(one.ref, 0)
                assert [await texts(each) for each in (one, *forks)] == [["[erased]"]] * 3


async def test_content_without_a_name_is_no_artifact() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        with inject("after-content-stored", LOST), pytest.raises(StoreUnavailable):
            await session.artifacts.save("a.txt", b"first")
        with pytest.raises(ArtifactNotFound):
            await session.artifacts.get("a.txt")
        saved = await session.artifacts.save("a.txt", b"second")
        assert (saved.version, (await session.artifacts.load("a.txt")).data) == (0, b"second")


# -- models and tools ------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before-model-call", "after-model-reply", "before-tool-call", "after-tool-call"])
async def test_a_turn_that_failed_is_continued_by_the_next(point: str, tmp_path: Path) -> None:
    """Each call has a result in the log, so the next prompt is legal."""
    ran = []

    def count() -> str:
        """Count."""
        ran.append(1)
        return "counted"

    async with ScriptedUpstream([Reply(tool_calls=[("count", {})]), "done", "after"]) as upstream:
        config = write_config(tmp_path, upstream.url)
        async with holdfast.from_config(config, env=MEMORY, tools=[count]) as hf:
            session = await hf.session("s")
            with inject(point, ModelUnavailable("gone")), pytest.raises(ModelUnavailable):
                await session.send("go")
            reply = await session.send("again")
            assert reply["choices"][0]["message"]["content"] in {"done", "after"}
            messages = await session.messages()
            asked = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
            assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == asked
            assert len(ran) == len(asked) - (point in {"after-model-reply", "before-tool-call"})


async def test_a_summary_that_waits_stops_no_turn(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await go_on.wait()

    async with ScriptedUpstream(lambda _: "The user wrote a word many times, with a number before it.") as upstream:
        config = write_config(tmp_path, upstream.url, context={"strategy": "summary_buffer", "budget": 600})
        async with holdfast.from_config(config, env=MEMORY) as hf:
            session = await hf.session("s")
            for number in range(4):
                await session.send(f"{number} " + "word " * 60)
            with inject("before-summary-stored", wait):
                summary = asyncio.create_task(session.compact())
                await asyncio.wait_for(begun.wait(), 20)
                await session.send("Go on.")
                assert await session.compactions() == ()
                go_on.set()
                await summary
            assert len(await session.compactions()) == 1


def write_config(folder: Path, url: str, **more: Any) -> Path:
    llm = {"model": "gpt-4o", "base_url": url, "api_key": "sk-x"}
    path = folder / "holdfast.yaml"
    path.write_text(json.dumps({"llms": {"default": llm}, **more}))
    return path


# -- a server that dies ----------------------------------------------------------------------

Change = Callable[[httpx2.Client], httpx2.Response]


def chat(client: httpx2.Client, **more: Any) -> httpx2.Response:
    body = {"session_id": "s", "messages": [{"role": "user", "content": "hi"}], **more}
    return client.post("/v1/chat/completions", json=body, headers={"idempotency-key": "k"})


def append(client: httpx2.Client) -> httpx2.Response:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    return client.post("/v1/sessions/s/messages", json=body, headers={"idempotency-key": "k"})


def save(client: httpx2.Client) -> httpx2.Response:
    return client.put("/v1/sessions/s/artifacts/a.txt", content=b"text")


DEATHS: list[tuple[str, Change, list[str], list[str]]] = [
    ("before-commit", append, [], ["hi"]),
    ("after-commit", append, ["hi"], ["hi"]),
    ("before-model-call", chat, ["hi"], ["hi", "hello"]),
    ("after-model-reply", chat, ["hi"], ["hi", "hello"]),
    ("before-reply-sent", chat, ["hi", "hello"], ["hi", "hello"]),
    ("before-chunk-sent", lambda client: chat(client, stream=True), ["hi"], ["hi", "hello"]),
    ("before-reply-sent", lambda client: chat(client, stream=True), ["hi", "hello"], ["hi", "hello"]),
    ("after-content-stored", save, [], []),
    ("after-message-erased", lambda client: client.delete("/v1/sessions/s/messages/0"), ["[erased]"], ["[erased]"]),
]


@pytest.mark.parametrize(("point", "change", "after_death", "after_retry"), DEATHS)
async def test_a_server_that_dies_has_written_all_or_nothing(
    point: str, change: Change, after_death: list[str], after_retry: list[str], tmp_path: Path
) -> None:
    """And the same request to its successor does the work once."""
    async with ScriptedUpstream(lambda _: "hello") as upstream:
        quiet = {
            "index": {"enabled": False}
        }  # it writes by itself a second after the start, before a slow machine has asked
        config, store = write_config(tmp_path, upstream.url, storage=quiet), f"sqlite:///{tmp_path}/s.db"
        async with holdfast.open(store) as hf:
            session = await hf.session("s")
            if "erased" in point:
                await session.append("hi")

        def run() -> list[str]:
            with Process(store, config=config, env={"HOLDFAST_FAULTS": f"{point}=kill"}) as server:
                with connect(server) as client, pytest.raises(httpx2.TransportError):
                    change(client).read()
                assert server.process.wait(30) == -9
            with Process(store, config=config) as server, connect(server) as client:
                found = read_log(client)
                assert change(client).is_success
                return [*found, "|", *read_log(client)]

        assert await asyncio.to_thread(run) == [*after_death, "|", *after_retry]


def connect(server: Process) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, trust_env=False, timeout=60)


def read_log(client: httpx2.Client) -> list[str]:
    return [entry["content"] for entry in client.get("/v1/sessions/s/messages").json()["data"]]
