"""Upgrades from 0.1: forward by the page, with old and new servers at once, and back by a backup."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.testing import ScriptedUpstream
from tests.stores.servers import server
from tests.upgrade.made_by_0_1 import CODE, HISTORY, USER, make_data, read_data, save_artifacts, write_config
from tests.upgrade.releases import MISSING, NEW, Release, ReleaseServer, find_old
from tests.upgrade.rolling import Rolling
from tests.upgrade.traffic import answer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_old() is None, reason=MISSING)]
NEWER = "made by a newer release"


@pytest.fixture
def old() -> Release:
    release = find_old()
    assert release is not None
    return release


@pytest.fixture(params=("sqlite", "postgres", "mysql"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'chat.db'}"
        return
    place = server(request.param)
    if place.problem:
        pytest.skip(place.problem)
    url = place.place()
    try:
        yield url
    finally:
        place.drop(url)


def connect(running: ReleaseServer, key: str = "") -> httpx2.Client:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx2.Client(base_url=running.url, trust_env=False, timeout=60, headers=headers)


def test_data_of_0_1_is_upgraded_by_the_page(store: str, old: Release, tmp_path: Path) -> None:
    upstream = ScriptedUpstream(answer)
    with upstream.in_thread():
        config = write_config(tmp_path, upstream.url)
        with ReleaseServer(old, store, tmp_path, config=config) as running, connect(running) as http:
            made = make_data(http)
        assert [status for _, status, _ in made["compactions"]] == ["live"]
        save_artifacts(old, store)
        key = old.succeed(store, "keys", "create", "--user", USER, "--name", "laptop").split("hf_")[1].split()[0]
        transcript = (tmp_path / "transcripts").rglob("*trip*.jsonl")
        assert any(CODE in path.read_text() for path in transcript)

        NEW.succeed(store, "config", "check", str(config), folder=tmp_path)
        assert "pending" in NEW.succeed(store, "migrate", "--show", folder=tmp_path) or store.startswith("redis")
        NEW.succeed(store, "migrate", folder=tmp_path)
        NEW.succeed(store, "doctor", "--config", str(config), folder=tmp_path)
        NEW.succeed(store, "sessions", "verify", "--all", folder=tmp_path)

        with ReleaseServer(NEW, store, tmp_path, config=config) as running:
            with connect(running) as stranger:
                assert stranger.get("/readyz").status_code == 200
                assert stranger.get("/v1/sessions").status_code == 401
            with connect(running, f"hf_{key}") as http:
                assert {"matched": made["matched"], **read_data(http)} == made
                _check_use(http, made, upstream)
    refused = old.run(store, "sessions", "list", folder=tmp_path)
    assert refused.returncode != 0
    assert NEWER in refused.stdout + refused.stderr


def _check_use(http: httpx2.Client, made: dict[str, Any], upstream: ScriptedUpstream) -> None:
    """Go on with the data: prompts, matching, repeated requests, search and artifacts."""
    body = {"session_id": "trip", "messages": [{"role": "user", "content": "Which booking?"}]}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert CODE in repr(upstream.requests[-1].body["messages"])
    history = [
        *HISTORY,
        {"role": "assistant", "content": made["matched"][1]},
        {"role": "user", "content": "And on Sunday?"},
    ]
    assert http.post("/v1/chat/completions", json={"messages": history}).json()["session_id"] == made["matched"][0]
    before = len(http.get("/v1/sessions/trip/messages?limit=100").json()["data"])
    once = {"messages": [{"role": "user", "content": "only once"}]}
    assert http.post("/v1/sessions/trip/messages", json=once, headers={"idempotency-key": "once"}).status_code == 200
    assert len(http.get("/v1/sessions/trip/messages?limit=100").json()["data"]) == before
    asyncio.run(_find(http, CODE))
    artifact = http.get("/v1/sessions/trip/artifacts/plan.md")
    assert artifact.status_code == 200
    assert b"four days" in artifact.content


async def _find(http: httpx2.Client, text: str) -> None:
    for _ in range(200):
        found = http.get("/v1/search", params={"q": text}).raise_for_status().json()["data"]
        if any(one["session_id"] == "trip" for one in found):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{text} was not found")


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_old_and_new_servers_work_on_one_database(kind: str, old: Release, tmp_path: Path) -> None:
    place = server(kind)
    if place.problem:
        pytest.skip(place.problem)
    url = place.place()
    try:
        asyncio.run(Rolling(url, tmp_path, old, talkers=4).run(10))
    finally:
        place.drop(url)


def test_keys_of_0_2_count_for_a_running_server_of_0_1(old: Release, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'chat.db'}"
    with ReleaseServer(old, store, tmp_path) as running:
        NEW.succeed(store, "migrate", folder=tmp_path)
        secret = NEW.succeed(store, "keys", "create", "--user", USER, folder=tmp_path).split("hf_")[1].split()[0]
        with connect(running) as stranger, connect(running, f"hf_{secret}") as http:
            asyncio.run(_wait_for_status(stranger, 401))
            assert http.get("/v1/sessions").status_code == 200
            NEW.succeed(store, "keys", "revoke", secret.split("_")[0], folder=tmp_path)
            asyncio.run(_wait_for_status(http, 401))


async def _wait_for_status(http: httpx2.Client, status: int) -> None:
    """Wait until a list of sessions is answered so. Servers notice changes of keys within seconds."""
    for _ in range(200):
        if http.get("/v1/sessions").status_code == status:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"the server does not answer {status}")


def test_a_backup_brings_0_1_back(old: Release, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'chat.db'}"
    upstream = ScriptedUpstream(answer)
    with upstream.in_thread():
        config = write_config(tmp_path, upstream.url)
        with ReleaseServer(old, store, tmp_path, config=config) as running, connect(running) as http:
            made = make_data(http)
        old.succeed(store, "backup", str(tmp_path / "before.db"), "--store", store, folder=tmp_path)
        NEW.succeed(store, "migrate", folder=tmp_path)
        for name in ("chat.db", "chat.db-wal", "chat.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        old.succeed(store, "restore", str(tmp_path / "before.db"), "--store", store, folder=tmp_path)
        with ReleaseServer(old, store, tmp_path, config=config) as running, connect(running) as http:
            assert {"matched": made["matched"], **read_data(http)} == made
            body = {"session_id": "trip", "user": USER, "messages": [{"role": "user", "content": "Which booking?"}]}
            assert http.post("/v1/chat/completions", json=body).status_code == 200
            assert CODE in repr(upstream.requests[-1].body["messages"])
