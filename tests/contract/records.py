"""The contract, records: names, versions, compare and set, lists, expiry, and what deletes and copies them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import limits
from holdfast.domain.artifact import UserRef
from holdfast.domain.record import (
    MISSING,
    DeleteRecord,
    Namespace,
    PutRecord,
    Record,
    RecordName,
    RecordOwner,
    TenantRef,
)
from holdfast.domain.session import Ending, SessionRef
from holdfast.errors import (
    Conflict,
    HoldfastError,
    InvalidRequest,
    SessionNotFound,
    StaleRecord,
    StaleSession,
    TooLarge,
)
from holdfast.stores.base import Store
from holdfast.stores.log import Append

from .kit import REF, live, session, user
from .once import REFUSED, RULE, once
from .plugin import OpenStore

USER, TENANT = UserRef("ann"), TenantRef()
OWNERS: tuple[RecordOwner, ...] = (REF, USER, TENANT)
SPACE = ("agents", "planner")
ODD = (
    *("Ü", "u\u0308", "trailing ", "trailing", " ", "a'b\"c\\d", "%_*?[", "line\nbreak", "\0", "\x1f", "\x1fx"),
    *("😀", "\U0010ffff", "K", "k", "a/b", "a:b", "{key}", "x" * limits.RECORD_KEY_BYTES),
)
"""Keys that a database may take for one another, or for something else."""
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    1.5,
    "Ü\0😀",
    "",
    [],
    {"a": [None, {"b": "\U0010ffff"}]},
    b"",
    b"\0\xff'\\",
    "null",
    "[",
)


def put(key: str, value: Any = 1, space: Namespace = SPACE, **fields: Any) -> PutRecord:
    """A record about to be put."""
    return PutRecord(name=RecordName(space, key), value=value, **fields)


def drop(key: str, space: Namespace = SPACE, **fields: Any) -> DeleteRecord:
    """A record about to be deleted."""
    return DeleteRecord(name=RecordName(space, key), **fields)


async def read(
    store: Store, key: str, owner: RecordOwner = USER, *, space: Namespace = SPACE, now: int = 10
) -> Record | None:
    """One record."""
    return (await store.records(owner, [RecordName(space, key)], now=now))[0]


async def value_of(store: Store, key: str, owner: RecordOwner = USER, **more: Any) -> Any:
    """The value of a record, `missing` if there is none."""
    found = await read(store, key, owner, **more)
    return "missing" if found is None else found.value


async def keys_of(store: Store, owner: RecordOwner = USER, space: Namespace = SPACE, **page: Any) -> list[str]:
    """The keys on a page."""
    return [one.key for one in (await store.list_records(owner, space, **{"now": 10, **page})).records]


async def _all_owners(store: Store) -> Sequence[RecordOwner]:
    await store.create(session())
    return OWNERS


# -- values and versions --------------------------------------------------------


async def test_records_are_read_back_unchanged(store: Store) -> None:
    """Bytes as bytes, JSON as JSON, with their times."""
    for owner in await _all_owners(store):
        for at, value in enumerate(VALUES):
            await store.change_records(owner, [put(f"k{at}", value, expires_at=100)], timestamp=at)
        names = [RecordName(SPACE, f"k{at}") for at in range(len(VALUES))]
        found = [one for one in await store.records(owner, names, now=20) if one is not None]
        assert [(one.value, type(one.value)) for one in found] == [(value, type(value)) for value in VALUES]
        assert [(one.created_at, one.updated_at, one.expires_at) for one in found] == [
            (at, at, 100) for at in range(len(VALUES))
        ]
        assert (found[4].name, found[9].size, found[0].size) == (names[4], 4, 4)


@once(RULE)
async def test_a_replaced_record_keeps_the_time_of_its_creation(store: Store) -> None:
    """Its version grows."""
    for owner in await _all_owners(store):
        first = await store.change_records(owner, [put("a", 1)], timestamp=5)
        second = await store.change_records(owner, [put("a", b"2")], timestamp=7)
        found = await read(store, "a", owner)
        assert found is not None
        assert (found.value, found.created_at, found.updated_at) == (b"2", 5, 7)
        assert (first.existed, second.existed) == ((False,), (True,))
        assert found.version == second.version > first.version > MISSING


async def test_owners_do_not_see_each_other(store_opener: OpenStore) -> None:
    """Neither the records of another owner, nor those of another tenant."""
    store, other = await store_opener("acme"), await store_opener("other")
    stranger = SessionRef("bob", "s1")
    owners: list[RecordOwner] = [REF, SessionRef("ann", "s2"), stranger, USER, UserRef("bob"), TENANT]
    for owner in owners:
        if isinstance(owner, SessionRef):
            await store.create(session(owner))
            await other.create(session(owner))
    for at, owner in enumerate(owners):
        await store.change_records(owner, [put("a", at)], timestamp=1)
    assert [await value_of(store, "a", owner) for owner in owners] == list(range(len(owners)))
    for owner in owners:
        assert await value_of(other, "a", owner) == "missing"
        assert await keys_of(other, owner, (), nested=True) == []
        assert await other.record_namespaces(owner, now=1) == ()
        assert (await other.change_records(owner, [drop("a")], timestamp=1)).existed == (False,)
        assert await other.drop_records(owner) == 0
    assert await other.sweep_records(now=10**12) == 0
    assert [await value_of(store, "a", owner) for owner in owners] == list(range(len(owners)))


@once(RULE)
async def test_the_records_of_another_session_of_the_name_are_not_reached(store: Store) -> None:
    """Every method refuses the identity of a session that was removed."""
    await store.create(session(identity="first"))
    await store.remove(REF)
    await store.create(session(identity="second"))
    await store.change_records(REF, [put("a", expires_at=50)], timestamp=1, identity="second")
    for identity in ("first", ""):
        for call in (
            store.records(REF, [RecordName(SPACE, "a")], now=1, identity=identity),
            store.records(REF, [], now=1, identity=identity),
            store.list_records(REF, SPACE, now=1, identity=identity),
            store.record_namespaces(REF, now=1, identity=identity),
            store.change_records(REF, [put("b")], timestamp=1, identity=identity),
            store.change_records(REF, [drop("a")], timestamp=1, identity=identity),
            store.drop_records(REF, identity=identity),
        ):
            with pytest.raises(SessionNotFound):
                await call
    found = await store.list_records(REF, SPACE, now=1, identity="second")
    assert [one.key for one in found.records] == ["a"]
    assert await store.records(REF, [found.records[0].name], now=1, identity="second") == found.records
    assert await store.record_namespaces(REF, now=1, identity="second") == (SPACE,)
    assert await store.drop_records(REF, identity="second") == 1


# -- compare and set ------------------------------------------------------------


async def test_a_stale_change_changes_nothing(store: Store) -> None:
    """Not even the other changes of its call."""
    for owner in await _all_owners(store):
        version = (await store.change_records(owner, [put("a", 1)], timestamp=1)).version
        for change, found in (
            (put("a", 2, expect=MISSING), version),
            (put("a", 2, expect=version + 7), version),
            (drop("a", expect=version + 7), version),
            (put("b", 2, expect=version), MISSING),
            (drop("b", expect=version), MISSING),
        ):
            with pytest.raises(StaleRecord) as stale:
                await store.change_records(owner, [put("c"), change], timestamp=1)
            assert (stale.value.key, stale.value.version) == (change.name.key, found)
        assert [await value_of(store, key, owner) for key in "abc"] == [1, "missing", "missing"]
        done = await store.change_records(
            owner, [put("a", 2, expect=version), put("b", expect=MISSING), drop("x", expect=MISSING)], timestamp=1
        )
        assert done.existed == (True, False, False)
        await store.change_records(owner, [drop("a", expect=done.version), drop("b")], timestamp=1)
        assert await keys_of(store, owner) == []


async def test_versions_are_never_reused(store: Store) -> None:
    """Not after a deletion, and not after all records of an owner were dropped. Those of a session are not those of an earlier one."""
    for owner in (USER, TENANT):
        seen = [(await store.change_records(owner, [put("a")], timestamp=1)).version]
        for again in (False, True):
            if again:
                assert await store.drop_records(owner) == 1
            else:
                await store.change_records(owner, [drop("a")], timestamp=1)
            seen.append((await store.change_records(owner, [put("a")], timestamp=1)).version)
        assert seen == sorted(set(seen))
    await store.create(session())
    old = await store.change_records(REF, [put("a")], timestamp=1)
    assert await store.drop_records(REF) == 1
    new = await store.change_records(REF, [put("a")], timestamp=1)
    await store.remove(REF)
    await store.create(session())
    assert (await store.change_records(REF, [put("a")], timestamp=2)).version > new.version > old.version


@once(RULE)
async def test_versions_do_not_show_what_others_write(store_opener: OpenStore) -> None:
    """The first version of an owner is the same, however much other owners of its tenant have written and deleted."""
    quiet, busy = await store_opener("quiet"), await store_opener("busy")
    await busy.create(session(SessionRef("bob", "s")))
    for other in (UserRef("bob"), SessionRef("bob", "s")):
        for at in range(20):
            await busy.change_records(other, [put(str(at))], timestamp=10)
        await busy.drop_records(other)
    await busy.remove(SessionRef("bob", "s"))
    for store in (quiet, busy):
        await store.create(session())
    for owner in OWNERS:
        first = [await store.change_records(owner, [put("a")], timestamp=11) for store in (quiet, busy)]
        assert first[0].version == first[1].version


async def test_one_of_several_writers_wins(openings: list[Store]) -> None:
    """The others are stale; none is lost."""
    await openings[0].create(session())
    for owner in OWNERS:
        writers = [
            store.change_records(owner, [put("a", at, expect=MISSING)], timestamp=1)
            for at, store in enumerate(openings * 3)
        ]
        done = await asyncio.gather(*writers, return_exceptions=True)
        assert sum(not isinstance(one, BaseException) for one in done) == 1
        assert all(isinstance(one, StaleRecord) for one in done if isinstance(one, BaseException))

        async def count(store: Store, owner: RecordOwner = owner) -> None:
            while True:
                found = await read(store, "n", owner)
                expect, value = (MISSING, 0) if found is None else (found.version, found.value)
                try:
                    await store.change_records(owner, [put("n", value + 1, expect=expect)], timestamp=1)
                except StaleRecord:
                    continue
                return

        await asyncio.gather(*(count(store) for store in openings * 4))
        assert await value_of(openings[-1], "n", owner) == len(openings) * 4


# -- lists ----------------------------------------------------------------------


async def test_lists_have_prefixes_and_pages(store: Store) -> None:
    """Forward and backward, with and without values."""
    keys = ["", "a", "a%", "ab", "abc", "b", "\U0010ffff", "\U0010ffff\U0010ffff"][1:]
    for owner in await _all_owners(store):
        changes = [put(key, key) for key in keys] + [put("a", 1, (*SPACE, "x")), put("a", 1, ("agents",))]
        await store.change_records(owner, changes, timestamp=1)
        assert await keys_of(store, owner) == keys
        assert await keys_of(store, owner, descending=True) == keys[::-1]
        assert await keys_of(store, owner, prefix="a") == ["a", "a%", "ab", "abc"]
        assert await keys_of(store, owner, prefix="ab", descending=True) == ["abc", "ab"]
        assert await keys_of(store, owner, prefix="\U0010ffff") == keys[-2:]
        assert await keys_of(store, owner, prefix="x") == []
        for descending in (False, True):
            walked: list[str] = []
            after: RecordName | None = None
            for _ in range(len(keys)):
                page = await store.list_records(owner, SPACE, now=1, limit=2, after=after, descending=descending)
                walked += [one.key for one in page.records]
                assert all(isinstance(one, Record) and one.value == one.key for one in page.records)
                after = page.records[-1].name
                if not page.has_more:
                    break
            assert walked == (keys[::-1] if descending else keys)
        (info, *_) = (await store.list_records(owner, SPACE, now=1, values=False)).records
        assert (type(info).__name__, info.size) == ("RecordInfo", 3)


async def test_a_page_has_a_limited_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has at least one record."""
    monkeypatch.setattr("holdfast.stores.logic.records.RECORD_PAGE_BYTES", 10)
    monkeypatch.setattr("holdfast.stores.logic.records.RECORDS_BYTES", 10)
    for key in "abcd":
        await store.change_records(USER, [put(key, b"x" * 6)], timestamp=1)
    await store.change_records(USER, [put("e", b"x" * 10)], timestamp=1)
    assert (await keys_of(store), await keys_of(store, after=RecordName(SPACE, "d"))) == (["a"], ["e"])
    assert await keys_of(store, values=False) == [*"abcde"]
    with pytest.raises(TooLarge):
        await store.records(USER, [RecordName(SPACE, key) for key in "abc"], now=1)


