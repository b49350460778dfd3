"""One damaged row must not take others with it: lists and sweeps skip it and name it, and it can be deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest

import holdfast
from holdfast.domain.memory import Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import StoreCorrupt
from holdfast.stores.verify import verify
from tests.clocks import Clock
from tests.stores.damage_kit import (
    NO_JSON,
    WRONG_TYPE,
    damage_memory,
    damage_message,
    damage_profile,
    store_with_damaged_text,
)

BAD, GOOD = SessionRef("ada", "bad"), SessionRef("ada", "good")
FIELDS = ("system_messages", "state", "metadata")
DAY = 86_400_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def hf(tmp_path: Path, clock: Clock) -> AsyncIterator[holdfast.Holdfast]:
    """Two sessions of one user, `bad` and `good`, each with a message and metadata."""
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db", clock=clock, session_ttl="1h", retention="1d") as hf:
        for ref in (BAD, GOOD):
            await hf.create(ref.id, user_id=ref.user_id, metadata={"kept": ref.id})
            await (await hf.session(ref.id, user_id=ref.user_id)).append(f"the harbour of {ref.id}")
        yield hf


@pytest.mark.parametrize("data", [NO_JSON, WRONG_TYPE], ids=["no JSON", "wrong type"])
@pytest.mark.parametrize("field", FIELDS)
async def test_a_damaged_field_is_named_in_lists(hf: holdfast.Holdfast, field: str, data: bytes) -> None:
    await damage_profile(hf.store, BAD, **{field: data})
    for descending in (True, False):
        page = await hf.sessions(descending=descending)
        assert {one.id: one.damaged for one in page.sessions} == {"bad": (field,), "good": ()}
    assert (await hf.store.get(BAD)).damaged == (field,)
    assert (await hf.store.find("bad")).damaged == (field,)


async def test_a_damaged_field_stops_only_its_own_session(hf: holdfast.Holdfast) -> None:
    """Builds and writes fail with the session's name; the other session works."""
    await damage_profile(hf.store, BAD, metadata=NO_JSON)
    bad, good = hf.handle(await hf.store.get(BAD)), await hf.session("good", user_id="ada")
    for call in (
        bad.append("more"),
        bad.send("more"),
        bad.context(),
        bad.verify(),
        bad.fork(),
        hf.export(BAD),
        bad.close(),
    ):
        with pytest.raises(StoreCorrupt, match=r"session 'bad' of user 'ada'.*metadata"):
            await call
    with pytest.raises(StoreCorrupt, match="session 'bad'"):
        await hf.move(BAD, id="elsewhere")
    await good.send("more")
    assert (await hf.export(GOOD))["metadata"] == {"kept": "good"}


async def test_a_damaged_field_is_repaired_by_replacing_it(hf: holdfast.Holdfast) -> None:
    await damage_profile(hf.store, BAD, metadata=NO_JSON)
    session = hf.handle(await hf.store.get(BAD))
    with pytest.raises(StoreCorrupt, match="metadata"):
        await session.update(ttl=5)
    assert (await session.update(metadata={})).damaged == ()
    assert await session.verify() == 1


async def test_a_damaged_session_is_deleted(hf: holdfast.Holdfast) -> None:
    told: list[Any] = []
    hf.on_expire(lambda session, reason: told.append(reason), name="told")
    await damage_profile(hf.store, BAD, metadata=NO_JSON, state=NO_JSON)
    assert await hf.delete(BAD)
    assert [one.id for one in (await hf.sessions()).sessions] == ["good"]
    assert await hf.delete(GOOD)
    assert (await hf.sessions()).sessions == ()


async def test_a_damaged_session_is_replaced_by_an_import(hf: holdfast.Holdfast) -> None:
    await damage_profile(hf.store, BAD, metadata=NO_JSON)
    arrival = await hf.import_(
        {"messages": [{"role": "user", "content": "again"}]}, session_id="bad", user_id="ada", replace=True
    )
    assert arrival.session.damaged == ()
    assert await verify(hf.store, BAD) == 1


@pytest.mark.parametrize("damaged", ["field", "message"])
async def test_a_user_with_a_damaged_session_is_deleted(hf: holdfast.Holdfast, damaged: str) -> None:
    if damaged == "field":
        await damage_profile(hf.store, BAD, metadata=NO_JSON)
    else:
        await damage_message(hf.store, BAD, 0)
    receipt = await hf.delete_user("ada")
    assert receipt.sessions == 2
    assert (await hf.sessions()).sessions == ()


