"""`holdfast backup` and `restore` of a database that a program writes: verified, and never over a database in use."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from tests.behaviour.kit.command_line import Printed
from tests.behaviour.kit.seams import run_command

URL = "sqlite:///holdfast.db"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*args: str, given: str | None = None) -> Printed:
    return asyncio.run(run_command(args, given))


def fill_store(*names: str, url: str = URL) -> None:
    """Store sessions of one message each."""
    given = "\n".join(json.dumps({"id": name, "messages": [{"role": "user", "content": name}]}) for name in names)
    result = run("sessions", "import", "-", "--store", url, given=given)
    assert result.code == 0, result.err


def list_session_ids(url: str = URL) -> set[str]:
    result = run("sessions", "list", "--json", "--store", url)
    assert result.code == 0, result.err
    return {one["id"] for one in json.loads(result.out)}


def list_files() -> set[str]:
    """Return the files of the folder without the index, which is created on demand."""
    return {path.name for path in Path().iterdir() if ".index.db" not in path.name}


def test_backup_reports_its_content() -> None:
    """One file that only its owner can read, complete without any other."""
    fill_store("a", "b")
    result = run("backup", "copy.db")
    assert result.code == 0, result.err
    assert result.out.startswith("Copied to copy.db: 2 sessions, 2 messages, ")
    assert list_files() == {"holdfast.db", "copy.db"}
    assert stat.S_IMODE(Path("copy.db").stat().st_mode) == 0o600
    told = json.loads(run("backup", "other.db", "--json").out)
    assert (told["path"], told["sessions"], told["messages"], told["kept"]) == ("other.db", 2, 2, None)
    assert list_session_ids("sqlite:///copy.db") == {"a", "b"}


def test_backup_does_not_replace_a_file_without_force() -> None:
    fill_store("a")
    Path("copy.db").write_text("precious")
    result = run("backup", "copy.db")
    assert (result.code, result.err) == (2, "Error: copy.db exists already; replace it with --force\n")
    assert Path("copy.db").read_text() == "precious"
    assert run("backup", "copy.db", "--force").code == 0
    assert list_session_ids("sqlite:///copy.db") == {"a"}


def test_impossible_backups_are_refused() -> None:
    """The error says what to do instead."""
    fill_store("a")
    assert run("backup", "holdfast.db").code == 2
    assert "is the database itself" in run("backup", "holdfast.db", "--force").err
    for url in ("postgresql://localhost/x", "mysql://localhost/x"):
        for command in ("backup", "restore"):
            result = run(command, "holdfast.db", "--store", url)
            assert result.code == 2
            assert "docs/operations.md" in result.err
    assert "export its sessions" in run("backup", "copy.db", "--store", "sqlite://:memory:").err
    assert "no such database" in run("backup", "copy.db", "--store", "sqlite:///no.db").err
    assert run("backup", "no/such/folder.db").err.startswith("Error: ")
    assert list_files() == {"holdfast.db"}


def test_a_damaged_database_is_not_backed_up() -> None:
    """The damage is found before the copy gets its name, so an older copy stays."""
    fill_store(*(f"s{at}" for at in range(300)))
    assert run("backup", "copy.db").code == 0
    before = Path("copy.db").read_bytes()
    pages = bytearray(Path("holdfast.db").read_bytes())
    middle = len(pages) // 4096 // 2 * 4096
    pages[middle : middle + 4096] = b"\x07" * 4096
    Path("holdfast.db").write_bytes(pages)
    result = run("backup", "copy.db", "--force")
    assert result.code == 1
    assert "damaged" in result.err
    assert Path("copy.db").read_bytes() == before
    assert list_files() == {"holdfast.db", "copy.db"}


def test_restore_keeps_the_previous_database() -> None:
    """Under a new name each time; the file mode is preserved."""
    fill_store("old")
    assert run("backup", "copy.db").code == 0
    fill_store("new")
    Path("holdfast.db").chmod(0o640)
    result = run("restore", "copy.db")
    assert result.code == 0, result.err
    assert result.out.splitlines()[1].endswith("holdfast.db.before-restore.")
    assert list_session_ids() == {"old"}
    assert list_session_ids("sqlite:///holdfast.db.before-restore") == {"old", "new"}
    assert stat.S_IMODE(Path("holdfast.db").stat().st_mode) == 0o640
    for number in (2, 3):
        assert json.loads(run("restore", "copy.db", "--json").out)["kept"].endswith(f".before-restore.{number}")


def test_restore_without_an_existing_database() -> None:
    fill_store("a")
    run("backup", "copy.db")
    Path("holdfast.db").unlink()
    result = run("restore", "copy.db")
    assert (result.code, len(result.out.splitlines())) == (0, 1)
    assert list_session_ids() == {"a"}
    assert list_files() == {"holdfast.db", "copy.db"}


async def test_a_database_in_use_is_not_replaced() -> None:
    """Also while no client is writing."""
    async with holdfast.open(URL) as hf:
        await (await hf.session("s")).append("Hi")
        assert (await run_command(["backup", "copy.db"])).code == 0
        for force in ([], ["--force"]):
            refused = await run_command(["restore", "copy.db", *force])
            assert (refused.code, "is in use" in refused.err) == (1, True)
    assert (await run_command(["restore", "copy.db"])).code == 0


def _newer(path: str) -> None:
    raw = apsw.Connection(path)
    raw.execute("INSERT INTO holdfast_schema VALUES (9999, 'future', '')")
    raw.close()


def _edit(path: str) -> None:
    raw = apsw.Connection(path)
    raw.execute("UPDATE holdfast_schema SET checksum = 'x' WHERE number = 1")
    raw.close()


def _foreign(path: str) -> None:
    Path(path).unlink()
    raw = apsw.Connection(path)
    raw.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
    raw.close()


def _text(path: str) -> None:
    Path(path).write_text("not a database at all " * 100)


def _empty(path: str) -> None:
    Path(path).write_bytes(b"")


def _tear(path: str) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: len(data) // 2 // 4096 * 4096])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_newer, "made by a newer release"),
        (_edit, "migration 1 that differs"),
        (_foreign, "belongs to another program"),
        (_text, "not an SQLite database"),
        (_empty, "is empty"),
        (_tear, "damaged"),
    ],
)
def test_invalid_backup_is_not_restored(spoil: Any, said: str) -> None:
    """The database stays unchanged."""
    fill_store(*(f"s{at}" for at in range(40)))
    run("backup", "copy.db")
    spoil("copy.db")
    result = run("restore", "copy.db")
    assert result.code == 1
    assert said in result.err
    assert len(list_session_ids()) == 20
    assert list_files() == {"holdfast.db", "copy.db"}
    assert "no such file" in run("restore", "gone.db").err
    assert "is the database itself" in run("restore", "holdfast.db").err


def test_unreadable_database_is_replaced_only_with_force() -> None:
    """A damaged header does not show whether the file is in use. The old file is kept."""
    fill_store("a")
    run("backup", "copy.db")
    Path("holdfast.db").write_bytes(b"\0" * 5000)
    result = run("restore", "copy.db")
    assert result.code == 1
    assert "--force" in result.err
    result = run("restore", "copy.db", "--force")
    assert result.code == 0, result.err
    assert list_session_ids() == {"a"}
    assert Path("holdfast.db.before-restore").read_bytes() == b"\0" * 5000


def make_foreign_wal() -> bytes:
    """Return the write-ahead log of another database, as a dead process would leave it."""
    fill_store("x", url="sqlite:///other.db")
    raw = apsw.Connection("other.db")
    raw.execute("PRAGMA wal_autocheckpoint=0; UPDATE sessions SET created_at = 7").fetchall()
    log = Path("other.db-wal").read_bytes()
    raw.close()
    Path("other.db").unlink()
    return log


@pytest.mark.parametrize("there", [False, True])
def test_leftover_wal_is_not_applied_to_the_copy(there: bool) -> None:
    """SQLite would apply it to whatever file has that name."""
    log = make_foreign_wal()
    fill_store("a", *(f"s{at}" for at in range(20)))
    for name in ("copy.db", "copy.db"):
        assert run("backup", name, "--force").code == 0
        Path("copy.db-wal").write_bytes(log)
    assert run("backup", "copy.db", "--force").code == 0
    assert not Path("copy.db-wal").exists()
    if there:
        Path("holdfast.db").write_bytes(b"\0" * 5000)
    else:
        Path("holdfast.db").unlink()
    Path("holdfast.db-wal").write_bytes(log)
    result = run("restore", "copy.db", "--force")
    assert result.code == 0, result.err
    assert not Path("holdfast.db-wal").exists()
    assert run("sessions", "verify", "--all").out == "Verified 21 sessions, 21 entries: no differences.\n"


def test_restore_deletes_an_index_of_another_state() -> None:
    fill_store("before")
    assert run("backup", "copy.db").code == 0
    fill_store("later")
    assert run("index", "rebuild").code == 0
    assert Path("holdfast.index.db").exists()
    assert run("restore", "copy.db").code == 0
    assert not list(Path().glob("holdfast.index.db*"))
    assert "holdfast.index.db: does not exist yet" in run("doctor").out
