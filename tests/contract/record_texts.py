"""The contract, searchable records: their texts and numbers, what is listed for an index, and what deletes and copies them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast import limits
from holdfast.domain.artifact import UserRef
from holdfast.domain.record import RecordName, RecordOwner, SearchableRecord, TenantRef
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, SessionNotFound, TooLarge
from holdfast.stores.base import Store

from .kit import REF, session
from .once import REFUSED, once
from .plugin import OpenStore
from .records import SPACE, USER, drop, put, read

OWNERS: tuple[RecordOwner, ...] = (REF, USER, TenantRef())


async def texts_of(store: Store, owner: RecordOwner = USER, **more: Any) -> dict[str, str]:
    """The texts of an owner's searchable records by key."""
    return {one.key: one.text for one in await list_searchable(store, owner, **more)}


async def list_searchable(
    store: Store, owner: RecordOwner = USER, *, now: int = 10, since: tuple[int, int] = (0, 0), limit: int = 100
) -> list[SearchableRecord]:
    """All searchable records of an owner, page by page."""
    found: list[SearchableRecord] = []
    while True:
        page = await store.searchable_records(owner, now=now, since=since, limit=limit)
        assert len(page.records) <= limit
        found += page.records
        if not page.has_more:
            return found
        since = found[-1].version, found[-1].number


async def test_only_records_with_a_text_are_searchable(store: Store) -> None:
    """The text is read back with the record, and counts in its size; a later write without a text removes it."""
    await store.create(session())
    for owner in OWNERS:
        assert await texts_of(store, owner) == {}
        text = "Grüße \0 😀"
        await store.change_records(owner, [put("a", 1, text=text), put("b", b"1", text="two"), put("c")], timestamp=1)
        assert await texts_of(store, owner) == {"a": text, "b": "two"}
        found = [await read(store, key, owner) for key in "abc"]
        assert [one and (one.value, one.text, one.size) for one in found] == [
            (1, text, 1 + len(text.encode())),
            (b"1", "two", 4),
            (1, None, 1),
        ]
        await store.change_records(owner, [put("a", 2, text="new"), put("b", 2)], timestamp=2)
        assert await texts_of(store, owner) == {"a": "new"}


async def test_an_index_reads_only_what_has_changed(store: Store) -> None:
    """In the order of versions and numbers, in pages, also of records with the same version."""
    await store.create(session())
    for owner in OWNERS:
        await store.change_records(owner, [put(f"{at:02}", text=f"text {at}") for at in range(30)], timestamp=1)
        found = await list_searchable(store, owner, limit=7)
        assert [one.number for one in found] == sorted(one.number for one in found)
        assert sorted(one.key for one in found) == [f"{at:02}" for at in range(30)]
        page = await store.searchable_records(owner, now=1, limit=100)
        known = found[-1].version, found[-1].number
        identity = (await store.get(REF)).identity if owner == REF else ""
        assert (page.version, page.has_more, page.identity) == (known[0], False, identity)
        assert await list_searchable(store, owner, since=known) == []
        await store.change_records(owner, [put("plain"), put("11", text="new")], timestamp=2)
        (changed,) = await list_searchable(store, owner, since=known)
        assert (changed.key, changed.text, changed.number) == (
            "11",
            "new",
            next(o.number for o in found if o.key == "11"),
        )


async def test_searchable_records_are_read_by_name(store: Store) -> None:
    """Records without a text and missing ones are left out."""
    await store.change_records(USER, [put("a", text="a"), put("b"), put("c", text="c", expires_at=5)], timestamp=1)
    names = [RecordName(SPACE, key) for key in ("a", "b", "c", "d")]
    page = await store.searchable_records(USER, now=1, names=names)
    assert sorted(one.key for one in page.records) == ["a", "c"]
    page = await store.searchable_records(USER, now=5, names=names)
    assert [one.key for one in page.records] == ["a"]
    assert (await store.searchable_records(USER, now=5, names=[])).records == ()
    assert (await store.searchable_records(UserRef("bob"), now=1, names=names)).records == ()


