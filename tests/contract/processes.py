"""The contract, processes: several on one store, and processes that die."""

from __future__ import annotations

import subprocess

from holdfast.domain.session import StoredCompaction
from holdfast.stores.base import Store
from holdfast.stores.verify import verify

from .kit import REF, session
from .plugin import OpenStore, Writer


def _parse_acknowledged(lines: str) -> dict[int, str]:
    """What a writer said; a last line that its death cut off does not count."""
    whole = lines[: lines.rfind("\n") + 1].splitlines()
    return {int(seq): text for seq, text in (line.split(" ") for line in whole)}


def _wait_for_end(process: subprocess.Popen[str]) -> str:
    """What a process said that ended well."""
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return out


async def test_two_processes_append_to_one_session(shared_opener: OpenStore, writer: Writer) -> None:
    """Neither ever meets a locked database; the log has every entry once, where its writer was told."""
    store = await shared_opener()
    await store.create(session())
    writers = [writer(name, 100) for name in ("one", "two")]
    said: dict[int, str] = {}
    for process in writers:
        said |= _parse_acknowledged(_wait_for_end(process))
    assert {entry.seq: entry.message.text for entry in await store.entries(REF)} == said
    assert await verify(store, REF) == 200


async def test_processes_open_a_new_database_at_once(writer: Writer) -> None:
    """All find it made, by one of them."""
    for process in [writer(name, 0) for name in ("one", "two", "three")]:
        _wait_for_end(process)


async def test_one_of_several_processes_has_a_lease(shared_opener: OpenStore, writer: Writer) -> None:
    """Each round of the clock is one process's, whichever came first to it: none is nobody's, none is two's."""
    await shared_opener()
    asking = [writer("ROUNDS", 60) for _ in range(3)]
    rounds = [int(round_) for process in asking for round_ in _wait_for_end(process).split()]
    assert sorted(rounds) == list(range(60))


async def test_acknowledged_writes_survive_kill_9(shared_opener: OpenStore, writer: Writer) -> None:
    """Round after round a writer is killed in the middle: everything it was told is there once, and the chain holds.

    What was laid over the log came with it: as many compactions as entries, of the same texts.
    """
    store = await shared_opener()
    await store.create(session())
    said: dict[int, str] = {}
    for round_ in range(5):
        process = writer(f"r{round_}", 100_000)
        assert process.stdout is not None
        heard = "".join(process.stdout.readline() for _ in range(1 + 30 * round_))
        process.kill()
        out, err = process.communicate(timeout=120)
        assert err == ""
        said |= _parse_acknowledged(heard + out)
        # Opened anew, as after a crash of everything.
        store = await shared_opener()
        entries, compactions = await _at_one_moment(store)
        assert said.items() <= entries.items()
        assert len(set(entries.values())) == len(entries)
        assert await verify(store, REF) >= len(entries)
        assert max((one.id for one in compactions), default=0) == len(entries)
        assert {one.text for one in compactions} <= set(entries.values())
        await store.close()
    assert len(said) > 300


async def _at_one_moment(store: Store) -> tuple[dict[int, str], tuple[StoredCompaction, ...]]:
    """The log and the compactions as of one version: what the dead process had begun, a server may still end."""
    while True:
        version = (await store.get(REF)).version
        entries = {entry.seq: entry.message.text for entry in await store.entries(REF)}
        compactions = await store.compactions(REF)
        if (await store.get(REF)).version == version:
            return entries, compactions
