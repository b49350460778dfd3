"""What the fault tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: syncing a thousand times takes its time on a disk."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="holdfast-test-") as folder:
        yield Path(folder)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where an SQLite file is to be."""
    return tmp_path / "holdfast.db"
