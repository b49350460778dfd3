"""Kernels: which session has which process, in which order its calls run, and when it ends. The processes are stand-ins."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.limits import PYTHON_CALLS_WAITING
from holdfast.tools.python.folders import LOCK, PREFIX, WorkFolders, remove
from holdfast.tools.python.kernels import Kernels, NoKernel
from tests.clocks import Clock
from tests.service.fake_python import Stage, listed, settings
from tests.waiting import until

A, B, C = (("t", "u", name) for name in "abc")


@asynccontextmanager
async def kernels(folder: Path, **given: Any) -> AsyncIterator[tuple[Kernels, Stage, Clock]]:
    stage, clock = Stage(), Clock()
    made = Kernels(settings(folder, **given), clock, process=stage)
    await made.open()
    try:
        yield made, stage, clock
    finally:
        await made.close()


async def call(made: Kernels, key: tuple[str, str, str], code: str = "x", identity: str = "1") -> str | None:
    async with made.acquire(key, identity) as kernel:
        return (await kernel.run(code)).result


def folders(base: Path) -> list[Path]:
    """The work folders that there are."""
    return [path for root in base.glob(PREFIX + "*") if root.is_dir() for path in root.iterdir()]


# -- whose is whose ------------------------------------------------------------


async def test_a_session_keeps_its_process(tmp_path: Path) -> None:
    """And another session, user or tenant has another one."""
    async with kernels(tmp_path) as (made, stage, _):
        assert [await call(made, A), await call(made, A), await call(made, A)] == ["1", "2", "3"]
        for key in (B, ("t", "other", "a"), ("other", "u", "a")):
            assert await call(made, key) == "1"
        assert len(made) == len(stage.processes) == len({one.folder for one in stage.processes}) == 4


async def test_a_session_made_anew_has_another_process(tmp_path: Path) -> None:
    """The name is the same, the identity is not: nothing of the old one is there."""
    async with kernels(tmp_path) as (made, stage, _):
        await call(made, A, "write secret.txt x")
        assert await call(made, A, "ls", identity="2") == ""
        await made.wait_until_ended()
        assert (stage.alive, len(folders(tmp_path))) == (1, 1)


async def test_calls_of_a_session_run_in_their_order(tmp_path: Path) -> None:
    """One after the other, however they were made; those of another session go on meanwhile."""
    async with kernels(tmp_path) as (made, stage, _):
        held = asyncio.ensure_future(call(made, A, "hold one"))
        await until(lambda: stage.ran)
        rest = [asyncio.ensure_future(call(made, A, f"x {number}")) for number in range(5)]
        assert await call(made, B) == "1"
        assert stage.ran == ["hold one", "x"]
        stage.gate("one").set()
        await asyncio.gather(held, *rest)
        assert stage.ran[2:] == [f"x {number}" for number in range(5)]


async def test_a_call_that_is_given_up_lets_the_next_one_in(tmp_path: Path) -> None:
    """While it runs, and while it waits."""
    async with kernels(tmp_path) as (made, stage, _):
        tasks = [asyncio.ensure_future(call(made, A, code)) for code in ("hold one", "hold two", "x")]
        await until(lambda: stage.ran)
        tasks[1].cancel()
        tasks[0].cancel()
        assert await tasks[2] == "2"
        assert stage.ran == ["hold one", "x"]


async def test_no_more_calls_wait_than_may(tmp_path: Path) -> None:
    """The one that is too many is told so, and the others run."""
    async with kernels(tmp_path) as (made, stage, _):
        held = asyncio.ensure_future(call(made, A, "hold one"))
        await until(lambda: stage.ran)
        waiting = [asyncio.ensure_future(call(made, A)) for _ in range(PYTHON_CALLS_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(NoKernel, match="fewer at a time"):
            await call(made, A)
        stage.gate("one").set()
        await asyncio.gather(held, *waiting)
        assert len(stage.ran) == PYTHON_CALLS_WAITING + 1


# -- how many ------------------------------------------------------------------


async def test_the_one_idle_longest_makes_room(tmp_path: Path) -> None:
    """By its last use, not by its age; its folder goes with it."""
    async with kernels(tmp_path, max_sessions=2) as (made, stage, clock):
        for key in (A, B, A):
            await call(made, key)
            clock.now += 1000
        await call(made, C)
        assert [process.closed for process in stage.processes] == [False, True, False]
        assert (await call(made, A), len(folders(tmp_path))) == ("3", 2)


async def test_a_busy_one_never_makes_room(tmp_path: Path) -> None:
    """Not one that runs, nor one that is waited for: whoever is too many is told so."""
    async with kernels(tmp_path, max_sessions=2) as (made, stage, _):
        held = [asyncio.ensure_future(call(made, key, "hold one")) for key in (A, B)]
        await until(lambda: len(stage.ran) == 2)
        with pytest.raises(NoKernel, match="all 2 Python processes of this server are busy"):
            await call(made, C)
        stage.gate("one").set()
        await asyncio.gather(*held)
        assert await call(made, C) == "1"
        assert stage.alive == 2


async def test_there_are_never_more_than_may_be(tmp_path: Path) -> None:
    """One that was told to end counts until it has ended."""
    async with kernels(tmp_path, max_sessions=1) as (made, stage, _):
        await call(made, A)
        stage.slow = asyncio.Event()
        task = asyncio.ensure_future(call(made, B))
        await until(lambda: stage.processes[0].closed)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(stage.processes) == 1
        stage.slow.set()
        assert await task == "1"


# -- ends ----------------------------------------------------------------------


async def test_the_idle_ones_end(tmp_path: Path) -> None:
    """At their time and not before, and not while they are busy; then nothing is looked for any more."""
    async with kernels(tmp_path, idle=60) as (made, stage, clock):
        assert (made._sweeper, await made.sweep()) == (None, 0)
        await call(made, A)
        held = asyncio.ensure_future(call(made, B, "hold one"))
        await until(lambda: len(stage.ran) == 2)
        clock.now += 59_999
        assert await made.sweep() == 1000
        assert len(made) == 2
        clock.now += 1
        assert await made.sweep() > 0
        await made.wait_until_ended()
        assert [process.closed for process in stage.processes] == [True, False]
        assert len(folders(tmp_path)) == 1
        stage.gate("one").set()
        await held
        clock.now += 60_000
        assert await made.sweep() == 0
        assert (len(made), made._sweeper) == (0, None)
        await call(made, A)
        assert made._sweeper is not None


async def test_never_idle(tmp_path: Path) -> None:
    """0 is no limit: nothing is looked for."""
    async with kernels(tmp_path, idle=0) as (made, _, clock):
        await call(made, A)
        clock.now += 10**12
        assert made._sweeper is None
        assert await call(made, A) == "2"


async def test_an_end_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """The code is killed, what waits behind it is told, and the folder is gone."""
    async with kernels(tmp_path) as (made, stage, _):
        async with made.acquire(A, "1") as kernel:
            pass
        held = asyncio.ensure_future(call(made, A, "hold one"))
        await until(lambda: stage.ran)
        waits = asyncio.ensure_future(call(made, A))
        await asyncio.sleep(0)
        made._end(kernel)
        assert await held is None
        with pytest.raises(NoKernel, match="ended"):
            await waits
        await made.wait_until_ended()
        assert folders(tmp_path) == []
        assert await call(made, A) == "1"


async def test_an_end_before_there_is_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is just being made goes, and nothing runs in it."""
    async with kernels(tmp_path) as (made, stage, _):
        making, go_on, make = threading.Event(), threading.Event(), made._folders.make

        def slowly() -> Path:
            making.set()
            assert go_on.wait(30)
            return make()

        monkeypatch.setattr(made._folders, "make", slowly)
        task = asyncio.ensure_future(call(made, A))
        await until(making.is_set)
        made._end(made._kernels[A])
        await made.wait_until_ended()
        go_on.set()
        with pytest.raises(NoKernel, match="ended"):
            await task
        assert (stage.ran, stage.alive, folders(tmp_path)) == ([], 0, [])