# -- expiry ---------------------------------------------------------------------


async def test_expired_records_are_gone(store: Store) -> None:
    """By the clock of the caller; the sweep deletes them."""
    for owner in await _all_owners(store):
        await store.change_records(owner, [put("a", expires_at=100), put("b")], timestamp=1)
        await store.change_records(owner, [put("a", 1, ("other",), expires_at=100)], timestamp=1)
        assert await keys_of(store, owner, now=99) == ["a", "b"]
        assert await keys_of(store, owner, now=100) == ["b"]
        assert await value_of(store, "a", owner, now=100) == "missing"
        assert await store.record_namespaces(owner, now=100) == (SPACE,)
        done = await store.change_records(owner, [put("a", 2, expect=MISSING, expires_at=300)], timestamp=200)
        found = await read(store, "a", owner, now=299)
        assert (done.existed, found and found.created_at) == ((False,), 200)
        assert (await store.change_records(owner, [drop("a", ("other",))], timestamp=200)).existed == (False,)
    assert await store.sweep_records(now=299) == 0
    assert await store.sweep_records(now=300, limit=2) == 2
    assert await store.sweep_records(now=300, limit=100) == 1
    assert await store.sweep_records(now=10**15) == 0
    assert [await keys_of(store, owner, now=1) for owner in OWNERS] == [["b"]] * 3


