"""The server is killed during its work: everything it acknowledged is stored once and in order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import httpx2

from holdfast.domain.session import SessionRef
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.verify import verify
from tests.edges.server import TOOL_SERVER, Process

ROUNDS = 8
SESSIONS = ("a", "b", "c")
TASKS = 6


class Load:
    """Client tasks that talk until the server is killed, with the messages acknowledged to each, in order."""

    def __init__(self) -> None:
        self.said: dict[tuple[str, str], list[str]] = {}
        self.count = 0

    async def run_against(self, server: Process, round_: int, kill_after: int) -> None:
        """Talk to `server` from all tasks at once; kill it after `kill_after` further acknowledged messages."""
        goal = self.count + kill_after

        async def talk(task: int) -> None:
            session, name = SESSIONS[task % len(SESSIONS)], f"r{round_}t{task}"
            said = self.said.setdefault((session, name), [])
            async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
                for at in range(10_000):
                    said += await turn(client, session, f"{name}.{at}", chat=at % 3 == 0)
                    self.count += 1
                    if self.count >= goal:
                        # The others have requests in progress at arbitrary points.
                        server.process.kill()

        done = await asyncio.gather(*(talk(task) for task in range(TASKS)), return_exceptions=True)
        assert all(isinstance(result, httpx2.TransportError) for result in done), done


async def turn(client: httpx2.AsyncClient, session: str, text: str, *, chat: bool) -> list[str]:
    """Send one request, a turn with the offline model or an append; return the acknowledged text."""
    messages = [{"role": "user", "content": text}]
    if chat:
        response = await client.post("/v1/chat/completions", json={"messages": messages, "session_id": session})
        assert response.status_code == 200, response.text
        return [text]
    response = await client.post(f"/v1/sessions/{session}/messages", json={"messages": messages})
    assert response.status_code == 200, response.text
    return [entry["content"] for entry in response.json()["data"]]


async def test_acknowledged_messages_survive_kill_9(tmp_path: Path) -> None:
    """In each round the server is killed under load; each acknowledged message is stored once, in order, and
    `verify()` passes.
    """
    url = f"sqlite:///{tmp_path}/s.db"
    chance = random.Random(20240515)
    load = Load()
    store = await open_store(url, tenant="default")
    await store.close()
    for round_ in range(ROUNDS):
        with Process(url, program=TOOL_SERVER, env={"TOOL_SERVER_LEASE": "1500"}) as server:
            if round_ == 0:
                async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
                    for name in SESSIONS:
                        assert (await client.post("/v1/sessions", json={"id": name})).status_code == 201
            await load.run_against(server, round_, chance.randint(1, 60))
        store = await open_store(url, tenant="default")
        for name in SESSIONS:
            await check_log(store, name, load)
        await store.close()
    assert load.count > ROUNDS * TASKS


async def check_log(store: Store, name: str, load: Load) -> None:
    """Compare the log of a session with its acknowledged messages."""
    ref = SessionRef("default", name)
    entries = await store.entries(ref, retired=True)
    texts = [str(entry.message.content) for entry in entries if entry.message.role == "user"]
    assert max(Counter(texts).values(), default=0) <= 1
    place = {text: at for at, text in enumerate(texts)}
    for (session, _), said in load.said.items():
        if session == name:
            places = [place[text] for text in said]
            assert places == sorted(places)
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    assert await verify(store, ref) == len(entries)
