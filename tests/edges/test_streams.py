"""Streams: keep-alive comments, and clients that read slowly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from holdfast.domain.session import SessionRef
from holdfast.server.limits import READ_BYTES, UNREAD_BYTES
from holdfast.server.protocol import make_protocol
from holdfast.testing import Gate, Reply
from tests.edges.gateway_kit import (
    LONG,
    PIECE,
    TEXT,
    assert_next_turn_works,
    count_blocked_connections,
    entries,
    gateway_with_tools,
    read_metric,
)
from tests.edges.raw_client import Line
from tests.edges.server import gateway
from tests.stores.servers import place
from tests.waits import until

pytestmark = pytest.mark.usefixtures("lines_end")

KEPT_ALIVE = "gateway: {keep_alive: 0.01}"


async def read_comments(line: Line, number: int) -> list[str]:
    """Read `number` comments; anything else fails."""
    seen: list[str] = []
    async for told in line.lines():
        assert told.startswith(":"), told
        seen.append(told)
        if len(seen) == number:
            break
    return seen


# -- keep-alive comments -----------------------------------------------------------


@pytest.mark.parametrize("after", [0, 2])
async def test_silent_stream_is_kept_alive(after: int) -> None:
    """Before the first chunk and between chunks; the reply itself is unchanged."""
    gate = Gate()
    async with gateway([Reply(text=TEXT, hold=gate, hold_after=after)], KEPT_ALIVE) as (served, _):
        line = await Line.ask(served.port, "count")
        assert await line.begin() == 200
        assert b"x-session-id: s" in line.head
        words = line.words()
        got = await anext(words) if after else ""
        assert await read_comments(line, 3) == [": waiting"] * 3
        gate.open()
        assert got + "".join([word async for word in words]) == TEXT
        assert await read_metric(served, "holdfast_keep_alives_total") >= 3
        assert (await served.log())[-1] == ("assistant", TEXT)


async def test_official_clients_ignore_keep_alive_comments() -> None:
    gate = Gate()
    async with gateway([Reply(text=TEXT, hold=gate)], KEPT_ALIVE) as (served, _):
        stream = await served.client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "count"}], stream=True
        )

        async def has_keep_alives() -> bool:
            return await read_metric(served, "holdfast_keep_alives_total") >= 2

        await until(has_keep_alives)
        gate.open()
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT


async def test_failure_after_a_keep_alive_is_an_event() -> None:
    """The head was sent, so the error comes in the stream. Without keep-alives it has its own status."""
    for config, status in ((KEPT_ALIVE, 200), ("gateway: {keep_alive: 0}", 502)):
        gate = Gate()
        async with gateway([Reply(status=500, error="broken", hold=gate)], config) as (served, upstream):
            line = await Line.ask(served.port, "count")
            await upstream.until(lambda: upstream.requests)
            if status == 200:
                await read_comments(line, 1)
            gate.open()
            assert await line.begin() == status if status != 200 else line.head.split()[1] == b"200"
            if status == 200:
                *_, event, done = [told async for told in line.lines() if not told.startswith(":")]
                assert (json.loads(event[6:])["error"]["type"], done) == ("server_error", "data: [DONE]")
            assert await served.log() == [("user", "count")]


async def test_waiting_requests_are_kept_alive() -> None:
    """The preceding turn may be long; a refusal after that comes in the stream."""
    gate = Gate()
    async with gateway([Reply(text="first", hold=gate), "second"], KEPT_ALIVE) as (served, upstream):
        first = asyncio.create_task(served.chat("a"))
        await upstream.until(lambda: upstream.requests)
        waits = await Line.ask(served.port, "b")
        await read_comments(waits, 2)
        refused = await Line.ask(served.port, "c", session_queue="reject")
        assert await refused.begin() == 409
        gate.open()
        await first
        assert await waits.text() == "second"
    async with gateway(
        [Reply(text="first", hold=Gate()), "second"], "gateway: {keep_alive: 0.01, queue_timeout: 0.2}"
    ) as (
        served,
        upstream,
    ):
        first_line = await Line.ask(served.port, "a")
        await upstream.until(lambda: upstream.requests)
        waits = await Line.ask(served.port, "b")
        told = [one async for one in waits.lines()]
        assert told[0] == ": waiting"
        assert [json.loads(one[6:])["error"]["code"] for one in told if '"error"' in one] == ["session_busy"]
        assert told[-1] == "data: [DONE]"
        first_line.drop()


async def test_stream_is_kept_alive_while_a_tool_runs() -> None:
    gate = Gate()

    async def look() -> str:
        """Look."""
        await gate.wait()
        return "seen"

    async with gateway_with_tools([Reply(tool_calls=[("look", {})]), "done"], look, more=[KEPT_ALIVE]) as (
        served,
        upstream,
    ):
        line = await Line.ask(served.port, "go")
        seen = 0
        async for told in line.lines():
            seen += told == ": waiting" and bool(upstream.requests)
            if seen == 3:
                break
        gate.open()
        assert await line.text() == "done"


async def test_whole_reply_has_no_keep_alive_comments() -> None:
    """Its length is in its head."""
    gate = Gate()
    async with gateway([Reply(text=TEXT, hold=gate), Reply(text=TEXT, hold=gate)], KEPT_ALIVE) as (served, upstream):
        whole = asyncio.create_task(served.chat("count", "t"))
        await upstream.until(lambda: upstream.requests)
        await read_comments(await Line.ask(served.port, "count"), 5)  # as long as that
        gate.open()
        assert (await whole)["choices"][0]["message"]["content"] == TEXT


# -- clients that read slowly --------------------------------------------------------


async def test_slow_client_slows_only_its_own_reply() -> None:
    """The server's buffer is bounded, the model is read no further, other sessions continue; later the client reads
    everything.
    """
    async with gateway(lambda body: LONG if body["messages"][-1]["content"] == "long" else "ok") as (served, upstream):
        line = await Line.ask(served.port, "long", small=True)
        await until(lambda: count_blocked_connections(served))
        for number in range(20):
            assert (await served.chat("hi", f"t{number}"))["status"] == 200
        assert not upstream.requests[0].answered
        waits = [one.transport.get_write_buffer_size() for one in served.server.server_state.connections]
        assert UNREAD_BYTES < max(waits) < UNREAD_BYTES + 2 * len(PIECE)
        assert await line.text() == LONG
        assert (await served.log())[-1] == ("assistant", LONG)


async def test_slow_client_is_interrupted_at_once() -> None:
    """The partial reply is stored; the next turn waits for no buffer."""
    async with gateway(lambda body: LONG if body["messages"][-1]["content"] == "long" else "ok") as (served, _):
        line = await Line.ask(served.port, "long", small=True)
        await until(lambda: count_blocked_connections(served))
        assert (await served.chat("now", session_queue="interrupt"))["choices"][0]["message"]["content"] == "ok"
        _, part, *_ = await entries(served)
        assert (part.metadata or {})["interrupted"] is True
        text = await line.text()
        assert LONG.startswith(text)
        assert text.startswith(str(part.message.content)[: UNREAD_BYTES // 2])


async def test_short_reply_does_not_wait_for_its_client() -> None:
    """Unread, it is in the log, the model call is done, and the session takes the next turn."""
    short = "word " * 800
    async with gateway(lambda body: short if body["messages"][-1]["content"] == "short" else "ok") as (served, _):
        line = await Line.ask(served.port, "short", small=True)
        await until(lambda: served.hf.engine.locks.is_busy(SessionRef("default", "s")))
        assert (await served.chat("next"))["choices"][0]["message"]["content"] == "ok"
        assert [text for _, text in await served.log()] == ["short", short, "next", "ok"]
        assert await line.text() == short


@pytest.mark.parametrize("finish", [False, True])
async def test_client_that_never_reads_is_disconnected(finish: bool) -> None:
    """After `gateway.send_timeout` its connection is closed and its reply cut or finished; then the next turn runs."""
    config = f"gateway: {{send_timeout: 0.3, on_disconnect: {'finish' if finish else 'cut'}}}"
    async with gateway(lambda body: LONG if body["messages"][-1]["content"] == "long" else "fine", config) as (
        served,
        upstream,
    ):
        line = await Line.ask(served.port, "long", small=True)
        await until(lambda: count_blocked_connections(served))
        await assert_next_turn_works(served, upstream)
        reply = (await entries(served))[1]
        if finish:
            assert (reply.metadata, reply.message.content) == ({"undelivered": True}, LONG)
        else:
            assert (reply.metadata or {})["interrupted"] is True
            assert LONG.startswith(str(reply.message.content))
        assert await line.is_cut_off()
        assert (
            await read_metric(served, f'holdfast_replies_left_total{{outcome="{"finished" if finish else "cut"}"}}')
            == 1
        )
        assert await read_metric(served, "holdfast_streams_open") == 0


async def test_unread_reply_does_not_keep_its_connection_open() -> None:
    """The unread rest is dropped after a timeout."""
    reply = PIECE * 60
    async with gateway([reply], "gateway: {send_timeout: 0.2}") as (served, upstream):
        line = await Line.ask(served.port, "long", small=True, on_disconnect="finish")
        await upstream.until(lambda: upstream.requests)
        await until(lambda: len(served.server.server_state.connections) == 0)
        assert await line.is_cut_off()


class Quiet:
    """A transport, socket and event loop whose unread bytes and timers a test controls."""

    def __init__(self) -> None:
        self.unread = 0
        self.aborted = False
        self.timers: list[Any] = []

    def call_later(self, delay: float, work: Callable[[], None]) -> Any:
        timer = asyncio.TimerHandle(delay, work, (), asyncio.get_running_loop())
        self.timers.append(timer)
        return timer

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else None

    def create_task(self, work: Any) -> Any:
        return self

    @property
    def response_complete(self) -> bool:
        return True

    def time_is_over(self) -> None:
        """Run the last active timer."""
        timer = self.timers.pop()
        assert not timer.cancelled()
        timer._run()

    @property
    def patient(self) -> bool:
        """Return True if the client's timer is running."""
        return any(not timer.cancelled() for timer in self.timers)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def connect_quietly() -> tuple[Quiet, Any]:
    """Return a client and the server's end of its connection, which gives it 7 seconds for each share."""
    quiet = Quiet()
    config = uvicorn.Config(lambda: None, log_config=None, access_log=False)
    connection = make_protocol(7.0)(config, ServerState(), {}, cast("Any", quiet))
    connection.connection_made(cast("Any", quiet))
    connection._stop_timer()
    quiet.timers.clear()
    return quiet, connection


