"""What is left of a file when the process is killed, or the power cut, behind every single write and sync of a workload.

One run is enough: behind each event the files are copied, and from the copies is taken what had not come to the disk. (Processes that
are really killed: the contract's `test_acknowledged_writes_survive_kill_9`.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.stores import open_store
from holdfast.stores.verify import verify
from tests.faults.vfs import Death
from tests.faults.workload import OTHER, REF, dying, look, run

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


async def _check(path: Path, acknowledged: int, states: list[Any], steps: list[int]) -> None:
    """The file holds what was acknowledged, and of the next step all or nothing, a write at a time."""
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


@pytest.mark.parametrize(("death", "made"), [("kill", False), ("shuffle", False), ("tear", True), ("drop", True)])
async def test_acknowledged_is_there_and_nothing_is_half(death: Death, made: bool, quick_folder: Path) -> None:
    """For each event of the file system: open what a death behind it leaves, and look. With the making of the schema or not."""
    acknowledged = await dying(quick_folder, death, made=made)
    assert len(acknowledged) > LEAST_EVENTS
    states, steps = await _states(), await _acknowledgements()
    assert len(states) == steps[-1] + 1
    assert set(acknowledged) == set(steps)
    for event, number in enumerate(acknowledged, 1):
        await _check(quick_folder / f"{event}.db", number, states, steps)
