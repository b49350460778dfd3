"""Records: values of programs under a namespace and a key."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import World, embedder, through
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
