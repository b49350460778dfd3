"""Kernels: which session has which process, the order of its calls, and when it ends. The processes are stand-ins."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.tools.python.folders import LOCK, PREFIX, WorkFolders
from holdfast.tools.python.kernels import Kernels, NoKernel
from holdfast.tools.python.settings import PythonSettings
from tests.clocks import Clock
from tests.service.fake_python import Stage
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
