"""Shared fixtures for the edge tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.edges.raw_client import drop_all


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every command in an empty folder without color settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
async def lines_end() -> AsyncIterator[None]:
    """Close all sockets that `tests.edges.raw_client` left open."""
    yield
    drop_all()
