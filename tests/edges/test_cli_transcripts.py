"""`holdfast transcripts list | show | search | import`, on files written by a library or a server."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import commands
from holdfast.cli.transcript_files import TextQuery, fold_text
from holdfast.holdfast import Holdfast
from holdfast.hooks.transcript_files import make_file_name
from holdfast.hooks.transcripts import Transcripts

pytestmark = pytest.mark.usefixtures("in_empty_folder")

NOW = 1_760_000_000_000
FOREIGN = """\
{"type":"session","version":1,"id":"7d4e","timestamp":"2026-05-01T10:00:00Z","agent_id":"ana","source_plugin":"whatsapp"}
{"type":"entry","timestamp":"2026-05-01T10:00:01Z","role":"user","content":"¿Dónde está el CÓDIGO\\u001b[2J?","sender_id":"+34"}

not JSON: sk-secret
{"type":"entry","timestamp":"2026-05-01T10:00:02Z","role":"assistant","content":"Aquí."}
"""


def transcripts(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["transcripts", *args], prog_name="holdfast", **more)


def read_json(*args: str) -> Any:
    result = transcripts(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


SAID = {
    "support-42": ["Where is my order?", "On its way: call 4711.", "Thanks a lot!"],
    "other": ["Straße in München", 'Ümlaut and (parens) AND OR NOT NEAR * ^ field:value "quoted" \' --'],
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with transcripts of two sessions, one of them rewound, and one from another program."""
    folder = tmp_path / "t"

    async def write() -> None:
        async with Holdfast("sqlite://:memory:", hooks=[Transcripts(folder)], clock=lambda: NOW) as hf:
            for session_id, texts in SAID.items():
                session = await hf.session(session_id, agent=None, system="Help.")
                for at, text in enumerate(texts):
                    await session.append([{"role": "assistant" if at % 2 else "user", "content": text}])
            ref = (await hf.session("support-42")).ref
            from holdfast.stores.log import Append
            from tests.contract.kit import user

            new = user("Thank you!", timestamp=NOW, turn_id=1)
            await hf.store.append(ref, Append(entries=[new], retire_from=2, timestamp=NOW))

    asyncio.run(write())
    (folder / "7d4e.jsonl").write_text(FOREIGN)
    for at, name in enumerate(["7d4e", "other", "support-42"]):
        os.utime(folder / f"{name}.jsonl", (at, at))
    return folder


# -- list and show ---------------------------------------------------------------


def test_last_changed_transcript_is_listed_first(written: Path) -> None:
    listed = read_json("list", "--dir", str(written))
    assert [(one["session_id"], one["entry_count"]) for one in listed] == [("support-42", 3), ("other", 2), ("7d4e", 2)]
    assert listed[2] == {
        "path": str(written / "7d4e.jsonl"),
        "session_id": "7d4e",
        "user_id": None,
        "agent_id": "ana",
        "source_plugin": "whatsapp",
        "entry_count": 2,
        "first_timestamp": "2026-05-01T10:00:01Z",
        "last_timestamp": "2026-05-01T10:00:02Z",
    }
    assert [one["session_id"] for one in read_json("list", "--dir", str(written), "--limit", "1")] == ["support-42"]
    assert [one["session_id"] for one in read_json("list", "--dir", str(written), "--user", "ada")] == []
    table = transcripts("list", "--dir", str(written))
    assert [row.split()[0] for row in table.stdout.splitlines()[2:]] == ["support-42", "other", "7d4e"]


def test_folder_comes_from_the_configuration(written: Path) -> None:
    Path("holdfast.yaml").write_text("hooks: {transcripts_dir: t}")
    assert len(read_json("list")) == 3
    Path("holdfast.yaml").write_text("hooks: {}")
    result = transcripts("list")
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: no transcript folder: name it with --dir, or as hooks.transcripts_dir in the configuration\n",
    )
    result = transcripts("list", "--dir", "missing")
    assert (result.exit_code, result.stderr) == (1, "Error: missing: no such folder\n")


def test_transcript_is_shown(written: Path) -> None:
    shown = transcripts("show", "support-42", "--dir", str(written))
    assert shown.exit_code == 0
    for text in ("Where is my order?", "On its way: call 4711.", "Thank you!"):
        assert text in shown.stdout
    assert "Thanks a lot!" not in shown.stdout
    retired = transcripts("show", "support-42", "--dir", str(written), "--retired").stdout
    assert "edited away" in retired
    assert "Thanks a lot!" in retired
    (last,) = read_json("show", "support-42.jsonl", "--last", "1", "--dir", str(written))["entries"]
    assert (last["content"], last["seq"]) == ("Thank you!", 3)
    foreign = transcripts("show", "7d4e", "--dir", str(written)).stdout
    assert "CÓDIGO\\x1b[2J?" in foreign
    assert "\x1b[2J" not in foreign


