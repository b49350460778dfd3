"""Every command of `holdfast`, on one database: what it prints for a person, and with `--json` for a program."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.behaviour.kit import assistant, calls, result, user
from tests.behaviour.kit.seams import run_command

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
HOSTILE: Final = "When does the ferry leave? \x1b[2J\u202e"
SHOWN: Final = r"When does the ferry leave? \x1b[2J\u202e"
"""How a terminal must get the text above."""
SESSION: Final = {
    "id": "s",
    "user_id": "ada",
    "messages": [
        user(HOSTILE),
        calls(("c1", "find_ferry", {"to": "Bergen"})),
        result("c1", '{"hour": 12}'),
        assistant("At noon."),
        user("I live in Bergen."),
        assistant("Fine."),
    ],
}
CONFIG: Final = """
agents: {clerk: {instruction: Be brief.}}
memory: {enabled: true}
hooks: {workspace_git: {enabled: true, path: workspaces}}
"""
OF_ADA: Final = ("--user", "ada")
COMMANDS: Final[list[tuple[tuple[str, ...], list[str], Callable[[Any], Any], Any]]] = [
    (("sessions", "list"), ["s   ada", "2", "6"], lambda rows: [row["id"] for row in rows], ["s"]),
    (("sessions", "show", "s"), ["session s of user ada", SHOWN], lambda row: row["messages"][0]["content"], HOSTILE),
    (("sessions", "show", "s", "--full"), ["At noon.", "Fine."], lambda row: row["message_count"], 6),
    (("sessions", "verify", "--all"), ["Verified 1 session, 6 entries"], lambda rows: rows[0]["error"], None),
    (("sessions", "fork", "s", "--at-turn", "0", "--id", "f"), ["Created f"], lambda row: row["message_count"], 4),
    (("sessions", "rewind", "s", "--at-turn", "0"), ["Rewound: s of user ada, 4"], lambda row: row["turns"], 1),
    (("sessions", "move", "s", "--to-user", "bob"), ["Moved: s of user bob"], lambda row: row["user_id"], "bob"),
    (("sessions", "close", "s"), ["Closed 1 session."], lambda rows: rows[0]["end_reason"], "close"),
    (("sessions", "annotate", "s", "0", "--pin"), [f"Message 0, pinned: {SHOWN}"], lambda row: row["pinned"], True),
    (("sessions", "annotate", "s", "0", "--importance", "0.5"), ["0.5"], lambda row: row["importance"], 0.5),
    (("sessions", "delete", "s", "--yes"), ["Deleted 1 session, 6"], lambda rows: rows[0]["receipt"]["messages"], 6),
    (("sessions", "delete", "--user", "ada", "--yes"), ["1 session"], lambda row: row["receipt"]["sessions"], 1),
    (
        ("sessions", "prune", "--older-than", "0s", "--status", "any", "--dry-run"),
        ["s of user ada, active", "Would delete 1 session, 6 messages."],
        lambda rows: [(row["id"], row["messages"]) for row in rows],
        [("s", 6)],
    ),
    (("explain", "s"), ["0  anchored", "the task"], lambda row: row["decisions"][0]["decision"], "anchored"),
    (("explain", "s", "--seq", "0"), ["in the prompt, whole", SHOWN], lambda row: row["messages"][0]["state"], "whole"),
    (("explain", "s", "--text", "ferry", "--budget", "500"), ["message 0"], lambda row: row["budget"], 500),
    (("prompt", "s"), ["user  task, message 0", SHOWN], lambda row: row["strategy"]["strategy"], "digest"),
    (
        ("prompt", "s", "--format", "anthropic", *OF_ADA),
        ['"messages"'],
        lambda row: row["request"]["messages"][0]["role"],
        "user",
    ),
    (("search", "ferry", *OF_ADA), ["1.  s #0  user", SHOWN], lambda row: row["hits"][0]["seq"], 0),
    (("search", "ferry", *OF_ADA, "--sessions"), ["s"], lambda row: row["hits"][0]["session_id"], "s"),
    (("memories", "remember", "Ada skis", *OF_ADA), ["Remembered mem_"], lambda row: row["content"], "Ada skis"),
    (
        ("memories", "recall", "tea", *OF_ADA),
        ["Ada likes tea"],
        lambda rows: rows[0]["content"],
        "Ada likes tea",
    ),
    (("memories", "list", *OF_ADA), ["semantic  user", "active"], lambda row: row[0]["status"], "active"),
    (("memories", "review", *OF_ADA), ["No memories of user ada."], lambda row: row, []),
    (("memories", "consolidate", *OF_ADA, "--dry-run"), ["No memory was recalled."], lambda row: row["written"], False),
    (("state", "set", "topic", "boats", "--session", "s"), ["Set topic."], lambda row: row, {"topic": "boats"}),
    (("state", "get", "--user", "ada"), ["user:theme  ", '"dark"'], lambda row: row, {"user:theme": "dark"}),
    (("state", "unset", "user:theme", "--user", "ada"), ["Deleted 1 key."], lambda row: row, {"user:theme": None}),
    (("facts", "s"), ["I live in Bergen."], lambda rows: rows[-1]["text"], "I live in Bergen."),
    (("facts", "s", "--pin", "4.0"), ["4.0"], lambda rows: rows[-1]["pinned"], True),
    (("keys", "create", "--role", "read", "--name", "ci"), ["hf_", "Save it now"], lambda row: row["role"], "read"),
    (("keys", "list"), ["laptop", "valid"], lambda rows: [row["name"] for row in rows], ["laptop"]),
    (("index", "rebuild"), ["Rebuilt 1 session, 6 messages."], lambda row: row["entries"], 6),
    (
        ("doctor",),
        ["chat.db: opens, schema up to date, writable", "journal_mode WAL, synchronous FULL"],
        lambda row: row["ok"],
        True,
    ),
    (("backup", "copy.db"), ["Copied to copy.db: 1 session, 6 messages"], lambda row: row["messages"], 6),
    (("restore", "old.db", "--force"), ["Restored", "chat.db.before-restore"], lambda row: row["sessions"], 1),
    (("workspace", "checkpoint", "clerk"), ["Nothing has changed."], lambda row: row["skipped"], True),
    (("workspace", "history", "clerk"), ["workspace init"], lambda row: row["commits"][0]["subject"], "workspace init"),
    (
        ("replay", "s.jsonl", "--budget", "900"),
        ["token_window", "900"],
        lambda rows: {row["calls"] for row in rows},
        {3},
    ),
    (
        ("replay", "s.jsonl", "--budget", "900", "--per-session", "--strategy", "digest,none"),
        ["digest", "none"],
        lambda rows: sorted(row["strategy"] for row in rows),
        ["digest", "none"],
    ),
    (
        ("replay", "s.jsonl", "--budget", "900", "--compare", "digest", "token_window"),
        ["digest", "token_window"],
        lambda rows: [(row["a"]["strategy"], row["b"]["strategy"]) for row in rows],
        [("digest", "token_window")],
    ),
    (("config", "check"), ["holdfast.yaml: ok"], lambda row: (row["ok"], row["problems"]), (True, [])),
    (("config", "show"), ["memory.enabled: true"], lambda rows: rows[0]["key"], "model"),
]
"""Each command, words of what it prints, and what its JSON contains."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, and a database with a session, a memory, a key and state."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "holdfast.yaml").write_text(CONFIG)
    (folder / "s.jsonl").write_text(json.dumps(SESSION) + "\n")

    async def fill() -> None:
        for command in (
            ("sessions", "import", "s.jsonl"),
            ("memories", "remember", "Ada likes tea", *OF_ADA),
            ("state", "set", "user:theme", "dark", *OF_ADA),
            ("keys", "create", "--name", "laptop", "--role", "admin"),
            ("workspace", "checkpoint", "clerk"),
            ("index", "rebuild"),
            ("backup", "old.db"),
        ):
            assert (await run(*command)).code == 0, command

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        asyncio.run(fill())
    return folder


