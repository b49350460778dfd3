"""A store that cannot be written: read-only, full, failing or held by another program. Nothing is lost, and it recovers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.stores.verify import verify
from tests.faults.kit import REF, append, make_store, open_path
from tests.faults.vfs import Event, faulty


def refusing(error: type[apsw.Error], *events: Event, ending: str = "") -> Callable[[Event, str], None]:
    """A fault that answers these events on files of that ending with `error`."""

    def fault(event: Event, name: str) -> None:
        if event in events and name.endswith(ending):
            raise error("made up")

    return fault


async def texts(path: Path) -> list[str]:
    """What the log in a closed file says, verified."""
    store = await open_path(path)
    said = [entry.message.text for entry in await store.entries(REF)]
    assert await verify(store, REF) == len(said)
    await store.close()
    return said


# -- the disk, by a file system that refuses ---------------------------------

FAULTS = [
    (apsw.FullError, ("write",), "", "disk is full"),
    (apsw.FullError, ("write",), "-wal", "disk is full"),
    (apsw.IOError, ("write",), "-wal", "disk failed"),
    (apsw.IOError, ("sync",), "-wal", "disk failed"),
    (apsw.ReadOnlyError, ("write",), "-wal", "read-only"),
]


@pytest.mark.parametrize(("error", "events", "ending", "says"), FAULTS)
async def test_a_disk_that_refuses(
    database: Path, error: type[apsw.Error], events: tuple[Event, ...], ending: str, says: str
) -> None:
    """All that write are told why, reads go on, and when the disk is well again the store is too, without being opened anew."""
    with faulty() as vfs:
        store = await make_store(database)
        await append(store, "a")
        vfs.fault = refusing(error, *events, ending=ending)
        for count in (1, 8):
            writes = [append(store, f"lost {at}") for at in range(count)]
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * count
            assert all(says in str(outcome) for outcome in outcomes)
            assert [entry.message.text for entry in await store.entries(REF)] == ["a"]
        with pytest.raises(StoreUnavailable, match=says):
            await store.ping()
        vfs.fault = None
        await store.ping()
        await append(store, "b")
        await store.close()
    assert await texts(database) == ["a", "b"]


async def test_a_disk_that_fails_now_and_then(database: Path) -> None:
    """Whichever write of a file fails: what was acknowledged is there, in order, and nothing else."""
    said: list[str] = []
    with faulty() as vfs:
        store = await make_store(database)
        for at in range(40):
            left = at

            def fault(event: Event, name: str) -> None:
                nonlocal left
                if event in ("write", "sync", "truncate"):
                    left -= 1
                    if left == 0:
                        raise apsw.IOError("made up")

            vfs.fault = fault
            try:
                await append(store, f"m{at}", "x" * 6000)
                said += [f"m{at}", "x" * 6000]
            except StoreUnavailable:
                pass
        vfs.fault = None
        await store.close()
    assert await texts(database) == said


# -- the disk itself ---------------------------------------------------------


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """A file or folder that even root cannot write, while it lasts."""
    if os.geteuid() != 0:
        mode = path.stat().st_mode
        path.chmod(mode & ~0o222)
        try:
            yield
        finally:
            path.chmod(mode)
        return
    chattr = shutil.which("chattr")
    if chattr is None or subprocess.run([chattr, "+i", path], capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing is read-only to root here: chattr is missing, or the file system does not know it")
    try:
        yield
    finally:
        subprocess.run([chattr, "-i", path], check=True)


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_what_is_read_only(tmp_path: Path, what: str) -> None:
    """`StoreUnavailable` with the file's name; afterwards all is as it was."""
    folder = tmp_path / "data"
    folder.mkdir()
    database = folder / "holdfast.db"
    store = await make_store(database)
    await append(store, "a")
    await store.close()
    before = database.read_bytes()
    with (
        unwritable(database if what == "file" else folder),
        pytest.raises(StoreUnavailable, match=r"holdfast\.db: .*(read-only|cannot be opened)"),
    ):
        await open_path(database)
    assert database.read_bytes() == before
    assert await texts(database) == ["a"]


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("a small file system cannot be mounted here")
    if done.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """Filled up by others: refused until there is room again, then the same store goes on."""
    with small_disk(tmp_path / "small", "2m") as disk:
        store = await make_store(disk / "holdfast.db")
        await append(store, "a")
        (disk / "ballast").write_bytes(b"x" * 1_500_000)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="full"):
                await append(store, "b" * 500_000)
        (disk / "ballast").unlink()
        await append(store, "c")
        assert [entry.message.text for entry in await store.entries(REF)] == ["a", "c"]
        await store.close()
        assert await texts(disk / "holdfast.db") == ["a", "c"]


# -- another program ---------------------------------------------------------


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
async def test_a_file_that_another_program_holds(database: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Longer than the store is patient: writes are refused and say why, reads go on, and later writes are well again."""
    store = await make_store(database)
    await append(store, "a")
    monkeypatch.setattr("holdfast.stores.sqlite_connection.PATIENCE", 0.01)
    other = apsw.Connection(str(database))
    other.execute(f"BEGIN {mode}")
    for write in (append(store, "lost"), store.ping()):
        with pytest.raises(StoreUnavailable, match="another program has locked"):
            await write
    assert [entry.message.text for entry in await store.entries(REF)] == ["a"]
    with pytest.raises(StoreUnavailable, match=r"holdfast\.db: another program has locked"):
        await open_path(database)
    other.execute("COMMIT")
    other.close()
    await append(store, "b")
    await store.close()
    assert await texts(database) == ["a", "b"]


async def test_a_file_that_another_program_keeps_for_itself(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclusive locking, as some backup programs do: it cannot be opened, and says why."""
    await (await make_store(database)).close()
    monkeypatch.setattr("holdfast.stores.sqlite_connection.PATIENCE", 0.01)
    other = apsw.Connection(str(database))
    other.execute("PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT").fetchall()
    with pytest.raises(HoldfastError, match="another program has locked"):
        await open_path(database)
    other.close()
    assert await texts(database) == []
