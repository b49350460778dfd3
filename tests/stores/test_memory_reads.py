"""What reads of memories look at: what they give, however many memories an owner has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.domain.memory import STATUSES, Memory, MemoryDelta, Owner
from holdfast.stores import open_store
from holdfast.stores.logic.rows import ENDLESS
from holdfast.stores.sql.statements import load_statements
from tests.contract.memory_kit import ANN, memory, put, signal
from tests.stores.plans_kit import planning

MANY = 2000
MOST = 150
"""Rows that a read of ten may look at."""
PLACE = ("acme", f"memories.{ANN.kind}", ANN.id)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _count_rows(plan: dict[str, Any]) -> int:
    """Rows that were taken from tables, those that were not wanted included."""
    return sum(
        int(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
        for node in _nodes(plan)
        if "Relation Name" in node
    )


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_reads_examine_only_the_rows_they_return(postgres_url: str, mode: str) -> None:
    """PostgreSQL says how many rows it took from its tables: a few, of an owner with many memories and signals.

    It may plan for that owner, or for any: most have few.
    """
    store = await open_store(postgres_url, tenant="acme")
    made: list[Memory] = []
    for begin in range(0, MANY, 200):
        new = [memory("x", status=STATUSES[(begin + at) % 50 == 0]) for at in range(200)]
        made += await put(store, *new)
    for begin in range(0, MANY, 500):
        told = tuple(signal(one, begin + at) for at, one in enumerate(made[begin : begin + 500]))
        await store.change_memories(ANN, MemoryDelta(signals=told), timestamp=2)
    for at in range(200):
        owner = Owner("user", f"u{at}")
        await put(store, *(memory("x", owner) for _ in range(1 + at % 5)), owner=owner)
    await put(store, made[7], made[1500])
    version = (await store.memories(ANN, limit=1)).version
    await store.close()
    ids = json.dumps([one.id for one in made[::200]])
    rest = (0, "", 1, -ENDLESS, 10)
    asked: dict[str, tuple[Any, ...]] = {
        "memory_find": ("acme", made[700].id),
        "memories_forward": (*PLACE, 900, 10),
        "memories_backward": (*PLACE, 900, 10),
        "memories_forward_of": (*PLACE, STATUSES[1], 900, 10),
        "memories_backward_of": (*PLACE, STATUSES[1], 900, 10),
        "memories_since": (*PLACE, version - 1, *rest[1:]),
        "memories_of_ids": (*PLACE, ids, *rest),
        "memories_of_numbers": (*PLACE, "[5, 700, 1900]", *rest),
        "memories_named": ("acme", ids),
        "signals_all": (*PLACE, MANY - 10),
        "signals_of": (*PLACE, ids, 0),
    }
    async with planning(postgres_url, mode) as connection:
        await connection.execute("ANALYZE")
        for name, given in asked.items():
            await connection.execute(f"PREPARE {name}_ AS {load_statements('postgres')[name]}")
            values = ", ".join(str(one) if isinstance(one, int) else f"'\\x{one.encode().hex()}'" for one in given)
            (row,) = await connection.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name}_({values})", ())
            plan = json.loads(row[0])[0]["Plan"]
            assert plan["Actual Rows"] >= 1, name
            assert _count_rows(plan) <= MOST, f"{name}: {row[0]}"