async def run(*command: str, given: str | None = None) -> Any:
    return await run_command(command, given, {"HOLDFAST_STORE": "sqlite:///chat.db"})


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: " ".join(row[0]))
async def test_a_command_prints_words_and_json(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: tuple[Any, ...]
) -> None:
    command, words, read, value = row
    for copy in ("words", "json"):
        shutil.copytree(made, tmp_path / copy)
    monkeypatch.chdir(tmp_path / "words")
    printed = await run(*command)
    assert printed.code == 0, printed
    assert [word for word in words if word not in printed.out + printed.err] == [], printed
    assert not set(printed.out) & {"\x1b", "\u202e"}
    monkeypatch.chdir(tmp_path / "json")
    as_json = await run(*command, "--json")
    assert as_json.code == 0, as_json
    assert read(json.loads(as_json.out)) == value


MISTAKES: Final[list[tuple[str, int, str]]] = [
    ("sessions list --limit 0", 2, "0 is not in the range"),
    ("sessions show gone", 1, "no session 'gone'"),
    ("sessions show s --last 1 --json", 2, "leave out --last"),
    ("sessions delete s", 2, "--yes"),
    ("sessions delete s gone --yes", 1, "no session 'gone'"),
    ("sessions rewind s --at-turn 9", 2, "9"),
    ("sessions fork s --id s", 1, "exists"),
    ("sessions prune --older-than soon", 2, "soon"),
    ("sessions verify s --all", 2, "--all"),
    ("sessions verify", 2, "--all"),
    ("sessions import gone.jsonl", 2, "does not exist"),
    ("sessions import holdfast.yaml", 1, "holdfast.yaml:2"),
    ("sessions annotate s 99 --pin", 1, "99"),
    ("sessions lst", 2, "Did you mean 'list'?"),
    ("explain s --strategy best", 2, "did you mean 'digest'?"),
    ("explain s --seq 99", 1, "99"),
    ("explain s --budget 1", 1, "a working set needs at least 31 tokens"),
    ("prompt s call_9", 2, "call_9"),
    ("search --user ada", 2, "Missing argument"),
    ("search ferry --since soon --user ada", 2, "soon"),
    ("memories show mem_0", 1, "mem_0"),
    ("memories remember x --importance 2", 2, "range"),
    ("memories consolidate --all --user ada", 2, "--all"),
    ("state set topic", 2, "VALUE"),
    ("state get --session s --app", 2, "--app"),
    ("state set temp:a 1 --session s", 2, "temp:"),
    ("facts s --pin 99.0", 1, "99.0"),
    ("keys revoke none", 1, "none"),
    ("keys create --expires soon", 2, "soon"),
    ("keys create --role king", 2, "'king' is not one of"),
    ("backup s.jsonl", 2, "exists"),
    ("restore s.jsonl --force", 1, "s.jsonl"),
    ("workspace history nobody", 1, "nobody"),
    ("workspace purge clerk", 2, "--yes"),
    ("replay gone.jsonl", 2, "does not exist"),
    ("replay s.jsonl --strategy best", 2, "best"),
    ("config check gone.yaml", 2, "gone.yaml"),
    ("index rebuild --session gone", 1, "gone"),
    ("sessions list --store postgres:/x", 2, "postgres"),
]
"""Wrong commands, their exit codes, and what they say."""


