"""Files of earlier releases are upgraded in place; those of later ones are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from holdfast.domain.session import ModelCall
from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.sql import load_migrations
from holdfast.stores.verify import verify
from tests.contract.kit import REF, assistant, compaction, lay, session, user
from tests.stores.releases import know_only, make_by_the_first_release


async def open_file(database: Path) -> Store:
    """The store in the file `database`."""
    return await open_store(f"sqlite:///{database}", tenant="acme")


async def _close_after_opening(database: Path) -> None:
    await (await open_file(database)).close()


async def _make_by_the_first_release(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of schema 1, with a log, a saved view and a model call in it."""

    async def fill(store: Store) -> None:
        await store.create(session(state={"k": 1}))
        await store.append(REF, Append(entries=[user("a"), assistant("b")], timestamp=2))

    await make_by_the_first_release(f"sqlite:///{database}", monkeypatch, fill)
    connection = apsw.Connection(str(database))
    connection.execute("INSERT INTO saved_views VALUES (1, 'v', 1, x'5b305d', x'73')")
    connection.execute("INSERT INTO model_calls VALUES (1, 1, 7, 'm', 10, 5, 3)")
    connection.close()


def test_released_migrations_are_unchanged() -> None:
    """Existing files store checksums, so a changed migration would make them unusable."""
    assert load_migrations("sqlite")[0].checksum == "0e6acffdc01dfcca601b9b7ce6e71416f436d7df0cfaacccc6191fc895396f26"


async def test_a_file_of_the_first_release_is_upgraded_in_place(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data are unchanged, and new features work on it."""
    await _make_by_the_first_release(database, monkeypatch)
    store = await open_file(database)
    rows = await store.window(REF, "v")
    assert (rows.view, rows.compaction) == (SavedView(1, b"s", (0,)), None)
    assert [entry.message.text for entry in (*rows.head, *rows.entries)] == ["a", "b"]
    old = ModelCall(model="m", timestamp=7, prompt_tokens=10, completion_tokens=5, cached_tokens=3)
    assert await store.calls(REF) == await store.calls(REF, turn_id=0) == (old,)
    await store.append(REF, Append(entries=[user("c")], timestamp=3))
    assert [one.status for one in await lay(store, compaction(0, 1))] == ["live"]
    await store.erase(REF, 0)
    assert [one.status for one in await store.compactions(REF)] == ["dead"]
    assert await verify(store, REF) == 3
    await store.close()


async def test_concurrent_openings_upgrade_an_old_file_once(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _make_by_the_first_release(database, monkeypatch)
    stores = await asyncio.gather(*(open_file(database) for _ in range(8)))
    await asyncio.gather(*(lay(store, compaction(0, 1)) for store in stores))
    assert [one.id for one in await stores[0].compactions(REF)] == list(range(1, 9))
    for store in stores:
        await store.close()


def test_an_old_release_rejects_an_upgraded_file(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is clear, and the file is unchanged."""
    asyncio.run(_close_after_opening(database))
    before = database.read_bytes()
    know_only(monkeypatch, 1)
    with pytest.raises(StoreUnavailable, match=f"has schema {len(load_migrations('sqlite'))}, made by a newer release"):
        asyncio.run(_close_after_opening(database))
    assert database.read_bytes() == before
