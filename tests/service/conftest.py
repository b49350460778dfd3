"""What the service tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.recallbench import Place, placed
from tests.stores.servers import leave


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is reached directly, whatever the environment says."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="session", autouse=True)
def _databases() -> Iterator[None]:
    yield
    leave()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A database where nothing is yet, of the kind that the test's parameter names; its servers walk when the test says so."""
    monkeypatch.setattr("holdfast.indexes.opened.INDEX_FIRST_WALK_SECONDS", 3600)
    yield from placed(request.param, tmp_path)
