"""What the tests at the edges share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.edges.raw_client import drop_all


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is run where nothing is, and nothing says which colours it has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
async def lines_end() -> AsyncIterator[None]:
    """Nobody leaves a socket of `tests.edges.raw_client` open."""
    yield
    drop_all()
