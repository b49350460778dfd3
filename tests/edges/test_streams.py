"""Streams that hold: signs of life, and clients that read slowly."""

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
from holdfast.limits import READ_BYTES, UNREAD_BYTES
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
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("lines_end")

KEPT_ALIVE = "gateway: {keep_alive: 0.01}"


async def comments(line: Line, number: int) -> list[str]:
    """The comments that come, until there are so many; nothing else may come."""
    seen: list[str] = []
    async for told in line.lines():
        assert told.startswith(":"), told
        seen.append(told)
        if len(seen) == number:
            break
    return seen


# -- signs of life -----------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 2])
async def test_a_stream_in_which_nothing_comes_is_kept_alive(after: int) -> None:
    """Before the first chunk, and between two; what comes then is the reply, as it would have been."""
    gate = Gate()
    async with gateway([Reply(text=TEXT, hold=gate, hold_after=after)], KEPT_ALIVE) as (served, _):
        line = await Line.ask(served.port, "count")
        assert await line.begin() == 200
        assert b"x-session-id: s" in line.head
        words = line.words()
        got = await anext(words) if after else ""
        assert await comments(line, 3) == [": waiting"] * 3
        gate.open()
        assert got + "".join([word async for word in words]) == TEXT
        assert await read_metric(served, "holdfast_keep_alives_total") >= 3
        assert (await served.log())[-1] == ("assistant", TEXT)


async def test_official_clients_pass_over_signs_of_life() -> None:
    """They read a reply, and nothing beside it."""
    gate = Gate()
    async with gateway([Reply(text=TEXT, hold=gate)], KEPT_ALIVE) as (served, _):
        stream = await served.client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "count"}], stream=True
        )

        async def kept_alive() -> bool:
            return await read_metric(served, "holdfast_keep_alives_total") >= 2

        await until(kept_alive)
        gate.open()
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT


async def test_a_failure_behind_a_sign_of_life_is_an_event() -> None:
    """The head is out: the error comes in the stream, and its end as ever. Without signs of life it has its own status."""
    for config, status in ((KEPT_ALIVE, 200), ("gateway: {keep_alive: 0}", 502)):
        gate = Gate()
        async with gateway([Reply(status=500, error="broken", hold=gate)], config) as (served, upstream):
            line = await Line.ask(served.port, "count")
            await upstream.until(lambda: upstream.requests)
            if status == 200:
                await comments(line, 1)
            gate.open()
            assert await line.begin() == status if status != 200 else line.head.split()[1] == b"200"
            if status == 200:
                *_, event, done = [told async for told in line.lines() if not told.startswith(":")]
                assert (json.loads(event[6:])["error"]["type"], done) == ("server_error", "data: [DONE]")
            assert await served.log() == [("user", "count")]


async def test_signs_of_life_while_a_request_waits_for_its_session() -> None:
    """A turn before it takes as long as it takes; refused at last, it is told in the stream."""
    gate = Gate()
    async with gateway([Reply(text="first", hold=gate), "second"], KEPT_ALIVE) as (served, upstream):
        first = asyncio.create_task(served.chat("a"))
        await upstream.until(lambda: upstream.requests)
        waits = await Line.ask(served.port, "b")
        await comments(waits, 2)
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


async def test_signs_of_life_while_a_tool_runs() -> None:
    """A tool says nothing for as long as it works."""
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


async def test_no_signs_of_life_in_a_reply_in_one_piece() -> None:
    """Its length stands in its head: there is no place for them."""
    gate = Gate()
    async with gateway([Reply(text=TEXT, hold=gate), Reply(text=TEXT, hold=gate)], KEPT_ALIVE) as (served, upstream):
        whole = asyncio.create_task(served.chat("count", "t"))
        await upstream.until(lambda: upstream.requests)
        await comments(await Line.ask(served.port, "count"), 5)  # as long as that
        gate.open()
        assert (await whole)["choices"][0]["message"]["content"] == TEXT


# -- clients that read slowly --------------------------------------------------------


async def test_a_client_that_does_not_read_slows_its_own_reply_and_nobody_else() -> None:
    """What the server keeps for it is bounded, the model is read no further, other sessions go on; then it reads, all of it."""
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


