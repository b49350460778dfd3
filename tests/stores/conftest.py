"""The stores under test: every test that asks for `store` or `url` runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import CHECKS
from tests.contract.index_plugin import (  # noqa: F401  # fixtures
    index,
    index_elsewhere,
    index_opened_by,
    index_opener,
    index_openings,
    nearest_exactly,
    nothing_left_of_index,
    shared_index_opener,
)
from tests.contract.plugin import (  # noqa: F401  # fixtures
    elsewhere,
    nothing_left,
    open_store,
    opened_by,
    openings,
    shared_opener,
    store,
    store_opener,
    writer,
)
from tests.stores.servers import INDEX_SERVERS, SERVERS, Server, reach

SHARED = ("sqlite-file", *SERVERS)
"""Stores that may be opened several times."""
STORES = ("sqlite-memory", *SHARED)
INDEXES = ("sqlite-memory", "sqlite-file", *INDEX_SERVERS)
"""Stores whose full-text engine makes an index."""


def _place(name: str, folder: Path) -> Iterator[str]:
    """A URL where nothing is yet. What a test leaves there goes, and so must its connections have gone by then."""
    if name.startswith("sqlite"):
        yield {"sqlite-memory": "sqlite://:memory:", "sqlite-file": f"sqlite:///{folder}/holdfast.db"}[name]
        return
    found = reach(name)
    url = found.place()
    try:
        yield url
        assert found.count_connections(url) == 0, "connections that nobody closed"
    finally:
        found.drop(url)


def _reuse_place(name: str, folder: Path) -> Iterator[str]:
    """A URL where nothing is, as one that was opened before and emptied; it is emptied, and kept for the next test."""
    if name.startswith("sqlite"):
        yield from _place(name, folder)
        return
    found = reach(name)
    with found.lend() as url:
        yield url
        assert found.count_connections(url) == 0, "connections that nobody closed"


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that is empty."""
    yield from _reuse_place(request.param, tmp_path)


@pytest.fixture
def shared(url: str) -> bool:
    """Whether it may be opened several times: what is in memory is its opener's own."""
    return url != "sqlite://:memory:"


@pytest.fixture(params=INDEXES)
def index_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An index that is empty."""
    yield from _reuse_place(request.param, tmp_path)


@pytest.fixture
def index_shared(index_url: str) -> bool:
    """Whether it may be opened several times: what is in memory is its opener's own."""
    return index_url != "sqlite://:memory:"


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that is empty and may be opened several times."""
    yield from _place(request.param, tmp_path)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    """A database server."""
    return reach(request.param)


@pytest.fixture
def server_url(server: Server, tmp_path: Path) -> Iterator[str]:
    """An empty place on `server`."""
    yield from _place(server.name, tmp_path)


@pytest.fixture
def postgres_url(tmp_path: Path) -> Iterator[str]:
    """An empty place on a PostgreSQL server."""
    yield from _place("postgres", tmp_path)


@pytest.fixture
def mysql_url(tmp_path: Path) -> Iterator[str]:
    """An empty place on a MySQL or MariaDB server."""
    yield from _place("mysql", tmp_path)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where an SQLite file is to be."""
    return tmp_path / "holdfast.db"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of the contract's checks tells which store it ran on; the last lines of a run count them."""
    for item in items:
        if isinstance(item, pytest.Function) and CHECKS.get(item.originalname) is item.function:
            item.user_properties.append(("store", item.callspec.params["url"]))
