"""`holdfast backup` and `restore`: beside writers, verified, and never in the place of what is in use."""

from __future__ import annotations

import asyncio
import json
import shutil
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

pytestmark = pytest.mark.usefixtures("in_empty_folder")

URL = "sqlite:///holdfast.db"


def run(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, list(args), prog_name="holdfast", **more)


def filled(*names: str, url: str = URL) -> None:
    """Sessions of one message each."""
    given = "\n".join(json.dumps({"id": name, "messages": [{"role": "user", "content": name}]}) for name in names)
    result = run("sessions", "import", "-", "--store", url, input=given)
    assert result.exit_code == 0, result.stderr


def names(url: str = URL) -> set[str]:
    result = run("sessions", "list", "--json", "--store", url)
    assert result.exit_code == 0, result.stderr
    return {one["id"] for one in json.loads(result.stdout)}


def left() -> set[str]:
    """What lies in the folder, but for the index, which is made of what is there."""
    return {path.name for path in Path().iterdir() if ".index.db" not in path.name}


def _with(text: bytes) -> set[str]:
    """The files that hold `text` anywhere."""
    return {path.name for path in Path().iterdir() if text in path.read_bytes()}


# -- under write load ----------------------------------------------------------


class Writers:
    """Eight tasks that append, each to a session of its own, and what of that was acknowledged."""

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

    async def more(self, count: int) -> None:
        """Return when so many further messages were acknowledged."""
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


async def _held(url: str) -> list[int]:
    """How many messages each writer's session has, after all of them were verified."""
    store = await open_store(url, tenant="acme")
    try:
        for at in range(8):
            await verify(store, _ref(at))
            said = [entry.message.text.partition(" ")[0] for entry in await store.entries(_ref(at))]
            assert said == [str(number) for number in range(len(said))]
        return [(await store.get(_ref(at))).messages for at in range(8)]
    finally:
        await store.close()


async def test_a_backup_beside_eight_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was acknowledged before it began is in it, one moment of every log, and the writers go on meanwhile."""
    monkeypatch.setattr(copying, "STEP", 8)
    store = await open_store(URL, tenant="acme")
    steps: list[int] = []
    async with Writers(store) as writers:
        await writers.more(800)
        before = list(writers.acknowledged)

        def move(done: int, total: int) -> None:
            steps.append(done)
            if len(steps) == 4:  # the writers have to come forward while it is under way
                anyio.from_thread.run(writers.more, 200)
            assert done <= total

        copied = await anyio.to_thread.run_sync(lambda: copying.backup(URL, "copy.db", progress=move))
    await store.close()
    assert len(steps) > 10
    assert steps == sorted(steps)
    assert copied.sessions == 8
    assert copied.messages >= sum(before)
    assert sum(writers.acknowledged) >= sum(before) + 200
    restored = await anyio.to_thread.run_sync(lambda: copying.restore("sqlite:///again.db", "copy.db"))
    held = await _held("sqlite:///again.db")
    assert sum(held) == restored.messages == copied.messages
    assert all(have >= had for have, had in zip(held, before, strict=True))
    assert await _held(URL) == writers.acknowledged


async def test_what_is_erased_during_a_backup_leaves_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy's moment keeps it in the log until then; nobody waits for the copy to end."""
    store = await open_store(URL, tenant="acme")
    await store.create(session(_ref(0)))
    await store.append(_ref(0), Append(entries=[user("canary " * 50)], timestamp=1))
    steps: list[int] = []

    async def erase() -> None:
        await store.erase(_ref(0), 0)
        await store.append(_ref(0), Append(entries=[user("on")], timestamp=1))

    def move(done: int, total: int) -> None:
        if not steps:  # the copy stands still until both have returned: it holds neither up
            anyio.from_thread.run(erase)
        steps.append(done)

    monkeypatch.setattr(copying, "STEP", 1)
    await anyio.to_thread.run_sync(lambda: copying.backup(URL, "copy.db", progress=move))
    found = _with(b"canary")
    await store.close()
    assert found == {"copy.db"}
    assert len(steps) > 1


# -- backup --------------------------------------------------------------------


