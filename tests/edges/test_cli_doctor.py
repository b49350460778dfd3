"""`holdfast doctor`: its findings, remedies and exit code; it changes no files and reveals no secrets."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.cli.doctor import machine, store, upstream
from holdfast.config.loader import load

pytestmark = pytest.mark.usefixtures("in_empty_folder")

KEY = "sk-secret-4471"


def doctor(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["doctor", *args], prog_name="holdfast", **more)


def run_checks(*args: str, **more: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the findings by check."""
    result = doctor(*args, "--json", **more)
    told = json.loads(result.stdout)
    assert told["ok"] is (result.exit_code == 0)
    by_check: dict[str, list[dict[str, Any]]] = {}
    for finding in told["findings"]:
        assert list(finding) == ["check", "level", "message", "remedy"]
        assert (finding["remedy"] is None) is (finding["level"] == "ok"), "whoever reads it is told what to do"
        by_check.setdefault(finding["check"], []).append(finding)
    return by_check


def only_finding(findings: list[dict[str, Any]]) -> tuple[str, str]:
    (one,) = findings
    return one["level"], one["message"]


def make_store() -> None:
    assert CliRunner().invoke(commands, ["chat", "--session", "s"], input="Hi\n").exit_code == 0


# -- the store ---------------------------------------------------------------------


HOLDER = """
import sqlite3, sys
db = sqlite3.connect("holdfast.db", isolation_level=None)
db.execute("PRAGMA locking_mode=EXCLUSIVE")
db.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


def test_locked_database_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    make_store()
    monkeypatch.setattr(store, "TIMEOUT_SECONDS", 0.05)
    # A separate program, because a process does not lock itself out.
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        level, message = only_finding(run_checks()["store"])
        holder.communicate(b"", timeout=60)
    assert level == "fail"
    assert "locked by another program" in message


def test_session_from_the_future_means_a_wrong_clock() -> None:
    session = {"id": "s", "messages": [{"role": "user", "content": "x", "timestamp": 1}]}
    made = CliRunner().invoke(commands, ["sessions", "import", "-"], input=json.dumps(session))
    assert made.exit_code == 0
    with sqlite3.connect("holdfast.db") as db:
        db.execute("UPDATE sessions SET updated_at = 4000000000000")
    db.close()
    clocks = run_checks()["clock"]
    assert [one["level"] for one in clocks] == ["ok", "warn"]
    assert "ahead of the clock" in clocks[1]["message"]


# -- the machine ---------------------------------------------------------------------


def test_missing_or_outdated_library_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "click":
            raise metadata.PackageNotFoundError(name)
        return "0.1rc1" if name == "anyio" else "999"

    monkeypatch.setattr(metadata, "version", version)
    told = machine.check_libraries()
    assert told.level == "fail"
    assert "click is missing" in told.message
    assert "anyio 0.1rc1 is older than 4.10" in told.message


# -- the models ------------------------------------------------------------------------


def serve_one_answer(status: int, headers: dict[str, str] | None = None) -> Any:
    """Start a server that answers one request with a status; its requests are collected in `requests`."""
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, self.headers.get("authorization")))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    requests: list[tuple[str, str | None]] = []
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    return server, requests


@pytest.mark.parametrize(
    ("status", "key", "level", "said"),
    [
        (200, KEY, "ok", "with a key; profile generic) answers"),
        (200, None, "ok", "without a key; profile generic) answers"),
        (401, KEY, "fail", "rejects the key (401)"),
        (401, None, "fail", "requires a key (401)"),
        (404, KEY, "warn", "has no /models"),
        (503, KEY, "warn", "answers 503"),
        (302, KEY, "warn", "redirects (302)"),
    ],
)
def test_upstream_answers_have_levels(status: int, key: str | None, level: str, said: str) -> None:
    server, requests = serve_one_answer(status, {"location": "/elsewhere"} if status == 302 else None)
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1/"
        (told,) = upstream.check_upstreams(
            load("", env={"OPENAI_BASE_URL": url, **({"OPENAI_API_KEY": key} if key else {})})
        )
    finally:
        server.shutdown()
        server.server_close()
    assert told.level == level
    assert said in told.message
    assert KEY not in f"{told}"
    assert requests == [("/v1/models", key and f"Bearer {key}")]


def test_fallback_models_are_checked_and_named() -> None:
    server, requests = serve_one_answer(200)
    try:
        place = f"base_url: 'http://127.0.0.1:{server.server_port}/v1'"
        down = "base_url: 'http://127.0.0.1:9/v1', fallbacks: [b, qwen3]"
        config = load(f"llms: {{a: {{{down}}}, b: {{{place}}}, default: {{{place}, api_key: {KEY}}}}}", env={})
        told = [one.message for one in upstream.check_upstreams(config)]
    finally:
        server.shutdown()
        server.server_close()
    assert len(requests) == 2
    assert sum("(b for a; without a key; profile generic) answers" in message for message in told) == 1
    assert sum("(default, qwen3 for a; with a key; profile generic) answers" in message for message in told) == 1
