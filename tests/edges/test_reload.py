"""SIGHUP: safe settings apply to turns that begin afterwards, others are reported, and a file with mistakes changes
nothing.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from holdfast.config.loader import load
from holdfast.server.config_reload import FIXED_GATEWAY, SAFE, list_differences, merge_configs
from holdfast.testing import Gate, Reply, ScriptedUpstream
from scripts.configuration_keys import list_rows
from tests.edges.server import Process

SECRET = "sk-not-to-be-seen-0123456789"
READ = "reloaded the configuration"


def make_config(
    upstream: ScriptedUpstream, *, says: str = "Be A.", model: str = "m1", more: str = "", **fields: Any
) -> str:
    """Return a configuration with an agent `a`, whose model is at `upstream`. `fields` are more fields of the model."""
    llm = {"model": model, "base_url": upstream.url, "api_key": SECRET, **fields}
    agent = {"instruction": says, "tools": ["load_artifact"]}
    return f"llms: {json.dumps({'default': llm})}\nagents: {json.dumps({'a': agent})}\n{more}\n"


def make_request(session: str, text: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return a request to the agent."""
    return {"model": "a", "session_id": session, "messages": [{"role": "user", "content": text}], **fields}


class ReloadableServer:
    """A server in its own process, with its configuration file."""

    def __init__(self, server: Process, file: Path, client: httpx2.AsyncClient) -> None:
        self.server = server
        self.client = client
        self._file = file

    async def reload(self, text: str, awaited: str = READ) -> dict[str, Any]:
        """Change the file and send SIGHUP; return the log line with the result."""
        self._file.write_text(text)
        before = len(self.server.log)
        self.server.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(self.server.until, awaited, before)
        told: dict[str, Any] = next(json.loads(line) for line in self.server.log[before:] if awaited in line)
        return told

    async def post(self, body: dict[str, Any]) -> httpx2.Response:
        """Send a turn without streaming."""
        return await self.client.post(f"{self.server.url}/v1/chat/completions", json=body)


@asynccontextmanager
async def running_server(folder: Path, text: str, **env: str) -> AsyncIterator[ReloadableServer]:
    """Run `holdfast serve` with that configuration."""
    file = folder / "holdfast.yaml"
    file.write_text(text)
    with Process(f"sqlite:///{folder}/s.db", config=file, env=env) as server:
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            yield ReloadableServer(server, file, client)
        assert await asyncio.to_thread(server.stop, signal.SIGTERM) == 0
        assert [line for line in server.log if "Traceback" in line or SECRET in line] == []


async def test_running_turns_keep_their_settings_and_later_ones_get_new_ones(tmp_path: Path) -> None:
    """Another instruction and another model at another URL, while a reply is streamed from the old one."""
    gate = Gate()
    async with (
        ScriptedUpstream([Reply(text="one two three", hold=gate, hold_after=2)]) as first,
        ScriptedUpstream(["second", "third"]) as second,
        running_server(tmp_path, make_config(first)) as served,
    ):
        url = f"{served.server.url}/v1/chat/completions"
        async with served.client.stream("POST", url, json=make_request("s", stream=True)) as response:
            lines = response.aiter_lines()
            async for line in lines:
                if "one" in line:
                    break
            told = await served.reload(make_config(second, says="Be B.", model="m2"))
            assert (await served.post(make_request("t"))).json()["choices"][0]["message"]["content"] == "second"
            gate.open()
            rest = "".join([line async for line in lines])
        changed: dict[str, Any] = {"headers": {"x-team": "red"}, "more": "gateway: {max_tool_rounds: 0}"}
        await served.reload(make_config(second, says="Be B.", model="m2", **changed))
        assert (await served.post(make_request("t"))).json()["choices"][0]["message"]["content"] == "third"
    assert ["x-team" in one.headers for one in second.requests] == [False, True]
    assert ["tools" in one.body for one in second.requests] == [True, False]
    assert told["changed"] == ["llms.default.model", "llms.default.base_url", "agents.a.instruction"]
    assert "three" in rest
    old, new = first.requests[0].body, second.requests[0].body
    assert (old["model"], old["messages"][0]["content"]) == ("m1", "Be A.")
    assert (new["model"], new["messages"][0]["content"]) == ("m2", "Be B.")


async def test_turn_fails_over_to_the_fallback_it_began_with(tmp_path: Path) -> None:
    """The configured fallback changes before it is needed."""
    gate = Gate()
    down = Reply(status=503, error="down", headers={"retry-after": "60"}, hold=gate)

    def files(model: str) -> str:
        llms = {
            "default": {"model": "m", "base_url": first.url, "api_key": SECRET, "fallbacks": ["b"]},
            "b": {"model": model, "base_url": second.url, "api_key": SECRET},
        }
        return f"llms: {json.dumps(llms)}\nagents: {{a: {{}}}}\n"

    async with ScriptedUpstream([down]) as first, ScriptedUpstream(["b here"] * 2) as second:
        async with running_server(tmp_path, files("old-b")) as served:
            asked = asyncio.create_task(served.post(make_request("s")))
            await first.until(lambda: first.requests)
            await served.reload(files("new-b"))
            gate.open()
            assert (await asked).json()["choices"][0]["message"]["content"] == "b here"
            assert (await served.post(make_request("t"))).status_code == 200
        assert len(first.requests) == 1  # what is known of its health outlives the change
        assert second.requests[0].body["model"] == "old-b"


def test_merge_takes_safe_keys_from_the_new_file_only() -> None:
    old = load("{gateway: {port: 1, max_body: 1MiB}, auth: {rate: 5}, context: {budget: 7}}", env={})
    new = load(
        "{gateway: {port: 2, max_body: 2MiB}, auth: {rate: 6}, agents: {b: {}}, llms: {x: {}}}",
        env={"OPENAI_API_KEY": "k"},
    )
    both = merge_configs(old, new)
    assert set(list_differences(old, both)) == {"gateway.max_body", "agents.b", "llms.x", "llms", "context"}
    assert set(list_differences(both, new)) == {"gateway.port", "auth.rate"}
    known = {row.key for row in list_rows()}
    assert all(any(key.startswith(section) for key in known) for section in SAFE)
    assert all(any(key.startswith(f"gateway.{name}") for key in known) for name in FIXED_GATEWAY)
