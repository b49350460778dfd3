"""Consolidation: which memories are promoted, the figures, the diary, and the files of a workspace."""

from __future__ import annotations

from typing import Any

from holdfast import Owner
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange
from tests.behaviour.kit.memory_exchanges import MEMORIES, keep, review, table

HOUR = 3_600_000
SHOWN = ("content", "promoted_at", "score", "updated_at", "version", "status")


async def recall(x: Exchange, *questions: str, after: float = 1, session: str = "", **owner: Any) -> None:
    """Ask questions of Ada's memories, hours apart."""
    for question in questions:
        x.served.clock.now += int(after * HOUR)
        await x.served.native.memories.recall(question, session=session, **{"user_id": "ada", **owner})
        await x.served.native.memories.settled()


async def consolidate(x: Exchange, **fields: Any) -> None:
    await x.post("/v1/memories/consolidate", **{"user_id": "ada", **fields})


@exchange([], "consolidation: {enabled: false}", stores=DATABASES)
async def test_what_is_promoted(x: Exchange) -> None:
    await keep(x, "Ada is allergic to peanuts", tags=["Food"], agent="guide")
    await keep(x, "Ada lives in Lisbon", "Ada rows on Sundays", "Ada parked in garage B", "Ada sings")
    (held,) = await keep(x, "Peanuts cure the flu", origin="web")
    (old,) = await keep(x, "Ada likes jazz", type="project", sources=[{"session_id": "s"}])
    await keep(x, "Bob is allergic to peanuts", user_id="bob")
    await consolidate(x, dry_run=True)
    await recall(x, "any allergies?", "is peanut cake fine?", "allergic to milk or to peanuts?", after=26)
    await recall(x, "who lives in Lisbon", "Lives who in LISBON?", "who lives in Lisbon", after=26)
    await recall(x, "jazz?", "like jazz", "jazz likes", session="s")
    await recall(x, "rows on Sundays?", "rows?", "Sundays?", session="t")
    await recall(x, "garage B", "who parked where?", "what is there?")
    await consolidate(x, dry_run=True)
    await x.rows(MEMORIES, *SHOWN, user_id="ada")
    await x.get("/v1/memories/diary", user_id="ada")
    await consolidate(x)
    await consolidate(x)
    await x.rows(MEMORIES, *SHOWN, user_id="ada")
    await review(x, held, "accept")
    await recall(x, "jazz?", "like jazz", "does she like jazz music", session="s", after=25)
    await recall(x, "Which flu?")
    await consolidate(x)
    await x.delete(f"{MEMORIES}/{old}")
    await review(x, held, "reject")
    for fields in table({"limit": 1}, {"limit": 2}, {"user_id": "bob"}, {"limit": 0}):
        query = {"user_id": "ada", **fields}
        await x.get("/v1/memories/diary", **query)
    await x.rows(MEMORIES, *SHOWN, user_id="ada")


@exchange([], "consolidation: {enabled: false}")
async def test_old_recalls_do_not_count(x: Exchange) -> None:
    await keep(x, "Ada likes jazz", type="project")
    await keep(x, "Ada likes tea", type="episodic", valid_until=x.served.clock.now + 4400 * HOUR)
    await recall(x, "jazz?", "jazz music?", "tea?", "green tea?", after=25)
    x.served.clock.now += 100 * 24 * HOUR
    await recall(x, "what jazz is it?", "which tea is it?")
    await consolidate(x, dry_run=True)
    for days in (75.9, 0.3, 1.0, 4):
        x.served.clock.now += int(days * 24 * HOUR)
        await consolidate(x, dry_run=True)
    await consolidate(x)
    x.note("signals", len(await x.served.native.store.signals(Owner("user", "ada"))))


@exchange([], "consolidation: {interval: 24h}")
async def test_sweeps_keep_to_the_interval(x: Exchange) -> None:
    for owner in table(
        {"user_id": "ada"}, {"user_id": "bob"}, {"user_id": None, "agent": "guide"}, {"user_id": None, "scope": "app"}
    ):
        await keep(x, "The ferry is red", **owner)
    for user in ("ada", "bob"):
        await recall(x, "ferry", "red ferry", "what is red?", user_id=user, agent="guide")
    for hours in (0, 1, 22.9, 0.2, 7, 1):
        await x.later(hours=hours)
        for owner in table({"user_id": "ada"}, {"user_id": "bob"}, {"agent": "guide"}, {"scope": "app"}):
            await x.rows("/v1/memories/diary", "at", "verdicts", "scope", **owner)
        await recall(x, "red ferries", after=0.001)
    for wrong in table({"scope": "agent"}, {"scope": "app", "user_id": "ada"}):
        await x.post("/v1/memories/consolidate", **wrong)
        await x.get("/v1/memories/diary", **wrong)


@exchange([], "consolidation: {enabled: false}")
async def test_themes_and_more_than_one_sweep_takes(x: Exchange) -> None:
    memories = x.served.native.memories
    for number in range(22):
        await memories.remember(
            f"kelp number{number} {'soup' if number % 3 else 'ferry harbour'}", user_id="ada", tags=["Green"]
        )
    await memories.remember("opera tickets", user_id="ada")
    for question in ("kelp", "kelp number3", "kelp number4", "opera"):
        await recall(x, question, limit=100, after=7)
    for _ in range(2):
        await consolidate(x)
        await recall(x, "number5 kelp", limit=3)
