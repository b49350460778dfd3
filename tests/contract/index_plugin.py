"""The fixtures of the checks of an index. A project overrides the first ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib import import_module

import pytest

from holdfast.recall.base import Index

from .resources import HeldResources

OpenIndex = Callable[..., Awaitable[Index]]
"""`await index_opener(tenant="acme")`: one more opening of the same place."""


@pytest.fixture
def index_url() -> str:
    """Where nothing is yet, a place of its own for each check; what a check leaves there may be taken away behind it."""
    pytest.fail("the checks of an index need a fixture `index_url`", pytrace=False)


@pytest.fixture
def index_opened_by() -> str:
    """Where the function stands that opens an index at `index_url`, as `module:name`: awaited with `(url, tenant=…)`."""
    return "holdfast.stores.indexes:open_index"


@pytest.fixture
def index_shared() -> bool:
    """Whether the place can be opened several times, with the same documents in it."""
    return True


@pytest.fixture
def nearest_exactly() -> bool:
    """Whether `similar` finds the nearest vectors, not only nearly all of them."""
    return True


@pytest.fixture
def nothing_left_of_index(index_url: str) -> Iterator[None]:
    """What a check's index holds is given back when it is closed: threads, files, connections."""
    before = HeldResources()
    yield
    assert before.more() == [], "held by the index after it was closed"


@pytest.fixture
async def index_opener(nothing_left_of_index: None, index_url: str, index_opened_by: str) -> AsyncIterator[OpenIndex]:
    """Opens the check's index, once or again; all that were opened are closed behind the check."""
    module, _, name = index_opened_by.partition(":")
    opener = getattr(import_module(module), name)
    indexes: list[Index] = []

    async def open_tenant(tenant: str = "acme") -> Index:
        indexes.append(await opener(index_url, tenant=tenant))
        return indexes[-1]

    yield open_tenant
    for index in indexes:
        await index.close()


@pytest.fixture
async def index(index_opener: OpenIndex) -> Index:
    """An opened index, of tenant `acme`."""
    return await index_opener()


@pytest.fixture
async def index_openings(index_shared: bool, index_opener: OpenIndex) -> list[Index]:
    """Two openings of the check's place, or one of an index that cannot be opened twice."""
    return [await index_opener() for _ in range(2 if index_shared else 1)]


@pytest.fixture
def shared_index_opener(index_shared: bool, index_opener: OpenIndex) -> OpenIndex:
    """`index_opener`, of one that can be opened several times."""
    if not index_shared:
        pytest.skip("an index that cannot be opened twice")
    return index_opener


@pytest.fixture
def index_elsewhere(index_shared: bool, index_url: str, index_opened_by: str) -> tuple[str, str]:
    """What another process needs to open the check's index: `index_opened_by` and `index_url`."""
    if not index_shared:
        pytest.skip("an index that cannot be opened twice")
    return index_opened_by, index_url
