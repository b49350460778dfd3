"""Media through the gateway: the official client sends images, the upstream receives them, the store has each one
once.
"""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.limits import MIB
from holdfast.server.body_limits import BodyLimits
from holdfast.testing import ScriptedUpstream
from tests.edges.server import Process, config_text, gateway, serving
from tests.unit.media_kit import THEIRS, anthropic, b64, image_url, png

PICTURE, OTHER = png(size=20_000), png(320, 200, size=9_000, seed=3)
SEE: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "see"}, image_url(PICTURE, detail="high")]}
SEEN = {"role": "assistant", "content": "A picture."}
AND: dict[str, Any] = {"role": "user", "content": "and?"}


async def test_upstream_receives_the_clients_image() -> None:
    """Whole and streamed; also in later turns that send only text."""
    async with gateway(["A picture.", "Still."] * 2) as (served, upstream):
        for stream in (False, True):
            own = {"extra_body": {"session_id": f"s{stream}"}, "model": "gpt-4o", "stream": stream}
            for messages in ([SEE], [AND]):
                reply = await served.client.chat.completions.create(messages=messages, **own)
                if stream:
                    assert [chunk async for chunk in reply]
            first, second = [request.body["messages"] for request in upstream.requests[-2:]]
            assert first == [SEE]
            assert second == [SEE, SEEN, AND]


async def test_client_that_resends_only_text_keeps_its_image() -> None:
    """With a session id or matched: the stored message has the image, and so has the upstream call."""
    async with gateway(["A picture.", "Still.", "Yes."]) as (served, upstream):
        assert (await served.chat([SEE], None))["status"] == 200
        bare = {"role": "user", "content": "see"}
        again = await served.chat([bare, SEEN, AND], None)
        assert again["session"]["reconciled"] == "continued"
        assert upstream.requests[1].body["messages"] == [SEE, SEEN, AND]
        resent = await served.chat([SEE, SEEN, AND, {"role": "assistant", "content": "Still."}, AND], None)
        assert resent["session_id"] == again["session_id"]
        other = {"role": "user", "content": [{"type": "text", "text": "see"}, image_url(OTHER)]}
        apart = await served.chat([other, SEEN, AND], None)
        assert apart.get("session_id") != again["session_id"]


async def test_image_sent_ten_times_is_stored_once(tmp_path: Path) -> None:
    """An image of 1 MiB: the database grows by little more than that."""
    path, big = tmp_path / "s.db", image_url(png(size=MIB))
    async with gateway(["ok"] * 10, store=f"sqlite:///{path}") as (served, _):
        for number in range(10):
            said = [{"role": "user", "content": [{"type": "text", "text": f"{number}"}, big]}]
            assert (await served.chat(said))["status"] == 200
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM media").fetchone()[0] == 1
    database.close()
    assert path.stat().st_size < 1.5 * MIB


async def test_rest_returns_media_unchanged() -> None:
    """In messages, pages, exports, the short form and working sets; erased media are gone."""
    async with gateway([]) as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s"})
        claude = {"role": "user", "content": [anthropic(OTHER)]}
        written = (await served.http.post("/v1/sessions/s/messages", json={"messages": [SEE, SEEN, claude]})).json()
        assert [one["content"] for one in written["data"]] == [SEE["content"], SEEN["content"], claude["content"]]
        page = (await served.http.get("/v1/sessions/s/messages?limit=1")).json()
        assert page["data"] == written["data"][:1]
        pinned = (await served.http.patch("/v1/sessions/s/messages/0", json={"pinned": True})).json()
        assert pinned["content"] == SEE["content"]
        short = (await served.http.get("/sessions/s")).json()
        assert short["messages"] == [SEE, SEEN, claude]
        context = (await served.http.post("/v1/sessions/s/context", json={"dialect": "anthropic"})).json()
        assert context["messages"][0]["content"][1]["source"]["data"] == b64(PICTURE)
        exported = (await served.http.get("/v1/sessions/s")).json()
        assert [(one["seq"], one["size"]) for one in exported["images"]] == [(0, [640, 480]), (2, [320, 200])]
        assert (await served.http.put("/v1/sessions/t", json=exported)).status_code == 200
        copy = (await served.http.get("/v1/sessions/t")).json()
        assert (copy["messages"], copy["images"]) == (exported["messages"], exported["images"])
        fork = (await served.http.post("/v1/sessions/s/fork", json={"id": "f", "at_turn": 0})).json()
        assert fork["message_count"] == 2
        assert (await served.http.delete("/v1/sessions/s/messages/0")).json()["erased"] is True
        assert [one["seq"] for one in (await served.http.get("/v1/sessions/s")).json()["images"]] == [2]
        kept = (await served.http.get("/sessions/f")).json()["messages"]
        assert kept == [{"role": "user", "content": "[erased]"}, SEEN], "a fork shares what is erased"


