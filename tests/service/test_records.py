"""Records through the library: handles, time to live, appends, deletion, redaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain import record
from holdfast.domain.record import RecordOwner, RecordPage
from holdfast.errors import InvalidRequest, SecretBlocked, SessionNotFound, TooLarge
from holdfast.lifecycle.settings import LifeSettings
from holdfast.stores.base import Store
from holdfast.stores.walk import iterate_record_pages
from tests.clocks import Clock
from tests.service.guard_kit import KEY, desk
from tests.service.scripted_model import REF

STILL = LifeSettings(session_ttl=0, sweep=False)


@dataclass
class Point:
    x: float
    y: float


@pytest.fixture
async def hf(clock: Clock, tmp_path: Path) -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db", clock=clock, life=STILL) as hf:
        yield hf


async def test_a_moved_session_takes_its_records_along(hf: holdfast.Holdfast, clock: Clock) -> None:
    session = await hf.session("s1", user_id="ada")
    await session.records(("x", "y")).put_many({str(at): at for at in range(100)}, ttl="1h")
    await session.records("x").put("b", b"1")
    await hf.records("x", user_id="ada").put("c", 1)
    clock.now += 1_000
    await hf.move(session.ref, user_id="bob", id="s2")
    moved = hf.records(session=holdfast.SessionRef("bob", "s2"))
    found = [one async for one in moved.iterate(nested=True)]
    assert [(one.key, one.value) for one in found[:2]] == [("b", b"1"), ("0", 0)]
    assert (len(found), found[1].created_at, found[1].expires_at) == (101, clock.now - 1_000, clock.now + 3_599_000)
    assert await hf.records("x", user_id="bob").get("c") is None
    with pytest.raises(SessionNotFound):
        await session.records("x").get("b")


async def test_records_are_moved_page_by_page(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than a page is read or written at once. What others change meanwhile is moved too."""
    monkeypatch.setattr("holdfast.stores.record_checks.RECORD_PAGE_BYTES", 100)
    session = await hf.session("s1", user_id="ada")
    records = session.records("x")
    await records.put_many({f"{at:02}": b"x" * 40 for at in range(20)})
    pages: list[list[str]] = []

    async def iterate(store: Store, owner: RecordOwner, **more: Any) -> AsyncIterator[RecordPage]:
        async for page in iterate_record_pages(store, owner, **more):
            pages.append([one.key for one in page.records])
            yield page
            if len(pages) == 5:
                await records.delete("00")
                await records.put("01", b"n" * 40)

    monkeypatch.setattr("holdfast.sessions.moves.iterate_record_pages", iterate)
    await hf.move(session.ref, user_id="bob")
    assert max(map(len, pages)) == 2
    moved = hf.records("x", session=holdfast.SessionRef("bob", "s1"))
    found = {one.key: one.value async for one in moved.iterate()}
    assert (found.pop("01"), found) == (b"n" * 40, {f"{at:02}": b"x" * 40 for at in range(2, 20)})


