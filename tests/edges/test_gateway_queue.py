"""One turn of a session at a time, as gateway clients see it: waiting, 409, and replies that another request
interrupts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import liveness
from holdfast.domain.session import Claim, SessionRef
from holdfast.engine.session_lock import LEASE
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.clocks import TickingClock
from tests.edges.server import Process, Served, config_text, gateway, serving
from tests.other_process import LINUX
from tests.service.turns_kit import get_queue, renew_claim
from tests.stores.servers import place
from tests.waits import until

REF = SessionRef("default", "s")


def script(gate: Gate, **reply: Any) -> Any:
    """Answer `a` with `one two three`, of which all but the beginning waits for the gate; answer everything else at
    once.
    """

    def answer(body: dict[str, Any]) -> Any:
        said = body["messages"][-1]["content"]
        return Reply(text="one two three", hold=gate, hold_after=2, **reply) if said == "a" else f"re: {said}"

    return answer


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "session_id": "s", **fields}


async def start_request(served: Served, upstream: ScriptedUpstream, text: str, **fields: Any) -> asyncio.Task[Any]:
    """Start a request and return when its model has been called."""
    before = len(upstream.requests)
    task = asyncio.create_task(served.chat(text, **fields))
    await upstream.until(lambda: len(upstream.requests) > before)
    return task


async def wait_for_queue(served: Served, number: int) -> None:
    """Return when `number` requests run or wait in the session's queue."""
    await until(lambda: len(get_queue(served.hf)) == number)


async def start_stream(served: Served) -> Any:
    """Start a streamed request of the official client; return the rest of its chunks after the first word."""
    chunks = await served.client.chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": "a"}], stream=True, extra_body={"session_id": "s"}
    )
    async for chunk in chunks:
        if chunk.choices[0].delta.content:
            return chunks
    raise AssertionError("nothing arrived")


# -- waiting and refusing --------------------------------------------------------


async def test_disconnected_client_leaves_the_queue() -> None:
    """Later requests do not wait for it, and its message is not in the log."""
    gate = Gate()
    async with gateway(script(gate)) as (served, upstream):
        first = await start_request(served, upstream, "a")
        gone = asyncio.create_task(served.chat("b"))
        await wait_for_queue(served, 2)
        last = asyncio.create_task(served.chat("c"))
        await wait_for_queue(served, 3)
        gone.cancel()
        await wait_for_queue(served, 2)
        gate.open()
        await asyncio.gather(first, last)
        assert [content for _, content in await served.log()] == ["a", "one two three", "c", "re: c"]
        assert served.hf.engine.locks.is_empty


# -- interrupting ----------------------------------------------------------------


async def test_client_that_does_not_read_can_be_interrupted() -> None:
    words = "word " * 20_000

    def answer(sent: dict[str, Any]) -> str:
        return words if sent["messages"][-1]["content"] == "a" else "fine"

    async with gateway(answer) as (served, upstream):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
        content = json.dumps(body("a", stream=True)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await upstream.until(lambda: upstream.requests)
        answer_ = await served.chat("b", session_queue="interrupt")
        assert answer_["choices"][0]["message"]["content"] == "fine"
        writer.close()
        del reader
        contents = [content for _, content in await served.log()]
        assert (contents[0], contents[-2:]) == ("a", ["b", "fine"])
        assert all(words.startswith(part) for part in contents[1:-2])


# -- several servers -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_two_servers_share_the_queue_of_a_session(kind: str, tmp_path: Path) -> None:
    """A request at one server is refused, waits, or interrupts the turn of the other."""
    gate, clock = Gate(), TickingClock()
    with place(kind, tmp_path) as url:
        async with ScriptedUpstream(script(gate)) as upstream:
            config = config_text(upstream.url)
            async with (
                serving(config, store=url, clock=lambda: clock.now) as one,
                serving(config, store=url, clock=lambda: clock.now) as two,
            ):
                chunks = await start_stream(one)
                refused = await two.chat("b", session_queue="reject")
                assert (refused["status"], refused["error"]["code"]) == (409, "session_busy")
                hasty = asyncio.create_task(two.chat("c", session_queue="interrupt"))
                while not (claim := (await one.hf.store.get(REF)).claim) or not claim.wanted:
                    assert not hasty.done()
                await renew_claim(one.hf)
                rest = [chunk async for chunk in chunks]
                assert rest[-1].model_extra["session"]["interrupted"] is True
                assert (await hasty)["status"] == 200
                assert [content for _, content in await one.log()] == ["a", "one ", "c", "re: c"]


@LINUX
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_server_killed_on_this_host_blocks_nothing(kind: str, tmp_path: Path) -> None:
    """Its turn ends with the process, without a wait."""
    async with _start_and_kill(kind, tmp_path) as (other, claim, kill, clock):
        clock.now = claim.until - LEASE + 1
        assert (await other.chat("b", session_queue="reject"))["status"] == 409
        await kill()
        assert (await other.chat("b", session_queue="reject"))["status"] == 200
        assert [content for _, content in await other.log()] == ["a", "b", "re: b"]
        assert (await other.hf.store.get(REF)).claim is None


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_session_of_a_server_killed_elsewhere_is_free_after_its_lease(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the server might be alive."""
    async with _start_and_kill(kind, tmp_path) as (other, claim, kill, clock):
        monkeypatch.setattr(liveness, "_lock", None)
        await kill()
        clock.now = claim.until - 1
        assert (await other.chat("b", session_queue="reject"))["status"] == 409
        clock.now = claim.until
        assert (await other.chat("b", session_queue="reject"))["status"] == 200
        assert [content for _, content in await other.log()] == ["a", "b", "re: b"]
        assert (await other.hf.store.get(REF)).claim is None


@asynccontextmanager
async def _start_and_kill(
    kind: str, tmp_path: Path
) -> AsyncIterator[tuple[Served, Claim, Callable[[], Awaitable[None]], TickingClock]]:
    """Yield a server, the claim of another server with a running turn, a function that kills that server, and the
    first one's clock.
    """
    gate, clock = Gate(), TickingClock()
    with place(kind, tmp_path) as url:
        async with ScriptedUpstream(script(gate)) as upstream:
            (tmp_path / "holdfast.yaml").write_text(config_text(upstream.url))
            server = await asyncio.to_thread(Process, url, config=tmp_path / "holdfast.yaml")
            async with (
                httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as http,
                serving(config_text(upstream.url), store=url, clock=lambda: clock.now) as other,
            ):
                first = asyncio.create_task(http.post("/v1/chat/completions", json=body("a")))
                await upstream.until(lambda: upstream.requests)
                claim = (await other.hf.store.get(REF)).claim
                assert claim is not None

                async def kill() -> None:
                    server.kill()
                    with pytest.raises(httpx2.TransportError):
                        await first

                try:
                    yield other, claim, kill, clock
                finally:
                    server.kill()
