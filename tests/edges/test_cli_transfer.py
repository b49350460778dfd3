"""`holdfast sessions export | import`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.errors import StoreUnavailable, TooLarge
from holdfast.sessions import transfer

pytestmark = pytest.mark.usefixtures("in_empty_folder")

MESSAGES = [{"role": "system", "content": "Help."}, {"role": "user", "content": "Hi"}]
WHOLE: dict[str, Any] = {
    "id": "support-42",
    "user_id": "ada",
    "agent": "helper",
    "ttl": 60_000,
    "state": {"step": 3},
    "metadata": {"channel": "web"},
    "system_messages": [{"role": "system", "content": "Help."}],
    "messages": [
        {"role": "user", "content": "Hi\x9b", "timestamp": 1_000, "turn_id": 2, "pinned": True, "importance": 0.5},
        {"role": "assistant", "content": "Hello", "agent": "helper", "metadata": {"source": "llm"}, "strange": [1]},
    ],
}


def sessions(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["sessions", *args], prog_name="holdfast", **more)


def lines(*given: object) -> str:
    return "\n".join(one if isinstance(one, str) else json.dumps(one) for one in given) + "\n"


def store(*given: object, args: tuple[str, ...] = ()) -> None:
    result = sessions("import", "-", *args, input=lines(*given))
    assert result.exit_code == 0, result.stderr


def export_sessions(*args: str) -> dict[tuple[str, str], dict[str, Any]]:
    result = sessions("export", *(args or ("--all",)))
    assert result.exit_code == 0, result.stderr
    told = [json.loads(line) for line in result.stdout.splitlines()]
    return {(one["user_id"], one["id"]): one for one in told}


# -- refused imports -------------------------------------------------------------


def test_gathered_messages_out_of_order_are_named_by_session() -> None:
    given = [{"session_id": "x", "role": "user", "content": "a", "turn_id": turn} for turn in (3, 1)]
    result = sessions("import", "-", input=lines(*given))
    assert result.exit_code == 1
    assert "stdin:1: session 'x': messages[1].turn_id is 1" in result.stderr


def test_session_that_cannot_be_stored_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported with its line, and the command exits with 1."""
    real = transfer.import_session

    async def fails(engine: Any, ref: Any, read: Any, **more: Any) -> Any:
        if ref.id == "b":
            raise TooLarge("too much of it", param="messages")
        return await real(engine, ref, read, **more)

    given = lines(*({"id": name, "messages": MESSAGES} for name in "abc"))
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.sessions.transfer.import_session", fails)
        result = sessions("import", "-", input=given)
    assert (result.exit_code, result.stdout) == (1, "Imported 2 sessions, 2 messages.\n")
    assert result.stderr == "stdin:2: too much of it\nError: 1 session could not be imported\n"
    assert set(export_sessions()) == {("default", "a"), ("default", "c")}
    result = sessions("import", "-", input=given)
    assert (result.exit_code, result.stdout) == (0, "Imported 1 session, 1 message; 2 already stored.\n")


def test_failing_store_stops_the_import_and_the_next_run_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how many sessions were imported before; existing ones are not written again."""
    real = transfer.import_session

    async def full(engine: Any, ref: Any, read: Any, **more: Any) -> Any:
        if ref.id == "b":
            raise StoreUnavailable("the disk is full")
        return await real(engine, ref, read, **more)

    Path("f.jsonl").write_text(lines(*({"id": name, "messages": MESSAGES} for name in "abc")))
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.sessions.transfer.import_session", full)
        result = sessions("import", "f.jsonl")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "f.jsonl:2: the disk is full\n1 session imported before it" in result.stderr
    before = export_sessions()["default", "a"]
    assert sessions("import", "f.jsonl").stdout == "Imported 2 sessions, 2 messages; 1 already stored.\n"
    assert export_sessions()["default", "a"] == before


def test_too_long_line_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a small compressed file unpacks to too much."""
    monkeypatch.setattr("holdfast.cli.jsonl.IMPORT_LINE_BYTES", 1_000)
    fits = json.dumps({"id": "a", "messages": []})
    Path("f.jsonl").write_text(f"{fits}\n" + " " * 5_000 + fits)
    with gzip.open("f.jsonl.gz", "wb") as file:
        file.write(Path("f.jsonl").read_bytes())
    for name in ("f.jsonl", "f.jsonl.gz"):
        result = sessions("import", name)
        assert result.exit_code == 1
        assert f"{name}:2: the line is longer than 1000 bytes" in result.stderr
    many = lines(*({"session_id": str(at), **MESSAGES[1]} for at in range(30)))
    assert "at most 1000 bytes in total" in sessions("import", "-", input=many).stderr
    assert export_sessions() == {}


def test_line_with_too_many_values_is_refused_before_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such values take a few bytes each, but hundreds in memory."""
    monkeypatch.setattr("holdfast.cli.jsonl.IMPORT_VALUES", 100)
    result = sessions("import", "-", input='{"messages": [' + "[]," * 200 + "[]]}")
    assert "stdin:1: the line has more than 100 values" in result.stderr


def test_truncated_gzip_file_is_reported() -> None:
    """Nothing is written."""
    with gzip.open("f.jsonl.gz", "wb") as file:
        file.write(lines(*({"id": f"s{at}", "messages": MESSAGES} for at in range(200))).encode())
    Path("f.jsonl.gz").write_bytes(Path("f.jsonl.gz").read_bytes()[:-20])
    result = sessions("import", "f.jsonl.gz")
    assert result.exit_code == 1
    assert "f.jsonl.gz: the gzip data is incomplete or damaged" in result.stderr
    assert export_sessions() == {}


# -- export ----------------------------------------------------------------------


def test_export_warns_about_sessions_too_large_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written all the same."""
    store(WHOLE)
    monkeypatch.setattr("holdfast.limits.IMPORT_LINE_BYTES", 100)
    result = sessions("export", "--all")
    assert "Warning: support-42 has " in result.stderr
    assert json.loads(result.stdout)["id"] == "support-42"


def test_export_to_a_file_replaces_it_only_when_done(tmp_path: Path) -> None:
    store(WHOLE)
    kept = Path("out.jsonl")
    kept.write_text("precious")
    assert sessions("export", "nope", "--output", "out.jsonl").exit_code == 1
    assert kept.read_text() == "precious"
    result = sessions("export", "support-42", "--output", "out.jsonl")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "Exported 1 session to out.jsonl.\n"
    assert json.loads(kept.read_text())["id"] == "support-42"
    assert sessions("export", "--all", "--output", "no/such/folder.jsonl").stderr.startswith(
        "Error: no/such/folder.jsonl: "
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_failed_export_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store(WHOLE)
    Path("out.jsonl").write_text("precious")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.cli.transfer.json_line", fail)
    result = sessions("export", "--all", "--output", "out.jsonl")
    assert (result.exit_code, result.stderr) == (1, "Error: No space left on device\n")
    assert Path("out.jsonl").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