async def test_mistralrs_sessions_can_be_imported() -> None:
    """Their media lists are separate from the messages; if they do not match the placeholders nothing is written."""
    async with gateway([]) as (served, _):
        assert (await served.http.put("/v1/sessions/s", json=THEIRS)).status_code == 200
        assert len((await served.http.get("/v1/sessions/s")).json()["images"]) == 2
        for change, param in (({"images": []}, "images"), ({"images": [b64(PICTURE), "?"]}, "images[1]")):
            response = await served.http.put("/v1/sessions/t", json={**THEIRS, **change})
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert (await served.http.get("/v1/sessions/t")).status_code == 404


REFUSED: list[tuple[list[dict[str, Any]], int, str, str]] = [
    ([image_url(png(size=25_000))], 413, "messages[0].content[0]", "gateway.max_media is 25000"),
    ([image_url(OTHER)] * 4, 413, "messages", "at most 3"),
    ([image_url(OTHER), image_url(png(20_000, 20_000))], 413, "messages[0].content[1]", "20000 x 20000 pixels"),
    (
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,a?"}}],
        400,
        "messages[0].content[0]",
        "base64",
    ),
    ([{"type": "text", "text": "x" * 10_001}], 413, "messages[0]", "at most 10000"),
]


@pytest.mark.parametrize(
    ("parts", "status", "param", "words"), REFUSED, ids=["bytes", "count", "pixels", "base64", "text"]
)
async def test_invalid_or_too_much_media_is_refused(
    parts: list[dict[str, Any]], status: int, param: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its place, on every route that takes messages, before anything is written; media within the limits are
    accepted.
    """
    for name, number in (("REQUEST_MEDIA", 3), ("IMAGE_PIXELS", 1_000_000), ("REQUEST_MESSAGE_BYTES", 10_000)):
        monkeypatch.setattr(f"holdfast.limits.{name}", number)
    async with gateway(["ok"], limits=BodyLimits(media=25_000)) as (served, upstream):
        await served.http.post("/v1/sessions", json={"id": "s"})
        message = {"role": "user", "content": parts}
        for method, url in (
            ("POST", "/v1/chat/completions"),
            ("PUT", "/v1/sessions/t"),
            ("POST", "/v1/sessions/s/messages"),
        ):
            response = await served.http.request(method, url, json={"messages": [message]})
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (status, param)
            assert words in error["message"]
        assert (await served.log(), upstream.requests) == ([], [])
        assert (await served.chat([{"role": "user", "content": [image_url(PICTURE)]}]))["status"] == 200


async def test_text_only_upstream_gets_a_description() -> None:
    """According to its configuration; the log keeps the image."""
    async with ScriptedUpstream(["I cannot see."]) as upstream:
        config = config_text(upstream.url).replace('"api_key"', '"inputs": ["text", "audio"], "api_key"')
        async with serving(config) as served:
            sound = {"type": "input_audio", "input_audio": {"data": b64(b"\7" * 3000), "format": "wav"}}
            said = {"role": "user", "content": [*SEE["content"], sound]}
            assert (await served.chat([said]))["status"] == 200
            words = "[image: image/png, 640x480, 20 kB: this model takes no images]"
            assert upstream.requests[0].body["messages"][0]["content"][1:] == [{"type": "text", "text": words}, sound]
            assert (await served.http.get("/sessions/s")).json()["messages"][0] == said


async def test_idempotent_retry_with_an_image_is_replayed() -> None:
    """Nothing is written twice."""
    async with gateway(["A picture."]) as (served, upstream):
        first, second = [await served.chat([SEE], headers={"idempotency-key": "k"}) for _ in range(2)]
        assert first["choices"][0]["message"]["content"] == second["choices"][0]["message"]["content"] == "A picture."
        assert len(upstream.requests) == 1


GROWTH = 150 * MIB
"""Far below eight pictures of 20 MiB in base64, above what one of them may take on its way."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak memory of a process is told on Linux only")
async def test_memory_stays_flat(tmp_path: Path) -> None:
    """Images of 20 MiB one after the other: memory stops growing after the first ones."""
    async with ScriptedUpstream(["ok"] * 12) as upstream:
        config = tmp_path / "holdfast.yaml"
        config.write_text(config_text(upstream.url))
        with Process(f"sqlite:///{tmp_path}/s.db", config=config) as server:
            async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=120) as http:
                for number in range(12):
                    content = png(size=64, seed=number) + os.urandom(20 * MIB - 200)
                    said = [{"role": "user", "content": [image_url(content)]}]
                    response = await http.post(
                        "/v1/chat/completions", json={"messages": said, "session_id": f"s{number}"}
                    )
                    assert response.status_code == 200
                    assert len(upstream.requests[-1].raw) > 20 * MIB
                    upstream.requests.clear()
                    if number == 3:
                        before = _read_peak_memory(server.process.pid)
                assert _read_peak_memory(server.process.pid) - before < GROWTH


def _read_peak_memory(pid: int) -> int:
    """Return the peak memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
