"""Clients that disconnect before the end of a reply, and servers that shut down before it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.domain.session import SessionRef
from holdfast.log.items import Delta, Finish, Text
from holdfast.models.base import ModelRequest
from holdfast.stores import open_store
from holdfast.stores.verify import verify
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.edges.gateway_kit import (
    CHUNKS,
    LONG,
    TEXT,
    WORDS,
    assert_next_turn_works,
    count_blocked_connections,
    entries,
    gateway_with_tools,
    read_metric,
    send_and_disconnect,
)
from tests.edges.raw_client import Line
from tests.edges.server import Process, Served, config_text, gateway
from tests.service.turns_kit import get_queue
from tests.waits import until

pytestmark = pytest.mark.usefixtures("lines_end")

FINISH = "gateway: {on_disconnect: finish}"


# -- disconnecting clients --------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", range(CHUNKS))
async def test_reply_is_finished_without_its_client(after: int, stream: bool) -> None:
    """At every chunk: it is stored whole, once, unmarked, and the next turn waits for it."""
    gate = Gate()
    reply = Reply(text=TEXT, hold=gate, hold_after=after)
    arrived = "".join(WORDS[: max(0, after - 1)])
    async with gateway([reply, "fine"], FINISH) as (served, upstream):
        body = {"messages": [{"role": "user", "content": "count"}], "session_id": "s", "stream": stream}
        async with httpx2.AsyncClient(base_url=served.url, trust_env=False) as client:
            await send_and_disconnect(client, body, arrived if stream else None, upstream)
        await until(lambda: len(served.server.server_state.connections) == 0)
        following = asyncio.create_task(assert_next_turn_works(served, upstream))
        await until(lambda: len(get_queue(served.hf)) == 2)
        gate.open()
        sent = await following
        assert [message["content"] for message in sent] == ["count", TEXT, "go on"]
        assert [entry.metadata for entry in await entries(served)] == [None, {"undelivered": True}, None, None]
        assert await read_metric(served, 'holdfast_replies_left_total{outcome="finished"}') == 1
        assert served.hf.engine.locks.is_empty


async def test_tools_continue_without_the_client() -> None:
    """The tool's result, the next model call, and its answer."""
    gate, runs = Gate(), []

    async def look() -> str:
        """Look."""
        runs.append(1)
        await gate.wait()
        return "seen"

    async with gateway_with_tools([Reply(tool_calls=[("look", {})]), "done", "fine"], look, more=[FINISH]) as (
        served,
        upstream,
    ):
        line = await Line.ask(served.port, "go")
        await until(lambda: runs)
        line.drop()
        await until(lambda: len(served.server.server_state.connections) == 0)
        gate.open()
        await upstream.until(lambda: len(upstream.requests) == 2)
        sent = await assert_next_turn_works(served, upstream)
        assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
        assert (sent[2]["content"], sent[3]["content"], runs) == ("seen", "done", [1])


@pytest.mark.parametrize("stream", [False, True])
async def test_returning_client_gets_the_reply(stream: bool) -> None:
    """The same request, sent again with its key, waits for its reply."""
    key = "k"
    gate = Gate()
    async with gateway([Reply(text=TEXT, hold=gate, hold_after=3), "anew"], FINISH) as (served, upstream):
        line = await Line.ask(served.port, "count", key=key)
        async for _ in line.words():
            break
        line.drop()
        await until(lambda: len(served.server.server_state.connections) == 0)
        headers = {"Idempotency-Key": key}
        if stream:
            again = await Line.ask(served.port, "count", key=key)
            got = asyncio.create_task(again.text())
        else:
            got = asyncio.create_task(text_of(served, headers))
        await until(lambda: len(get_queue(served.hf)) == 2)
        gate.open()
        assert await got == TEXT
        assert len(upstream.requests) == 1
        assert await served.log() == [("user", "count"), ("assistant", TEXT)]
        assert await text_of(served, headers) == TEXT
        assert len(await served.log()) == 2


async def text_of(served: Served, headers: dict[str, str]) -> str:
    answer = await served.chat("count", headers=headers)
    return str(answer["choices"][0]["message"]["content"])