async def test_client_that_keeps_reading_is_not_disconnected() -> None:
    """However slowly, if it reads its share in time, or all that is left."""
    quiet, connection = connect_quietly()
    quiet.unread = UNREAD_BYTES + 1
    connection.pause_writing()
    assert [timer.when() for timer in quiet.timers] == [7.0]
    for _ in range(3):
        quiet.unread -= READ_BYTES
        quiet.time_is_over()
        assert (quiet.aborted, quiet.patient) == (False, True)
    connection.resume_writing()
    assert not quiet.patient
    quiet.unread = UNREAD_BYTES + 1
    connection.pause_writing()
    quiet.unread -= READ_BYTES - 1
    quiet.time_is_over()
    assert (quiet.aborted, quiet.patient) == (True, False)


async def test_client_that_stops_reading_after_the_end_is_disconnected() -> None:
    """The response is complete: a client that reads a share of the rest and then stops loses the connection."""
    quiet, connection = connect_quietly()
    connection._start_asgi_task(cast("Any", quiet), quiet)  # its response is complete
    quiet.unread = UNREAD_BYTES + 1
    connection.pause_writing()
    quiet.unread -= READ_BYTES + 1
    connection.resume_writing()
    quiet.time_is_over()
    assert (quiet.aborted, quiet.patient) == (True, False)


@pytest.fixture
def one_connection(tmp_path: Path) -> Iterator[str]:
    """An empty place on a PostgreSQL server, for a store with at most two connections."""
    with place("postgres", tmp_path) as url:
        yield f"{url}&pool=2"


async def test_slow_clients_hold_no_database_connection(one_connection: str) -> None:
    """Fifty of them with two connections: other sessions are answered, and the slow clients can read everything
    later.
    """
    reply = PIECE * 12
    async with gateway(
        lambda body: reply if body["messages"][-1]["content"] == "long" else "ok", store=one_connection
    ) as (served, _):
        lines = [await Line.ask(served.port, "long", f"slow{number}", small=True) for number in range(50)]
        await until(lambda: count_blocked_connections(served) == len(lines))
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(served.chat("hi", f"quick{number % 10}") for number in range(40)))
        assert {answer["status"] for answer in answers} == {200}
        assert count_blocked_connections(served) == len(lines)
        assert all(served.hf.engine.locks.is_busy(SessionRef("default", f"slow{number}")) for number in range(50))
        for line in lines[3:]:
            line.drop()
        texts = await asyncio.gather(*(line.text() for line in lines[:3]))
        assert set(texts) == {reply}
