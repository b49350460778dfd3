"""The store's faults as a client of the server sees them: 503 with the reason, nothing half, and no restart to recover."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import apsw
import httpx2
import pytest

from holdfast.domain.session import SessionRef
from holdfast.stores import open_store
from holdfast.stores.verify import verify
from tests.edges.server import Process, gateway
from tests.faults.vfs import Event, FaultVFS, faulty

HI = {"role": "user", "content": "hi"}
BIG = {"role": "user", "content": "x" * 600_000}


def unavailable(response: Any, says: str) -> None:
    """503 in OpenAI's shape, with the reason and what to do."""
    assert response.status_code == 503, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "store_unavailable")
    assert says in error["message"]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limits of another process can be set on Linux only")
async def test_a_server_whose_files_may_not_grow(tmp_path: Path) -> None:
    """Writes are 503 and reads go on; with room again writes succeed, in the same process."""
    with Process(f"sqlite:///{tmp_path}/s.db") as server:
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as http:
            assert (await http.put("/v1/sessions/s", json={"messages": [HI]})).status_code == 200
            usual = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (300_000, usual[1]))
            for body in ({"messages": [BIG]}, {"messages": [BIG, HI]}):
                unavailable(await http.post("/v1/sessions/s/messages", json=body), "nothing was stored")
            unavailable(await http.put("/v1/sessions/t", json={"messages": [BIG]}), "a limit on file sizes was reached")
            chat = {"messages": [BIG], "session_id": "s"}
            unavailable(await http.post("/v1/chat/completions", json=chat), "a limit on file sizes was reached")
            for _ in range(2):
                unavailable(
                    await http.get("/readyz"), "a limit on file sizes was reached"
                )  # a row of a few bytes would find room
            assert (await http.get("/v1/sessions/t")).status_code == 404
            assert [item["content"] for item in (await http.get("/v1/sessions/s/messages")).json()["data"]] == ["hi"]
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, usual)
            assert (await http.get("/readyz")).status_code == 200
            assert (await http.post("/v1/sessions/s/messages", json={"messages": [BIG]})).status_code == 200
            assert (await http.post("/v1/chat/completions", json=chat)).status_code == 200
    assert any("store_unavailable" in line for line in server.log)
    opened = await open_store(f"sqlite:///{tmp_path}/s.db", tenant="default")
    assert await verify(opened, SessionRef("default", "s")) == 3  # the chat found its message there, unanswered
    await opened.close()


def full(event: Event, name: str) -> None:
    """A disk that takes nothing more."""
    if event == "write":
        raise apsw.FullError("made up")


async def test_every_route_that_writes_while_the_disk_is_full(tmp_path: Path) -> None:
    """503 with the reason, `/readyz` too, and nothing is changed; `/healthz` and reads are well; afterwards all is."""
    with faulty() as vfs:
        async with gateway(["one", "two"], store=f"sqlite:///{tmp_path}/s.db") as (served, upstream):
            await served.chat("hi")
            before = (await served.http.get("/v1/sessions/s")).json()
            vfs.fault = full
            requests: list[tuple[str, str, Any]] = [
                ("POST", "/v1/chat/completions", {"messages": [HI], "session_id": "s"}),
                ("POST", "/v1/chat/completions", {"messages": [HI], "session_id": "s", "stream": True}),
                ("POST", "/v1/chat/completions", {"messages": [HI]}),
                ("POST", "/v1/sessions", {"id": "t"}),
                ("PUT", "/v1/sessions/s", {"messages": []}),
                ("PATCH", "/v1/sessions/s", {"metadata": {"k": 1}}),
                ("DELETE", "/v1/sessions/s", None),
                ("DELETE", "/sessions/s", None),
                ("POST", "/v1/sessions/s/messages", {"messages": [HI]}),
                ("PATCH", "/v1/sessions/s/messages/0", {"pinned": True}),
                ("DELETE", "/v1/sessions/s/messages/0", None),
                ("GET", "/readyz", None),
            ]
            for method, url, body in requests:
                unavailable(await served.http.request(method, url, json=body), "disk is full")
            assert (await served.http.get("/healthz")).status_code == 200
            assert (await served.http.get("/v1/sessions/s")).json() == before
            assert len(upstream.requests) == 1
            vfs.fault = None
            assert (await served.http.get("/readyz")).status_code == 200
            assert (await served.chat("more"))["choices"][0]["message"]["content"] == "two"
            assert [text for _, text in await served.log()] == ["hi", "one", "more", "two"]