class Rushing:
    """A model that always has another chunk ready, up to a number of chunks."""

    def __init__(self, most: int) -> None:
        self.said = 0
        self.most = most
        self._next: asyncio.Future[None] | None = None

    async def stream_deltas(self, request: ModelRequest, *, headers: Any = None) -> AsyncIterator[list[Delta]]:
        loop = asyncio.get_running_loop()
        loop.call_soon(self._tick)
        while self.said < self.most:
            self.said += 1
            self._next = loop.create_future()
            await self._next
            yield [Text("w ")]
        yield [Finish("stop")]

    def _tick(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        if self.said < self.most:
            asyncio.get_running_loop().call_soon(self._tick)


@pytest.mark.parametrize("stream", [False, True])
async def test_fast_model_is_stopped_when_the_client_disconnects(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before the reply's end, even if there is always more to read."""
    model = Rushing(30_000)
    async with gateway() as (served, _):
        monkeypatch.setattr(served.hf.roster.find_llm(None).client, "stream_deltas", model.stream_deltas)
        line = await Line.ask(served.port, "count", stream=stream)
        await until(lambda: model.said > 10)
        line.drop()
        await until(lambda: not served.server.server_state.tasks and served.hf.engine.locks.is_empty)
        assert model.said < model.most
        part = (await entries(served))[1]
        assert (part.metadata or {})["interrupted"] is True
        model.said = model.most  # no more of it


async def test_disconnect_is_noticed_with_a_pipelined_request() -> None:
    """A second request on the connection before the first answer ends: the first is cut when the client disconnects."""
    async with gateway(lambda body: LONG) as (served, _):
        line = await Line.ask(served.port, "long", small=True)
        await until(lambda: count_blocked_connections(served))
        connection: Any = next(iter(served.server.server_state.connections))
        first = connection.cycle
        line.send_another("never", "other")
        await until(lambda: connection.cycle is not first)
        line.drop()
        await until(lambda: not served.server.server_state.tasks and served.hf.engine.locks.is_empty)
        part = (await entries(served))[1]
        assert (part.metadata or {})["interrupted"] is True
        assert await read_metric(served, 'holdfast_replies_left_total{outcome="cut"}') == 1
        assert [one.id for one in (await served.hf.sessions()).sessions] == ["s"]


@pytest.mark.parametrize("config", ["cut", "finish"])
async def test_request_overrides_on_disconnect(config: str) -> None:
    """`on_disconnect` of the body takes precedence over the configuration, and is not sent upstream."""
    gate, other = Gate(), "cut" if config == "finish" else "finish"
    async with gateway(
        [Reply(text=TEXT, hold=gate, hold_after=2), "fine"], f"gateway: {{on_disconnect: {config}}}"
    ) as (served, upstream):
        line = await Line.ask(served.port, "count", on_disconnect=other)
        async for _ in line.words():
            break
        line.drop()
        await until(lambda: len(served.server.server_state.connections) == 0)
        gate.open()
        sent = await assert_next_turn_works(served, upstream)
        assert "on_disconnect" not in upstream.requests[0].body
        assert sent[1]["content"] == (TEXT if other == "finish" else WORDS[0])


async def test_model_failure_without_a_client_is_stored() -> None:
    """The partial reply is stored and marked."""
    gate = Gate()
    reply = Reply(text=TEXT, hold=gate, hold_after=3, cut_after=4)
    async with gateway([reply, "fine"], FINISH) as (served, upstream):
        line = await Line.ask(served.port, "count")
        async for _ in line.words():
            break
        line.drop()
        await until(lambda: len(served.server.server_state.connections) == 0)
        gate.open()
        await assert_next_turn_works(served, upstream)
        part = (await entries(served))[1]
        assert (part.message.content, (part.metadata or {})["interrupted"]) == ("one two three ", True)
        assert await read_metric(served, 'holdfast_replies_left_total{outcome="cut"}') == 1


async def test_turn_without_its_client_can_be_interrupted() -> None:
    async with gateway([Reply(text=TEXT, hold=Gate(), hold_after=3), "fine"], FINISH) as (served, _):
        line = await Line.ask(served.port, "count")
        async for word in line.words():
            if word == WORDS[1]:
                break
        line.drop()
        await until(lambda: len(served.server.server_state.connections) == 0)
        assert (await served.chat("stop", session_queue="interrupt"))["choices"][0]["message"]["content"] == "fine"
        assert [text for _, text in await served.log()] == ["count", "one two ", "stop", "fine"]


# -- server shutdown --------------------------------------------------------------------


async def wait_until_refused(url: str) -> None:
    """Return when the server no longer listens."""
    place = httpx2.URL(url)

    async def nobody_listens() -> bool:
        try:
            _, writer = await asyncio.open_connection(place.host, place.port)
        except (ConnectionRefusedError, ConnectionResetError):  # reset: the server closed during the handshake
            return True
        writer.close()
        return False

    await until(nobody_listens)


async def test_server_shuts_down_under_load(tmp_path: Path) -> None:
    """Of 50 streams some end within the grace period, with or without their client; the others get an error, and
    partial replies are stored.
    """
    soon, never = Gate(), Gate()

    def answer(body: dict[str, Any]) -> Reply:
        number = int(body["messages"][-1]["content"])
        words = " ".join(f"m{number}" for _ in range(6))
        return Reply(text=words, hold=soon if number < 25 else never, hold_after=3)

    store, config = f"sqlite:///{tmp_path}/s.db", tmp_path / "holdfast.yaml"
    async with ScriptedUpstream(answer) as upstream:
        config.write_text(config_text(upstream.url, "gateway: {shutdown_grace: 2, on_disconnect: finish}"))
        with Process(store, config=config) as server:
            port = int(server.url.rpartition(":")[2])
            lines = [await Line.ask(port, str(number), f"s{number}") for number in range(50)]
            first = await asyncio.gather(*(anext(line.words()) for line in lines))
            assert first == [f"m{number} " for number in range(50)]
            for number in (*range(5), *range(25, 30)):
                lines[number].drop()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(server.until, "for 50 requests")
            await wait_until_refused(server.url)
            soon.open()
            ends = await asyncio.gather(*(rest(line) for line in (*lines[5:25], *lines[30:])))
            code = await asyncio.to_thread(server.process.wait, 30)
            server.kill()
        assert (code, [line for line in server.log if "Traceback" in line]) == (0, [])
        assert [codes for codes, _ in ends] == [[]] * 20 + [["server_ending"]] * 20
        assert {last for _, last in ends} == {"data: [DONE]"}
    await check_stored(store)


async def rest(line: Line) -> tuple[list[str], str]:
    """Return the errors in the rest of a stream, and its last line."""
    told = [one async for one in line.lines()]
    return [json.loads(one[6:])["error"]["code"] for one in told if '"error"' in one], told[-1]


async def check_stored(store: str) -> None:
    """Check that the first 25 sessions have whole replies and the others a marked part."""
    opened = await open_store(store, tenant="default")
    for number in range(50):
        ref = SessionRef("default", f"s{number}")
        user, reply = await opened.entries(ref)
        whole = " ".join(f"m{number}" for _ in range(6))
        assert user.message.content == str(number)
        if number < 25:
            assert (reply.message.content, (reply.metadata or {}).get("interrupted")) == (whole, None)
        else:
            assert (reply.metadata or {})["interrupted"] is True
            assert reply.message.content == whole[: len(f"m{number} ") * 2]
        assert await verify(opened, ref) == 2
    await opened.close()


async def test_slow_client_does_not_delay_shutdown(tmp_path: Path) -> None:
    """Beyond the grace period."""
    config = tmp_path / "holdfast.yaml"
    async with ScriptedUpstream([LONG]) as upstream:
        config.write_text(config_text(upstream.url, "gateway: {shutdown_grace: 1}"))
        with Process(f"sqlite:///{tmp_path}/s.db", config=config) as server:
            line = await Line.ask(int(server.url.rpartition(":")[2]), "long", small=True)
            assert await line.begin() == 200
            async with asyncio.timeout(20):
                code = await asyncio.to_thread(server.stop, signal.SIGTERM)
        assert (code, [told for told in server.log if "Traceback" in told]) == (0, [])
    opened = await open_store(f"sqlite:///{tmp_path}/s.db", tenant="default")
    _, part = await opened.entries(SessionRef("default", "s"))
    assert (part.metadata or {})["interrupted"] is True
    await opened.close()