async def test_a_session_with_larger_records_is_replaced_without_reading_them(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import is compared with what is stored; records of another size differ without being read."""
    session = await hf.session("s1", user_id="ada")
    await session.records("x").put_many({str(at): "x" * 100 for at in range(3)})
    export = await hf.export(session.ref)
    await session.records("x").put("large", "x" * 1_000)
    monkeypatch.setattr("holdfast.sessions.transfer.RECORDS_BYTES", 500)
    with pytest.raises(TooLarge, match="records=False"):
        await hf.export(session.ref)
    assert (await hf.import_(export, replace=True)).changed
    assert not (await hf.import_(export, replace=True)).changed
    assert [one.key async for one in hf.records("x", session=session.ref).iterate()] == ["0", "1", "2"]


async def test_a_handle_does_not_reach_a_later_session_of_the_name(hf: holdfast.Holdfast) -> None:
    """Neither reads nor writes, also of namespaces below and in an append."""
    session = await hf.session("s1", user_id="ada")
    old = session.records("x")
    await old.put("k", 1)
    await hf.remove(session.ref)
    new = await hf.session("s1", user_id="ada")
    await new.records("x").put("k", 2)
    for call in (
        old.get("k"),
        old.put("k", 3),
        old.below("y").put("k", 3),
        old.list(),
        old.namespaces(),
        old.delete("k"),
        old.clear(),
        old.drop(),
        session.append({"role": "user", "content": "Hi."}, records=[old.make_put("k", 3)]),
    ):
        with pytest.raises(SessionNotFound):
            await call
    found = await new.records("x").get("k")
    assert (found and found.value, await new.messages()) == (2, [])
    by_name = await hf.records("x", session=session.ref).get("k")
    assert by_name == found


async def test_a_handle_follows_a_session_that_lapsed_in_memory(clock: Clock) -> None:
    """A program with a handle can go on, as with messages; but not in a session that another program created."""
    life = LifeSettings(session_ttl=1_000, sweep=False)
    async with holdfast.open("sqlite://:memory:", clock=clock, life=life) as hf:
        session = await hf.session("s1", user_id="ada")
        records = session.records("x")
        for at in range(3):
            await records.put("k", at)
            clock.now += 2_000
        await session.append({"role": "user", "content": "Hi."}, records=[records.make_put("k", 9)])
        found = await records.get("k")
        assert found is not None
        assert found.value == 9
        clock.now += 2_000
        other = await hf.session("s1", user_id="ada")
        with pytest.raises(SessionNotFound):
            await records.put("k", 10)
        assert await other.records("x").get("k") is None


async def test_exports_have_records(hf: holdfast.Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await hf.session("s1", user_id="ada")
    await session.append({"role": "user", "content": "Hi."})
    assert "records" not in await hf.export(session.ref)
    await session.records(("x", "y")).put_many({"a": {"b": [None]}, "b": b"\0\xff", "c": None})
    await session.records("x").put("short", 1, ttl=10)
    await session.records("x").put("gone", 1, ttl=1)
    clock.now += 1_000
    export = await hf.export(session.ref)
    assert [one["key"] for one in export["records"]] == ["short", "a", "b", "c"]
    copy = await hf.import_(export, session_id="s2")
    assert copy.changed
    copied = hf.records(("x", "y"), session=copy.session.ref)
    assert [one.value async for one in copied.iterate()] == [{"b": [None]}, b"\0\xff", None]
    assert not (await hf.import_(export, session_id="s2")).changed
    await copied.put("a", 2)
    assert (await hf.import_(export, session_id="s2", replace=True)).changed
    again = await copied.get("a")
    assert (again and again.value) == {"b": [None]}
    clock.now += 10_000
    late = await hf.import_(export, session_id="s3")
    assert len([one async for one in hf.records(session=late.session.ref).iterate(nested=True)]) == 3
    for wrong in ({"key": "a"}, {"namespace": ["x"], "key": "a", "value": "!", "encoding": "base64"}, 3):
        with pytest.raises(InvalidRequest, match=r"records\[0\]"):
            await hf.import_({**export, "records": [wrong]}, session_id="s4")
    with pytest.raises(InvalidRequest, match="label"):
        await hf.import_({**export, "records": [{"namespace": [""], "key": "a", "value": 1}]}, session_id="s4")
    monkeypatch.setattr("holdfast.stores.record_checks.RECORD_PAGE_BYTES", 4)
    assert (await hf.export(session.ref))["records"] == export["records"][1:]
    monkeypatch.setattr("holdfast.sessions.transfer.RECORDS_BYTES", 4)
    with pytest.raises(TooLarge):
        await hf.export(session.ref)
    assert "records" not in await hf.export(session.ref, records=False)


async def test_secrets_in_records_are_masked_or_refused(tmp_path: Path) -> None:
    async with desk(tmp_path, "secret_guard: {enabled: true, on_secret: redact}") as d:
        session = await d.hf.session(REF.id, user_id=REF.user_id)
        for records in (d.hf.records("x", user_id="ann"), session.records("x")):
            await records.put("a", {"deep": [f"my {KEY}"]})
            with pytest.raises(InvalidRequest, match="choose another name"):
                await records.put(KEY, 1)
        await session.append({"role": "user", "content": "Hi."}, records=[session.records("x").make_put("b", KEY)])
        d.check()
    (tmp_path / "2").mkdir()
    async with desk(tmp_path / "2", "secret_guard: {enabled: true, on_secret: block}") as d:
        with pytest.raises(SecretBlocked):
            await d.hf.records("x").put("a", f"my {KEY}")


async def test_bad_arguments_are_refused(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = hf.records("notes")
    for call in (
        notes.put("", 1),
        notes.put("a", object()),
        notes.put("a", 1, ttl="soon"),
        notes.put("a", 1, expect=-1),
        notes.list(limit=0),
        notes.list("a", nested=True),
        hf.records().put("a", 1),
    ):
        with pytest.raises(InvalidRequest):
            await call
    with pytest.raises(TooLarge):
        await notes.get_many([str(at) for at in range(101)])
    monkeypatch.setattr(record, "MESSAGE_BYTES", 100)
    await notes.put("a", "x" * 98)
    with pytest.raises(TooLarge, match="101 bytes"):
        await notes.put("a", "x" * 99)
    for namespace in ("", "\n", ("a", ""), 3, ("x",) * 17):
        with pytest.raises(InvalidRequest):
            hf.records(namespace)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("inf"), "value is inf"),
        ({"scores": [1.0, float("nan")]}, r"value\.scores\[1\] is nan"),
        ([None, ({"a": {"b": -float("inf")}},)], r"value\[1\]\[0\]\.a\.b is -inf"),
        ({"point": Point(1.0, float("inf"))}, r"value\.point\.y is inf"),
    ],
)
async def test_numbers_without_a_json_form_are_refused(hf: holdfast.Holdfast, value: Any, place: str) -> None:
    """They were stored as null. The error names the place; nothing is written."""
    notes = hf.records("notes", user_id="ada")
    with pytest.raises(InvalidRequest, match=place) as refused:
        await notes.put("a", value)
    assert refused.value.param == "value"
    with pytest.raises(InvalidRequest, match=place):
        await notes.put_many({"fine": 1, "a": value})
    assert [one.key async for one in notes.iterate()] == []


async def test_null_next_to_other_values_is_kept(hf: holdfast.Holdfast) -> None:
    notes = hf.records("notes", user_id="ada")
    value = {"a": None, "b": [None, "null", 1.5, b"x"], "c": Point(1.0, 2.0)}
    await notes.put("a", value)
    one = await notes.get("a")
    assert one is not None
    assert one.value == {"a": None, "b": [None, "null", 1.5, "eA=="], "c": {"x": 1.0, "y": 2.0}}
