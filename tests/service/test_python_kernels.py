"""Kernels: which session has which process, the order of its calls, and when it ends. The processes are stand-ins."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.errors import InvalidRequest
from holdfast.limits import PYTHON_CALLS_WAITING
from holdfast.tools.python.folders import LOCK, PREFIX, WorkFolders, remove
from holdfast.tools.python.kernels import Kernels, NoKernel
from holdfast.tools.python.settings import PythonSettings
from tests.clocks import Clock
from tests.service.fake_python import Stage, list_files
from tests.waits import until

A, B, C = (("t", "u", name) for name in "abc")


@asynccontextmanager
async def kernels(folder: Path, **limits: int) -> AsyncIterator[tuple[Kernels, Stage, Clock]]:
    """Open kernels with work folders in `folder`. `limits` replaces constants of the module, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        for name, value in limits.items():
            patch.setattr(f"holdfast.tools.python.kernels.{name}", value)
        stage, clock = Stage(), Clock()
        made = Kernels(PythonSettings(), clock, process=stage)
        await made.open()
        try:
            yield made, stage, clock
        finally:
            await made.close()


async def run_code(made: Kernels, key: tuple[str, str, str], code: str = "x", identity: str = "1") -> str | None:
    async with made.acquire(key, identity) as kernel:
        return (await kernel.run(code)).result


def list_work_folders(base: Path) -> list[Path]:
    """Return the existing work folders."""
    return [path for root in base.glob(PREFIX + "*") if root.is_dir() for path in root.iterdir()]


# -- ownership --------------------------------------------------------------------


async def test_calls_of_a_session_run_in_order(tmp_path: Path) -> None:
    """One after the other; calls of another session run meanwhile."""
    async with kernels(tmp_path) as (made, stage, _):
        held = asyncio.ensure_future(run_code(made, A, "hold one"))
        await until(lambda: stage.ran)
        rest = [asyncio.ensure_future(run_code(made, A, f"x {number}")) for number in range(5)]
        assert await run_code(made, B) == "1"
        assert stage.ran == ["hold one", "x"]
        stage.gate("one").set()
        await asyncio.gather(held, *rest)
        assert stage.ran[2:] == [f"x {number}" for number in range(5)]


async def test_cancelled_call_lets_the_next_one_run(tmp_path: Path) -> None:
    """Cancelled while it runs, and while it waits."""
    async with kernels(tmp_path) as (made, stage, _):
        tasks = [asyncio.ensure_future(run_code(made, A, code)) for code in ("hold one", "hold two", "x")]
        await until(lambda: stage.ran)
        tasks[1].cancel()
        tasks[0].cancel()
        assert await tasks[2] == "2"
        assert stage.ran == ["hold one", "x"]


