"""Damage to what a store keeps: it is overwritten through the store's own statements, so that it works on every one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

import holdfast
from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.stores.base import Store
from holdfast.stores.logic.handle import read_session_row
from holdfast.stores.logic.steps import Query, Steps
from tests.clocks import TickingClock

NO_JSON = b'{"a":'
WRONG_TYPE = b"5"


async def damage_profile(store: Store, ref: SessionRef, **columns: bytes) -> None:
    """Overwrite `system_messages`, `state` or `metadata` of a session."""
    given = {"system_messages": b"[]", "state": b"{}", "metadata": b"{}", **columns}

    def steps() -> Steps[None]:
        row = yield from read_session_row(store.tenant, ref)
        yield Query("profile_put", (row[0], *given.values()))

    await _write(store, ref, steps)


async def damage_message(store: Store, ref: SessionRef, seq: int, payload: bytes = NO_JSON) -> None:
    """Overwrite the payload of a live message."""

    def steps() -> Steps[None]:
        row = yield from read_session_row(store.tenant, ref)
        yield Query("entry_erase_live", (row[0], seq, payload, 1))

    await _write(store, ref, steps)


async def damage_memory(store: Store, owner: Owner, number: int, data: bytes = NO_JSON) -> None:
    """Overwrite a memory of an owner."""

    def steps() -> Steps[None]:
        pk = (yield Query("owner_get", (store.tenant, f"memories.{owner.kind}", owner.id, 0)))[0][0]
        yield Query("memory_put", (pk, number, 99, "active", data))

    await _database(store).write(steps, queue=(store.tenant, owner.kind, owner.id))


async def _write(store: Store, ref: SessionRef, steps: Callable[[], Steps[None]]) -> None:
    await _database(store).write(steps, queue=(store.tenant, ref.user_id, ref.id, ref.withdrawn))


def _database(store: Store) -> Any:
    """The database behind a store and whatever wraps it."""
    while hasattr(store, "inner"):
        store = store.inner
    return store.database


async def store_with_damaged_text(tmp_path: Path, column: str, table: str = "sessions") -> str:
    """Return a file with two sessions of `ada`; a text column of the first one's first row is no UTF-8."""
    url = f"sqlite:///{tmp_path}/chat.db"
    async with holdfast.open(url, clock=TickingClock()) as hf:
        for name in ("bad", "good"):
            session = await hf.session(name, user_id="ada")
            await session.send(f"the harbour of {name}")
            await session.artifacts.save("a.txt", b"x")
    raw = apsw.Connection(f"{tmp_path}/chat.db")
    kind = "BLOB" if column == "data" else "TEXT"
    raw.execute(
        f"UPDATE {table} SET {column} = CAST(x'6261ff' AS {kind}) WHERE {'pk' if table == 'sessions' else 'session'} = 1"
    )
    raw.close()
    return url
