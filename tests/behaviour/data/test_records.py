"""Records: values of programs under a namespace and a key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit import World, embedder, refused, texts, through, user
from tests.behaviour.kit.data import Records

HERE = ("library", "connect", "rest")
OWNERS: list[dict[str, str]] = [{}, {"user": "ada"}, {"user": "ada", "session": "s"}]


def keys(rows: list[Any]) -> list[str]:
    return [row["key"] for row in rows]


@through(*HERE)
@pytest.mark.parametrize("owner", OWNERS, ids=["tenant", "user", "session"])
async def test_a_record_is_put_read_replaced_and_deleted(world: World, owner: dict[str, str]) -> None:
    async with world.open() as hf:
        await hf.given("s", user("Hi."), user="ada")
        records = Records(hf, "a", **owner)
        assert await records.get("k") is None
        first = await records.put("k", {"x": [None, 1.5]})
        row = await records.get("k")
        assert row == {
            "namespace": ("a",), "key": "k", "value": {"x": [None, 1.5]}, "version": first, "text": None,
            "created_at": world.clock.now, "updated_at": world.clock.now, "expires_at": None,
        }  # fmt: skip
        world.clock.now += 5
        second = await records.put("k", b"\x00\xff")
        row = await records.get("k")
        assert second > first
        assert row is not None
        assert (row["value"], row["created_at"], row["updated_at"]) == (
            b"\x00\xff",
            world.clock.now - 5,
            world.clock.now,
        )
        await records.put("none", None)
        assert [one["value"] for one in await records.list()] == [b"\x00\xff", None]
        await records.delete("k")
        await records.delete("never")
        assert keys(await records.list()) == ["none"]


@through(*HERE)
async def test_owners_never_see_each_others_records(world: World) -> None:
    async with world.open() as hf:
        await hf.given("s", user("Hi."), user="ada")
        await hf.given("t", user("Hi."), user="ada")
        owners = [*OWNERS, {"user": "bob"}, {"user": "ada", "session": "t"}]
        for number, owner in enumerate(owners):
            await Records(hf, "a", **owner).put("k", number)
        assert [(await Records(hf, "a", **owner).list())[0]["value"] for owner in owners] == [0, 1, 2, 3, 4]


@through(*HERE)
async def test_a_version_guards_a_write(world: World) -> None:
    async with world.open() as hf:
        records = Records(hf, "counters")
        first = await records.put("n", 1, expect=0)
        with refused("stale_record"):
            await records.put("n", 9, expect=0)
        second = await records.put("n", 2, expect=first)
        with refused("stale_record"):
            await records.put("n", 9, expect=first)
        with refused("stale_record"):
            await records.delete("n", expect=first)
        await records.delete("n", expect=second)
        assert await records.put("n", 1, expect=0) > second, "no version is used again"


@through(*HERE)
async def test_several_changes_happen_together_or_not_at_all(world: World) -> None:
    async with world.open() as hf:
        records = Records(hf, "steps")
        await records.put("old", 1)
        made = await records.change(
            ("put", "1", "a", {}), ("put", "2", "b", {"expect": 0}), ("delete", "old", None, {})
        )
        assert [*made["existed"]] == [False, False, True]
        assert keys(await records.list()) == ["1", "2"]
        with refused("stale_record"):
            await records.change(("put", "3", "c", {}), ("delete", "1", None, {}), ("put", "2", "d", {"expect": 0}))
        assert [(row["key"], row["value"]) for row in await records.list()] == [("1", "a"), ("2", "b")]
        with refused("too_large", "100"):
            await records.change(*[("put", str(number), 1, {}) for number in range(101)])
        with refused("invalid_request", "only once"):
            await records.change(("put", "x", 1, {}), ("delete", "x", None, {}))


@through("library", "connect")
async def test_messages_and_records_are_one_write(world: World) -> None:
    async with world.open() as hf:
        session = await hf.native.session("s")
        steps = session.records("steps")
        await session.append("Book it.", records=[steps.make_put("1", {"tool": "book"}, expect=0)])
        assert (await steps.get("1")).value == {"tool": "book"}
        with pytest.raises(Exception, match="record"):
            await session.append("Again.", records=[steps.make_put("1", 2, expect=0)])
        assert texts(await session.messages()) == ["Book it."]


@through(*HERE)
async def test_namespaces_are_paths_and_lists_are_sorted(world: World) -> None:
    async with world.open() as hf:
        agents = Records(hf, "agents", user="ada")
        planner, odd = agents.below("planner"), agents.below("a/b", "~c")
        for key in ("plan/2", "note", "plan/1"):
            await planner.put(key, key)
        await odd.put("deep", 1)
        await Records(hf, "other", user="ada").put("x", 1)
        assert keys(await planner.list()) == ["note", "plan/1", "plan/2"]
        assert keys(await planner.list("plan/")) == ["plan/1", "plan/2"]
        assert keys(await planner.list(descending=True, limit=2)) == ["plan/2", "plan/1"]
        assert keys(await agents.list(nested=True)) == ["deep", "note", "plan/1", "plan/2"]
        assert [row["value"] for row in await planner.list(values=False)] == [None] * 3
        assert await agents.namespaces() == [("agents", "a/b", "~c"), ("agents", "planner")]
        assert await Records(hf, user="ada").namespaces(depth=1) == [("agents",), ("other",)]
        assert await Records(hf, user="ada").drop() == 5
        assert await Records(hf, user="ada").namespaces() == []


@through("library", "connect")
async def test_records_are_read_in_pages_and_in_groups(world: World) -> None:
    async with world.open() as hf:
        records = hf.native.records("many", user_id="ada")
        assert await records.put_many({f"{number:03}": number for number in range(100)}) > 0
        page = await records.list(limit=40)
        rest = await records.list(after=page.records[-1], limit=100)
        assert (len(page.records), page.has_more, len(rest.records), rest.has_more) == (40, True, 60, False)
        assert [one.value async for one in records.iterate("01")] == list(range(10, 20))
        assert sorted(await records.get_many(["005", "nope", "007"])) == ["005", "007"]
        assert await records.clear() == 100


@through(*HERE)
async def test_a_record_lives_as_long_as_its_ttl(world: World) -> None:
    async with world.open() as hf:
        records = Records(hf, "cache", user="ada")
        await records.put("k", 1, ttl=1000)
        row = await records.get("k")
        assert row is not None
        assert row["expires_at"] == world.clock.now + 1000
        world.clock.now += 999
        assert keys(await records.list()) == ["k"]
        world.clock.now += 1
        assert (await records.get("k"), await records.list(), await records.namespaces()) == (None, [], [])
        await records.put("k", 2, expect=0)
        world.clock.now += 10_000
        assert keys(await records.list()) == ["k"]


@through(*HERE)
async def test_records_of_a_session_go_with_it(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Hi."), user="ada")
        await Records(hf, "a", user="ada", session="s").put("k", 1)
        await Records(hf, "a", user="ada").put("k", 2)
        moved = await session.move(id="t")
        assert keys(await Records(hf, "a", user="ada", session="t").list()) == ["k"]
        fork = await moved.fork(id="f")
        assert await Records(hf, "a", user="ada", session=fork.id).list() == []
        assert (await moved.delete())["records"] == 1
        with refused("session_not_found"):
            await Records(hf, "a", user="ada", session="t").list()
        assert (await hf.delete_user("ada"))["records"] == 1
        assert await Records(hf, "a", user="ada").list() == []


WRONG: list[tuple[str, Any, dict[str, Any], str, str]] = [
    ("", 1, {}, "invalid_request", "key"),
    ("k" * 513, 1, {}, "invalid_request", "512"),
    ("k", 1, {"text": "x" * (64 * 1024 + 1)}, "too_large", "65537 bytes"),
    ("k", 1, {"ttl": -1}, "invalid_request", "ttl"),
]


@through(*HERE)
@pytest.mark.parametrize(("key", "value", "options", "code", "words"), WRONG, ids=[row[4] for row in WRONG])
async def test_a_wrong_record_is_refused(
    world: World, key: str, value: Any, options: dict[str, Any], code: str, words: str
) -> None:
    async with world.open() as hf:
        with refused(code, words):
            await Records(hf, "a").put(key, value, **options)
        assert await Records(hf, "a").list() == []


@through("library", "connect")
async def test_a_value_that_json_cannot_express_is_named(world: World) -> None:
    async with world.open() as hf:
        with pytest.raises(Exception, match=r"value.scores\[1\]"):
            await hf.native.records("a").put("k", {"scores": [1, float("nan")]})


@through(*HERE)
async def test_records_are_found_by_their_text(world: World) -> None:
    async with world.open() as hf:
        orders = Records(hf, "orders", user="ada")
        await orders.put("order-17", {"state": "late"}, text="The parcel to Oslo arrived late.")
        await orders.put("order-18", {"state": "open"}, text="Two window seats, not paid yet.")
        await orders.put("silent", {"parcel": "late"})
        await orders.below("old").put("order-1", 1, text="A late parcel of last year.")
        await Records(hf, "orders", user="bob").put("order-17", 1, text="The parcel to Oslo arrived late.")
        (hit,) = await orders.search("late parcels")
        assert (hit["key"], hit["value"], "late" in hit["snippet"], 0 < hit["score"] <= 1) == (
            "order-17", {"state": "late"}, True, True,
        )  # fmt: skip
        assert sorted(keys(await orders.search("late parcels", nested=True))) == ["order-1", "order-17"]
        assert keys(await orders.search("parcel seats", "order-18")) == ["order-18"]
        await orders.put("order-17", 1, text="All paid.")
        await orders.put("order-18", 1)
        assert await orders.search("late parcels") == []
        assert await orders.search("window seats") == []
        assert keys(await orders.search("paid")) == ["order-17"]
        await orders.delete("order-17")
        assert await orders.search("paid") == []


@through(*HERE)
async def test_records_are_found_by_their_meaning(world: World) -> None:
    async with embedder(car=0, automobile=0, boat=1) as served:
        config = (
            f"embedders: {{default: {{provider: openai, model: m, base_url: '{served.url}', api_key: k}}}}\n"
            "storage: {index: {type: hybrid, embedder: default}}"
        )
        async with world.open(config) as hf:
            things = Records(hf, "things")
            await things.put("a", 1, text="An automobile.")
            await things.put("b", 1, text="A boat.")
            await world.native.index.settled()
            assert keys(await things.search("car", mode="vector", limit=1)) == ["a"]
