"""What the fault tests do with a store: fill it, read all of it, and try to write."""

from __future__ import annotations

from pathlib import Path

from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, SessionRef
from holdfast.errors import StoreError
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from holdfast.stores.verify import verify

SESSIONS = tuple(SessionRef("ann", f"s{at}") for at in range(5))
REF = SessionRef("ann", "s")


async def open_path(path: Path) -> Store:
    return await open_store(f"sqlite:///{path}", tenant="acme")


def make_entry(text: str, role: str = "user") -> NewEntry:
    return NewEntry(message=Message(role=role, content=text), tokens=5, timestamp=1)


async def append(store: Store, *texts: str, ref: SessionRef = REF) -> None:
    await store.append(ref, Append(entries=[make_entry(text) for text in texts], timestamp=2))


async def make_store(path: Path) -> Store:
    """A store with one empty session, `REF`."""
    store = await open_path(path)
    await store.create(NewSession(id=REF.id, user_id=REF.user_id, timestamp=1))
    return store


async def fill(path: Path) -> dict[SessionRef, tuple[Entry, ...]]:
    """Some sessions over many pages, closed; what they say."""
    store = await open_path(path)
    for ref in SESSIONS:
        await store.create(NewSession(id=ref.id, user_id=ref.user_id, timestamp=1, state={"k": ref.id}))
        for at in range(8):
            await append(store, f"{ref.id} {at} " + "word " * 300, f"and {at}", ref=ref)
    logs = {ref: await store.entries(ref) for ref in SESSIONS}
    await store.close()
    return logs


async def legible(path: Path, logs: dict[SessionRef, tuple[Entry, ...]]) -> tuple[int, list[StoreError]]:
    """How many sessions are there whole and verify, and what was said of the others.

    Whatever cannot be read has to say so by a `StoreError`, and whatever verifies has to be what was written.
    """
    errors: list[StoreError] = []
    try:
        store = await open_path(path)
    except StoreError as exc:
        return 0, [exc]
    whole = 0
    for ref, log in logs.items():
        try:
            found = await store.entries(ref)
            await verify(store, ref)
        except StoreError as exc:
            errors.append(exc)
        else:
            assert [entry.message for entry in found] == [entry.message for entry in log]
            whole += 1
    await store.close()
    return whole, errors
