"""SQL databases delete records in batches that are bounded in number and bytes, and finish what was interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast.domain.artifact import UserRef
from holdfast.domain.record import PutRecord, RecordName, RecordOwner, TenantRef
from holdfast.domain.session import SessionRef
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.logic.handle import Handle
from holdfast.stores.logic.records import DroppedRecords
from holdfast.stores.logic.steps import Query, Steps
from holdfast.stores.sessions import NewSession

pytestmark = pytest.mark.parametrize("shared_url", ["sqlite-file"], indirect=True)
REF, USER, TENANT = SessionRef("ann", "s"), UserRef("ann"), TenantRef()
OWNERS: tuple[RecordOwner, ...] = (REF, USER, TENANT)
SPACE = ("a",)
COUNT, SIZE, BATCH = 9, 40, 100
"""Number and size of the records, and the bytes of a batch, which has two of them."""


@pytest.fixture
async def store(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store with a session, a user and a tenant that own records."""
    monkeypatch.setattr("holdfast.stores.logic.records.RECORD_PAGE_BYTES", BATCH)
    store = await open_store(shared_url, tenant="acme")
    await store.create(NewSession(timestamp=1, user_id=REF.user_id, id=REF.id))
    for owner in OWNERS:
        await put(store, owner)
    yield store
    await store.close()


async def put(store: Store, owner: RecordOwner, *, expires_at: int | None = None) -> None:
    """Put all records of an owner."""
    value = b"x" * SIZE
    changes = [PutRecord(name=RecordName(SPACE, str(at)), value=value, expires_at=expires_at) for at in range(COUNT)]
    await store.change_records(owner, changes, timestamp=1)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[DroppedRecords]:
    """What each transaction has deleted."""
    deleted: list[DroppedRecords] = []
    write = Handle._write  # noqa: SLF001 - every write of a SQL store

    async def note(self: Handle, *args: Any, **more: Any) -> Any:
        result = await write(self, *args, **more)
        deleted.extend(one for one in (result, *_as_list(result)) if isinstance(one, DroppedRecords))
        return result

    monkeypatch.setattr(Handle, "_write", note)
    return deleted


def _as_list(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple) and not isinstance(result, DroppedRecords) else ()


async def find_unnamed_owner(store: Any) -> int | None:
    """Return the primary key of an owner whose records are still to be deleted."""

    def steps() -> Steps[int | None]:
        rows = yield Query("owner_detached", ("acme", "records"))
        return rows[0][0] if rows else None

    found: int | None = await store.database.read(steps)
    return found


async def delete(store: Store, owner: RecordOwner) -> int:
    """Delete an owner's records in the way that is usual for it; return their number."""
    if not isinstance(owner, SessionRef):
        return await store.drop_records(owner)
    gone = await store.remove(owner)
    assert gone is not None
    return gone.records


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_no_transaction_deletes_more_than_a_batch(
    store: Store, batches: list[DroppedRecords], owner: RecordOwner
) -> None:
    """Other writers wait for one batch, however large the owner is."""
    assert await delete(store, owner) == COUNT
    assert sum(one.records for one in batches) == COUNT
    assert all(one.bytes <= BATCH for one in batches)
    assert await find_unnamed_owner(store) is None


async def test_a_replaced_session_is_deleted_in_batches(store: Store, batches: list[DroppedRecords]) -> None:
    await store.replace(NewSession(timestamp=2, user_id=REF.user_id, id=REF.id), [])
    assert sum(one.records for one in batches) == COUNT
    assert all(one.bytes <= BATCH for one in batches)


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_the_sweep_finishes_an_interrupted_deletion(
    store: Store, monkeypatch: pytest.MonkeyPatch, owner: RecordOwner
) -> None:
    """After the first transaction, readers find no record, and the name is free for new ones."""

    async def fail(*_: object) -> DroppedRecords:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.stores.logic.records.RecordStore._purge_records", fail)
        with pytest.raises(asyncio.CancelledError):
            await delete(store, owner)
    assert await find_unnamed_owner(store) is not None
    if owner == REF:
        await store.create(NewSession(timestamp=3, user_id=REF.user_id, id=REF.id))
    assert not (await store.list_records(owner, SPACE, now=3)).records
    await store.change_records(owner, [PutRecord(name=RecordName(SPACE, "new"), value=1, expect=0)], timestamp=3)
    swept = 0
    while number := await store.sweep_records(now=3):
        swept += number
    assert (swept, await find_unnamed_owner(store)) == (COUNT, None)
    assert [one.key for one in (await store.list_records(owner, SPACE, now=3)).records] == ["new"]
    for other in (one for one in OWNERS if one != owner):
        assert len((await store.list_records(other, SPACE, now=3, limit=COUNT, values=False)).records) == COUNT
