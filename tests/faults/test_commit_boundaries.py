"""The process is killed, or the power cut, behind every single write and sync of a workload."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.stores import open_store
from holdfast.stores.verify import verify
from tests.faults.workload import OTHER, REF, look, run

LEAST_EVENTS = 60
"""Writes and syncs that the workload takes at the very least: fewer, and the shim has missed some."""


async def _states() -> list[Any]:
    """What can be seen before the first write, and behind each."""
    store = await open_store("sqlite://:memory:", tenant="acme")
    states = [await look(store)]
    async for _ in run(store, together=False):
        states.append(await look(store))
    await store.close()
    return states


async def _acknowledgements() -> list[int]:
    """How many writes are done whenever something is acknowledged."""
    store = await open_store("sqlite://:memory:", tenant="acme")
    done = [0, *[number async for number in run(store)]]
    await store.close()
    return done


async def _check(path: Path, states: list[Any], steps: list[int]) -> None:
    """The file holds what was acknowledged, and of the next step all or nothing, a write at a time."""
    acknowledged = int(path.with_suffix(".acknowledged").read_text())
    following = min([step for step in steps if step > acknowledged], default=acknowledged)
    store = await open_store(f"sqlite:///{path}", tenant="acme")
    try:
        found = await look(store)
        assert found in states[acknowledged : following + 1], (path.name, acknowledged)
        for ref, seen in zip((REF, OTHER), found, strict=True):
            if seen is not None:
                await verify(store, ref)
        await store.ping()
    finally:
        await store.close()


async def _make(path: Path) -> None:
    await (await open_store(f"sqlite:///{path}", tenant="acme")).close()


@pytest.mark.parametrize(("death", "made"), [("kill", False), ("shuffle", False), ("tear", True), ("drop", True)])
def test_acknowledged_is_there_and_nothing_is_half(death: str, made: bool, quick_folder: Path) -> None:
    """For each event of the file system: die behind it, open the file again, and look. With the making of the schema or not."""
    if made:
        asyncio.run(_make(quick_folder / "made.db"))
    program = [sys.executable, "-m", "tests.faults.workload", str(quick_folder), death]
    root = Path(__file__).parents[2]
    done = subprocess.run(program, cwd=root, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    events = int(done.stdout)
    assert events > LEAST_EVENTS

    async def check_all() -> None:
        states, steps = await _states(), await _acknowledgements()
        assert len(states) == steps[-1] + 1
        for event in range(1, events + 1):
            await _check(quick_folder / f"{event}.db", states, steps)

    asyncio.run(check_all())
