"""Fixtures of the service tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clocks import Clock
from tests.service.recall_kit import Place, open_place


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until the test moves it."""
    return Clock()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """An empty database of the kind that the test's parameter names; its servers walk only when the test says so."""
    monkeypatch.setattr("holdfast.indexes.tenants.INDEX_FIRST_WALK_SECONDS", 3600)
    yield from open_place(request.param, tmp_path)