@pytest.mark.parametrize(("line", "code", "words"), MISTAKES)
async def test_a_mistake_is_one_clear_message_and_changes_nothing(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int, words: str
) -> None:
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    printed = await run(*line.split())
    assert (printed.code, words in printed.err + printed.out) == (code, True), printed
    assert "Traceback" not in printed.err
    left = json.loads((await run("sessions", "list", "--json")).out)
    assert [(row["id"], row["message_count"]) for row in left] == [("s", 6)]


async def test_a_session_is_exported_and_imported_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    await run("sessions", "export", "--all", "-o", "out.jsonl.gz")
    first = await run("sessions", "export", "s")
    assert (
        await run("sessions", "import", "out.jsonl.gz")
    ).out == "Imported 0 sessions, 0 messages; 1 already stored.\n"
    await run("sessions", "delete", "s", "--yes")
    assert (await run("sessions", "import", "out.jsonl.gz")).out == "Imported 1 session, 6 messages.\n"
    again = await run("sessions", "export", "s")
    before, after = (json.loads(one.out) for one in (first, again))
    assert before["messages"] == after["messages"]
    assert not set(first.out) & {"\x1b", "\u202e"}


async def test_a_memory_is_shown_replaced_and_forgotten(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    made_now = json.loads((await run("memories", "remember", HOSTILE, *OF_ADA, "--json")).out)
    shown = await run("memories", "show", made_now["id"])
    assert SHOWN in shown.out
    assert (await run("memories", "forget", made_now["id"])).out == "Forgot 1 memory.\n"
    assert (await run("memories", "show", made_now["id"])).code == 1


@pytest.mark.parametrize("hours", [-24 * 2_000, -1, 1, 24 * 2_000])
async def test_remembering_says_if_the_memory_has_already_expired(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """On standard error. Whether it says so agrees with what recall finds."""
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    until = (datetime.now(UTC) + timedelta(hours=hours)).astimezone()
    stored = await run("memories", "remember", "Bob rows at dawn", "--until", until.isoformat(), *OF_ADA)
    assert (stored.code, stored.out[:14]) == (0, "Remembered mem")
    told = f"It expired at {until:%Y-%m-%d %H:%M}" in stored.err and "recall does not return it" in stored.err
    assert (told, bool(stored.err)) == (hours < 0, hours < 0), stored
    found = json.loads((await run("memories", "recall", "rows", *OF_ADA, "--json")).out)
    assert ("Bob rows at dawn" in [one["content"] for one in found]) == (hours > 0)


async def test_a_key_is_revoked_and_a_workspace_is_purged(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    [key] = json.loads((await run("keys", "list", "--json")).out)
    assert key["id"] in (await run("keys", "revoke", key["id"])).out
    [revoked] = json.loads((await run("keys", "list", "--json")).out)
    assert revoked["status"] == "revoked"
    assert (await run("workspace", "purge", "clerk", "--yes")).code == 0
    [left] = json.loads((await run("workspace", "history", "clerk", "--json")).out)["commits"]
    assert left["subject"] == "workspace purge"


async def test_chat_stores_the_conversation_and_has_commands(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    said = "Hello.\n/context\n/explain 0\n/history 2\n/pin 0\n/unpin 0\n/help\n//slash\n/new\nAgain.\n/quit\n"
    printed = await run("chat", "--session", "c", "--user", "bob", given=said)
    assert printed.code == 0, printed
    shown = ("session c of user bob, new", "anchored, the task", "/unpin N undoes it", "pinned")
    assert [words for words in shown if words not in printed.out] == []
    log = json.loads((await run("sessions", "show", "c", "--user", "bob", "--json")).out)["messages"]
    assert [row["content"] for row in log if row["role"] == "user"] == ["Hello.", "/slash"]
    wrong = await run("chat", given="/explan\n/pin x\n")
    assert "unknown command /explan; /help lists the commands" in wrong.err
    assert "expected a message number, got 'x'" in wrong.err