async def test_closing_ends_all(tmp_path: Path) -> None:
    """Busy or not; nothing is left, nothing runs afterwards, and closing again is fine."""
    async with kernels(tmp_path) as (made, stage, _):
        await call(made, A)
        held = asyncio.ensure_future(call(made, B, "hold one"))
        await until(lambda: len(stage.ran) == 2)
        await made.close()
        assert await held is None
        assert (stage.alive, listed(tmp_path)) == (0, [])
        with pytest.raises(NoKernel, match="shutting down"):
            await call(made, A)
        await made.close()
        await made.open()
        assert await call(made, A) == "1"


# -- folders -------------------------------------------------------------------


def test_what_a_dead_server_left_goes(tmp_path: Path) -> None:
    """At the next start; what a living one has, and what is not ours, stays."""
    living = WorkFolders(str(tmp_path))
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
    started = WorkFolders(str(tmp_path))
    started.open()
    assert not dead.exists()
    assert not (tmp_path / f"{PREFIX}dead{LOCK}").exists()
    assert not (tmp_path / f"{PREFIX}lonely{LOCK}").exists()
    assert kept.is_dir()
    assert (tmp_path / "mine" / "precious").exists()
    started.close()
    living.close()
    assert not kept.exists()


def test_a_folder_goes_whatever_is_in_it(tmp_path: Path) -> None:
    """Deep, without rights, with links out of it, pipes, and names that are no text: what is linked to stays."""
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


def test_a_folder_that_was_tidied_up(tmp_path: Path) -> None:
    """Temporary files go where nobody looks after them: another one is made."""
    workshop = WorkFolders(str(tmp_path))
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


def test_a_place_where_nothing_can_be_made(tmp_path: Path) -> None:
    """It is said at the start."""
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="work folders cannot be created") as caught:
        WorkFolders(str(tmp_path / "file" / "x")).open()
    assert caught.value.param == "python.workdir"
