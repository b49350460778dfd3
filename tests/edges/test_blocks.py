"""Configuration blocks written for other systems: the server starts with them and does what each one says."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.config import load
from holdfast.config.build import build_life_settings
from holdfast.holdfast import Holdfast
from tests.clocks import Clock
from tests.edges.server import Process
from tests.service.expiry_kit import DAY, file, ref, state, talk
from tests.stores.servers import reach

IN_MEMORY = "storage:\n  sessions:\n    backend: inmemory\n"
SQLITE = """
databases:
  main:
    driver: sqlite
    path: .chat/chat.db

storage:
  sessions:
    backend: sql
    database: main
"""
SERVER = """
databases:
  main:
    driver: {driver}
    host: 127.0.0.1
    port: {port}
    database: {database}
    user: ${{DB_USER}}
    password: ${{DB_PASSWORD:-}}
    options: {options}

storage:
  sessions:
    backend: sql
    database: main
"""


class Served:
    """A server with a block as its configuration, started as often as needed."""

    def __init__(self, folder: Path, block: str, **env: str) -> None:
        self._file = folder / "holdfast.yaml"
        self._file.write_text(block)
        self._env = env

    def run(self, *requests: tuple[str, str, Any]) -> list[Any]:
        """Start it, send requests, stop it cleanly, and return the answers."""
        with Process("", config=self._file, env=self._env) as server, httpx2.Client(base_url=server.url) as client:
            answers = [client.request(method, path, json=body) for method, path, body in requests]
            assert server.stop(signal.SIGTERM) == 0
        return [answer.json() | {"status_code": answer.status_code} for answer in answers]


def message(text: str) -> dict[str, Any]:
    """Return the body of an append."""
    return {"messages": [{"role": "user", "content": text}]}


CREATE = ("POST", "/v1/sessions", {"id": "s"})
SAY = ("POST", "/v1/sessions/s/messages", message("hello"))
GET = ("GET", "/v1/sessions/s", None)
CLOSE = ("POST", "/v1/sessions/s/close", None)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the folder that relative paths start from."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_in_memory_sessions_end_with_the_process(here: Path) -> None:
    """Closed sessions are deleted earlier."""
    served = Served(here, IN_MEMORY)
    answers = served.run(CREATE, SAY, GET, CLOSE, GET, CREATE)
    assert [answer["status_code"] for answer in answers] == [201, 200, 200, 200, 404, 201]
    assert served.run(GET)[0]["status_code"] == 404
    assert not list(here.glob("*.db"))


def test_sqlite_block_keeps_sessions(here: Path) -> None:
    """In the file that the block names."""
    check_sessions_survive_restart(Served(here, SQLITE))
    assert (here / ".chat" / "chat.db").is_file()


@pytest.mark.parametrize(("name", "port", "user"), [("postgres", 5432, "postgres"), ("mysql", 3306, "root")])
def test_database_server_block_keeps_sessions(here: Path, name: str, port: int, user: str) -> None:
    """User and password come from the environment."""
    server = reach(name)
    place = server.place()
    schema = place.rpartition("schema=")[2] if name == "postgres" else place.rpartition("/")[2]
    database, options = ("postgres", f"{{schema: {schema}}}") if name == "postgres" else (schema, "{}")
    try:
        check_sessions_survive_restart(
            Served(here, SERVER.format(driver=name, port=port, database=database, options=options), DB_USER=user)
        )
    finally:
        server.drop(place)


def check_sessions_survive_restart(served: Served) -> None:
    """After a restart the closed session is found, and a message reopens it."""
    assert [answer["status_code"] for answer in served.run(CREATE, SAY, CLOSE)] == [201, 200, 200]
    found, said, opened = served.run(GET, SAY, GET)
    assert (found["status"], [one["content"] for one in found["messages"]]) == ("closed", ["hello"])
    assert (said["status_code"], opened["status"], len(opened["messages"])) == (200, "active", 2)


def test_max_history_turns_limits_the_prompt_not_the_log(here: Path) -> None:
    log = [{"role": ("user", "assistant")[at % 2], "content": f"message {at}"} for at in range(60)]
    served = Served(here, "short_term:\n  max_history_turns: 50\n")
    asked = ("POST", "/v1/sessions/s/context", {"strategy": "none"})
    *_, context, whole = served.run(CREATE, ("POST", "/v1/sessions/s/messages", {"messages": log}), asked, GET)
    assert [one["content"] for one in context["messages"]] == ["message 0", *(f"message {at}" for at in range(10, 60))]
    assert len(whole["messages"]) == 60


@pytest.mark.parametrize(
    ("block", "ttl", "cap"),
    [
        ("short_term:\n  session_ttl: 24h\n", DAY, 10_000),
        ("short_term:\n  max_sessions: 10000\n", DAY, 10_000),
        ("short_term: {max_sessions: 3, session_ttl: 90s}", 90_000, 3),
        ("short_term: {max_sessions: 0, session_ttl: 0}", 0, 0),
        ("sessions: {max_sessions: 128, ttl: 30m}", 1_800_000, 128),
    ],
)
async def test_session_ttl_and_max_sessions_follow_the_block(tmp_path: Path, block: str, ttl: int, cap: int) -> None:
    """To the millisecond and to the session, up to the number that a test can create."""
    clock, life = Clock(), build_life_settings(load(block, env={}))
    assert (life.session_ttl, life.max_sessions) == (ttl, cap)
    async with Holdfast(file(tmp_path), clock=clock, life=life) as hf:
        await talk(hf, "s")
        clock.now += ttl - 1 if ttl else 1000 * DAY
        assert await state(hf, "s") == "active"
        if ttl:
            clock.now += 1
            assert await state(hf, "s") == "closed"
        await talk(hf, "s")
        for number in range(min(cap, 128)):
            clock.now += 1
            assert await state(hf, "s") == "active"
            await hf.create(f"more {number}")
        assert await state(hf, "s") == ("closed" if 0 < cap <= 128 else "active")


async def test_retention_follows_the_block(tmp_path: Path) -> None:
    """Setting `storage.sessions.retention`."""
    clock, life = Clock(), build_life_settings(load("storage: {sessions: {retention: 90d}}", env={}))
    async with Holdfast(file(tmp_path), clock=clock, life=life) as hf:
        await talk(hf, "s")
        await hf.close_session(ref("s"))
        clock.now += 90 * DAY - 1
        assert (await hf.sweep()).deleted == 0
        clock.now += 1
        assert (await hf.sweep()).deleted == 1
        assert await state(hf, "s") == "gone"


async def test_missing_folder_of_the_database_file_is_created(tmp_path: Path) -> None:
    """For example `path: .hector/hector.db` on a machine without that folder."""
    config, database = tmp_path / "holdfast.yaml", tmp_path / ".hector" / "deep" / "hector.db"
    config.write_text(
        f"databases: {{main: {{driver: sqlite, path: '{database}'}}}}\nstorage: {{sessions: {{backend: sql}}}}\n"
    )
    with Process("", config=config) as server:
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as http:
            assert (await http.post("/v1/sessions", json={"id": "s"})).status_code == 201
    assert database.exists()
