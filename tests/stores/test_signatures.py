"""What a store does where it is told nothing is what the contract's signatures say: the same parameters, the same defaults, pages of so many."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast.domain.artifact import UserRef
from holdfast.domain.memory import Owner
from holdfast.domain.session import ModelCall, SessionRef
from holdfast.recall.base import Index
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.indexes import open_index
from holdfast.stores.log import Append
from holdfast.stores.logic.index import LogicIndex
from holdfast.stores.logic.store import LogicStore
from tests.contract.artifacts import artifact
from tests.contract.deletions import deletion
from tests.contract.expiry import ending
from tests.contract.index_kit import SPACE, batch, document, feed
from tests.contract.keys import api_key
from tests.contract.kit import REF, session, user
from tests.contract.memory_kit import ANN, entry, memory, put, write_recalls
from tests.contract.records import put as put_record

MANY = 101
"""One more than most pages have."""


def _signatures(cls: type, names: set[str]) -> dict[str, list[tuple[str, object, object]]]:
    """Names, kinds and defaults of the parameters of these methods."""
    return {
        name: [(one.name, one.kind, one.default) for one in inspect.signature(getattr(cls, name)).parameters.values()]
        for name in names
    }


def _methods(protocol: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize(("logic", "contract"), [(LogicStore, Store), (LogicIndex, Index)])
def test_parameters_equal_those_of_the_contract(logic: type, contract: type) -> None:
    """Code for one store works with another, with positional and named arguments."""
    methods = _methods(contract)
    assert len(methods) > 15
    assert _signatures(logic, methods) == _signatures(contract, methods)


# -- pages -------------------------------------------------------------------


@pytest.fixture
async def store() -> AsyncIterator[Any]:
    """One in memory."""
    store = await open_store("sqlite://:memory:", tenant="acme")
    yield store
    await store.close()


async def _sessions(store: Any) -> None:
    for at in range(MANY):
        await store.create(session(SessionRef("ann", f"s{at}"), timestamp=at))


async def _ends(store: Any) -> None:
    await _sessions(store)
    for at in range(MANY):
        await store.end(ending(at, SessionRef("ann", f"s{at}")))


async def _append_one(store: Any) -> None:
    await store.create(session())
    call = ModelCall(model="m", timestamp=0)
    await store.append(REF, Append(entries=[user("a")] * MANY, calls=[call] * MANY, timestamp=1))


async def _append_many(store: Any) -> None:
    await _sessions(store)
    for at in range(MANY):
        await store.append(SessionRef("ann", f"s{at}"), Append(entries=[user("a")], timestamp=at))


async def _read_first(store: Any) -> Any:
    (first,) = await store.entries(SessionRef("ann", "s0"))
    return await store.sightings("ann", [first.digest])


async def _artifacts(store: Any) -> None:
    await store.create(session())
    for at in range(MANY):
        await store.add_artifact(REF, artifact("a.txt", f"b{at}"))
        await store.add_artifact(REF, artifact(f"{at}.txt", f"c{at}"))
        await store.put_blob(f"b{at}", 0, b"", timestamp=1)


async def _tenants(store: Any) -> None:
    for at in range(MANY):
        await store.for_tenant(f"t{at}").create(session())


async def _keys(store: Any) -> None:
    for at in range(MANY):
        await store.add_key(api_key(at))


async def _deletions(store: Any) -> None:
    for at in range(MANY):
        await store.add_deletion(deletion(at))


async def _put_memories(store: Any) -> None:
    await put(store, *(memory() for _ in range(MANY)))
    await write_recalls(store, diary=tuple(entry(at) for at in range(MANY)))
    for at in range(MANY):
        await put(store, memory(owner=(owner := Owner("user", f"u{at}"))), owner=owner)


async def _records(store: Any) -> None:
    for at in range(MANY):
        change = put_record(str(at), space=(str(at),), text="x", expires_at=9)
        for owner in (UserRef("ann"), UserRef(f"u{at}")):
            await store.change_records(owner, [change], timestamp=1)


Made = Callable[[Any], Awaitable[Any]]
PAGES: dict[str, tuple[Made, Made, int]] = {
    "list": (_sessions, lambda store: _of(store.list(), "sessions"), 20),
    "idle": (_sessions, lambda store: store.idle(now=10_000, ttl=1), 100),
    "oldest": (_sessions, lambda store: store.oldest(), 100),
    "endings": (_ends, lambda store: store.endings(due=50), 100),
    "endings_of": (_ends, lambda store: store.endings_of("ann"), 100),
    "calls": (_append_one, lambda store: store.calls(REF), 100),
    "entries": (_append_one, lambda store: store.entries(REF), MANY),
    "sightings": (_append_many, _read_first, 16),
    "artifacts": (_artifacts, lambda store: _of(store.artifacts(REF), "artifacts"), 100),
    "artifact_versions": (_artifacts, lambda store: _of(store.artifact_versions(REF, "a.txt"), "artifacts"), 100),
    "blobs": (_artifacts, lambda store: store.blobs(before=9), 100),
    "tenants": (_tenants, lambda store: store.tenants(), 100),
    "deletions": (_deletions, lambda store: store.deletions(), 20),
    "keys": (_keys, lambda store: store.keys(), 100),
    "memories": (_put_memories, lambda store: _of(store.memories(ANN), "memories"), 100),
    "diary": (_put_memories, lambda store: store.diary(ANN), 20),
    "memory_owners": (_put_memories, lambda store: store.memory_owners(), 100),
    "list_records": (
        _records,
        lambda store: _of(store.list_records(UserRef("ann"), (), now=1, nested=True), "records"),
        100,
    ),
    "record_namespaces": (_records, lambda store: store.record_namespaces(UserRef("ann"), now=1), 100),
    "searchable_records": (
        _records,
        lambda store: _of(store.searchable_records(UserRef("ann"), now=1), "records"),
        100,
    ),
    "record_users": (_records, lambda store: store.record_users(), 100),
    "sweep_records": (_records, lambda store: _count(store.sweep_records(now=10)), 100),
}
"""What makes more than a page, what reads one, and how many that has."""


async def _of(page: Awaitable[Any], field: str) -> Any:
    return getattr(await page, field)


async def _count(number: Awaitable[int]) -> range:
    return range(await number)


def test_every_method_that_returns_pages_is_checked() -> None:
    """A method with a parameter `limit` that is new is one of `PAGES`."""
    methods = _methods(Store)
    assert {name for name in methods if "limit" in inspect.signature(getattr(Store, name)).parameters} == set(PAGES)


@pytest.mark.parametrize("method", PAGES)
async def test_default_page_sizes(store: Any, method: str) -> None:
    """As the contract's signature has it."""
    make, read, size = PAGES[method]
    await make(store)
    assert len(await read(store)) == size
    assert inspect.signature(getattr(Store, method)).parameters["limit"].default in (size, None)


async def test_default_page_sizes_of_an_index() -> None:
    """Of sources, of documents without a vector, and of documents that are held."""
    index = await open_index("sqlite://:memory:", tenant="acme")
    try:
        await index.write(SPACE, batch(*(document(at, "x") for at in range(1001))))
        for at in range(MANY):
            await feed(index, "x", space=SPACE._replace(name=f"u{at}"))
        found = (await index.list_digests(SPACE, "s1"), await index.sources(), await index.pending("m"))
        assert [len(one) for one in found] == [1000, 100, 100]
        assert [seq for seq, _ in found[0]] == [*range(1000)]
    finally:
        await index.close()
