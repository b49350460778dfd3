"""Artifacts over HTTP: content of any size in and out, ranges, conditions, and browser safety."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.artifacts import ArtifactSettings
from holdfast.domain.artifact import Artifact
from holdfast.server.artifacts import _parse_range, format_disposition
from holdfast.server.body_limits import BodyLimits
from tests.edges.server import Served, gateway

BASE = "/v1/sessions/s/artifacts"
DIGITS = b"0123456789"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server with a session `s` and a small limit for JSON bodies."""
    async with gateway([], limits=BodyLimits(body=2000)) as (running, _):
        await running.http.post("/v1/sessions", json={"id": "s"})
        yield running


async def put(served: Served, name: str, content: Any = DIGITS, **headers: str) -> dict[str, Any]:
    """Save an artifact; return the answer with `status` and `headers`."""
    name, _, query = name.partition("?")
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    response = await served.http.put(f"{BASE}/{quote(name)}?{query}", content=content, headers=sent)
    return {"status": response.status_code, "headers": response.headers, **response.json()}


async def get(served: Served, name: str, method: str = "GET", **headers: str) -> Any:
    """Load an artifact."""
    name, _, query = name.partition("?")
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    return await served.http.request(method, f"{BASE}/{quote(name)}?{query}", headers=sent)


async def list_blob_keys(served: Served) -> list[str]:
    """Return the keys of all stored contents."""
    return sorted([key async for key in served.hf.artifacts.blobs.list_old(2**60)])


# -- round trips ---------------------------------------------------------------


async def test_versions_and_pages(served: Served) -> None:
    """Lists in OpenAI's shape; versions by number, names in order."""
    for at in range(5):
        await put(served, "a.txt", str(at).encode())
    await put(served, "user:b.txt")
    for version in (0, 3):
        assert (await get(served, f"a.txt?version={version}")).content == str(version).encode()
    assert (await get(served, "a.txt")).content == b"4"
    page = (await served.http.get(f"{BASE}?name=a.txt&limit=2&after=1")).json()
    assert [one["version"] for one in page["data"]] == [2, 3]
    assert (page["object"], page["has_more"], page["first_id"], page["last_id"]) == ("list", True, 2, 3)
    first = (await served.http.get(f"{BASE}?limit=1")).json()
    assert ([one["name"] for one in first["data"]], first["has_more"]) == (["a.txt"], True)
    rest = (await served.http.get(f"{BASE}?limit=1&after={first['last_id']}")).json()
    assert ([one["name"] for one in rest["data"]], rest["has_more"]) == (["user:b.txt"], False)
    assert (await get(served, "a.txt", "DELETE")).json() == {
        "object": "artifact",
        "name": "a.txt",
        "deleted": True,
        "versions": 5,
        "bytes": 5,
    }
    assert (await get(served, "a.txt")).status_code == 404
    assert (await served.http.get(f"{BASE}?name=a.txt")).status_code == 404


# -- ranges and conditions -----------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "status", "found", "told"),
    [
        ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=7-99", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("BYTES=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=0-", 200, DIGITS, None),
        ("bytes=-10", 200, DIGITS, None),
        ("bytes=-99", 200, DIGITS, None),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=99-100", 416, None, "bytes */10"),
        ("bytes=0-1,4-5", 200, DIGITS, None),
        ("bytes=4-2", 200, DIGITS, None),
        ("bytes=-", 200, DIGITS, None),
        ("bytes=a-b", 200, DIGITS, None),
        ("lines=1-2", 200, DIGITS, None),
        ("bytes=1-99999999999999999999", 200, DIGITS, None),
    ],
)
async def test_ranges(served: Served, asked: str, status: int, found: bytes | None, told: str | None) -> None:
    """One byte range is answered; an invalid one or several get the whole."""
    await put(served, "a.txt")
    for method in ("GET", "HEAD"):
        loaded = await get(served, "a.txt", method, range=asked)
        assert (loaded.status_code, loaded.headers.get("content-range")) == (status, told)
        if found is None:
            continue
        assert loaded.headers["content-length"] == str(len(found))
        assert loaded.headers["accept-ranges"] == "bytes"
        assert loaded.content == (found if method == "GET" else b"")