def test_missing_or_ambiguous_transcript_is_reported(written: Path) -> None:
    missing = transcripts("show", "nobody", "--dir", str(written))
    assert (missing.exit_code, missing.stderr.count("no transcript of session 'nobody'")) == (1, 1)
    for user in ("ada", "bob"):
        header = {"type": "session", "version": 1, "id": "Same", "user_id": user}
        (written / make_file_name("default", user, "Same")).write_text(json.dumps(header) + "\n")
    several = transcripts("show", "Same", "--dir", str(written))
    assert (several.exit_code, several.stderr.count("several transcripts of session")) == (1, 1)
    assert read_json("show", "Same", "--user", "bob", "--dir", str(written))["user_id"] == "bob"


# -- search ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "snippet"),
    [
        ("codigo", "¿Dónde está el [CÓDIGO]"),
        ("STRASSE", "[Straße] in München"),
        ("ümlaut", "[Ümlaut] and"),
        ("umlaut  AND", "[Ümlaut and] (parens)"),
        ("my order", "Where is [my order]?"),
    ],
)
def test_case_accents_and_white_space_are_ignored(written: Path, query: str, snippet: str) -> None:
    (hit,) = read_json("search", query, "--dir", str(written))
    assert snippet in hit["snippet"]


@pytest.mark.parametrize(
    "query", ["(parens)", "AND OR NOT NEAR", "* ^", "field:value", '"quoted"', "' --", "not near * ^ field:"]
)
def test_query_is_plain_text(written: Path, query: str) -> None:
    (hit,) = read_json("search", query, "--dir", str(written))
    assert hit["session_id"] == "other"


@pytest.mark.parametrize("query", ['" OR "1"="1', "%", "order*", "NOT order", ".*", "sk-secret", "{"])
def test_query_finds_nothing_else(written: Path, query: str) -> None:
    assert read_json("search", query, "--dir", str(written)) == []


def test_retired_messages_are_found_only_on_request(written: Path) -> None:
    assert read_json("search", "a lot", "--dir", str(written)) == []
    (hit,) = read_json("search", "a lot", "--retired", "--dir", str(written))
    assert (hit["session_id"], hit["at"], hit["role"], hit["snippet"]) == ("support-42", 2, "user", "Thanks [a lot]!")


def test_limit_and_user_restrict_the_hits(written: Path) -> None:
    few = transcripts("search", "a", "--limit", "2", "--dir", str(written))
    assert few.exit_code == 0
    assert "Only the first 2 are shown; show more with --limit.\n" in few.stderr
    assert len(read_json("search", "a", "--limit", "2", "--dir", str(written))) == 2
    assert len(read_json("search", "thank", "--user", "default", "--dir", str(written))) == 1
    none = transcripts("search", "nothing like it", "--dir", str(written))
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "No matches.\n")
    for empty in ("", "  ", "\u0301"):
        assert transcripts("search", empty, "--dir", str(written)).exit_code == 2


@given(st.text(max_size=40), st.text(min_size=1, max_size=8), st.text(max_size=40))
def test_hit_contains_the_query(before: str, middle: str, after: str) -> None:
    needle = TextQuery(middle)
    if not needle.folded:
        return
    text = f"{before} {middle} {after}"
    snippet = needle.find(text)
    if needle.folded in fold_text(text):
        assert snippet is not None
        assert "[" in snippet
    else:
        assert snippet is None


# -- import ----------------------------------------------------------------------


def export(session_id: str, store: str = "sqlite:///holdfast.db") -> dict[str, Any]:
    result = CliRunner().invoke(commands, ["sessions", "export", session_id, "--store", store], prog_name="holdfast")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_folder_is_imported_as_sessions(written: Path) -> None:
    result = transcripts("import", str(written))
    assert result.exit_code == 0
    assert result.stdout == "Imported 3 sessions, 8 messages.\n"
    assert "7d4e.jsonl: 1 unreadable line, 1 blank line.\n" in result.stderr
    assert "sk-secret" not in result.stdout + result.stderr
    found = export("support-42")
    assert [message["content"] for message in found["messages"]] == [*SAID["support-42"][:2], "Thank you!"]
    assert [message["seq"] for message in found["messages"]] == [0, 1, 3]
    assert found["system_messages"] == [{"role": "system", "content": "Help."}]
    assert found["created_at"] == NOW
    foreign = export("7d4e")
    assert (foreign["agent"], [message["role"] for message in foreign["messages"]]) == ("ana", ["user", "assistant"])
    assert foreign["messages"][0]["metadata"]["user"] == "+34"


def test_second_import_changes_nothing(written: Path) -> None:
    assert [one["outcome"] for one in read_json("import", str(written))] == ["imported"] * 3
    before = export("support-42")
    assert [one["outcome"] for one in read_json("import", str(written))] == ["unchanged"] * 3
    assert export("support-42") == before
    result = transcripts("import", str(written))
    assert "Skipped 3 sessions: already stored.\n" in result.stderr


