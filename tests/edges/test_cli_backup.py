"""`holdfast backup` and `restore`: during writes, verified, and never over a database in use."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any, Self

import anyio
import apsw
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.domain.session import SessionRef
from holdfast.errors import StoreUnavailable
from holdfast.stores import backup as copying
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.verify import verify
from tests.contract.kit import session, user
from tests.stores.test_migrations import know_later

pytestmark = pytest.mark.usefixtures("in_empty_folder")

URL = "sqlite:///holdfast.db"


def run(*args: str, **write_more: Any) -> Result:
    return CliRunner().invoke(commands, list(args), prog_name="holdfast", **write_more)


def fill_store(*names: str, url: str = URL) -> None:
    """Store sessions of one message each."""
    given = "\n".join(json.dumps({"id": name, "messages": [{"role": "user", "content": name}]}) for name in names)
    result = run("sessions", "import", "-", "--store", url, input=given)
    assert result.exit_code == 0, result.stderr


def list_session_ids(url: str = URL) -> set[str]:
    result = run("sessions", "list", "--json", "--store", url)
    assert result.exit_code == 0, result.stderr
    return {one["id"] for one in json.loads(result.stdout)}


def list_files() -> set[str]:
    """Return the files of the folder without the index, which is created on demand."""
    return {path.name for path in Path().iterdir() if ".index.db" not in path.name}


def find_files_with(text: bytes) -> set[str]:
    """Return the files that contain `text` anywhere."""
    return {path.name for path in Path().iterdir() if text in path.read_bytes()}


# -- under write load ----------------------------------------------------------


class Writers:
    """Eight tasks that append, each to its own session, with a count of acknowledged messages."""

    def __init__(self, store: Store) -> None:
        self.acknowledged = [0] * 8
        self._store = store
        self._stopped = False
        self._wrote = asyncio.Event()

    async def __aenter__(self) -> Self:
        for at in range(8):
            await self._store.create(session(_ref(at)))
        self._tasks = [asyncio.ensure_future(self._write(at)) for at in range(8)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def write_more(self, count: int) -> None:
        """Return when `count` further messages have been acknowledged."""
        until = sum(self.acknowledged) + count
        while sum(self.acknowledged) < until:
            self._wrote.clear()
            await self._wrote.wait()

    async def _write(self, at: int) -> None:
        while not self._stopped:
            text = f"{self.acknowledged[at]} " + "x" * 500
            await self._store.append(_ref(at), Append(entries=[user(text)], timestamp=1))
            self.acknowledged[at] += 1
            self._wrote.set()


def _ref(at: int) -> SessionRef:
    return SessionRef("ann", f"s{at}")


async def count_verified_messages(url: str) -> list[int]:
    """Verify each writer's session; return its number of messages."""
    store = await open_store(url, tenant="acme")
    try:
        for at in range(8):
            await verify(store, _ref(at))
            said = [entry.message.text.partition(" ")[0] for entry in await store.entries(_ref(at))]
            assert said == [str(number) for number in range(len(said))]
        return [(await store.get(_ref(at))).messages for at in range(8)]
    finally:
        await store.close()