def test_a_backup_says_what_is_in_it() -> None:
    """One file, that only its owner reads, complete without any beside it."""
    filled("a", "b")
    result = run("backup", "copy.db")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Copied to copy.db: 2 sessions, 2 messages, ")
    assert left() == {"holdfast.db", "copy.db"}
    assert stat.S_IMODE(Path("copy.db").stat().st_mode) == 0o600
    told = json.loads(run("backup", "other.db", "--json").stdout)
    assert (told["path"], told["sessions"], told["messages"], told["kept"]) == ("other.db", 2, 2, None)
    assert names("sqlite:///copy.db") == {"a", "b"}


def test_a_backup_replaces_nothing_by_itself() -> None:
    filled("a")
    Path("copy.db").write_text("precious")
    result = run("backup", "copy.db")
    assert (result.exit_code, result.stderr) == (2, "Error: copy.db exists already; replace it with --force\n")
    assert Path("copy.db").read_text() == "precious"
    assert run("backup", "copy.db", "--force").exit_code == 0
    assert names("sqlite:///copy.db") == {"a"}


def test_what_cannot_be_backed_up() -> None:
    """Says what to do in its place."""
    filled("a")
    assert run("backup", "holdfast.db").exit_code == 2
    assert "is the database itself" in run("backup", "holdfast.db", "--force").stderr
    for url in ("postgresql://localhost/x", "mysql://localhost/x", "redis://localhost"):
        for command in ("backup", "restore"):
            result = run(command, "holdfast.db", "--store", url)
            assert result.exit_code == 2
            assert "docs/operations.md" in result.stderr
    assert "export its sessions" in run("backup", "copy.db", "--store", "sqlite://:memory:").stderr
    assert "no such database" in run("backup", "copy.db", "--store", "sqlite:///no.db").stderr
    assert run("backup", "no/such/folder.db").stderr.startswith("Error: ")
    assert left() == {"holdfast.db"}


def test_a_damaged_database_has_no_backup() -> None:
    """It is found before the copy gets its name."""
    filled(*(f"s{at}" for at in range(300)))
    pages = bytearray(Path("holdfast.db").read_bytes())
    middle = len(pages) // 4096 // 2 * 4096
    pages[middle : middle + 4096] = b"\x07" * 4096
    Path("holdfast.db").write_bytes(pages)
    result = run("backup", "copy.db")
    assert result.exit_code == 1
    assert "damaged" in result.stderr
    assert left() == {"holdfast.db"}


def test_a_backup_that_fails_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    filled("a")
    assert run("backup", "copy.db").exit_code == 0
    before = Path("copy.db").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.stores.backup._verify", full)
    result = run("backup", "copy.db", "--force")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert Path("copy.db").read_bytes() == before
    assert left() == {"holdfast.db", "copy.db"}


# -- restore -------------------------------------------------------------------


def test_a_restore_keeps_what_was_there() -> None:
    """Under another name each time; the place has the rights that it had."""
    filled("old")
    assert run("backup", "copy.db").exit_code == 0
    filled("new")
    Path("holdfast.db").chmod(0o640)
    result = run("restore", "copy.db")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[1].endswith("holdfast.db.before-restore.")
    assert names() == {"old"}
    assert names("sqlite:///holdfast.db.before-restore") == {"old", "new"}
    assert stat.S_IMODE(Path("holdfast.db").stat().st_mode) == 0o640
    assert json.loads(run("restore", "copy.db", "--json").stdout)["kept"].endswith(".before-restore.2")


def test_a_restore_where_there_is_nothing() -> None:
    filled("a")
    run("backup", "copy.db")
    Path("holdfast.db").unlink()
    result = run("restore", "copy.db")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert names() == {"a"}
    assert left() == {"holdfast.db", "copy.db"}


async def test_a_database_in_use_is_not_replaced() -> None:
    """Also when nobody is writing to it just now."""
    store = await open_store(URL, tenant="acme")
    await store.create(session())
    copying.backup(URL, "copy.db")
    for force in (False, True):
        with pytest.raises(StoreUnavailable, match="is in use"):
            copying.restore(URL, "copy.db", force=force)
    await store.ping()
    await store.close()
    assert copying.restore(URL, "copy.db").sessions == 1
    assert left() == {"holdfast.db", "copy.db", "holdfast.db.before-restore"}


