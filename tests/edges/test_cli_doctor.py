"""`holdfast doctor`: its findings, remedies and exit code; it changes no files and reveals no secrets."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.cli.doctor import machine, store, upstream
from holdfast.config import load, load_default
from holdfast.stores.sql.migrations import Migration, load_migrations
from holdfast.tokens import DATA
from holdfast.tools.python.process import Sandbox, detect_sandbox

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


# -- a healthy setup ---------------------------------------------------------------


def test_index_is_reported_and_not_created() -> None:
    make_store()
    level, message = only_finding(run_checks()["index"])
    assert (level, "all sessions are indexed" in message) == ("ok", True)
    for file in Path().glob("*.index.db*"):
        file.unlink()
    assert "does not exist yet" in only_finding(run_checks()["index"])[1]
    assert not list(Path().glob("*.index.db*"))
    Path("holdfast.index.db").write_bytes(b"no database" * 1000)
    assert only_finding(run_checks()["index"])[0] == "fail"
    Path("holdfast.yaml").write_text("storage: {index: {enabled: false}}", encoding="utf-8")
    assert "disabled" in only_finding(run_checks()["index"])[1]


def test_sandbox_is_reported() -> None:
    """With the tool `python` on or off; a setting that keeps the server from starting is a failure."""
    level, message = only_finding(run_checks()["sandbox"])
    assert (level, message.partition(";")[0]) == ("ok", "the tool python is disabled")
    assert "Landlock" in message
    Path("holdfast.yaml").write_text("python: {enabled: true, interpreter: /no/python}", encoding="utf-8")
    level, message = only_finding(run_checks()["sandbox"])
    assert level == "fail"
    assert "python.interpreter" in message or "cannot sandbox code" in message
    Path("holdfast.yaml").write_text("python: {enabled: true}", encoding="utf-8")
    assert only_finding(run_checks()["sandbox"])[0] == ("fail" if detect_sandbox().missing else "ok")


@pytest.mark.parametrize(("unsandboxed", "level"), [("true", "warn"), ("false", "fail")])
def test_missing_sandbox_is_reported(monkeypatch: pytest.MonkeyPatch, unsandboxed: str, level: str) -> None:
    """With the consequences under the given configuration."""
    for place in ("holdfast.tools.python.process", "holdfast.tools.python.kernels"):
        monkeypatch.setattr(f"{place}.detect_sandbox", lambda: Sandbox(limits=True))
    Path("holdfast.yaml").write_text(f"python: {{enabled: true, unsandboxed: {unsandboxed}}}", encoding="utf-8")
    told = only_finding(run_checks()["sandbox"])
    assert told[0] == level
    assert "no Landlock" in told[1]
    assert "no seccomp" in told[1]


def test_text_output_shows_remedies() -> None:
    result = doctor()
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok    python      ")
    at = next(at for at, line in enumerate(lines) if line.startswith("warn  upstream"))
    assert "-> set OPENAI_API_KEY" in lines[at + 1]
    assert lines[-1].endswith(("1 warning", "2 warnings", "3 warnings"))


def test_existing_store_is_opened_and_its_settings_are_reported() -> None:
    make_store()
    told = run_checks()
    assert only_finding(told["store"])[0] == "ok"
    level, message = only_finding(told["durability"])
    assert (level, message.split(":")[0]) == ("ok", "journal_mode WAL, synchronous FULL")


# -- the store ---------------------------------------------------------------------


def test_damaged_database_fails() -> None:
    make_store()
    data = bytearray(Path("holdfast.db").read_bytes())
    data[100:8192] = b"\xff" * (8192 - 100)
    Path("holdfast.db").write_bytes(bytes(data))
    result = doctor()
    assert result.exit_code == 1
    assert "fail  store" in result.stdout
    assert "malformed" in result.stdout
    assert "Traceback" not in result.output


def test_schema_of_a_newer_release_fails() -> None:
    make_store()
    with sqlite3.connect("holdfast.db") as db:
        db.execute("INSERT INTO holdfast_schema VALUES (999, 'later', 'x')")
    db.close()
    level, message = only_finding(run_checks()["store"])
    assert level == "fail"
    assert "made by a newer release" in message


def test_pending_changes_of_the_schema_are_reported_and_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the database nor in its index. A file without tables stays empty."""
    make_store()
    assert CliRunner().invoke(commands, ["index", "rebuild"]).exit_code == 0
    later = Migration(2, "later", "CREATE TABLE later (a INTEGER) STRICT", "x")
    known = load_migrations("sqlite")
    monkeypatch.setattr("holdfast.stores.sqlite_connection.load_migrations", lambda _: (*known, later))
    before = {name: Path(name).read_bytes() for name in ("holdfast.db", "holdfast.index.db")}
    told = run_checks()
    level, message = only_finding(told["store"])
    assert (level, "pending changes of the schema: 2 (later)" in message) == ("warn", True)
    assert "index" not in told
    assert {name: Path(name).read_bytes() for name in before} == before
    monkeypatch.undo()
    Path("empty.db").touch()
    level, message = only_finding(run_checks("--store", "sqlite:///empty.db")["store"])
    assert (level, message.endswith("empty.db: has no tables yet, created on first use")) == ("ok", True)
    assert Path("empty.db").stat().st_size == 0


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


