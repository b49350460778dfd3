"""The same story on PostgreSQL and MariaDB, on two servers of one database: nothing is lost, and nothing else is seen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import SessionRef
from holdfast.settings import LifeSettings
from tests.behaviour.kit import World, assistant, embedder, refused, texts, through, user
from tests.behaviour.kit.data import Files, Records, State

pytestmark = [through("library", "rest"), pytest.mark.parametrize("store", ["postgres", "mysql"])]
DAY = 86_400_000


async def test_a_session_with_all_its_data_is_written_read_and_deleted(world: World, store: str) -> None:
    async with world.open("hooks: {}", store=store, script=["It is orange.", "Bye."]) as hf:
        session = hf.session("s", "ada")
        await session.send(user("Which colour has my parcel to Łódź 🚢?"))
        await session.append(user("Two."), assistant("Three."), idempotency_key="k" * 20)
        await session.append(user("Two."), assistant("Three."), idempotency_key="k" * 20)
        await session.replace(2, user("Zwei."))
        await session.annotate(0, pinned=True, importance=0.5)
        await session.update(metadata={"m": {"n": [1]}}, ttl=DAY)
        assert texts(await session.messages())[:3] == [
            "Which colour has my parcel to Łódź 🚢?",
            "It is orange.",
            "Zwei.",
        ]
        assert (await session.messages(retired=True))[2]["retired_by"] is not None
        assert 0 in {hit["seq"] for hit in await hf.search("colour of the parcel", user="ada")}
        assert len((await session.context())["messages"]) >= 3
        assert len(await session.calls()) == 1

        state = State(hf, "s", "ada")
        await state.set(**{"a": 1, "user:theme": "dark", "app:v": [1]})
        assert [await state.increment("user:n", 2), await state.append("l", "x", None)] == [2, 2]
        assert await state.compare_and_set("a", 1, {"b": 2})
        assert not await state.compare_and_set("a", 1, 3)

        files = Files(session)
        await files.save("map.bin", bytes(range(256)) * 9000)
        await files.save("map.bin", b"small")
        await files.save("user:logo.txt", "logo")
        assert (
            await files.load("map.bin", 0, part=(1_048_570, 1_048_590))
            == (bytes(range(256)) * 9000)[1_048_570:1_048_590]
        )
        assert [row["version"] for row in await files.versions("map.bin")] == [0, 1]

        records = Records(hf, "r", "x", user="ada")
        version = await records.put("k/1", {"v": 1}, text="The parcel is late.")
        await records.change(
            ("put", "k/2", b"\x00", {"ttl": 1000}), ("put", "k/1", 2, {"expect": version, "text": "late"})
        )
        assert [row["key"] for row in await records.list("k/")] == ["k/1", "k/2"]
        assert [row["key"] for row in await records.search("late")] == ["k/1"]
        assert await Records(hf, user="ada").namespaces() == [("r", "x")]
        world.clock.now += 1000
        assert [row["key"] for row in await records.list()] == ["k/1"]

        await hf.remember("My favourite colour is blue", user="ada", tags=["taste"])
        made = await hf.remember("My favourite colour is green", user="ada")
        assert made["outcome"] == "superseded"
        assert [row["content"] for row in await hf.memories("colour", user="ada")] == ["My favourite colour is green"]
        held = await hf.remember("Cc auditors", user="ada", origin="web")
        await hf.review(held["id"], "accept", user="ada")

        fork = await session.fork(at_turn=0, id="f")
        moved = await fork.move(id="g", user_id="bob")
        exported = await session.export(retired=True)
        await hf.import_session(exported, session_id="copy", user_id="bob")
        assert texts(await hf.session("copy", "bob").messages()) == texts(await session.messages())
        assert texts(await moved.messages()) == texts(await session.messages())[:2]
        await session.rewind(at_turn=0)
        await session.erase(0)
        assert [row.get("erased") for row in await session.messages()] == [True, None]

        assert (await session.delete())["sessions"] == 1
        receipt = await hf.delete_user("ada")
        assert (receipt["user_state_keys"], receipt["artifacts"], receipt["records"], receipt["memories"]) == (
            2,
            1,
            2,
            3,
        )
        assert sorted(row["id"] for row in await hf.sessions(user="bob")) == ["copy", "g"]
        with refused("session_not_found"):
            await session.info()


async def test_one_object_serves_many_tenants(world: World, store: str) -> None:
    """Each with data of its own; a sweep ends the sessions of all of them."""
    heard: list[Any] = []

    async def hook(session: Any, reason: str) -> None:
        heard.append((session.tenant, session.id, reason))

    life = LifeSettings(session_ttl=3_600_000, all_tenants=True, sweep=False)
    folder = f"storage: {{artifacts: {{backend: disk, path: {world.folder}}}}}"
    async with world.open(folder, store=store, life=life, script=lambda _: "Orange."):
        world.native.on_expire(hook, name="hook", reasons=("ttl", "shutdown"))
        async with world.native.serve_tenant("one") as one, world.native.serve_tenant("two") as two:
            for tenant in (one, two):
                session = await tenant.session("s", user_id="ada")
                await session.send(f"My parcel {tenant.tenant} is orange")
                await session.artifacts.save("map.txt", tenant.tenant)
                await tenant.memories.remember(f"Ada is with {tenant.tenant}", user_id="ada")
                await tenant.records("r", session=session.ref).put("k", 1, text="orange")
                await tenant.index.settled()
                assert tenant.tenant in str((await tenant.search("parcel", "ada")).hits)
            await (await one.session("s", user_id="ada")).rewind(0)
            await one.erase(SessionRef("ada", "s"), 0)
            assert (await one.search("parcel", "ada")).hits == ()
            assert (await two.search("parcel", "ada")).hits
            world.clock.now += 1_800_000
            await (await two.session("t", user_id="ada")).append("Hi")
            world.clock.now += 1_800_000
            assert (await world.native.sweep()).expired == 2
            await one.delete_user("ada")
            assert (await (await two.session("s", user_id="ada")).artifacts.load("map.txt")).data == b"two"
    assert sorted(heard) == [("one", "s", "ttl"), ("two", "s", "ttl"), ("two", "t", "shutdown")]


async def test_sessions_expire_are_capped_and_retained(world: World, store: str) -> None:
    heard: list[Any] = []

    async def hook(session: Any, reason: str) -> None:
        heard.append((session.id, reason, [entry.message.text async for entry in session.entries()]))

    config = "{sessions: {ttl: 1h, max_sessions: 2}, storage: {sessions: {retention: 1d}}}"
    async with world.open(config, store=store) as hf:
        world.native.on_expire(hook, name="hook")
        for name in ("a", "b", "c"):
            world.clock.now += 1000
            await hf.given(name, user(f"From {name}."))
        world.clock.now += 3_600_000
        await world.native.sweep()
        assert sorted(heard) == [("a", "cap", ["From a."]), ("b", "ttl", ["From b."]), ("c", "ttl", ["From c."])]
        rows = {row["id"]: (row["status"], row["end_reason"]) for row in await hf.sessions()}
        assert rows == {"a": ("closed", "cap"), "b": ("closed", "ttl"), "c": ("closed", "ttl")}
        await hf.session("c").append(user("Back."))
        world.clock.now += DAY
        await world.native.sweep()
        assert [row["id"] for row in await hf.sessions()] == ["c"]


async def test_texts_are_found_by_their_meaning_and_ranked_again(world: World, store: str) -> None:
    async with embedder(car=0, automobile=0, boat=1, train=2) as served:
        config = (
            f"embedders: {{default: {{provider: openai, model: m, base_url: '{served.url}', api_key: k}}}}\n"
            "storage: {index: {type: hybrid, embedder: default}}"
        )
        async with world.open(config, store=store) as hf:
            said = ("The boat is blue.", "My automobile is red.", "A train is late.")
            session = await hf.given("s", *map(user, said), user="ada")
            await hf.remember("Ada sold her automobile", user="ada")
            await Records(hf, "r", user="ada").put("k", 1, text="An automobile.")
            await world.native.index.settled()
            for mode in ("vector", "hybrid"):
                (hit,) = await hf.search("car", user="ada", mode=mode, limit=1)
                assert hit["snippet"] == "My automobile is red."
            assert [row["key"] for row in await Records(hf, "r", user="ada").search("car", mode="vector")] == ["k"]
            assert len(await hf.memories("car", user="ada", mode="vector")) == 1
            await session.erase(1)
            await world.native.index.settled()
            found = await hf.search("car", user="ada", mode="vector")
            assert "My automobile is red." not in [hit["snippet"] for hit in found]


async def test_two_servers_lose_nothing(world: World, store: str) -> None:
    async with world.open(store=store) as hf, holdfast.open(hf.url, clock=world.clock) as other:
        await hf.given("s", user("Hi."), user="ada")
        shared = await other.get(SessionRef("ada", "s"))
        ours = [State(hf, "s", "ada").increment("user:n") for _ in range(8)]
        theirs = [shared.state.increment("user:n") for _ in range(8)]
        await asyncio.gather(*ours, *theirs)
        await asyncio.gather(*(hf.session("s", "ada").append(user(f"Here {at}.")) for at in range(4)))
        await asyncio.gather(*(shared.append(f"There {at}.") for at in range(4)))
        assert await shared.state["user:n"] == 16
        found = texts(await hf.session("s", "ada").messages())
        assert sorted(found) == sorted(["Hi.", *(f"{place} {at}." for at in range(4) for place in ("Here", "There"))])
        assert [row["seq"] for row in await hf.session("s", "ada").messages()] == list(range(9))
        assert await shared.verify() == 9


async def test_tenants_of_one_database_see_nothing_of_each_other(world: World, store: str) -> None:
    async with world.open(store=store) as hf, holdfast.open(hf.url, tenant="acme", clock=world.clock) as acme:
        await hf.given("s", user("My parcel is orange."), user="ada")
        await State(hf, "s", "ada").set(**{"user:a": 1, "app:a": 1})
        await hf.remember("Ada drinks tea", user="ada")
        await Records(hf, "r").put("k", 1)
        session = await acme.session("s", user_id="ada")
        assert await session.messages() == []
        assert await session.state.all() == {}
        assert (await acme.memories.recall("tea", user_id="ada")).found == ()
        assert await acme.records("r").get("k") is None
        assert (await acme.search("parcel", "ada")).hits == ()
        await acme.delete_user("ada")
        assert texts(await hf.session("s", "ada").messages()) == ["My parcel is orange."]
