"""Recall of memories: what is found, by which filters, in which order, and with which scores."""

from __future__ import annotations

from typing import Any

from holdfast import Owner
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange
from tests.behaviour.kit.memory_exchanges import MEMORIES, change, queries, review, table

DAY = 86_400_000
FACTS = table(
    {"content": "The ferry to Oslo leaves at noon", "type": "procedural", "importance": 0.1},
    {"content": "Ada once saw a ferry, and a ferry saw Ada", "type": "episodic", "tags": ["sea", "Trip"]},
    {"content": "The ferry is slow", "type": "feedback", "origin": "assistant"},
    {"content": "Ada likes soup and kelp", "type": "user", "tags": ["ferry", "sea"], "importance": 1},
    {"content": "Build the ferry terminal", "type": "project", "origin": "summary"},
    {"content": "Ferries are banned", "type": "reference", "origin": "web", "tags": ["sea"]},
    {"content": "Oslo has a harbour", "importance": 0},
    {"content": "Bob owns a ferry", "user_id": "bob"},
    {"content": "The app sells ferry tickets", "app": True},
    {"content": "Guides take the ferry", "agent": "guide"},
)


async def fill(x: Exchange) -> dict[str, str]:
    """Remember facts of several owners; return their ids by their first two words."""
    ids = {}
    for fact in FACTS:
        x.served.clock.now += 1000
        owner: dict[str, Any] = {} if {"app", "agent"} & fact.keys() else {"user_id": "ada"}
        made = await x.served.native.memories.remember(**{**owner, **fact})
        ids[" ".join(made.memory.content.split()[:2])] = made.memory.id
    return ids


async def recall_all(x: Exchange) -> None:
    await fill(x)
    for q in (
        "ferry",
        "Which ferry goes to Oslo?",
        "trips to the seaside",
        "ferry OR soup*",
        "who am I?",
        "zebra",
        "FERRIES at noon",
    ):
        await x.rows(MEMORIES, "content", "score", "parts", "age", "status", "origin", q=q, user_id="ada", limit=9)
    for narrow in queries(
        "type=project", "type=semantic", "tag=sea", "tag=Sea", "status=active", "status=quarantined", "limit=1", "limit=100",
        "min_score=0.55", "min_score=1", "scope=user", "scope=app", "agent=guide", "scope=agent&agent=guide", "mode=hybrid",
        "agent=nobody", "tag=sea&type=reference", "tag=sea&status=active&limit=1",
    ):  # fmt: skip
        await x.rows(MEMORIES, "content", q="ferry", **{"user_id": None if "scope" in narrow else "ada", **narrow})
    for wrong in queries(
        "limit=0", "limit=101", "min_score=2", "mode=vector", "status=superseded", "order=asc", "after=mem_1"
    ):
        await x.get(MEMORIES, q="ferry", user_id="ada", **wrong)
    await x.get(MEMORIES, q=" ", user_id="ada")
    await x.later(days=90)
    await x.rows(MEMORIES, "content", "score", "parts", "age", q="ferry", user_id="ada", limit=20)
    await x.later(days=5000)
    await x.rows(MEMORIES, "content", "score", "parts", q="ferry", user_id="ada", limit=20)


@exchange(stores=DATABASES)
async def test_scores_and_filters(x: Exchange) -> None:
    await recall_all(x)


@exchange([], "storage: {index: {enabled: false}}")
async def test_scores_and_filters_without_an_index(x: Exchange) -> None:
    await recall_all(x)


async def found(x: Exchange, label: str, query: str, **options: Any) -> None:
    """Recall with the library; write down what is found."""
    result = await x.served.native.memories.recall(query, **options)
    rows = [[one.memory.content, one.score] for one in result.found]
    x.note(f"{label} {query}", [rows, result.mode, result.note])