@pytest.mark.parametrize(
    ("url", "level", "said"),
    [
        ("sqlite://:memory:", "warn", "all sessions are lost"),
        ("sqlite:///no/such/place/chat.db", "warn", "its directory does not exist; the server creates it"),
        ("sqlite:////dev/null/chat.db", "fail", "its directory does not exist and cannot be created in /dev/null"),
        ("sqlite://chat.db", "fail", "is not a store"),
        ("postgresql://ada:secret@127.0.0.1:1/x", "fail", "cannot be reached"),
        ("mysql://ada:secret@127.0.0.1:1/x", "fail", "cannot be reached"),
    ],
)
def test_other_store_urls(url: str, level: str, said: str) -> None:
    told = run_checks("--store", url)
    assert only_finding(told["store"])[0] == level
    assert said in only_finding(told["store"])[1]
    assert "secret" not in json.dumps(told)


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


@pytest.mark.parametrize(
    ("place", "kind"),
    [("/srv/data/chat", "nfs4"), ("/srv/data", "nfs4"), ("/srv/database", "ext4"), ("/srv/my disk/x", "tmpfs")],
)
def test_filesystem_is_that_of_the_nearest_mount(place: str, kind: str, tmp_path: Path) -> None:
    table = "/dev/sda / xfs rw 0 0\n/dev/sda / ext4 rw 0 0\nhost:/x /srv/data nfs4 rw 0 0\nnone /srv/my\\040disk tmpfs rw 0 0\n"
    (tmp_path / "mounts").write_text(table)
    assert store.find_filesystem_type(Path(place), tmp_path / "mounts") == kind
    assert store.find_filesystem_type(Path(place), tmp_path / "none") is None


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


def test_damaged_vocabulary_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "o200k_base.ranks").write_bytes((DATA / "o200k_base.ranks").read_bytes() + b"x")
    monkeypatch.setattr("holdfast.tokens.DATA", tmp_path)
    monkeypatch.setattr("holdfast.tokens.O200K._encoding", None)
    told = machine.check_tokenizer()
    assert told.level == "fail"
    assert "is damaged" in told.message


# -- the configuration -----------------------------------------------------------------


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
        (200, KEY, "ok", "with a key) answers"),
        (200, None, "ok", "without a key) answers"),
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
            load_default({"OPENAI_BASE_URL": url, **({"OPENAI_API_KEY": key} if key else {})})
        )
    finally:
        server.shutdown()
        server.server_close()
    assert told.level == level
    assert said in told.message
    assert KEY not in f"{told}"
    assert requests == [("/v1/models", key and f"Bearer {key}")]


def test_upstream_that_does_not_speak_http_fails() -> None:
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"220 smtp here\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        (told,) = upstream.check_upstreams(
            load_default({"OPENAI_BASE_URL": f"http://127.0.0.1:{listening.getsockname()[1]}/v1"})
        )
        thread.join()
    assert told.level == "fail"
    assert "does not speak HTTP" in told.message


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
    assert sum("(b for a; without a key) answers" in message for message in told) == 1
    assert sum("(default, qwen3 for a; with a key) answers" in message for message in told) == 1


def test_each_upstream_url_is_checked_once() -> None:
    server, requests = serve_one_answer(200)
    try:
        place = f"base_url: 'http://127.0.0.1:{server.server_port}/v1'"
        config = load(f"llms: {{a: {{{place}}}, b: {{{place}}}, c: {{{place}, api_key: {KEY}}}}}", env={})
        told = list(upstream.check_upstreams(config))
    finally:
        server.shutdown()
        server.server_close()
    assert len(requests) == len(told) - sum("default" in one.message and "offline" in one.message for one in told)
    assert sum("(a, b; without a key) answers" in one.message for one in told) == 1
    assert sum("(c; with a key) answers" in one.message for one in told) == 1
