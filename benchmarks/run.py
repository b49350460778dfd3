"""Settings of one run: its length, its folders and the session that it measures on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from benchmarks.corpus import SampleSession


class Run:
    """Settings that all parts share.

    Args:
        folder: for databases; deleted at the end.
        quick: measure for a shorter time, on sessions of up to 10,000 entries.
    """

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.memory_folder: Path | None = None
        """Folder on a memory file system, if there is one: measures the software without the disk."""
        self.rounds = 3 if quick else 6
        self.limit = 2.0 if quick else 6.0
        """Seconds that one candidate may take in one cell of a table."""
        self.longest = 10_000 if quick else 100_000

    @cached_property
    def sample(self) -> SampleSession:
        """The session that is measured on, created on first use."""
        return SampleSession(self.longest)

    def select_lengths(self, lengths: Sequence[int]) -> list[int]:
        """Return the lengths that this run measures."""
        return [length for length in lengths if length <= self.longest]


def delete_files(folder: Path, pattern: str) -> None:
    """Delete the files of a measurement, to free the disk space for the next one."""
    for path in folder.glob(pattern):
        path.unlink()
