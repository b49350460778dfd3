"""Artifacts over HTTP: large or damaged content, and a server killed during an upload."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio.to_thread
import httpx2
import pytest

import holdfast
from holdfast.artifacts.blobs import CHUNK
from tests.edges.server import Process, gateway

BASE = "/v1/sessions/s/artifacts"
LARGE_BYTES = 50 << 20


# -- damage ----------------------------------------------------------------------


async def test_damaged_content_is_an_error() -> None:
    """A 500 before the reply has begun; afterwards the connection ends, and the body is short."""
    async with gateway([]) as (served, _):
        session = await served.hf.session("s")
        for size in (10, CHUNK * 8):
            saved = await session.artifacts.save("a.bin", bytes(size))
            await served.hf.artifacts.blobs.delete([saved.blob])
            await served.hf.artifacts.blobs.put(saved.blob, _one(bytes(size - 1) + b"x"))
            if size == 10:
                loaded = await served.http.get(f"{BASE}/a.bin")
                assert (loaded.status_code, loaded.json()["error"]["code"]) == (500, "store_corrupt")
            else:
                with pytest.raises(httpx2.RemoteProtocolError):
                    await served.http.get(f"{BASE}/a.bin")


async def _one(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


# -- size ------------------------------------------------------------------------


def _read_peak_memory(pid: int) -> int:
    """Return the peak memory of a process, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("backend", ["disk", "database"])
async def test_fifty_megabytes_are_streamed_with_little_memory(tmp_path: Path, backend: str) -> None:
    """Both ways, with another transfer at the same time; the limit for JSON bodies does not apply."""
    config = tmp_path / "holdfast.yaml"
    config.write_text(f"storage: {{artifacts: {{backend: {backend}}}}}\ngateway: {{max_body: 1MiB}}\n")
    piece = bytes(range(256)) * 256

    def talk() -> None:
        with (
            Process(f"sqlite:///{tmp_path}/chat.db", config=config) as server,
            httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as http,
        ):
            http.post("/v1/sessions", json={"id": "s"})
            http.put(f"{BASE}/small.bin", content=piece)
            before = _read_peak_memory(server.process.pid)
            saved = http.put(f"{BASE}/large.bin", content=(piece for _ in range(LARGE_BYTES // len(piece))))
            assert saved.status_code == 201, saved.text
            assert saved.json()["size"] == LARGE_BYTES
            found, size = hashlib.sha256(), 0
            with http.stream("GET", f"{BASE}/large.bin") as loaded:
                for chunk in loaded.iter_raw():
                    found.update(chunk)
                    size += len(chunk)
            assert (size, found.hexdigest()) == (LARGE_BYTES, saved.json()["sha256"])
            assert _read_peak_memory(server.process.pid) - before < LARGE_BYTES // 2
        folder = tmp_path / "chat.db.artifacts"
        assert folder.exists() == (backend == "disk")

    await anyio.to_thread.run_sync(talk)


async def test_upload_cut_by_a_killed_server_is_swept(tmp_path: Path) -> None:
    """Its content has no name; earlier artifacts are whole."""
    store, folder = f"sqlite:///{tmp_path}/chat.db", tmp_path / "chat.db.artifacts"

    def run_and_kill() -> None:
        with Process(store) as server, httpx2.Client(base_url=server.url, trust_env=False) as http:
            http.post("/v1/sessions", json={"id": "s"})
            http.put(f"{BASE}/whole.bin", content=b"0123456789")
            with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
                client.sendall(
                    f"PUT {BASE}/half.bin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\n".encode()
                )
                client.sendall(bytes(3_000_000))
                until = time.monotonic() + 30
                while not list(folder.glob("*/*.part")):
                    assert time.monotonic() < until
                server.kill()

    await anyio.to_thread.run_sync(run_and_kill)
    async with holdfast.open(store) as hf:
        session = await hf.session("s")
        assert [one.name for one in await session.artifacts.list()] == ["whole.bin"]
        assert await hf.artifacts.sweep(hf.clock()) == 0
        assert await hf.artifacts.sweep(hf.clock() + 2 * 3_600_000) == 1
        assert (await session.artifacts.load("whole.bin")).data == b"0123456789"
    assert [path.suffix for path in folder.glob("*/*")] == [""]
