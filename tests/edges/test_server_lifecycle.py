"""The server's startup, allowed hosts and origins, logs, metrics and shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.server.logs import JsonLines
from holdfast.testing import Reply
from tests.edges.server import CLIENT_KEY, PROGRAM, UPSTREAM_KEY, Process, gateway
from tests.waits import until

SECRET = "the-secret-of-the-user"


# -- request ids and logs ----------------------------------------------------


async def test_log_line_has_request_and_session(caplog: pytest.LogCaptureFixture) -> None:
    """One JSON object per request with its id and session; no message, reply or key appears."""
    caplog.set_level(logging.DEBUG, "holdfast")
    caplog.handler.setFormatter(JsonLines())
    reply = Reply(text=f"reply {SECRET}", usage={"prompt_tokens": 1, "completion_tokens": 1})
    async with gateway([reply, Reply(status=500, error=SECRET), Reply(text=SECRET * 3, cut_after=2)]) as (served, _):
        headers = {"Authorization": f"Bearer {CLIENT_KEY}", "X-Request-Id": "r-1"}
        await served.chat(f"say {SECRET}", "käse/1", headers=headers)
        await served.http.get("/v1/sessions/k%C3%A4se%2F1")
        await served.chat(SECRET)
        await served.chat(SECRET)
        await served.http.post("/v1/sessions", content=SECRET.encode())
        await served.http.patch("/v1/sessions/s", json={SECRET: 1})
        lines = [json.loads(line) for line in caplog.text.splitlines()]
    chat, export, *_ = [line for line in lines if line["message"] == "request"]
    assert (chat["request_id"], chat["session_id"]) == ("r-1", "käse/1")
    assert (chat["method"], chat["route"], chat["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (export["session_id"], export["route"]) == ("käse/1", "/v1/sessions/{session_id}")
    assert len({line["request_id"] for line in lines if line["message"] == "request"}) == 6
    for secret in (SECRET, CLIENT_KEY, UPSTREAM_KEY):
        assert secret not in caplog.text


# -- the process -------------------------------------------------------------


async def test_shutdown_during_startup_leaves_no_process_behind(tmp_path: Path) -> None:
    """The tool server that startup waits for never answers and would not end by itself."""
    config, place = tmp_path / "holdfast.yaml", tmp_path / "pid"
    script = f"import os, time; open({str(place)!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(600)"
    config.write_text(json.dumps({"mcp_servers": {"mute": {"command": sys.executable, "args": ["-c", script]}}}))
    command = [sys.executable, *PROGRAM, "--port", "0", "--store", "sqlite://:memory:", "--config", str(config)]
    server = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    async with asyncio.timeout(30):
        await until(lambda: place.exists() and place.read_text().endswith("."))
        server.send_signal(signal.SIGTERM)
        _, told = await server.communicate()
    assert (server.returncode, b"Traceback" in told) == (0, False)
    with pytest.raises(ProcessLookupError):
        os.kill(int(place.read_text().rstrip(".")), 0)


WATCHED = """
import atexit, gc, json, sys
def tell(when): print(json.dumps({when: [gc.get_freeze_count(), *gc.get_threshold()]}), file=sys.stderr)
import holdfast, holdfast.server.run
from holdfast.cli import main
tell("loaded")
atexit.register(tell, "served")
main()
"""


def test_serve_freezes_loaded_objects_for_the_garbage_collector(tmp_path: Path) -> None:
    """Only `serve` does this, since it owns its process."""
    with Process(f"sqlite:///{tmp_path}/s.db", program=("-c", WATCHED, "serve")) as server:
        assert server.stop(signal.SIGTERM) == 0
    loaded, served = (json.loads(line) for line in server.log if line.startswith(('{"loaded"', '{"served"')))
    asked = [sys.executable, "-c", "import gc, json; print(json.dumps(gc.get_threshold()))"]
    usual = json.loads(
        subprocess.run(asked, capture_output=True, check=True).stdout
    )  # not this process: see conftest.py
    assert tuple(loaded["loaded"]) == (0, *usual)
    frozen, *thresholds = served["served"]
    assert frozen > 10_000
    assert thresholds[0] > usual[0]