@given(
    st.integers(0, 50), st.text("bytes=-0123456789, ", max_size=14) | st.from_regex(r"\Abytes=[0-9]{0,3}-[0-9]{0,3}\Z")
)
def test_any_range_stays_within_the_content(size: int, asked: str) -> None:
    artifact = Artifact(name="a", blob="b", mime_type="a/b", size=size, sha256=b"", created_at=0, version=0)

    class Asking:
        def get_header(self, name: str) -> str | None:
            return asked if name == "range" else None

    span = _parse_range(Asking(), artifact)  # type: ignore[arg-type]  # as much of a call as it takes
    if span is None:
        assert asked.startswith("bytes=")
    else:
        assert 0 <= span[0] <= span[1] <= size
        assert span[0] < span[1] or span == (0, size)


async def test_range_of_an_older_version_gets_the_whole_content(served: Served) -> None:
    """`If-Range`: parts of two versions do not mix."""
    old = (await put(served, "a.txt"))["headers"]["etag"]
    assert (await get(served, "a.txt", range="bytes=1-2", if_range=old)).content == b"12"
    await put(served, "a.txt", b"abcdefghij")
    assert (await get(served, "a.txt", range="bytes=1-2", if_range=old)).content == b"abcdefghij"


async def test_range_of_a_large_content_reads_only_that_part(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the bytes before nor those after it."""
    content = bytes(range(250)) * 20_000
    await put(served, "a.bin", content)
    read: list[tuple[int, int]] = []
    real = served.hf.artifacts.blobs.get

    def record_read(key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        read.append((start, stop))
        return real(key, start, stop)

    monkeypatch.setattr(served.hf.artifacts.blobs, "get", record_read)
    assert (await get(served, "a.bin", range="bytes=2000000-2000999")).content == content[2_000_000:2_001_000]
    assert read == [(2_000_000, 2_001_000)]


# -- browser safety ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.html", "text/html"),
        ("a.svg", "image/svg+xml"),
        ("a.js", "text/javascript"),
        ("a.xhtml", "application/xhtml+xml"),
    ],
)
async def test_stored_content_does_not_run_in_a_browser(served: Served, name: str, kind: str) -> None:
    """It is downloaded, not shown; if shown, nothing in it runs, and its type is not sniffed."""
    await put(served, name, b"<script>alert(1)</script>", content_type=kind)
    for headers in ({}, {"range": "bytes=1-2"}, {"range": "bytes=99-"}):
        loaded = await get(served, name, **headers)
        assert loaded.headers["x-content-type-options"] == "nosniff"
        assert loaded.headers["content-security-policy"].startswith("sandbox")
        if loaded.status_code < 300:
            assert loaded.headers["content-disposition"].startswith("attachment;")
            assert loaded.headers["content-type"] == kind


@given(st.text(max_size=30))
def test_name_cannot_break_out_of_its_header(name: str) -> None:
    """The header is always one line of characters that every client accepts."""
    shown = format_disposition(name)
    assert re.fullmatch(r"attachment; filename=\"[A-Za-z0-9 ._()@+-]*\"; filename\*=UTF-8''[A-Za-z0-9._~%-]*", shown)


async def test_unicode_name_is_in_the_header(served: Served) -> None:
    """In the extended form; the prefix `user:` is not part of the file name."""
    await put(served, "user:Über (1).txt")
    shown = (await get(served, "user:Über (1).txt")).headers["content-disposition"]
    assert shown == "attachment; filename=\"_ber (1).txt\"; filename*=UTF-8''%C3%9Cber%20%281%29.txt"


# -- refused requests ------------------------------------------------------------


TRICKS = [
    "..%2F..%2Fetc%2Fpasswd",
    "..%5C..%5Cboot.ini",
    "%2Fetc%2Fpasswd",
    "%5C%5Cserver%5Cshare",
    "a%00.txt",
    "a%0d%0aX: y",
    ".hidden",
    "%2e%2e",
    "C:%5Ca",
    "NUL",
    "con.txt",
    "a%E2%80%AEgnp.exe",
    "user:..%2Fa",
    "app:a",
    "a" * 256,
    "%FF",
    "a%20",
]


@pytest.mark.parametrize("name", TRICKS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_path_tricks_are_refused(served: Served, method: str, name: str) -> None:
    """As raw bytes on the wire."""
    url = httpx2.URL(served.url).copy_with(raw_path=f"{BASE}/{name}".replace(" ", "%20").encode())
    response = await served.http.request(method, url, content=b"x" if method == "PUT" else None)
    assert response.status_code == 400, response.text
    assert await list_blob_keys(served) == []


@pytest.mark.parametrize("name", ["..", ".", "%2e", "../artifacts", "a/b", "a/versions/b", ""])
async def test_invalid_paths_save_nothing(served: Served, name: str) -> None:
    """A slash, or dots that some clients resolve, make another path."""
    await put(served, "a")
    url = httpx2.URL(served.url).copy_with(raw_path=f"{BASE}/{name}".encode())
    response = await served.http.put(url, content=b"x")
    assert response.status_code in (400, 404, 405), response.text
    assert len(await list_blob_keys(served)) == 1


@pytest.mark.parametrize(
    ("query", "headers", "status", "param"),
    [
        ("metadata=[1]", {}, 400, "metadata"),
        ("metadata=x", {}, 400, "metadata"),
        ('metadata={"a":1,"a":2}', {}, 400, "metadata"),
        ("metadata=" + quote(json.dumps({"k": "x" * 17_000})), {}, 413, "metadata"),
        ("author=" + "x" * 600, {}, 400, "author"),
        ("", {"content-type": "nonsense"}, 400, "mime_type"),
        ("", {"content-type": "image/png"}, 415, "mime_type"),
        ("", {"content-encoding": "gzip"}, 415, None),
    ],
)
async def test_invalid_saves_are_refused(
    served: Served, query: str, headers: dict[str, str], status: int, param: str | None
) -> None:
    """The wrong parameter is named; nothing is stored."""
    response = await served.http.put(f"{BASE}/a?{query}", content=b"x", headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert await list_blob_keys(served) == []


async def test_curls_default_content_type_is_ignored(served: Served) -> None:
    """The type is derived from the name instead."""
    saved = await put(served, "a.csv", b"1,2", content_type="application/x-www-form-urlencoded")
    assert saved["mime_type"] == "text/csv"


async def test_too_large_content_is_refused_before_it_is_read(served: Served) -> None:
    """By the declared size; undeclared content is cut off. The artifact limit applies, not that of other bodies."""
    served.hf.artifacts.settings = ArtifactSettings(max_bytes=100_000)
    assert (await put(served, "a.bin", bytes(100_000)))["status"] == 201
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    head = f"PUT {BASE}/b.bin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100001\r\n\r\n"
    writer.write(head.encode())
    assert b" 413 " in await reader.readline()
    writer.close()
    await writer.wait_closed()

    async def unsaid() -> AsyncGenerator[bytes, None]:
        for _ in range(100):
            yield bytes(10_000)

    refused = await put(served, "b.bin", unsaid())
    assert (refused["status"], refused["error"]["code"]) == (413, "too_large")
    assert "100000" in refused["error"]["message"]
    assert len(await list_blob_keys(served)) == 1


async def test_too_slow_content_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.body_streams.BODY_SECONDS", 0.05)
    async with gateway([]) as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s"})
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = f"PUT {BASE}/b.bin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nfirst"
        writer.write(head.encode())
        assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert await list_blob_keys(served) == []


async def test_upload_aborted_by_the_client_leaves_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a name nor content."""
    ended, begun = asyncio.Event(), asyncio.Event()
    real = served.hf.artifacts.blobs.put

    async def record_read(key: str, chunks: Any) -> None:
        begun.set()
        try:
            await real(key, chunks)
        finally:
            ended.set()

    monkeypatch.setattr(served.hf.artifacts.blobs, "put", record_read)
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    head = f"PUT {BASE}/b.bin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\n"
    writer.write(head.encode() + bytes(3_000_000))
    await begun.wait()
    writer.transport.abort()
    await ended.wait()
    assert await list_blob_keys(served) == []
    assert (await served.http.get(BASE)).json()["data"] == []
