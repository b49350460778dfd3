"""The stores under test: every test that asks for `store` or `url` runs on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.stores import open_store
from holdfast.stores.base import Store

SHARED = ("sqlite-file",)
"""Stores that may be opened several times."""
STORES = ("sqlite-memory", *SHARED)


def _url(name: str, folder: Path) -> str:
    return {"sqlite-memory": "sqlite://:memory:", "sqlite-file": f"sqlite:///{folder}/holdfast.db"}[name]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that is empty."""
    return _url(request.param, tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that is empty and may be opened several times."""
    return _url(request.param, tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """An opened store, of tenant `acme`."""
    opened = await open_store(url, tenant="acme")
    yield opened
    await opened.close()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where an SQLite file is to be."""
    return tmp_path / "holdfast.db"
