"""Large responses: they are bounded in bytes per principal and in total until their clients have read them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from starlette.types import Message

from holdfast.accounting import Owner, charge_to
from holdfast.limits import MIB, Limits
from holdfast.server.body_limits import BodyLimits
from holdfast.server.body_streams import LargeResponse
from holdfast.server.limits import ANSWER_BYTES
from holdfast.server.memory_room import MemoryReservation
from holdfast.server.permissions import Refused
from holdfast.stores.logic.records import RecordMethods
from tests.edges.keys import create_stored_key
from tests.edges.server import Served, gateway
from tests.waits import until

ADA, COLLEAGUE, BO = Owner("a", "ada"), Owner("a", "colleague"), Owner("b", "bo")
LIMITS = msgspec.structs.replace(Limits(), body=MIB)


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Served, BodyLimits]]:
    """A server whose room for large responses has 4 MiB, and its limits."""
    made_limits: list[BodyLimits] = []

    class Noted(BodyLimits):
        def __init__(self, limits: Limits) -> None:
            super().__init__(limits)
            made_limits.append(self)

    monkeypatch.setattr("holdfast.server.app.BodyLimits", Noted)
    async with gateway(lambda _: "ok", limits=LIMITS) as (served, _):
        yield served, made_limits[0]


async def connect_without_reading(served: Served, path: str, key: str) -> asyncio.StreamWriter:
    """Send a request on a connection of its own, and never read the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
    reader._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001 - the kernel's buffer fills up
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nAuthorization: Bearer {key}\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()
    return writer


# -- records ---------------------------------------------------------------------


