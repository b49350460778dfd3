"""Tools that run in the gateway, with the official client and on the wire: streamed and not, mixed, interrupted, and
killed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.domain.session import SessionRef
from holdfast.stores import open_store
from holdfast.stores.verify import verify
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.edges.server import TOOL_SERVER, Process, config_text

HI: list[Any] = [{"role": "user", "content": "Where is order 7?"}]
SESSION = {"session_id": "s"}


# -- disconnecting clients and killed servers ------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
async def test_server_killed_between_rounds_does_not_run_the_tool_again(tmp_path: Path, keyed: bool) -> None:
    """The result is durable, and the retry continues after it."""
    gate = Gate()
    held = Reply(text="never said", hold=gate)
    script: list[Reply | str] = [Reply(tool_calls=[("count", {})]), held, "You are number 1."]
    headers = {"idempotency-key": "k"} if keyed else {}
    body = {"messages": HI, **SESSION}
    url = f"sqlite:///{tmp_path}/s.db"
    async with ScriptedUpstream(script) as upstream:
        config = tmp_path / "holdfast.yaml"
        config.write_text(config_text(upstream.url), encoding="utf-8")

        def server() -> Process:
            env = {"TOOL_SERVER_COUNTS": str(tmp_path / "counts.db")}
            return Process(url, config=config, env=env, program=TOOL_SERVER)

        with server() as first:
            async with httpx2.AsyncClient(base_url=first.url, trust_env=False, timeout=60) as client:
                task = asyncio.create_task(client.post("/v1/chat/completions", json=body, headers=headers))
                await upstream.until(lambda: len(upstream.requests) == 2)
                await asyncio.to_thread(first.kill)
                (failed,) = await asyncio.gather(task, return_exceptions=True)
                assert isinstance(failed, httpx2.TransportError)
        gate.open()
        with server() as second:
            async with httpx2.AsyncClient(base_url=second.url, trust_env=False, timeout=60) as client:
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "You are number 1."
        sent = upstream.requests[2].body["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
        assert sent[2]["content"] == "1"
    with sqlite3.connect(tmp_path / "counts.db") as counts:
        assert counts.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    store = await open_store(url, tenant="default")
    try:
        assert await verify(store, SessionRef("default", "s")) == 4
    finally:
        await store.close()
