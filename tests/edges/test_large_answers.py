"""Large responses: a tenant has only a few at once, until their clients have read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from starlette.types import Message

from holdfast.server.body_streams import LargeResponse
from holdfast.server.limits import ANSWER_BYTES, LARGE_REQUESTS_OF_TENANT
from tests.edges.keys import create_stored_key
from tests.edges.server import Served, gateway
from tests.waits import until


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with gateway(lambda _: "ok") as (served, _):
        yield served


async def connect_without_reading(served: Served, path: str, key: str) -> asyncio.StreamWriter:
    """Send a request on a connection of its own, and never read the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
    reader._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001 - the kernel's buffer fills up
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nAuthorization: Bearer {key}\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()
    return writer


# -- records ---------------------------------------------------------------------


async def test_pages_of_records_are_bounded_in_bytes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends early, and `after` continues it. A single large record is a page of its own."""
    monkeypatch.setattr("holdfast.stores.logic.records.RECORD_PAGE_BYTES", 400_000)
    sizes = {"1": 150_000, "2": 150_000, "3": 150_000, "4": 900_000, "5": 10}
    for key, size in sizes.items():
        await served.hf.records("a").put(key, "x" * size if key != "3" else b"x" * size)
    pages: list[list[str]] = []
    after = ""
    while True:
        response = await served.http.get(f"/v1/records?scope=tenant&namespace=a&limit=100{after}")
        page = response.json()
        pages.append([one["key"] for one in page["data"]])
        assert sum(sizes[key] for key in pages[-1]) <= 400_000 or len(pages[-1]) == 1
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert pages == [["1", "2"], ["3"], ["4"], ["5"]]
    assert (await served.http.get("/v1/records?scope=tenant&namespace=a&values=false")).json()["has_more"] is False


async def test_unread_large_pages_of_a_tenant_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many clients that do not read, most wait without having read values. Another tenant is answered meanwhile."""
    attacker, victim = (
        await create_stored_key(served.hf, tenant="attacker"),
        await create_stored_key(served.hf, tenant="victim"),
    )
    for tenant in ("attacker", "victim"):
        async with served.hf.serve_tenant(tenant) as hf:
            await hf.records("a").put_many({"1": "x" * 900_000, "2": "x" * 900_000})
    reads: list[int] = []
    read_page = type(served.hf.records("a")).read_page

    async def note_read(self: Any, *args: Any, **more: Any) -> Any:
        page = await read_page(self, *args, **more)
        reads.extend(one.size for one in page.records if hasattr(one, "data"))
        return page

    monkeypatch.setattr("holdfast.sessions.records.Records.read_page", note_read)
    path = "/v1/records?scope=tenant&namespace=a"
    number = 2 * LARGE_REQUESTS_OF_TENANT
    writers = [await connect_without_reading(served, path, attacker) for _ in range(number)]
    await until(lambda: len(reads) == 2 * LARGE_REQUESTS_OF_TENANT)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(reads) == 2 * LARGE_REQUESTS_OF_TENANT
    answer = await served.http.get(path, headers={"authorization": f"Bearer {victim}"})
    assert [len(one["value"]) for one in answer.json()["data"]] == [900_000, 900_000]
    for writer in writers:
        writer.transport.abort()


async def test_damaged_json_is_not_returned(served: Served) -> None:
    await served.hf.records("a").put("k", msgspec.Raw(b'{"a": '))
    answer = await served.http.get("/v1/records/record?scope=tenant&namespace=a&key=k")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "store_corrupt")


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
