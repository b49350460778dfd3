"""`holdfast serve` as a process: it starts, says what it is, takes a new configuration, ends on a signal, and keeps what it has."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

import holdfast
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.behaviour.kit.seams import Process, run_command
from tests.behaviour.kit.world import model_config

COUNT = {"messages": [{"role": "user", "content": "Count."}], "session_id": "s"}


def serve(folder: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `holdfast serve` where it cannot start."""
    command = [sys.executable, "-m", "holdfast", "serve", *options]
    given = {"HOLDFAST_STORE": f"sqlite:///{folder}/s.db", "HOLDFAST_PORT": "0", **env}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False, timeout=60)


def write(folder: Path, *blocks: str) -> Path:
    (folder / "holdfast.yaml").write_text("\n".join(blocks))
    return folder / "holdfast.yaml"


@pytest.mark.parametrize(
    ("options", "env", "config", "words"),
    [
        ((), {"HOLDFAST_HOST": "0.0.0.0"}, "", "not loopback"),
        (("--port", "70000"), {}, "", "70000"),
        ((), {"HOLDFAST_STORE": "postgres:/x"}, "", "scheme"),
        (
            (),
            {"HOLDFAST_STORE": "postgresql://nobody@127.0.0.1:1/x"},
            "",
            "127.0.0.1",
        ),
        ((), {}, "gatway: {}\nllms: {a: {max_tokens: many}}", "holdfast.yaml:2: llms.a.max_tokens"),
        (("--config", "gone.yaml"), {}, "", "gone.yaml"),
    ],
)
def test_a_server_that_cannot_start_says_why_and_creates_nothing(
    tmp_path: Path, options: tuple[str, ...], env: dict[str, str], config: str, words: str
) -> None:
    write(tmp_path, config)
    done = serve(tmp_path, *options, **env)
    assert done.returncode in (1, 2)
    assert words in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s.db").exists()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = serve(tmp_path, "--port", port)
    assert done.returncode == 1
    assert port in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_server_and_keeps_what_was_said(tmp_path: Path, sent: signal.Signals) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with ScriptedUpstream([Reply(text="one two three", hold=Gate(), hold_after=3)]) as upstream:
        config = write(tmp_path, model_config(upstream.url), "gateway: {shutdown_grace: 0}")
        with Process(store, config=config) as server:
            body = {**COUNT, "stream": True}
            async with (
                httpx2.AsyncClient(trust_env=False) as client,
                client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response,
            ):
                lines = response.aiter_lines()
                async for line in lines:
                    if "two" in line:
                        break
                code = await asyncio.to_thread(server.stop, sent)
                rest = [line async for line in lines if line]
        assert (code, [line for line in server.log if "Traceback" in line]) == (0, [])
        assert [json.loads(line[6:])["error"]["code"] for line in rest[:-1] if "error" in line] == ["server_ending"]
        assert rest[-1] == "data: [DONE]"
    shown = json.loads((await run_command(["sessions", "show", "s", "--store", store, "--json"])).out)
    assert [row["content"] for row in shown["messages"]] == ["Count.", "one two "]
    assert shown["messages"][1]["metadata"]["interrupted"] is True
    verified = await run_command(["sessions", "verify", "s", "--store", store])
    assert verified.out == "Verified 1 session, 2 entries: no differences.\n"


@pytest.mark.parametrize(("waits", "status"), [(True, 200), (False, 503)])
async def test_a_running_turn_may_end_in_the_grace_period_and_a_second_signal_skips_it(
    tmp_path: Path, waits: bool, status: int
) -> None:
    gate = Gate()
    async with ScriptedUpstream([Reply(text="one two", hold=gate)]) as upstream:
        config = write(tmp_path, model_config(upstream.url), "gateway: {shutdown_grace: 1d}")
        with Process(f"sqlite:///{tmp_path}/s.db", config=config) as server:
            async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
                asked = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=COUNT))
                await upstream.until(lambda: upstream.requests)
                server.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(server.until, "again to stop now")
                if waits:
                    gate.open()
                else:
                    server.process.send_signal(signal.SIGTERM)
                assert (await asked).status_code == status
            assert await asyncio.to_thread(server.process.wait, 30) == 0