# -- together with a session ------------------------------------------------------


async def test_an_append_writes_records(store: Store) -> None:
    """In one transaction: both or neither."""
    await store.create(session())
    await store.change_records(REF, [put("old")], timestamp=1)
    done = await store.append(REF, Append(entries=[user("x")], timestamp=2, records=[put("a", b"1"), drop("old")]))
    assert (await value_of(store, "a", REF), await value_of(store, "old", REF)) == (b"1", "missing")
    for refused, write in (
        (StaleRecord, Append(entries=[user("y")], timestamp=3, records=[put("b"), put("a", expect=MISSING)])),
        (StaleSession, Append(entries=[user("y")], timestamp=3, expect=done.version + 5, records=[put("b")])),
        (InvalidRequest, Append(entries=[user("y")], timestamp=3, records=[put("b"), drop("b")])),
    ):
        with pytest.raises(refused):
            await store.append(REF, write)
    assert (await live(store), await keys_of(store, REF)) == (["x"], ["a"])
    found = await read(store, "a", REF)
    assert found is not None
    keyed = Append(entries=[user("z")], timestamp=4, idempotency_key="i", records=[put("a", 2, expect=found.version)])
    first, again = await store.append(REF, keyed), await store.append(REF, keyed)
    assert (first.replayed, again.replayed, await value_of(store, "a", REF)) == (False, True, 2)
    await store.append(REF, Append(timestamp=5, records=[put("c")]))
    assert await keys_of(store, REF) == ["a", "c"]