def test_newer_session_is_not_replaced(written: Path) -> None:
    path = written / "other.jsonl"
    transcripts("import", str(path))
    entry = {"type": "entry", "timestamp": NOW + 5000, "role": "user", "content": "more", "seq": 2}
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    (done,) = read_json("import", str(path))
    assert (done["outcome"], done["messages"]) == ("replaced", 3)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    (done,) = read_json("import", str(path))
    assert done["outcome"] == "newer"
    assert len(export("other")["messages"]) == 3
    assert "Skipped 1 session: the stored session is newer.\n" in transcripts("import", str(path)).stderr


def test_user_option_and_earlier_sessions_of_the_same_id(written: Path) -> None:
    (written / "other.jsonl").rename(written / f"support-42@{NOW}.jsonl")
    lines = (written / f"support-42@{NOW}.jsonl").read_text().replace('"id":"other"', '"id":"support-42"')
    (written / f"support-42@{NOW}.jsonl").write_text(lines)
    done = read_json("import", str(written), "--user", "ada")
    assert {(one["id"], one["user_id"]) for one in done} == {
        ("support-42", "ada"),
        (f"support-42@{NOW}", "ada"),
        ("7d4e", "ada"),
    }


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"version": 2}, "this release reads transcripts of version 1"),
        ({"version": 1, "state": 5}, "state must be an object"),
        ({"version": 1, "id": 7}, "id must be a string"),
    ],
)
def test_invalid_header_is_reported_with_its_file(header: dict[str, Any], said: str) -> None:
    Path("one.jsonl").write_text(json.dumps({"type": "session", **header}) + "\n")
    result = transcripts("import", "one.jsonl")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: one.jsonl: ")
    assert said in result.stderr


def test_sessions_of_another_tenant_are_skipped(written: Path) -> None:
    header = {"type": "session", "version": 1, "id": "x", "tenant": "acme"}
    (written / "x.jsonl").write_text(json.dumps(header) + "\n")
    (done,) = read_json("import", str(written / "x.jsonl"))
    assert done["outcome"] == "other tenant"


# -- sessions --------------------------------------------------------------------


def test_deleting_a_session_deletes_its_transcript(tmp_path: Path) -> None:
    Path("holdfast.yaml").write_text("hooks: {transcripts_dir: t}")
    folder = tmp_path / "t"

    async def write() -> None:
        async with Holdfast("sqlite:///holdfast.db", hooks=[Transcripts(folder)]) as hf:
            for name in ("goes", "stays"):
                await (await hf.session(name)).append([{"role": "user", "content": "Hi"}])

    asyncio.run(write())
    assert sorted(path.name for path in folder.iterdir()) == ["goes.jsonl", "stays.jsonl"]
    result = CliRunner().invoke(commands, ["sessions", "delete", "goes", "--yes"], prog_name="holdfast")
    assert result.exit_code == 0, result.stderr
    assert [path.name for path in folder.iterdir()] == ["stays.jsonl"]


def run_cli(*args: str, **more: Any) -> str:
    result = CliRunner().invoke(commands, [*args], prog_name="holdfast", **more)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def contents(name: str) -> list[str]:
    return [json.loads(line)["content"] for line in Path("t", f"{name}.jsonl").read_text().splitlines()[1:]]


@pytest.mark.parametrize("what", ["fork", "rewind", "import", "transcripts"])
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
        shown = json.loads(run_cli("transcripts", "show", "s", "--json"))
        assert [entry["content"] for entry in shown["entries"]] == ["one"]
    elif what == "transcripts":
        Path("s.jsonl").write_text(Path("t/s.jsonl").read_text().replace("two", "three"))
        run_cli("sessions", "delete", "s", "--yes")
        assert not Path("t/s.jsonl").exists()
        run_cli("transcripts", "import", "s.jsonl")
        assert contents("s") == ["one", "three"]


@pytest.mark.parametrize("preview", [False, True])
def test_end_of_a_replaced_session_is_recorded(preview: bool) -> None:
    """For the configured hooks, even if they are unreachable now; a dry run ends nothing."""
    Path("holdfast.yaml").write_text(
        "short_term: {session_ttl: 1h}\nhooks: {webhooks: [{url: 'http://127.0.0.1:9/', secret: hush}]}"
    )
    old = Holdfast("sqlite:///holdfast.db", clock=lambda: NOW)

    async def write() -> None:
        async with old as hf:
            await (await hf.session("s")).append("old")

    async def leave_open() -> list[str]:
        async with Holdfast("sqlite:///holdfast.db") as hf:
            return [one.reason for one in await hf.engine.life.store.endings(due=2**50)]

    asyncio.run(write())
    given = json.dumps({"id": "s", "user_id": "default", "messages": [{"role": "user", "content": "new"}]})
    run_cli("sessions", "import", "-", "--replace", *(["--dry-run"] if preview else []), input=given)
    assert asyncio.run(leave_open()) == ([] if preview else ["ttl"])