class Seconds:
    """Stands in for `time` where a store waits for a lock: sleeping takes no time, and is counted."""

    def __init__(self) -> None:
        self.slept = 0.0

    def monotonic(self) -> float:
        """The time of day, as it were."""
        return self.slept

    def perf_counter(self) -> float:
        """The time that operations of the database really take."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.slept += max(seconds, 0.05)


async def test_a_file_that_another_program_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that cannot be stored fails within 30 seconds, however often it would write; the next ones, and `/readyz`, sooner."""
    seconds = Seconds()
    async with gateway(["one", "two"], store=f"sqlite:///{tmp_path}/s.db") as (served, upstream):
        await served.chat("hi")
        holder = apsw.Connection(str(tmp_path / "s.db"))
        holder.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("holdfast.stores.sqlite_connection.time", seconds)
        body = {"messages": [HI], "session_id": "s"}
        unavailable(
            await served.http.post("/v1/chat/completions", json=body), "another program has locked the database"
        )
        assert 29 < seconds.slept < 30
        before = seconds.slept
        unavailable(
            await served.http.post("/v1/chat/completions", json=body), "another program has locked the database"
        )
        unavailable(await served.http.get("/readyz"), "another program has locked the database")
        assert seconds.slept - before < 2
        holder.execute("ROLLBACK")
        holder.close()
        assert (await served.http.get("/readyz")).status_code == 200
        assert (await served.chat("more"))["choices"][0]["message"]["content"] == "two"
        assert len(upstream.requests) == 2


def full_after(vfs: FaultVFS) -> Any:
    """A model's answer, given when the disk has become full in between."""

    def answer(body: dict[str, Any]) -> str:
        vfs.fault = full
        return "an answer that finds no room"

    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disk_that_is_full_when_the_reply_comes(tmp_path: Path, stream: bool) -> None:
    """The client is told that the reply is not stored; the user's message is; sending it again answers it, once."""
    with faulty() as vfs:
        answers = iter([full_after(vfs), lambda body: "now"])

        def answer(body: dict[str, Any]) -> Any:
            return next(answers)(body)

        async with gateway(answer, store=f"sqlite:///{tmp_path}/s.db") as (served, _):
            body = {"messages": [HI], "session_id": "s", "stream": stream}
            response = await served.http.post("/v1/chat/completions", json=body)
            if stream:
                assert '"code":"store_unavailable"' in response.text
                assert '"finish_reason":"stop"' not in response.text
            else:
                unavailable(response, "disk is full")
            assert await served.log() == [("user", "hi")]
            vfs.fault = None
            assert (await served.http.post("/v1/chat/completions", json=body)).status_code == 200
            assert await served.log() == [("user", "hi"), ("assistant", "now")]


async def test_a_session_that_is_damaged(tmp_path: Path) -> None:
    """500 with the reason for what cannot be read; other sessions are served, and nothing inner is told."""
    async with gateway([], store=f"sqlite:///{tmp_path}/s.db") as (served, _):
        for name in ("s", "t"):
            await served.http.put(f"/v1/sessions/{name}", json={"messages": [{"role": "user", "content": name * 5000}]})
    path = tmp_path / "s.db"
    path.write_bytes(path.read_bytes().replace(b'"content":"sssss', b'"content";"sssss'))
    async with gateway([], store=f"sqlite:///{path}") as (served, _):
        response = await served.http.get("/v1/sessions/s")
        assert (response.status_code, response.json()["error"]["code"]) == (500, "store_corrupt")
        assert "damaged" in response.json()["error"]["message"]
        assert (await served.http.get("/v1/sessions/t")).status_code == 200
