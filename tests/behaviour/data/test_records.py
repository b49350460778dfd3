"""Records: values of programs under a namespace and a key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit import World, embedder, through, user
from tests.behaviour.kit.data import Records

HERE = ("library", "connect", "rest")


def keys(rows: list[Any]) -> list[str]:
    return [row["key"] for row in rows]


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


@through(*HERE)
async def test_the_index_has_nothing_of_a_deleted_user(world: World) -> None:
    async with world.open() as hf:
        for owner in ("ada", "bob"):
            await hf.given("s", user("kelp"), user=owner)
            await hf.remember("Kelp is good", user=owner)
            for session in (None, "s"):
                await Records(hf, "r", user=owner, session=session).put("k", 1, text="kelp")
        await hf.settle()
        index = world.native.index
        assert (await index.status()).documents == 8
        rebuilt = await index.rebuild(user="ada")
        assert (rebuilt.sessions, rebuilt.owners) == (1, 1)
        await hf.delete_user("ada")
        assert (await index.status()).documents == 4


@through(*HERE)
@pytest.mark.parametrize("name", ["~1", "~0", "~01", "a/b", "/", "~/~"])
async def test_a_name_may_have_slashes_and_tildes(world: World, name: str) -> None:
    async with world.open() as hf:
        records = Records(hf, "x", name)
        await records.put(name, 1)
        found = await records.get(name)
        assert found is not None
        assert [(row["namespace"], row["key"]) for row in (found, *await records.list())] == [(("x", name), name)] * 2
        assert await records.namespaces() == [("x", name)]
        await records.change(("delete", name, None, {}))
        assert await records.list() == []


@through("library", "connect", "rest")
async def test_an_expired_record_counts_as_missing_for_writes(world: World) -> None:
    async with world.open() as hf:
        records = Records(hf, "notes", user="ada")
        await records.put("k", 1, ttl=60_000)
        world.clock.now += 60_001
        await records.put("k", 2, expect=0)
        assert ((await records.get("k")) or {})["value"] == 2
