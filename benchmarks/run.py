"""One run: how long it may take, where its files lie, and the session that is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from benchmarks.corpus import SampleSession


class Run:
    """What all parts share.

    Args:
        folder: for databases; deleted in the end.
        quick: shorter, and up to 10,000 entries only.
    """

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.memory: Path | None = None
        """A folder whose files cost no disk, where there is one: what is measured there is the software."""
        self.rounds = 3 if quick else 6
        self.limit = 2.0 if quick else 6.0
        """Seconds for one candidate in one cell of a table."""
        self.longest = 10_000 if quick else 100_000

    @cached_property
    def sample(self) -> SampleSession:
        """The session; made by first use."""
        return SampleSession(self.longest)

    def select_lengths(self, wanted: Sequence[int]) -> list[int]:
        """Those of `wanted` that this run measures."""
        return [length for length in wanted if length <= self.longest]


def delete_files(folder: Path, pattern: str) -> None:
    """Delete the files of a measurement, so that the next one finds the room."""
    for path in folder.glob(pattern):
        path.unlink()