async def test_a_removed_session_takes_its_records_along(store: Store) -> None:
    """Counted; those of its user and tenant stay."""
    for owner in await _all_owners(store):
        await store.change_records(owner, [put("a", b"123"), put("b", b"4", expires_at=9)], timestamp=1)
    gone = await store.remove(REF)
    assert gone is not None
    assert (gone.records, gone.record_bytes) == (2, 4)
    assert await store.sweep_records(now=5) == 0
    await store.create(session())
    assert await keys_of(store, REF, now=1) == []
    assert [await keys_of(store, owner, now=1) for owner in (USER, TENANT)] == [["a", "b"]] * 2
    assert (await store.remove(REF)) == (await store.remove(await _create(store, "empty")))


async def _create(store: Store, id_: str) -> SessionRef:
    return (await store.create(session(SessionRef("ann", id_)))).ref


async def test_a_session_is_installed_with_its_records(store: Store) -> None:
    """In place of those of the session that it replaces, with their times; they expire like any other."""
    many = [put(f"{at:04}", at, times=(at, at + 1)) for at in range(limits.RECORD_CHANGES + 20)]
    for _ in range(2):
        await store.replace(session(timestamp=50), [], records=[*many, put("x", b"1", expires_at=60)])
        await store.change_records(REF, [put("y")], timestamp=55)
    page = await store.list_records(REF, SPACE, now=55, limit=1000)
    found = [(one.key, one.created_at, one.updated_at) for one in page.records]
    assert found == [(f"{at:04}", at, at + 1) for at in range(len(many))] + [("x", 50, 50), ("y", 55, 55)]
    assert await store.sweep_records(now=60) == 1
    with pytest.raises(InvalidRequest):
        await store.replace(session(), [user("x")], records=[put("a"), put("a")])
    assert len(await keys_of(store, REF, limit=1000)) == len(many) + 1