async def test_a_client_that_does_not_read_is_interrupted_at_once() -> None:
    """What came of the reply is stored; the next turn waits for no buffer."""
    async with gateway(lambda body: LONG if body["messages"][-1]["content"] == "long" else "ok") as (served, _):
        line = await Line.ask(served.port, "long", small=True)
        await until(lambda: count_blocked_connections(served))
        assert (await served.chat("now", session_queue="interrupt"))["choices"][0]["message"]["content"] == "ok"
        _, part, *_ = await entries(served)
        assert (part.metadata or {})["interrupted"] is True
        text = await line.text()
        assert LONG.startswith(text)
        assert text.startswith(str(part.message.content)[: UNREAD_BYTES // 2])


async def test_a_short_reply_waits_for_no_client() -> None:
    """Nothing of it is read, and it is in the log, the model is done, and the session answers the next turn."""
    short = "word " * 800
    async with gateway(lambda body: short if body["messages"][-1]["content"] == "short" else "ok") as (served, _):
        line = await Line.ask(served.port, "short", small=True)
        await until(lambda: served.hf.engine.locks.is_busy(SessionRef("default", "s")))
        assert (await served.chat("next"))["choices"][0]["message"]["content"] == "ok"
        assert [text for _, text in await served.log()] == ["short", short, "next", "ok"]
        assert await line.text() == short


@pytest.mark.parametrize("finish", [False, True])
async def test_a_client_that_never_reads_counts_as_gone(finish: bool) -> None:
    """After `gateway.send_timeout`: its connection is closed, and its reply is cut, or made to its end; then comes the next."""
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
            assert (reply.metadata, reply.message.content) == (None, LONG)
        else:
            assert (reply.metadata or {})["interrupted"] is True
            assert LONG.startswith(str(reply.message.content))
        assert await line.is_cut_off()
        assert (
            await read_metric(served, f'holdfast_replies_left_total{{outcome="{"finished" if finish else "cut"}"}}')
            == 1
        )
        assert await read_metric(served, "holdfast_streams_open") == 0


async def test_a_connection_does_not_outlive_a_reply_that_nobody_reads() -> None:
    """The reply is at its end; what of it lies unread is given up after a while."""
    reply = PIECE * 60
    async with gateway([reply], "gateway: {send_timeout: 0.2}") as (served, upstream):
        line = await Line.ask(served.port, "long", small=True, on_disconnect="finish")
        await upstream.until(lambda: upstream.requests)
        await until(lambda: len(served.server.server_state.connections) == 0)
        assert await line.is_cut_off()


class Quiet:
    """A transport, a socket and an event loop of which a test says how much is unread, and when time is over."""

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
        """The last timer that was set and not taken back comes."""
        timer = self.timers.pop()
        assert not timer.cancelled()
        timer._run()

    @property
    def patient(self) -> bool:
        """Whether the client's time is running."""
        return any(not timer.cancelled() for timer in self.timers)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


async def test_a_client_that_reads_on_is_not_gone() -> None:
    """However slowly: as long as it takes its share in its time, or all that is left."""
    quiet = Quiet()
    config = uvicorn.Config(lambda: None, log_config=None, access_log=False)
    connection = make_protocol(7.0)(config, ServerState(), {}, cast("Any", quiet))
    connection.connection_made(cast("Any", quiet))
    connection._stop_timer()
    quiet.timers.clear()
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


async def test_a_client_that_stops_behind_the_end_is_gone() -> None:
    """The response is over: who reads a share of what is left, and then no more, does not keep the connection."""
    quiet = Quiet()
    config = uvicorn.Config(lambda: None, log_config=None, access_log=False)
    connection = make_protocol(7.0)(config, ServerState(), {}, cast("Any", quiet))
    connection.connection_made(cast("Any", quiet))
    connection._stop_timer()
    quiet.timers.clear()
    connection._start_asgi_task(cast("Any", quiet), quiet)  # its response is complete
    quiet.unread = UNREAD_BYTES + 1
    connection.pause_writing()
    quiet.unread -= READ_BYTES + 1
    connection.resume_writing()
    quiet.time_is_over()
    assert (quiet.aborted, quiet.patient) == (True, False)


@pytest.fixture
def one_connection(tmp_path: Path) -> Iterator[str]:
    """An empty place on a PostgreSQL server, to which a store has two connections at most."""
    with place("postgres", tmp_path) as url:
        yield f"{url}&pool=2"


async def test_clients_that_do_not_read_hold_no_connection_of_the_database(one_connection: str) -> None:
    """Fifty of them, and two connections: other sessions are answered, and when the clients read they have it all."""
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
