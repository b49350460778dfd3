"""Memory for bodies: each reserves room as it arrives, no principal takes all of it, and a stalled body blocks nobody
else.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from holdfast.accounting import Owner, charge_to
from holdfast.limits import BODIES, MIB, Limits
from holdfast.server import body_limits as intakes
from holdfast.server import protocol
from holdfast.server.body_limits import BodyLimits
from holdfast.server.limits import BODY_STALL_BYTES, DRAIN_BYTES
from holdfast.server.memory_room import MemoryReservation, MemoryRoom
from holdfast.server.permissions import Refused
from holdfast.testing import Gate, Reply
from tests.edges.server import gateway
from tests.waits import until

ADA, BO, ADAS_COLLEAGUE = Owner("a", "ada"), Owner("b", "bo"), Owner("a", "colleague")
LIMITS = msgspec.structs.replace(Limits(), body=MIB)
PIECE = 64 * 1024


def make_reservation(room: MemoryRoom, owner: Owner) -> MemoryReservation:
    one = MemoryReservation()
    one.begin(room, owner)
    return one


async def try_to_fill(room: MemoryRoom, one: MemoryReservation, size: int) -> bool:
    """Take bytes in pieces; return False if there is no room for them now."""
    for _ in range(size // PIECE):
        with anyio.move_on_after(0) as waiting:
            await room.take(one, PIECE)
        if waiting.cancelled_caught:
            return False
    return True


# -- room --------------------------------------------------------------------


async def test_one_tenant_cannot_take_all_of_the_room() -> None:
    """Four bodies of one tenant, with one key or several: another tenant still finds room for a whole body."""
    for owners in ((ADA,) * 8, (ADA, ADAS_COLLEAGUE) * 4):
        room = MemoryRoom(MIB)
        bodies = [make_reservation(room, owner) for owner in owners]
        for body in bodies:
            await try_to_fill(room, body, MIB)
        assert room.held <= 3 * MIB
        assert await try_to_fill(room, make_reservation(room, BO), MIB)


async def test_bodies_of_one_principal_do_not_deadlock() -> None:
    """The oldest arriving body may exceed the principal's half; the others follow it."""
    room = MemoryRoom(MIB)
    first, *others = (make_reservation(room, ADA) for _ in range(4))
    for body in (first, *others):
        assert await try_to_fill(room, body, MIB // 2)
    assert not await try_to_fill(room, others[0], PIECE)
    assert await try_to_fill(room, first, MIB // 2)
    waiting = asyncio.ensure_future(room.take(others[0], PIECE))
    await asyncio.sleep(0)
    first.end_arrival()
    first.release()
    await waiting
    assert room.get_held(ADA) == 3 * (MIB // 2) + PIECE


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.booleans()), max_size=20))
def test_room_is_fully_released_after_cancellations(wishes: list[tuple[int, int, bool]]) -> None:
    """Cancelled before or after there was room: in the end all of it is free."""

    async def once() -> None:
        room = MemoryRoom(5)

        async def one(owner: Owner, size: int, for_: int) -> None:
            body = make_reservation(room, owner)
            try:
                for _ in range(size):
                    await room.take(body, 1)
                    assert room.held <= 25
                for _ in range(for_):
                    await asyncio.sleep(0)
            finally:
                body.end_arrival()
                body.release()

        tasks = []
        for at, (size, for_, cancelled) in enumerate(wishes):
            tasks.append(asyncio.create_task(one((ADA, BO, ADAS_COLLEAGUE)[at % 3], size, for_)))
            await asyncio.sleep(0)
            if cancelled:
                tasks[len(tasks) // 2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert room.held == room.get_held(ADA) == room.get_held(BO) == 0
        assert not room._waiting
        assert not room._arriving

    asyncio.run(once())


# -- bodies --------------------------------------------------------------------


class Sender:
    """A client that announces a body, sends a part of it, and then stalls."""

    def __init__(self, sent: int, announced: int) -> None:
        self._pieces = [b"[" + b" " * (min(PIECE, sent) - 1)] + [b" " * PIECE] * (sent // PIECE - 1)
        self._whole = sent >= announced
        self.headers = [(b"content-length", str(announced).encode())]
        self.stalled = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self._pieces:
            return {"type": "http.request", "body": self._pieces.pop(0), "more_body": True}
        if not self._whole:
            self.stalled.set()
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"]", "more_body": False}


async def read(intake: BodyLimits, owner: Owner, sender: Sender, one: MemoryReservation | None = None) -> Any:
    with charge_to(owner):
        return await intake.read(
            Request({"type": "http", "headers": sender.headers}, sender.receive), one or MemoryReservation()
        )


async def test_stalled_uploads_do_not_block_other_tenants() -> None:
    """Regression: four connections that announced 32 MiB and stalled blocked every body over 64 KiB for 60 s."""
    intake = BodyLimits(LIMITS)
    stalled = [Sender(2 * PIECE, MIB - 1) for _ in range(4 * BODIES)]
    tasks = [asyncio.ensure_future(read(intake, ADA, sender)) for sender in stalled]
    for sender in stalled:
        await sender.stalled.wait()
    body = MemoryReservation()
    with anyio.fail_after(5):
        assert await read(intake, BO, Sender(15 * PIECE, 15 * PIECE), body) == []
    assert body.size == 15 * PIECE + 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_large_body_must_arrive_at_a_minimum_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intakes, "BODY_STALL_SECONDS", 0.05)
    with pytest.raises(Refused, match=f"less than {BODY_STALL_BYTES // 1024} KiB") as refused:
        await read(BodyLimits(LIMITS), ADA, Sender(2 * PIECE, MIB - 1))
    assert (refused.value.status, refused.value.code) == (408, "request_timeout")