async def test_number_of_waiting_calls_is_limited(tmp_path: Path) -> None:
    """The excess call gets an error, and the others run."""
    async with kernels(tmp_path) as (made, stage, _):
        held = asyncio.ensure_future(run_code(made, A, "hold one"))
        await until(lambda: stage.ran)
        waiting = [asyncio.ensure_future(run_code(made, A)) for _ in range(PYTHON_CALLS_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(NoKernel, match="fewer at a time"):
            await run_code(made, A)
        stage.gate("one").set()
        await asyncio.gather(held, *waiting)
        assert len(stage.ran) == PYTHON_CALLS_WAITING + 1


# -- limit of processes -----------------------------------------------------------


async def test_busy_process_is_never_evicted(tmp_path: Path) -> None:
    """Neither a running one nor one with waiting calls; the excess session gets an error."""
    async with kernels(tmp_path, MAX_PROCESSES=2) as (made, stage, _):
        held = [asyncio.ensure_future(run_code(made, key, "hold one")) for key in (A, B)]
        await until(lambda: len(stage.ran) == 2)
        with pytest.raises(NoKernel, match="all 2 Python processes of this server are busy"):
            await run_code(made, C)
        stage.gate("one").set()
        await asyncio.gather(*held)
        assert await run_code(made, C) == "1"
        assert stage.alive == 2


async def test_process_limit_is_never_exceeded(tmp_path: Path) -> None:
    """A process that is being ended counts until it has ended."""
    async with kernels(tmp_path, MAX_PROCESSES=1) as (made, stage, _):
        await run_code(made, A)
        stage.slow = asyncio.Event()
        task = asyncio.ensure_future(run_code(made, B))
        await until(lambda: stage.processes[0].closed)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(stage.processes) == 1
        stage.slow.set()
        assert await task == "1"


# -- ends ----------------------------------------------------------------------


async def test_ending_a_session_while_its_process_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new folder is deleted, and nothing runs in it."""
    async with kernels(tmp_path) as (made, stage, _):
        making, go_on, make = threading.Event(), threading.Event(), made._folders.make

        def slowly() -> Path:
            making.set()
            assert go_on.wait(30)
            return make()

        monkeypatch.setattr(made._folders, "make", slowly)
        task = asyncio.ensure_future(run_code(made, A))
        await until(making.is_set)
        made._end(made._kernels[A])
        await made.wait_until_ended()
        go_on.set()
        with pytest.raises(NoKernel, match="ended"):
            await task
        assert (stage.ran, stage.alive, list_work_folders(tmp_path)) == ([], 0, [])


async def test_closing_ends_all_processes(tmp_path: Path) -> None:
    """Busy or not; nothing runs afterwards, and closing again has no effect."""
    async with kernels(tmp_path) as (made, stage, _):
        await run_code(made, A)
        held = asyncio.ensure_future(run_code(made, B, "hold one"))
        await until(lambda: len(stage.ran) == 2)
        await made.close()
        assert await held is None
        assert (stage.alive, list_files(tmp_path)) == (0, [])
        with pytest.raises(NoKernel, match="shutting down"):
            await run_code(made, A)
        await made.close()
        await made.open()
        assert await run_code(made, A) == "1"


# -- folders -------------------------------------------------------------------


def test_folders_of_a_dead_server_are_deleted(tmp_path: Path) -> None:
    """At the next start; folders of a running server and other files are kept."""
    living = WorkFolders(tmp_path)
    living.open()
    kept = living.make()
    dead = tmp_path / f"{PREFIX}dead"
    (dead / "a" / "b").mkdir(parents=True)
    (dead / "a" / "file").write_text("x")
    (tmp_path / f"{PREFIX}dead{LOCK}").touch()
    (tmp_path / f"{PREFIX}lonely{LOCK}").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / f"{PREFIX}link{LOCK}").symlink_to(tmp_path / "mine")
    (tmp_path / f"{PREFIX}other{LOCK}").touch()
    (tmp_path / f"{PREFIX}other").symlink_to(tmp_path / "mine")
    (tmp_path / "mine" / "precious").write_text("x")
    started = WorkFolders(tmp_path)
    started.open()
    assert not dead.exists()
    assert not (tmp_path / f"{PREFIX}dead{LOCK}").exists()
    assert not (tmp_path / f"{PREFIX}lonely{LOCK}").exists()
    assert kept.is_dir()
    assert (tmp_path / "mine" / "precious").exists()
    started.close()
    living.close()
    assert not kept.exists()


def test_folder_is_deleted_whatever_it_contains(tmp_path: Path) -> None:
    """Deep trees, missing rights, links out of it, pipes, and names that are not valid text; link targets are kept."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    work = tmp_path / "work"
    work.mkdir()
    at = os.open(work, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 200, dir_fd=at)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    (work / "link").symlink_to(outside)
    (work / "file link").symlink_to(outside / "file")
    os.mkfifo(work / "pipe")
    (work / "\udcff\n").write_text("x")
    (work / "0").mkdir()
    (work / "0" / "1").mkdir()
    (work / "0").chmod(0)
    work.chmod(0)
    remove(work)
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "file").read_text() == "x"
    remove(work)
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_missing_root_folder_is_created_again(tmp_path: Path) -> None:
    """Temporary files are removed by system cleaners."""
    workshop = WorkFolders(tmp_path)
    workshop.open()
    for path in tmp_path.iterdir():
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    folder = workshop.make()
    assert folder.is_dir()
    workshop.close()
    assert list(tmp_path.iterdir()) == []


def test_unusable_location_is_reported(tmp_path: Path) -> None:
    """At the start."""
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="work folders cannot be created") as caught:
        WorkFolders(tmp_path / "file" / "x").open()
    assert caught.value.param == "python"