@exchange()
async def test_filters_of_the_library(x: Exchange) -> None:
    ids = await fill(x)
    owners = [Owner("user", "bob"), Owner("agent", "guide"), Owner("user", "ad")]
    for options in table(
        {"user_id": "ada"}, {"user_id": "bob"}, {"agent": "guide"}, {}, {"owners": owners}, {"owners": owners, "user_id": "ada"},
        {"user_id": "ada", "include_quarantined": False, "limit": 9}, {"user_id": "ada", "types": ["user", "project"]},
        {"user_id": "ada", "tags": ["sea", "ferry"]}, {"user_id": "ada", "statuses": ["quarantined", "rejected"]},
        {"user_id": "ada", "without": [ids["The ferry"], ids["Build the"]]}, {"user_id": "ada", "min_score": 0.5, "limit": 2},
        {"user_id": "ada", "now": x.served.clock.now + 3650 * DAY}, {"user_id": "ada", "now": 0}, {"user_id": "ada", "sure": True},
    ):  # fmt: skip
        await found(x, f"{ {name: value for name, value in options.items() if name != 'without'} }", "ferry", **options)


@exchange(stores=DATABASES)
async def test_only_valid_memories_are_recalled(x: Exchange) -> None:
    start = x.served.clock.now = x.served.clock.now + 1_000_000
    bounds = {
        "from": (start, None),
        "until": (None, start),
        "both": (start, start + 5),
        "past": (1, 2),
        "zero": (0, None),
    }
    for name, (since, until) in bounds.items():
        await x.served.native.memories.remember(f"kelp {name}", user_id="ada", valid_from=since, valid_until=until)
        x.served.clock.now += 1
    for now in (0, 1, 2, start - 1, start, start + 1, start + 4, start + 5, start + 6):
        await found(x, f"{now - start if now > 9 else now}", "kelp", user_id="ada", now=now, limit=9)
    await x.rows(MEMORIES, "content", user_id="ada")
    (row,) = [
        one for one in await x.rows(MEMORIES, "content", user_id="ada", status="active") if "past" in one["content"]
    ]
    await change(x, row["id"], valid_until=None)
    await found(x, "past", "kelp past", user_id="ada", limit=9)


@exchange(stores=DATABASES)
async def test_recall_follows_every_change(x: Exchange) -> None:
    memories = x.served.native.memories

    async def look(label: str) -> None:
        for query in ("kelp", "dulse", "green"):
            await found(x, label, query, user_id="ada")

    one = (await memories.remember("kelp soup", user_id="ada", tags=["green"])).memory.id
    two = (await memories.remember("kelp salad", user_id="ada", origin="web")).memory.id
    three = (await memories.remember("kelp bread", user_id="ada", origin="tool")).memory.id
    await look("new")
    await change(x, one, tags=["red"])
    one = await change(x, one, content="dulse soup")
    await look("changed")
    await review(x, three, "reject")
    await look("rejected")
    await review(x, three, "accept")
    await review(x, two, "accept")
    await look("accepted")
    await change(x, two, content="green kelp salad")
    await x.delete(f"{MEMORIES}/{one}")
    await look("forgotten")
    await x.later(days=1)
    await x.delete("/v1/users/ada")
    await look("deleted")
    await memories.remember("kelp again", user_id="ada")
    await look("again")


@exchange()
async def test_filters_apply_before_the_limit(x: Exchange) -> None:
    memories = x.served.native.memories
    for number in range(230):
        x.served.clock.now += 1
        kind: Any = "project" if number in (3, 4, 120, 125) else "user"
        await memories.remember(f"kelp {'soup ' * (number % 3)}{number}", user_id="ada", type=kind)
    for limit in (1, 3, 4, 5):
        await found(x, f"{limit}", "kelp", user_id="ada", types=["project"], limit=limit)
    for query in ("soup kelp 100", "7", "who am I?"):
        await found(x, "all", query, user_id="ada", limit=7)
    await found(x, "broad", "who am I?", user_id="ada", types=["project"])
    await found(x, "broad", "who am I?", user_id="ada", min_score=0.05, limit=2)
    await found(x, "broad", "who am I?", user_id="ada", min_score=0.11)


@exchange()
async def test_equal_scores_have_an_order(x: Exchange) -> None:
    for user, number, passed in (("b", "one", 0), ("b", "two", 0), ("a", "three", 1), ("b", "four", 1)):
        x.served.clock.now += passed
        await x.served.native.memories.remember(f"kelp {number}", user_id=user)
    for query in ("kelp", "who am I?"):
        await found(x, "order", query, owners=[Owner("user", "b"), Owner("user", "a")])