async def test_a_killed_server_has_lost_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    with Process(store) as server:
        async with httpx2.AsyncClient(trust_env=False, base_url=server.url) as client:
            await client.post("/v1/sessions", json={"id": "s"})
            for number in range(20):
                body = {"messages": [{"role": "user", "content": f"Message {number}"}]}
                assert (await client.post("/v1/sessions/s/messages", json=body)).status_code == 200
        await asyncio.to_thread(server.kill)
    async with holdfast.open(store) as hf:
        session = await hf.session("s")
        assert [one["content"] for one in await session.messages()] == [f"Message {n}" for n in range(20)]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ("agents: {a: {instruction: Be B.}}", "changed", ["agents.a.instruction"]),
        ("gateway: {max_body: 1KiB}", "changed", ["gateway.max_body"]),
        ("sessions: {max_sessions: 3}", "kept", ["sessions.max_sessions"]),
        ("gatway: {}", "problems", 1),
    ],
)
async def test_a_signal_reloads_what_can_change_and_names_the_rest(
    tmp_path: Path, change: str, field: str, value: Any
) -> None:
    first = "agents: {a: {instruction: Be A.}}"
    async with ScriptedUpstream(["One.", "Two."]) as upstream:
        config = write(tmp_path, model_config(upstream.url), first)
        with Process(f"sqlite:///{tmp_path}/s.db", config=config) as server:
            write(tmp_path, model_config(upstream.url), *([first] if "agents" not in change else []), change)
            server.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(server.until, f'"{field}": [')
            async with httpx2.AsyncClient(trust_env=False, base_url=server.url, timeout=60) as client:
                answer = await client.post("/v1/chat/completions", json={**COUNT, "model": "a"})
                assert answer.status_code == 200
            told = [json.loads(line) for line in server.log if line.startswith("{") and f'"{field}": [' in line][-1]
            assert (len(told[field]) if isinstance(value, int) else told[field]) == value
            assert await asyncio.to_thread(server.stop, signal.SIGTERM) == 0
        says = "Be B." if "Be B." in change else "Be A."
        assert upstream.requests[0].body["messages"][0]["content"] == says


@pytest.mark.parametrize(
    ("trusted", "forwarded", "is_local", "is_secure"),
    [
        ("[127.0.0.1]", None, True, False),
        ("[127.0.0.1]", "192.0.2.1", False, False),
        ("[127.0.0.1]", "127.0.0.1, 192.0.2.1", False, False),  # the client has forged the first address
        ("[127.0.0.1, 10.0.0.0/8]", "127.0.0.1, 192.0.2.1, 10.1.2.3", False, False),
        ("[127.0.0.1, 192.0.2.0/24]", "127.0.0.1, 192.0.2.1", True, True),
        ("[192.0.2.1]", "192.0.2.1", True, False),
        ("[]", "192.0.2.1", True, False),
    ],
)
async def test_only_trusted_proxies_name_the_address_and_scheme_of_a_client(
    tmp_path: Path, trusted: str, forwarded: str | None, is_local: bool, is_secure: bool
) -> None:
    """Pages without a key are for this machine only. A request that any proxy forwarded is not that of its only user."""
    named = {} if forwarded is None else {"x-forwarded-for": forwarded, "x-forwarded-proto": "https"}
    headers = {**named, "accept": "text/html"}
    async with ScriptedUpstream(["ok"]) as upstream:
        config = write(tmp_path, model_config(upstream.url), f"gateway: {{trusted_proxies: {trusted}}}")
        with Process(f"sqlite:///{tmp_path}/s.db", config=config) as server:
            async with httpx2.AsyncClient(trust_env=False, base_url=server.url, headers=headers) as client:
                told = (await client.post("/v1/chat/completions", json={"messages": COUNT["messages"]})).json()
                page = await client.get("/")
                left = await client.post("/inspect/sign-out")
    assert told["session"]["reconciled"] == ("unplaced" if forwarded else "new")
    assert page.status_code == (200 if is_local else 403)
    assert ("Secure" in left.headers.get("set-cookie", "")) is is_secure