async def test_bodies_in_flight_count_against_their_principal() -> None:
    """Regression:

    24 waiting turns held 264 MiB. The principal's next large body is refused with a retry time; others' are read.
    """
    intake = BodyLimits(msgspec.structs.replace(LIMITS, body_timeout=0.05))
    waiting = [MemoryReservation() for _ in range(2)]
    for one in waiting:
        await read(intake, ADA, Sender(15 * PIECE, 15 * PIECE), one)
        one.end_arrival()
    third = make_reservation(intake.room, ADA)
    await try_to_fill(intake.room, third, 15 * PIECE)
    third.end_arrival()
    with pytest.raises(Refused, match="busy with other large bodies") as refused:
        await read(intake, ADA, Sender(8 * PIECE, 8 * PIECE))
    assert (refused.value.status, refused.value.headers["retry-after"]) == (503, "1")
    assert await read(intake, BO, Sender(8 * PIECE, 8 * PIECE)) == []
    for one in waiting:
        one.release()
    assert await read(intake, ADA, Sender(8 * PIECE, 8 * PIECE)) == []


async def test_waiting_turn_holds_its_body_until_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """After that, its content is in the log."""
    rooms: list[MemoryRoom] = []

    class Noted(MemoryRoom):
        def __init__(self, body: int) -> None:
            super().__init__(body)
            rooms.append(self)

    monkeypatch.setattr(intakes, "MemoryRoom", Noted)
    gate, large = Gate(), "hello " * 50_000
    async with gateway(lambda _: Reply(text="ok", hold=gate), limits=LIMITS) as (served, upstream):
        room = rooms[0]

        async def ask(text: str) -> int:
            body = {"model": "m", "session_id": "s", "messages": [{"role": "user", "content": text}]}
            return (await served.http.post("/v1/chat/completions", json=body)).status_code

        first = asyncio.create_task(ask("first"))
        await until(lambda: upstream.requests, first)
        await until(lambda: room.held == 0, first)
        second = asyncio.create_task(ask(large))
        await until(lambda: room.held > len(large), second)
        for _ in range(20):
            await asyncio.sleep(0)
        assert room.held > len(large)
        gate.open()
        assert [await first, await second] == [200, 200]
        assert room.held == 0


async def test_too_large_body_is_not_read_to_its_end() -> None:
    """Regression: 100 MB were answered with 413 but read all the same."""
    async with gateway([], limits=LIMITS) as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        size = 100 * MIB
        writer.write(
            f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        answer = await reader.readuntil(b"\r\n")
        assert answer.startswith(b"HTTP/1.1 413")
        sent = 0
        with suppress(OSError):
            while sent < size:
                writer.write(b" " * PIECE)
                await writer.drain()
                sent += PIECE
        assert sent <= DRAIN_BYTES + 16 * MIB, "what the system's own buffers hold comes on top"
        writer.close()


async def test_connection_with_an_unread_body_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the client stops sending."""
    monkeypatch.setattr(protocol, "DRAIN_SECONDS", 0.05)
    async with gateway([], limits=LIMITS) as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Length: {100 * MIB}\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n")
        writer.write(b" " * PIECE)
        await asyncio.wait_for(reader.read(), 20)
        writer.close()