async def test_backup_during_writes_is_consistent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It contains everything acknowledged before it began, as one snapshot of every log, and the writers continue
    meanwhile.
    """
    monkeypatch.setattr(copying, "STEP", 8)
    store = await open_store(URL, tenant="acme")
    steps: list[int] = []
    async with Writers(store) as writers:
        await writers.write_more(800)
        before = list(writers.acknowledged)

        def move(done: int, total: int) -> None:
            steps.append(done)
            if len(steps) == 4:  # the writers must make progress while the backup runs
                anyio.from_thread.run(writers.write_more, 200)
            assert done <= total

        copied = await anyio.to_thread.run_sync(lambda: copying.backup(URL, "copy.db", progress=move))
    await store.close()
    assert len(steps) > 10
    assert steps == sorted(steps)
    assert copied.sessions == 8
    assert copied.messages >= sum(before)
    assert sum(writers.acknowledged) >= sum(before) + 200
    restored = await anyio.to_thread.run_sync(lambda: copying.restore("sqlite:///again.db", "copy.db"))
    held = await count_verified_messages("sqlite:///again.db")
    assert sum(held) == restored.messages == copied.messages
    assert all(have >= had for have, had in zip(held, before, strict=True))
    assert await count_verified_messages(URL) == writers.acknowledged


async def test_message_erased_during_a_backup_leaves_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot keeps it in the WAL until the copy ends; no writer waits for that."""
    store = await open_store(URL, tenant="acme")
    await store.create(session(_ref(0)))
    await store.append(_ref(0), Append(entries=[user("canary " * 50)], timestamp=1))
    steps: list[int] = []

    async def erase() -> None:
        await store.erase(_ref(0), 0)
        await store.append(_ref(0), Append(entries=[user("on")], timestamp=1))

    def move(done: int, total: int) -> None:
        if not steps:  # the copy pauses until both have returned, so it blocks neither
            anyio.from_thread.run(erase)
        steps.append(done)

    monkeypatch.setattr(copying, "STEP", 1)
    await anyio.to_thread.run_sync(lambda: copying.backup(URL, "copy.db", progress=move))
    found = find_files_with(b"canary")
    await store.close()
    assert found == {"copy.db"}
    assert len(steps) > 1


# -- backup --------------------------------------------------------------------


def test_backup_reports_its_content() -> None:
    """One file that only its owner can read, complete without any other."""
    fill_store("a", "b")
    result = run("backup", "copy.db")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Copied to copy.db: 2 sessions, 2 messages, ")
    assert list_files() == {"holdfast.db", "copy.db"}
    assert stat.S_IMODE(Path("copy.db").stat().st_mode) == 0o600
    told = json.loads(run("backup", "other.db", "--json").stdout)
    assert (told["path"], told["sessions"], told["messages"], told["kept"]) == ("other.db", 2, 2, None)
    assert list_session_ids("sqlite:///copy.db") == {"a", "b"}


def test_backup_does_not_replace_a_file_without_force() -> None:
    fill_store("a")
    Path("copy.db").write_text("precious")
    result = run("backup", "copy.db")
    assert (result.exit_code, result.stderr) == (2, "Error: copy.db exists already; replace it with --force\n")
    assert Path("copy.db").read_text() == "precious"
    assert run("backup", "copy.db", "--force").exit_code == 0
    assert list_session_ids("sqlite:///copy.db") == {"a"}


def test_impossible_backups_are_refused() -> None:
    """The error says what to do instead."""
    fill_store("a")
    assert run("backup", "holdfast.db").exit_code == 2
    assert "is the database itself" in run("backup", "holdfast.db", "--force").stderr
    for url in ("postgresql://localhost/x", "mysql://localhost/x"):
        for command in ("backup", "restore"):
            result = run(command, "holdfast.db", "--store", url)
            assert result.exit_code == 2
            assert "docs/operations.md" in result.stderr
    assert "export its sessions" in run("backup", "copy.db", "--store", "sqlite://:memory:").stderr
    assert "no such database" in run("backup", "copy.db", "--store", "sqlite:///no.db").stderr
    assert run("backup", "no/such/folder.db").stderr.startswith("Error: ")
    assert list_files() == {"holdfast.db"}


def test_damaged_database_is_not_backed_up() -> None:
    """The damage is found before the copy gets its name."""
    fill_store(*(f"s{at}" for at in range(300)))
    pages = bytearray(Path("holdfast.db").read_bytes())
    middle = len(pages) // 4096 // 2 * 4096
    pages[middle : middle + 4096] = b"\x07" * 4096
    Path("holdfast.db").write_bytes(pages)
    result = run("backup", "copy.db")
    assert result.exit_code == 1
    assert "damaged" in result.stderr
    assert list_files() == {"holdfast.db"}


def test_failed_backup_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_store("a")
    assert run("backup", "copy.db").exit_code == 0
    before = Path("copy.db").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.stores.backup._verify", full)
    result = run("backup", "copy.db", "--force")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert Path("copy.db").read_bytes() == before
    assert list_files() == {"holdfast.db", "copy.db"}


