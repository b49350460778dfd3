"""Commands that write keep the transcripts of sessions up to date, and `sessions import` reads transcripts."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import commands
from holdfast.holdfast import Holdfast
from holdfast.hooks.transcripts import Transcripts
from tests.service.transcripts_kit import NOW

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def run_cli(*args: str, **more: Any) -> str:
    result = CliRunner().invoke(commands, [*args], prog_name="holdfast", **more)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refuse(*args: str, **more: Any) -> str:
    result = CliRunner().invoke(commands, [*args], prog_name="holdfast", **more)
    assert result.exit_code == 1, result.output
    return result.stderr


def contents(name: str) -> list[str]:
    """Return the texts in a transcript that are not retired."""
    lines = [json.loads(line) for line in Path("t", f"{name}.jsonl").read_text().splitlines()[1:]]
    return [line["content"] for line in lines if "retired_by" not in line]


async def write(*names: str) -> None:
    """Create sessions with transcripts in `t`. The second message of each was edited."""
    async with Holdfast("sqlite:///holdfast.db", hooks=[Transcripts("t")]) as hf:
        for name in names:
            session = await hf.session(name, user_id="ada", system="Be brief.")
            await session.append([{"role": "user", "content": f"I am {name}"}, {"role": "assistant", "content": "Oh"}])
            async with session.turn([{"role": "user", "content": f"I was {name}"}], mode="transcript") as turn:
                turn.add({"role": "assistant", "content": "Ah"})


def test_deleting_a_session_deletes_its_transcript() -> None:
    Path("holdfast.yaml").write_text("hooks: {transcripts_dir: t}")
    asyncio.run(write("goes", "stays"))
    assert len(list(Path("t").iterdir())) == 2
    run_cli("sessions", "delete", "goes", "--yes")
    (left,) = Path("t").iterdir()
    assert left.name.startswith("stays")


@pytest.mark.parametrize("what", ["fork", "rewind", "transcripts"])
def test_transcripts_follow_all_writing_commands(what: str) -> None:
    """A fork gets one; a replaced or rewound session's transcript shows the current messages."""
    Path("holdfast.yaml").write_text("hooks: {transcripts_dir: t}")
    first = {"id": "s", "messages": [{"role": "user", "content": "one", "turn_id": 0}]}
    run_cli("sessions", "import", "-", input=json.dumps(first))
    assert contents("s") == ["one"]
    two = [*first["messages"], {"role": "user", "content": "two", "turn_id": 1}]
    run_cli("sessions", "import", "-", "--replace", input=json.dumps({"id": "s", "messages": two}))
    assert contents("s") == ["one", "two"]
    if what == "fork":
        run_cli("sessions", "fork", "s", "--at-turn", "0", "--id", "f")
        assert contents("f") == ["one"]
    elif what == "rewind":
        run_cli("sessions", "rewind", "s", "--at-turn", "0")
        assert contents("s") == ["one"]
    else:
        Path("s.jsonl").write_text(Path("t/s.jsonl").read_text().replace("two", "three"))
        run_cli("sessions", "delete", "s", "--yes")
        assert not Path("t/s.jsonl").exists()
        run_cli("sessions", "import", "s.jsonl")
        assert contents("s") == ["one", "three"]


def test_imported_transcripts_are_the_sessions() -> None:
    """With retired messages, also several in one compressed file; a second import changes nothing."""
    asyncio.run(write("one", "two"))
    files = sorted(Path("t").iterdir())
    Path("all.jsonl.gz").write_bytes(gzip.compress(b"".join(file.read_bytes() for file in files)))
    for given in (["all.jsonl.gz"], [str(file) for file in files]):
        store = f"sqlite:///copy{len(given)}.db"
        assert "Imported 2 sessions" in run_cli("sessions", "import", *given, "--store", store)
        assert "2 already stored" in run_cli("sessions", "import", *given, "--store", store)
        for name in ("one", "two"):
            exported = [
                json.loads(run_cli("sessions", "export", name, "--retired", "--store", url))
                for url in ("sqlite:///holdfast.db", store)
            ]
            old, new = (
                {key: one[key] for key in ("user_id", "system_messages", "created_at", "messages")} for one in exported
            )
            assert [one["content"] for one in new["messages"]] == [f"I am {name}", "Oh", f"I was {name}", "Ah"]
            assert old == new


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"lang": "en", "rows": [1]}', "it needs messages, or a role and a session_id, but has 'lang', 'rows'"),
        ("{}", "but has no fields"),
        ('"text"', "expected an object with messages"),
        ("notes, no JSON", "the line is not JSON"),
        ('{"type": "session", "schema": 9, "id": "s"}', "a later release wrote this export"),
        ('{"type": "session", "schema": 1, "id": [5]}', "id must be a string"),
    ],
)
def test_file_that_is_no_transcript_is_refused(line: str, said: str) -> None:
    Path("x.jsonl").write_text(line)
    assert said in (refused := refuse("sessions", "import", "x.jsonl")), refused
    assert "x.jsonl:1" in refused


@pytest.mark.parametrize("preview", [False, True])
def test_end_of_a_replaced_session_is_recorded(preview: bool) -> None:
    """For the configured hooks, even if they are unreachable now; a dry run ends nothing."""
    Path("holdfast.yaml").write_text(
        "short_term: {session_ttl: 1h}\nhooks: {webhooks: [{url: 'http://127.0.0.1:9/', secret: hush}]}"
    )
    old = Holdfast("sqlite:///holdfast.db", clock=lambda: NOW)

    async def write_old() -> None:
        async with old as hf:
            await (await hf.session("s")).append("old")

    async def leave_open() -> list[str]:
        async with Holdfast("sqlite:///holdfast.db") as hf:
            return [one.reason for one in await hf.engine.life.store.endings(due=2**50)]

    asyncio.run(write_old())
    given = json.dumps({"id": "s", "user_id": "default", "messages": [{"role": "user", "content": "new"}]})
    run_cli("sessions", "import", "-", "--replace", *(["--dry-run"] if preview else []), input=given)
    assert asyncio.run(leave_open()) == ([] if preview else ["ttl"])