async def test_pages_of_records_are_bounded_in_bytes(
    served: tuple[Served, BodyLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page ends early, and `after` continues it. A single large record is a page of its own."""
    server, _ = served
    monkeypatch.setattr("holdfast.stores.record_checks.RECORD_PAGE_BYTES", 400_000)
    sizes = {"1": 150_000, "2": 150_000, "3": 150_000, "4": 900_000, "5": 10}
    for key, size in sizes.items():
        await server.hf.records("a").put(key, "x" * size if key != "3" else b"x" * size)
    pages: list[list[str]] = []
    after = ""
    while True:
        response = await server.http.get(f"/v1/records?scope=tenant&namespace=a&limit=100{after}")
        page = response.json()
        pages.append([one["key"] for one in page["data"]])
        assert sum(sizes[key] for key in pages[-1]) <= 400_000 or len(pages[-1]) == 1
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert pages == [["1", "2"], ["3"], ["4"], ["5"]]
    assert (await server.http.get("/v1/records?scope=tenant&namespace=a&values=false")).json()["has_more"] is False


async def test_unread_pages_hold_a_bounded_share_of_the_memory(
    served: tuple[Served, BodyLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sixteen clients that do not read, most wait without having read values. Another tenant is answered meanwhile."""
    server, room_limits = served
    attacker, victim = (
        await create_stored_key(server.hf, tenant="attacker"),
        await create_stored_key(server.hf, tenant="victim"),
    )
    for tenant in ("attacker", "victim"):
        async with server.hf.serve_tenant(tenant) as hf:
            await hf.records("a").put_many({"1": "x" * 900_000, "2": "x" * 900_000})
    reads: list[int] = []
    read_page = type(server.hf.records("a")).read_page

    async def note_read(self: Any, *args: Any, **more: Any) -> Any:
        page = await read_page(self, *args, **more)
        reads.extend(one.size for one in page.records if hasattr(one, "data"))
        return page

    monkeypatch.setattr("holdfast.sessions.records.Records.read_page", note_read)
    room = room_limits.answers
    path = "/v1/records?scope=tenant&namespace=a"
    writers = [await connect_without_reading(server, path, attacker) for _ in range(16)]
    await until(lambda: len(reads) == 2 and room.held > 1_800_000)
    for _ in range(50):
        await asyncio.sleep(0)
    assert sum(reads) < 2_000_000
    assert room.held <= room.size * 3 // 4
    answer = await server.http.get(path, headers={"authorization": f"Bearer {victim}"})
    assert [len(one["value"]) for one in answer.json()["data"]] == [900_000, 900_000]
    for writer in writers:
        writer.transport.abort()
    await until(lambda: room.held == 0)


async def test_records_are_returned_as_they_were_stored(served: tuple[Served, BodyLimits]) -> None:
    """Large values too: JSON is not decoded on its way, and bytes are written in base64."""
    server, room_limits = served
    values = {"list": [["é", None, {"a": 1.5}]] * 20_000, "text": "x\n" * 100_000}
    for key, value in values.items():
        body = await server.http.put(f"/v1/records/record?scope=tenant&namespace=a&key={key}", json={"value": value})
        assert body.status_code == 200
        assert (await server.http.get(f"/v1/records/record?scope=tenant&namespace=a&key={key}")).json()[
            "value"
        ] == value
    encoded = {"value": "AP8A" * 50_000, "encoding": "base64"}
    await server.http.put("/v1/records/record?scope=tenant&namespace=a&key=bytes", json=encoded)
    found = (await server.http.get("/v1/records/record?scope=tenant&namespace=a&key=bytes")).json()
    assert (found["value"], found["encoding"]) == (encoded["value"], "base64")
    assert (await server.http.get("/v1/records/record?scope=tenant&namespace=a&key=byte")).status_code == 404
    assert room_limits.answers.held == 0


async def test_damaged_json_is_not_returned(served: tuple[Served, BodyLimits]) -> None:
    server, _ = served
    await server.hf.records("a").put("k", msgspec.Raw(b'{"a": '))
    answer = await server.http.get("/v1/records/record?scope=tenant&namespace=a&key=k")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "store_corrupt")


async def test_large_reads_and_writes_of_a_tenant_take_turns(
    served: tuple[Served, BodyLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time for a server, and one for a tenant, so that no transaction of the database has several of them."""
    server, _ = served
    monkeypatch.setattr("holdfast.server.http.STORE_TRANSFER_BYTES", 100_000)
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    change_records = RecordMethods.change_records

    async def note_write(self: RecordMethods, *args: Any, **more: Any) -> Any:
        running[self.tenant] += 1
        most[self.tenant] = max(most[self.tenant], running[self.tenant])
        changed = await change_records(self, *args, **more)
        running[self.tenant] -= 1
        return changed

    monkeypatch.setattr(RecordMethods, "change_records", note_write)
    key = await create_stored_key(server.hf, tenant="other")

    async def put(number: int, size: int) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key}"}
        path = f"/v1/records/record?scope=tenant&namespace=a&key={number}"
        return await server.http.put(path, json={"value": "x" * size}, headers=headers)

    answers = await asyncio.gather(*(put(at, 200_000) for at in range(6)))
    assert [one.status_code for one in answers] == [200] * 6
    assert most == {"other": 1}
    await asyncio.gather(*(put(at, 20) for at in range(6)))
    assert most["other"] > 1


# -- the room ----------------------------------------------------------------------


async def reserve(of: BodyLimits, owner: Owner, size: int) -> MemoryReservation | None:
    """Reserve memory for a response; None if it would have to wait."""
    one = MemoryReservation()
    with charge_to(owner), anyio.move_on_after(0) as waiting:
        await of.reserve_answer(one, size)
    return None if waiting.cancelled_caught else one


async def test_no_principal_takes_all_of_the_memory() -> None:
    """Half for a key that already has some, three quarters for a tenant. The rest is for others."""
    for owners in ((ADA,) * 8, (ADA, COLLEAGUE) * 4):
        of = BodyLimits(LIMITS)
        taken = [one for owner in owners if (one := await reserve(of, owner, MIB - 1)) is not None]
        assert of.answers.held <= 3 * MIB
        assert await reserve(of, BO, MIB) is not None
        for one in taken:
            one.release()
        assert of.answers.held == MIB


async def test_small_responses_need_no_memory() -> None:
    of = BodyLimits(LIMITS)
    while await reserve(of, ADA, MIB):
        pass
    assert await reserve(of, ADA, ANSWER_BYTES) is not None
    assert await reserve(of, ADA, ANSWER_BYTES + 1) is None


async def test_a_response_larger_than_a_share_is_possible() -> None:
    """It counts as much as one principal may have."""
    of = BodyLimits(LIMITS)
    one = await reserve(of, ADA, 100 * MIB)
    assert one is not None
    assert one.size == of.answers.held == 3 * MIB
    await of.reserve_answer(one, 5)
    assert of.answers.held == 5


async def test_a_response_without_memory_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    of = BodyLimits(msgspec.structs.replace(LIMITS, body_timeout=0))
    with charge_to(ADA):
        first = MemoryReservation()
        await of.reserve_answer(first, 3 * MIB)
        waiting = MemoryReservation()
        with pytest.raises(Refused, match=r"unread hold 3\.0 MiB") as refused:
            await of.reserve_answer(waiting, MIB)
    assert (refused.value.status, waiting.size) == (503, 0)
    first.release()
    assert (await reserve(of, ADA, MIB)) is not None


# -- sending -----------------------------------------------------------------------


async def test_a_large_response_is_sent_in_pieces() -> None:
    """So its sender waits while the client does not read."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    body = json.dumps(list(range(40_000))).encode()
    await LargeResponse(body)({"type": "http"}, None, send)  # type: ignore[arg-type]  # it receives nothing
    pieces = [one["body"] for one in sent[1:]]
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) == ANSWER_BYTES
    assert [one["more_body"] for one in sent[1:]] == [True] * (len(pieces) - 1) + [False]
    assert (b"content-length", str(len(body)).encode()) in sent[0]["headers"]


async def test_a_client_that_reads_too_slowly_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.server.body_streams.ANSWER_SECONDS", -1_000.0)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await anyio.sleep_forever()
        sent.append(message)

    await LargeResponse(b"x" * MIB)({"type": "http"}, None, send)  # type: ignore[arg-type]  # it receives nothing
    assert len(sent) == 1
    assert "read it too slowly" in caplog.text