@once(RULE)
async def test_a_session_is_removed_only_with_the_expected_records(store: Store) -> None:
    """Each write of them changes the version of their owner."""
    await store.create(session())
    versions = [(await store.list_records(REF, SPACE, now=1)).version]
    for change in (put("a"), put("a", 2), drop("a")):
        changed = await store.change_records(REF, [change], timestamp=1)
        versions.append((await store.list_records(REF, SPACE, now=1)).version)
        assert versions[-1] == changed.version
    await store.change_records(REF, [drop("a")], timestamp=1)
    assert versions == sorted(set(versions))
    for version in versions[:-1]:
        with pytest.raises(Conflict):
            await store.remove(REF, records=version)
    assert await store.remove(REF, records=versions[-1]) is not None


@once(RULE)
async def test_a_withdrawn_session_keeps_its_records(store: Store) -> None:
    """The new session of its name has none of them."""
    await store.create(session())
    await store.change_records(REF, [put("a", b"12", expires_at=50)], timestamp=1)
    ending = Ending(
        id="end", user_id="ann", session_id="s1", withdrawn=True, reason="delete", ended_at=5, due_at=5, hooks=("h",)
    )
    await store.end(ending)
    await store.create(session())
    assert await keys_of(store, REF) == []
    assert await keys_of(store, ending.ref) == ["a"]
    gone = await store.remove(ending.ref)
    assert gone is not None
    assert (gone.records, gone.record_bytes) == (1, 2)


async def test_large_records_are_deleted_with_their_owner(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they are deleted in several batches. Those of other owners stay, and versions go on."""
    monkeypatch.setattr("holdfast.stores.logic.records.RECORD_PAGE_BYTES", 10)
    count = 3
    changes = [put(str(at), b"x" * 6, expires_at=200) for at in range(count)]
    written = [(await store.change_records(owner, changes, timestamp=1)).version for owner in await _all_owners(store)]
    for owner, version in zip(OWNERS, written, strict=True):
        assert await store.drop_records(owner) == count
        assert await keys_of(store, owner) == []
        assert await store.record_namespaces(owner, now=1) == ()
        assert (await store.change_records(owner, [put("a", expect=MISSING)], timestamp=1)).version > version
        assert await keys_of(store, owner) == ["a"]
    await store.change_records(REF, changes, timestamp=2)
    await store.replace(session(), [])
    assert await keys_of(store, REF) == []
    await store.change_records(REF, changes, timestamp=3)
    gone = await store.remove(REF)
    assert gone is not None
    assert (gone.records, gone.record_bytes) == (count, 6 * count)
    assert [await keys_of(store, owner) for owner in (USER, TENANT)] == [["a"]] * 2
    assert await store.sweep_records(now=1_000) == 0


async def test_a_tenant_with_records_alone_is_listed(store_opener: OpenStore) -> None:
    """So that its expired records are swept."""
    store = await store_opener("acme")
    await store.change_records(TENANT, [put("a", expires_at=5)], timestamp=1)
    assert list(await store.tenants()) == ["acme"]


# -- refusals -------------------------------------------------------------------


IMPOSSIBLE: tuple[tuple[Any, type[HoldfastError]], ...] = (
    (put("", 1), InvalidRequest),
    (put("x" * (limits.RECORD_KEY_BYTES + 1)), InvalidRequest),
    (put("\ud800"), InvalidRequest),
    (put("a", 1, ()), InvalidRequest),
    (put("a", 1, ("",)), InvalidRequest),
    (put("a", 1, ("a\x1fb",)), InvalidRequest),
    (put("a", 1, ("x",) * (limits.NAMESPACE_LABELS + 1)), InvalidRequest),
    (put("a", 1, ("x" * (limits.NAMESPACE_BYTES + 1),)), InvalidRequest),
    (put("a", object()), InvalidRequest),
    (put("a", float("nan")), InvalidRequest),
    (put("a", {"b": [None, {"c": float("inf")}]}), InvalidRequest),
    (put("a", expect=-1), InvalidRequest),
    (put("a", b"x" * (limits.MESSAGE_BYTES + 1)), TooLarge),
    (drop(""), InvalidRequest),
)


@once(REFUSED)
async def test_impossible_changes_are_refused(store: Store) -> None:
    """Together with the possible ones of their call."""
    for change, refusal in IMPOSSIBLE:
        with pytest.raises(refusal):
            await store.change_records(USER, [put("fine"), change], timestamp=1)
    assert await keys_of(store) == []