async def test_expiry_skips_and_names_a_damaged_session(
    hf: holdfast.Holdfast, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await damage_profile(hf.store, BAD, metadata=NO_JSON)
    clock.now += 2 * 3_600_000
    assert (await hf.sweep()).expired == 1
    assert "session 'bad' of user 'ada'" in caplog.text
    assert (await hf.engine.life.store.get(BAD)).status == "active"


async def test_retention_and_pruning_skip_a_damaged_session(hf: holdfast.Holdfast, clock: Clock) -> None:
    for ref in (BAD, GOOD):
        await hf.close_session(ref)
    await damage_profile(hf.store, BAD, metadata=NO_JSON)
    clock.now += 3 * DAY
    assert [session.id async for session, _ in hf.prune(2 * DAY)] == ["good"]
    assert (await hf.sweep()).deleted == 0
    assert [one.id for one in (await hf.sessions()).sessions] == ["bad"]


@pytest.mark.parametrize("damaged", ["field", "message"])
async def test_the_index_includes_all_undamaged_sessions(hf: holdfast.Holdfast, damaged: str) -> None:
    """A rebuild names the damaged session; a search finds the other one and reports the omission."""
    assert hf.index is not None
    await hf.index.settled()
    if damaged == "field":
        await damage_profile(hf.store, BAD, metadata=NO_JSON)
    else:
        await damage_message(hf.store, BAD, 0)
    rebuilt = await hf.index.rebuild()
    assert [name.id for name in rebuilt.damaged] == ["bad"]
    assert rebuilt.sessions == 1
    found = await hf.search("harbour", "ada")
    assert "good" in [hit.session_id for hit in found.hits]


async def test_a_damaged_message_is_named(hf: holdfast.Holdfast) -> None:
    """Every read of the log names it; the session is listed and its other messages can be read."""
    session = await hf.session("bad", user_id="ada")
    await session.append("second")
    await damage_message(hf.store, BAD, 0)
    for call in (session.messages(), session.context(), session.verify(), session.export()):
        with pytest.raises(StoreCorrupt, match=r"session 'bad' of user 'ada': message 0 is damaged"):
            await call
    assert [entry.message.text for entry in await hf.store.entries(BAD, start=1)] == ["second"]
    found = await hf.store.entries_at("ada", [("good", 0), ("bad", 0), ("bad", 1)])
    assert "session 'bad' of user 'ada': message 0 is damaged" in str(found["bad", 0].damage)
    assert [(sorted(one.entries), bool(one.damage)) for one in found.values()] == [([0], 0), ([], 1), ([1], 0)]
    assert len((await hf.sessions()).sessions) == 2
    assert await hf.delete(BAD)


async def test_a_damaged_memory_is_left_out_and_named(hf: holdfast.Holdfast) -> None:
    owner = Owner("user", "ada")
    first = (await hf.memories.remember("She keeps bees.", user_id="ada")).memory
    second = (await hf.memories.remember("Her boat is red.", user_id="ada")).memory
    await damage_memory(hf.store, owner, first.number)
    page = await hf.store.memories(owner)
    assert ([one.id for one in page.memories], page.damaged) == ([second.id], (first.number,))
    assert [one.memory.id for one in (await hf.memories.recall("boat", user_id="ada")).found] == [second.id]
    assert await hf.store.drop_memories(owner) == 2


@pytest.mark.parametrize("column", ["agent", "status", "end_reason", "identity", "claim_holder"])
async def test_invalid_utf8_damages_only_one_session(tmp_path: Path, column: str) -> None:
    """SQLite rejects the whole statement, but the other rows are still read in order."""
    name = column.removesuffix("_holder")
    async with holdfast.open(await store_with_damaged_text(tmp_path, column)) as hf:
        for descending in (False, True):
            page = await hf.sessions(descending=descending)
            listed = [(one.id, one.damaged) for one in page.sessions]
            assert listed == [("bad", (name,)), ("good", ())][:: -1 if descending else 1]
        assert {hit.session_id for hit in (await hf.search("good", "ada")).hits} == {"good"}
        assert hf.index is not None
        assert (await hf.index.rebuild()).sessions == 1
        assert (await hf.sweep()).deleted == 0
        with pytest.raises(StoreCorrupt, match=f"session 'bad' of user 'ada'.*{name}"):
            await hf.export(BAD)
        assert await hf.delete(BAD)
        assert [one.id for one in (await hf.sessions()).sessions] == ["good"]


@pytest.mark.parametrize(("table", "column"), [("entries", "agent"), ("artifacts", "blob_key"), ("artifacts", "data")])
async def test_a_session_with_invalid_utf8_can_be_deleted(tmp_path: Path, table: str, column: str) -> None:
    async with holdfast.open(await store_with_damaged_text(tmp_path, column, table)) as hf:
        assert hf.index is not None
        rebuilt = await hf.index.rebuild()
        assert [one.id for one in rebuilt.damaged] == (["bad"] if table == "entries" else [])
        assert (await hf.delete_user("ada")).sessions == 2


async def test_a_session_without_a_readable_name_is_listed(tmp_path: Path) -> None:
    """It cannot be deleted by a name, and the deletion of its user says so when all else is gone."""
    async with holdfast.open(await store_with_damaged_text(tmp_path, "id")) as hf:
        listed = {one.id: one.damaged for one in (await hf.sessions()).sessions}
        assert listed == {"ba\ufffd": ("id",), "good": ()}
        with pytest.raises(StoreCorrupt, match="'ba\ufffd' of user 'ada': id damaged"):
            await hf.delete_user("ada")
        assert [one.id for one in (await hf.sessions()).sessions] == ["ba\ufffd"]


async def test_a_damaged_length_does_not_make_a_deletion_endless(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with holdfast.open(url) as hf:
        await (await hf.session("bad", user_id="ada")).send("hello")
    raw = apsw.Connection(f"{tmp_path}/chat.db")
    raw.execute("UPDATE sessions SET next_seq = 1 << 62")
    raw.close()
    async with holdfast.open(url) as hf:
        with anyio.fail_after(10):
            assert await hf.delete(BAD)


@pytest.mark.parametrize("damage", ["UPDATE owners SET kind = 'memories.uses'", "UPDATE memories SET number = 1 << 40"])
async def test_damaged_memories_do_not_stop_a_rebuild(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with holdfast.open(url) as hf:
        await (await hf.session("good", user_id="ada")).append("the harbour")
        await hf.memories.remember("She keeps bees.", user_id="ada")
        await hf.memories.remember("He keeps goats.", user_id="bob")
    raw = apsw.Connection(f"{tmp_path}/chat.db")
    raw.execute(f"{damage} WHERE rowid = 1")
    raw.close()
    async with holdfast.open(url) as hf:
        assert hf.index is not None
        assert (await hf.index.rebuild()).sessions == 1
        assert len((await hf.memories.recall("goats", user_id="bob")).found) == 1
    assert "not indexed: the memories of" in caplog.text