async def test_texts_are_deleted_with_their_owner(store: Store) -> None:
    """By a drop, with a session, and by its replacement; a session that is created later has none."""
    await store.create(session())
    for owner in OWNERS:
        await store.change_records(owner, [put("a", text="a")], timestamp=1)
        assert await store.drop_records(owner) == 1
        assert await texts_of(store, owner) == {}
        await store.change_records(owner, [put("b", text="b")], timestamp=1)
        assert await texts_of(store, owner) == {"b": "b"}
    await store.replace(session(), [], records=[put("c", text="c"), put("d")])
    assert await texts_of(store, REF) == {"c": "c"}
    await store.remove(REF)
    with pytest.raises(SessionNotFound):
        await store.searchable_records(REF, now=1)
    await store.create(session())
    assert await texts_of(store, REF) == {}
    with pytest.raises(SessionNotFound):
        await store.searchable_records(REF, now=1, identity="another")


async def test_owners_with_searchable_records_are_listed(store_opener: OpenStore) -> None:
    """Users and the tenant, in pages; neither sessions nor other tenants."""
    store, other = await store_opener("acme"), await store_opener("other")
    await store.create(session())
    assert await store.record_users() == ()
    for owner in (REF, UserRef("Ü"), USER, UserRef("bob"), TenantRef()):
        await store.change_records(owner, [put("a", text="a")], timestamp=1)
    await other.change_records(UserRef("eve"), [put("a", text="a")], timestamp=1)
    assert await store.record_users() == ("", "ann", "bob", "Ü")
    assert await store.record_users(limit=2) == ("", "ann")
    assert await store.record_users(after="", limit=2) == ("ann", "bob")
    assert await store.record_users(after="bob") == ("Ü",)
    await store.drop_records(UserRef("bob"))
    assert await store.record_users() == ("", "ann", "Ü")


@pytest.mark.parametrize("seed", range(2))
async def test_texts_follow_random_changes(store: Store, seed: int) -> None:
    """An index that applies what it reads, and what writes return, has the texts of the records, and nothing more."""
    chance, now, since = random.Random(seed), 0, (0, 0)
    records: dict[str, tuple[str | None, int | None]] = {}
    index: dict[int, tuple[str, str]] = {}
    for _ in range(40):
        now += chance.randrange(3)
        records = {key: one for key, one in records.items() if one[1] is None or one[1] > now}
        changes: list[Any] = []
        for key in chance.sample("abcdefgh", chance.randrange(1, 5)):
            if chance.random() < 0.25:
                changes.append(drop(key))
                records.pop(key, None)
                continue
            text = chance.choice([None, f"text {chance.random()}"])
            ends = chance.choice([None, None, now + 4])
            changes.append(put(key, text=text, expires_at=ends))
            records[key] = text, ends
        for number in (await store.change_records(USER, changes, timestamp=now)).unsearchable:
            index.pop(number, None)
        if chance.random() < 0.3:
            await store.sweep_records(now=now)
        for one in await list_searchable(store, now=now, since=since, limit=2):
            index[one.number] = one.key, one.text
            since = one.version, one.number
        wanted = {key: text for key, (text, _) in records.items() if text is not None}
        assert await texts_of(store, now=now) == wanted
        live = {one.number: (one.key, one.text) for one in await list_searchable(store, now=now)}
        assert {number: index[number] for number in live} == live


@once(REFUSED)
async def test_impossible_texts_are_refused(store: Store) -> None:
    """The record is not written."""
    wrong: list[Any] = ["", " \n", 7, b"bytes", "\ud800"]
    for text in wrong:
        with pytest.raises(InvalidRequest) as refused:
            await store.change_records(USER, [put("a", text=text)], timestamp=1)
        assert refused.value.param == "text"
    assert await read(store, "a") is None


async def test_the_length_of_a_text_is_limited(store: Store) -> None:
    """Counted in UTF-8."""
    await store.change_records(USER, [put("a", text="ü" * (limits.RECORD_TEXT_BYTES // 2))], timestamp=1)
    with pytest.raises(TooLarge):
        await store.change_records(USER, [put("b", text="ü" * (limits.RECORD_TEXT_BYTES // 2) + "x")], timestamp=1)
    other = SessionRef("ann", "none")
    with pytest.raises(SessionNotFound):
        await store.change_records(other, [put("a", text="a")], timestamp=1)