def _newer(path: str) -> None:
    raw = apsw.Connection(path)
    raw.execute("INSERT INTO holdfast_migrations VALUES (9999, 'future', '')")
    raw.close()


def _edited(path: str) -> None:
    raw = apsw.Connection(path)
    raw.execute("UPDATE holdfast_migrations SET checksum = 'x' WHERE number = 2")
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


def _torn(path: str) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: len(data) // 2 // 4096 * 4096])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_newer, "made by a newer release"),
        (_edited, "migration 2 that differs"),
        (_foreign, "belongs to another program"),
        (_text, "not an SQLite database"),
        (_empty, "is empty"),
        (_torn, "damaged"),
    ],
)
def test_what_is_no_backup_is_not_restored(spoil: Any, said: str) -> None:
    """The database stays as it is."""
    filled(*(f"s{at}" for at in range(40)))
    run("backup", "copy.db")
    spoil("copy.db")
    result = run("restore", "copy.db")
    assert result.exit_code == 1
    assert said in result.stderr
    assert len(names()) == 20
    assert left() == {"holdfast.db", "copy.db"}
    assert "no such file" in run("restore", "gone.db").stderr
    assert "is the database itself" in run("restore", "holdfast.db").stderr


def test_what_cannot_be_opened_is_replaced_with_force_alone() -> None:
    """A beginning that is damaged says nothing of who uses the file. It is kept."""
    filled("a")
    run("backup", "copy.db")
    Path("holdfast.db").write_bytes(b"\0" * 5000)
    result = run("restore", "copy.db")
    assert result.exit_code == 1
    assert "--force" in result.stderr
    result = run("restore", "copy.db", "--force")
    assert result.exit_code == 0, result.stderr
    assert names() == {"a"}
    assert Path("holdfast.db.before-restore").read_bytes() == b"\0" * 5000


def _log_of_another() -> bytes:
    """A write-ahead log that was left behind by a process that died."""
    filled("x", url="sqlite:///other.db")
    raw = apsw.Connection("other.db")
    raw.execute("PRAGMA wal_autocheckpoint=0; UPDATE sessions SET created_at = 7").fetchall()
    log = Path("other.db-wal").read_bytes()
    raw.close()
    Path("other.db").unlink()
    return log


@pytest.mark.parametrize("there", [False, True])
def test_a_log_that_was_left_behind_is_not_taken_for_the_copys_own(there: bool) -> None:
    """SQLite would read it into whatever file has the name."""
    log = _log_of_another()
    filled("a", *(f"s{at}" for at in range(20)))
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


def test_an_older_schema_is_restored_and_brought_up_to_date(tmp_path: Path) -> None:
    """By whoever opens it next."""
    filled("a")
    run("backup", "copy.db")
    raw = apsw.Connection("copy.db")
    raw.execute("DELETE FROM holdfast_migrations WHERE number = (SELECT max(number) FROM holdfast_migrations)")
    schema = raw.execute("SELECT max(number) FROM holdfast_migrations").fetchall()[0][0]
    raw.close()
    shutil.copy("copy.db", "kept.db")
    assert json.loads(run("restore", "copy.db", "--json").stdout)["schema"] == schema


# -- the index ---------------------------------------------------------------------


def test_a_restore_takes_an_index_of_another_time_away() -> None:
    filled("before")
    assert run("backup", "copy.db").exit_code == 0
    filled("later")
    assert run("index", "rebuild").exit_code == 0
    assert Path("holdfast.index.db").exists()
    assert run("restore", "copy.db").exit_code == 0
    assert not list(Path().glob("holdfast.index.db*"))
    status = json.loads(run("index", "status", "--json").stdout)
    assert (status["documents"], status["behind"]) == (0, 1)


def test_a_restore_says_what_to_do_about_an_index_elsewhere() -> None:
    filled("before")
    assert run("backup", "copy.db").exit_code == 0
    Path("holdfast.yaml").write_text(
        "databases: {search: {driver: postgres, host: 127.0.0.1, database: nowhere}}\nstorage: {index: {database: search}}",
        encoding="utf-8",
    )
    restored = run("restore", "copy.db")
    assert restored.exit_code == 0, restored.stderr
    assert "holdfast index rebuild" in restored.stderr
