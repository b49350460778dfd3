"""The contract of an index, processes: several that feed one, and processes that die."""

from __future__ import annotations

import subprocess

from msgspec.structs import replace

from holdfast.recall.base import Batch, Index, Lookup, Source

from .index_kit import SPACE
from .index_plugin import OpenIndex
from .programs import start_program

WRITE = 5
"""Documents of a write."""


def _feeder(elsewhere: tuple[str, str], name: str, count: int) -> subprocess.Popen[str]:
    return start_program("index_process.py", *elsewhere, name, str(count))


async def _agrees(index: Index, name: str) -> int:
    """How many documents a source has; its progress, its counts and what is found say the same."""
    far = await index.progress(SPACE, name)
    held = await index.list_digests(SPACE, name, limit=100_000)
    there = 0 if far is None else far.next_seq
    assert [seq for seq, _ in held] == list(range(there))
    assert there % WRITE == 0
    answer = await index.lookup(Lookup(space=SPACE, terms=(f"of{name}",), limit=100_000))
    assert answer.frequencies.get(f"of{name}", 0) == there
    assert sorted(one.seq for one in answer.found) == list(range(there))
    return there


async def _fence(index: Index, name: str) -> None:
    """Have whatever a dead feeder had begun be over: a server may still end it. A write comes behind it, or keeps it out."""
    while True:
        far = await index.progress(SPACE, name)
        assert far is not None
        behind = replace(far, version=far.version + 1)  # other than what the dead one goes on from
        if await index.write(SPACE, Batch(source=Source(name, far.identity), progress=behind, expect=far)):
            return


async def test_processes_write_to_one_index(shared_index_opener: OpenIndex, index_elsewhere: tuple[str, str]) -> None:
    """None ever meets one that is locked; all of each is there."""
    index = await shared_index_opener()
    feeding = [_feeder(index_elsewhere, name, 30) for name in ("a", "b", "c")]
    for process in feeding:
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
    for name in ("a", "b", "c"):
        assert await _agrees(index, name) == 30 * WRITE
    answer = await index.lookup(Lookup(space=SPACE, terms=("x",), limit=1000))
    assert answer.documents == answer.frequencies["x"] == len(answer.found) == 90 * WRITE


async def test_acknowledged_index_writes_survive_kill_9(
    shared_index_opener: OpenIndex, index_elsewhere: tuple[str, str]
) -> None:
    """Round after round a feeder is killed in the middle; the next goes on where that one was."""
    written = 0
    for round_ in range(4):
        process = _feeder(index_elsewhere, "a", 100_000)
        assert process.stdout is not None
        heard = [process.stdout.readline() for _ in range(1 + 12 * round_)]
        process.kill()
        out, err = process.communicate(timeout=120)
        assert err == ""
        said = ["".join(heard), out]
        acknowledged = [int(line) for line in "".join(said).splitlines(keepends=True) if line.endswith("\n")]
        index = await shared_index_opener()
        await _fence(index, "a")
        there = await _agrees(index, "a")
        assert acknowledged[0] == written + WRITE
        assert there in (acknowledged[-1], acknowledged[-1] + WRITE)
        written = there
        await index.close()
    assert written > 100