# -- restore -------------------------------------------------------------------


def test_restore_keeps_the_previous_database() -> None:
    """Under a new name each time; the file mode is preserved."""
    fill_store("old")
    assert run("backup", "copy.db").exit_code == 0
    fill_store("new")
    Path("holdfast.db").chmod(0o640)
    result = run("restore", "copy.db")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[1].endswith("holdfast.db.before-restore.")
    assert list_session_ids() == {"old"}
    assert list_session_ids("sqlite:///holdfast.db.before-restore") == {"old", "new"}
    assert stat.S_IMODE(Path("holdfast.db").stat().st_mode) == 0o640
    assert json.loads(run("restore", "copy.db", "--json").stdout)["kept"].endswith(".before-restore.2")


def test_restore_without_an_existing_database() -> None:
    fill_store("a")
    run("backup", "copy.db")
    Path("holdfast.db").unlink()
    result = run("restore", "copy.db")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert list_session_ids() == {"a"}
    assert list_files() == {"holdfast.db", "copy.db"}


async def test_database_in_use_is_not_replaced() -> None:
    """Also while no client is writing."""
    store = await open_store(URL, tenant="acme")
    await store.create(session())
    copying.backup(URL, "copy.db")
    for force in (False, True):
        with pytest.raises(StoreUnavailable, match="is in use"):
            copying.restore(URL, "copy.db", force=force)
    await store.ping()
    await store.close()
    assert copying.restore(URL, "copy.db").sessions == 1
    assert list_files() == {"holdfast.db", "copy.db", "holdfast.db.before-restore"}


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
    assert result.exit_code == 1
    assert said in result.stderr
    assert len(list_session_ids()) == 20
    assert list_files() == {"holdfast.db", "copy.db"}
    assert "no such file" in run("restore", "gone.db").stderr
    assert "is the database itself" in run("restore", "holdfast.db").stderr


def test_unreadable_database_is_replaced_only_with_force() -> None:
    """A damaged header does not show whether the file is in use. The old file is kept."""
    fill_store("a")
    run("backup", "copy.db")
    Path("holdfast.db").write_bytes(b"\0" * 5000)
    result = run("restore", "copy.db")
    assert result.exit_code == 1
    assert "--force" in result.stderr
    result = run("restore", "copy.db", "--force")
    assert result.exit_code == 0, result.stderr
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
        assert run("backup", name, "--force").exit_code == 0
        Path("copy.db-wal").write_bytes(log)
    assert run("backup", "copy.db", "--force").exit_code == 0
    assert not Path("copy.db-wal").exists()
    if there:
        Path("holdfast.db").write_bytes(b"\0" * 5000)
    else:
        Path("holdfast.db").unlink()
    Path("holdfast.db-wal").write_bytes(log)
    result = run("restore", "copy.db", "--force")
    assert result.exit_code == 0, result.stderr
    assert not Path("holdfast.db-wal").exists()
    assert run("sessions", "verify", "--all").stdout == "Verified 21 sessions, 21 entries: no differences.\n"


def test_restored_older_schema_is_migrated_on_open(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_store("a")
    run("backup", "copy.db")
    know_later(monkeypatch)
    assert json.loads(run("restore", "copy.db", "--json").stdout)["schema"] == 1
    assert list_session_ids("sqlite:///holdfast.db") == {"a"}
    raw = apsw.Connection("holdfast.db")
    assert raw.execute("SELECT a FROM later").fetchall() == [(1,)]
    raw.close()


# -- the index ---------------------------------------------------------------------


def test_restore_deletes_an_index_of_another_state() -> None:
    fill_store("before")
    assert run("backup", "copy.db").exit_code == 0
    fill_store("later")
    assert run("index", "rebuild").exit_code == 0
    assert Path("holdfast.index.db").exists()
    assert run("restore", "copy.db").exit_code == 0
    assert not list(Path().glob("holdfast.index.db*"))
    assert "holdfast.index.db: does not exist yet" in run("doctor").stdout
