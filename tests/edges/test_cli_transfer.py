"""`holdfast sessions export | import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands

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


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sessions(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["sessions", *args], prog_name="holdfast", **more)


def lines(*given: object) -> str:
    return "\n".join(one if isinstance(one, str) else json.dumps(one) for one in given) + "\n"


def store(*given: object, args: tuple[str, ...] = ()) -> None:
    result = sessions("import", "-", *args, input=lines(*given))
    assert result.exit_code == 0, result.stderr


def exported(*args: str) -> dict[tuple[str, str], dict[str, Any]]:
    result = sessions("export", *(args or ("--all",)))
    assert result.exit_code == 0, result.stderr
    told = [json.loads(line) for line in result.stdout.splitlines()]
    return {(one["user_id"], one["id"]): one for one in told}


# -- round trips ---------------------------------------------------------------


def test_an_export_comes_back_with_all_its_fields() -> None:
    store(WHOLE)
    (first,) = exported().values()
    for key in ("id", "user_id", "agent", "ttl", "state", "metadata", "system_messages"):
        assert first[key] == WHOLE[key]
    for kept, given in zip(first["messages"], WHOLE["messages"], strict=True):
        assert given.items() <= kept.items()
    Path("all.jsonl").write_text(json.dumps(first))
    assert sessions("import", "all.jsonl", "--store", "sqlite:///other.db").exit_code == 0
    (again,) = exported("--all", "--store", "sqlite:///other.db").values()
    changed = {"created_at", "updated_at", "version"}
    assert {key: again[key] for key in again.keys() - changed} == {key: first[key] for key in first.keys() - changed}


def test_every_shape_is_taken() -> None:
    Path("mixed.jsonl").write_text(
        lines(
            {"id": "recording", "messages": MESSAGES},
            MESSAGES,
            "",
            {"session_id": "gathered", **MESSAGES[0]},
            {"session_id": "gathered", "role": "user", "content": "one", "pinned": True},
            {"id": 7, "messages": []},
            {"session_id": "gathered", "role": "user", "content": "two"},
        )
    )
    result = sessions("import", "mixed.jsonl")
    assert result.stdout == "Imported 4 sessions, 4 messages.\n"
    stored = {name: one for (_, name), one in exported().items()}
    assert set(stored) == {"recording", "mixed.jsonl:2", "7", "gathered"}
    assert all(stored[name]["system_messages"] == MESSAGES[:1] for name in ("recording", "mixed.jsonl:2", "gathered"))
    assert [one["content"] for one in stored["gathered"]["messages"]] == ["one", "two"]
    assert stored["gathered"]["messages"][0]["pinned"] is True
    assert all("session_id" not in one for one in stored["gathered"]["messages"])


def test_whose_sessions_they_become() -> None:
    store({"id": "a", "messages": []}, {"id": "b", "user_id": "ada", "messages": []})
    store({"id": "c", "user_id": "ada", "messages": []}, args=("--user", "bob"))
    assert set(exported()) == {("default", "a"), ("ada", "b"), ("bob", "c")}


def test_json_says_what_was_imported() -> None:
    store(WHOLE)
    given = lines(WHOLE, {"id": "new", "messages": MESSAGES})
    result = sessions("import", "-", "--replace", "--json", input=given)
    assert json.loads(result.stdout) == [
        {"id": "support-42", "user_id": "ada", "messages": 2, "replaced": True},
        {"id": "new", "user_id": "default", "messages": 1, "replaced": False},
    ]


# -- import refuses --------------------------------------------------------------


def test_an_id_that_is_taken_is_named_and_nothing_is_written() -> None:
    store(WHOLE)
    given = lines({"id": "new", "messages": MESSAGES}, {**WHOLE, "messages": []})
    result = sessions("import", "-", input=given)
    assert result.exit_code == 1
    assert "'support-42'" in result.stderr
    assert "--replace" in result.stderr
    assert set(exported()) == {("ada", "support-42")}
    assert sessions("import", "-", "--replace", input=given).exit_code == 0
    assert exported()["ada", "support-42"]["messages"] == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{no", "no JSON"),
        ("7", "a line is an object"),
        ({"id": "x"}, "neither messages nor a role"),
        ({"id": "x", "messages": [{"role": "robot", "content": ""}]}, "messages[0].role is 'robot'"),
        ({"session_id": "x", "role": "user"}, "message.content is missing"),
        ({"session_id": "x", "role": "user", "content": "", "pinned": 1}, "message.pinned must be true or false"),
        ({"id": {"a": 1}, "messages": []}, "id must be a string"),
        ({"id": "x" * 600, "messages": []}, "session_id must have 1 to 512 bytes"),
        ({"id": "good", "messages": []}, "stands in f.jsonl:1 already"),
        ('{"id": "x", "messages": [], "state": [' + "[" * 5000, "no JSON"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(bad: object, said: str) -> None:
    Path("f.jsonl").write_text(lines({"id": "good", "messages": MESSAGES}, bad))
    result = sessions("import", "f.jsonl")
    assert result.exit_code == 1
    assert "f.jsonl:2: " in result.stderr
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    if Path("holdfast.db").exists():
        assert exported() == {}


def test_gathered_messages_out_of_order_are_named_by_their_session() -> None:
    given = [{"session_id": "x", "role": "user", "content": "a", "turn_id": turn} for turn in (3, 1)]
    result = sessions("import", "-", input=lines(*given))
    assert result.exit_code == 1
    assert "stdin:1: session 'x': messages[1].turn_id is 1" in result.stderr


def test_a_session_that_cannot_be_stored_leaves_those_before_it() -> None:
    given = lines({"id": "a", "messages": MESSAGES}, {"id": "b", "agent": "x" * 100_000, "messages": MESSAGES})
    result = sessions("import", "-", input=given)
    assert result.exit_code == 1
    assert "stdin:2: " in result.stderr
    assert "1 session before it" in result.stderr
    assert set(exported()) == {("default", "a")}


def test_nothing_to_import() -> None:
    assert sessions("import", "-", input="\n").stderr == "Error: no sessions in -\n"
    assert sessions("import", "nowhere.jsonl").exit_code == 2


# -- export ----------------------------------------------------------------------


def test_export_names_sessions_or_all_of_them() -> None:
    store(WHOLE, {"id": "a", "messages": MESSAGES}, {"id": "b", "messages": MESSAGES})
    assert set(exported("b", "a")) == {("default", "b"), ("default", "a")}
    assert set(exported("--all", "--user", "ada")) == {("ada", "support-42")}
    assert sessions("export").exit_code == 2
    assert sessions("export", "a", "--all").exit_code == 2
    missing = sessions("export", "a", "nope")
    assert (missing.exit_code, missing.stdout) == (1, "")


def test_export_of_all_goes_over_pages_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.base.MAX_PAGE", 2)
    names = [f"s{at}" for at in range(7)]
    for name in names:
        store({"id": name, "messages": []})
    assert [name for _, name in exported()] == names


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


def test_an_export_that_fails_half_way_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store(WHOLE)
    Path("out.jsonl").write_text("precious")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.cli.transfer.json_line", fail)
    result = sessions("export", "--all", "--output", "out.jsonl")
    assert (result.exit_code, result.stderr) == (1, "Error: No space left on device\n")
    assert Path("out.jsonl").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_export_is_one_line_a_session_and_safe_to_look_at() -> None:
    store(WHOLE)
    result = sessions("export", "support-42")
    assert result.stdout.count("\n") == 1
    assert "\x9b" not in result.stdout
    assert json.loads(result.stdout)["messages"][0]["content"] == "Hi\x9b"


def test_the_airline_sessions_come_back(recordings_path: Path, recordings: list[dict[str, Any]]) -> None:
    result = sessions("import", str(recordings_path))
    assert result.stdout.startswith("Imported 100 sessions, ")
    stored = exported()
    assert len(stored) == 100
    own = {"seq", "turn_id", "timestamp", "tokens"}
    for recording in recordings:
        kept = stored["default", recording["id"]]
        messages = kept["system_messages"] + kept["messages"]
        assert [{key: one[key] for key in one.keys() - own} for one in messages] == recording["messages"]
