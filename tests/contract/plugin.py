"""The fixtures of the contract's checks. A project overrides the first ones, as far as its store needs it.

`url` is enough for a store that `holdfast.stores.open_store` opens. One that it does not know gives `opened_by` too. The others are
the checks' own.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib import import_module

import pytest

from holdfast.stores.base import Store

from .programs import start_program
from .resources import HeldResources

OpenStore = Callable[..., Awaitable[Store]]
"""`await open_store(tenant="acme")`: one more opening of the same place."""
Writer = Callable[[str, int], "subprocess.Popen[str]"]
"""`writer(name, count)`: one more process that appends."""


@pytest.fixture
def url() -> str:
    """Where nothing is yet, a place of its own for each check; what a check leaves there may be taken away behind it."""
    return ""


@pytest.fixture
def opened_by() -> str:
    """Where the function stands that opens a store at `url`, as `module:name`: awaited with `(url, tenant=…)`."""
    return "holdfast.stores:open_store"


@pytest.fixture
def open_store(url: str, opened_by: str) -> OpenStore:
    """Opens a store at the check's own place; called again, opens that place once more."""
    if not url:
        pytest.fail("the contract's checks need a fixture: `url`", pytrace=False)
    module, _, name = opened_by.partition(":")
    opener = getattr(import_module(module), name)

    async def open_tenant(tenant: str = "acme") -> Store:
        store: Store = await opener(url, tenant=tenant)
        return store

    return open_tenant


@pytest.fixture
def nothing_left(url: str) -> Iterator[None]:
    """What a check's store holds is given back when it is closed: threads, files, connections."""
    before = HeldResources()
    yield
    assert before.more() == [], "held by the store after it was closed"


@pytest.fixture
def shared() -> bool:
    """Whether the place can be opened several times, with the same sessions in it."""
    return True


@pytest.fixture
async def store_opener(nothing_left: None, open_store: OpenStore) -> AsyncIterator[OpenStore]:
    """Opens the check's store, once or again; all that were opened are closed behind the check."""
    stores: list[Store] = []

    async def open_tenant(tenant: str = "acme") -> Store:
        stores.append(await open_store(tenant))
        return stores[-1]

    yield open_tenant
    for store in stores:
        await store.close()


@pytest.fixture
def shared_opener(shared: bool, store_opener: OpenStore) -> OpenStore:
    """`store_opener`, of a store that can be opened several times."""
    if not shared:
        pytest.skip("a store that cannot be opened twice")
    return store_opener


@pytest.fixture
async def store(store_opener: OpenStore) -> Store:
    """An opened store, of tenant `acme`."""
    return await store_opener()


@pytest.fixture
async def openings(shared: bool, store_opener: OpenStore) -> list[Store]:
    """Two openings of the check's place, or one of a store that cannot be opened twice."""
    return [await store_opener() for _ in range(2 if shared else 1)]


@pytest.fixture
def elsewhere(shared: bool, url: str, opened_by: str) -> tuple[str, str]:
    """What another process needs to open the check's store: `opened_by` and `url`."""
    if not shared:
        pytest.skip("a store that cannot be opened twice")
    return opened_by, url


@pytest.fixture
def writer(elsewhere: tuple[str, str]) -> Writer:
    """Starts a process that appends to the check's store: `writer(name, count)`."""
    return writer_of(*elsewhere)


def writer_of(opened_by: str, url: str) -> Writer:
    """What starts processes that append to the store at `url`; see `writer_process`."""
    return lambda name, count: start_program("writer_process.py", opened_by, url, name, str(count))
