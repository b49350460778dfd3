"""Consolidation: what is recalled often is promoted, and a diary says why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Owner
from holdfast.testing import Reply
from tests.behaviour.kit import World, refused, texts, through, user
from tests.behaviour.kit.rest import ask
from tests.behaviour.kit.seams import sweep_pause

DAY = 86_400_000
ADA = Owner("user", "ada")
QUESTIONS = ("any allergies?", "is peanut cake fine?", "allergic to milk or to peanuts?")
FACT = "Ada is allergic to peanuts"


async def recall(world: World, hf: Any, *questions: str, days: float = 1) -> None:
    for question in questions:
        world.clock.now += int(days * DAY)
        await hf.memories(question, user="ada")
    await world.native.memories.settled()


async def consolidate(hf: Any, **options: Any) -> Any:
    """Sweep the memories of Ada now; return the entry of the diary."""
    if hf.name == "rest":
        return await ask(hf.http, "POST", "/v1/memories/consolidate", {"user_id": "ada", **options})
    done = await hf.native.consolidation.consolidate(ADA, **options)
    return {"promotions": done.promotions, "written": done.written}


async def diary(hf: Any) -> Any:
    if hf.name == "rest":
        return (await ask(hf.http, "GET", "/v1/memories/diary", user_id="ada"))["data"]
    return await hf.native.consolidation.diary(ADA)


async def promoted(hf: Any) -> list[str]:
    return [row["content"] for row in await hf.memories(user="ada") if row["promoted_at"] is not None]


@through("library", "rest")
async def test_what_is_recalled_by_several_questions_is_promoted(world: World) -> None:
    async with world.open() as hf:
        for fact in (FACT, "Ada lives in Lisbon", "Ada owns a kayak", "Ada parked in garage B"):
            await hf.remember(fact, user="ada")
        await recall(world, hf, *QUESTIONS)
        await recall(world, hf, *["who lives in Lisbon"] * 3, "which garage?")
        assert (await consolidate(hf, dry_run=True))["promotions"] == 1
        assert (await promoted(hf), await diary(hf)) == ([], []), "a dry run writes nothing"
        assert (await consolidate(hf))["promotions"] == 1
        assert await promoted(hf) == [FACT]
        (entry,) = await diary(hf)
        verdicts = {one["content"]: (one["verdict"], one.get("gates")) for one in entry["candidates"]}
        assert verdicts[FACT][0] == "promoted"
        assert verdicts["Ada lives in Lisbon"] == ("gated", ["1 of 2 different questions"])
        assert verdicts["Ada parked in garage B"] == ("gated", ["1 of 3 recalls", "1 of 2 different questions"])
        assert "Ada owns a kayak" not in verdicts
        assert not (await consolidate(hf))["written"], "nothing was recalled since"


@through("library", "rest")
@pytest.mark.parametrize("accepted", [False, True])
async def test_what_comes_from_outside_is_promoted_only_after_a_review(world: World, accepted: bool) -> None:
    async with world.open() as hf:
        made = await hf.remember(FACT, user="ada", origin="web")
        await recall(world, hf, *QUESTIONS)
        if accepted:
            await hf.review(made["id"], "accept", user="ada")
        await consolidate(hf)
        (entry,) = await diary(hf)
        assert [one["verdict"] for one in entry["candidates"]] == ["promoted" if accepted else "held"]


@through("library")
async def test_many_recalls_of_one_session_count_once_a_day(world: World) -> None:
    async with world.open() as hf:
        await hf.remember(FACT, user="ada")
        for question in QUESTIONS:
            await hf.native.memories.recall(question, user_id="ada", session="s")
        await hf.native.memories.settled()
        await consolidate(hf)
        assert await promoted(hf) == []


@through("rest")
@pytest.mark.parametrize("session", ["s", "other"])
async def test_recalls_in_its_own_session_do_not_promote_a_memory_on_the_first_day(world: World, session: str) -> None:
    async with world.open() as hf:
        await hf.given("s", user(FACT), user="ada")
        made = {"content": FACT, "user_id": "ada", "sources": [{"session_id": "s", "seqs": [0]}]}
        await ask(hf.http, "POST", "/v1/memories", made)
        await world.native.memories.recall(QUESTIONS[0], user_id="ada", session=session)
        await recall(world, hf, *QUESTIONS[1:])
        await consolidate(hf)
        assert await promoted(hf) == [FACT] * (session == "other")


@through("library")
async def test_sweeps_consolidate_at_the_interval_only(world: World) -> None:
    async with world.open("consolidation: {interval: 24h}") as hf:
        await hf.remember(FACT, user="ada")
        await recall(world, hf, *QUESTIONS)
        await hf.native.sweep()
        assert await promoted(hf) == [FACT]
        await hf.remember("Ada speaks Portuguese", user="ada")
        await recall(world, hf, "Portuguese?", "which language does Ada speak", "Spanish or Portuguese", days=0.1)
        await hf.native.sweep()
        assert await promoted(hf) == [FACT]
        world.clock.now += DAY
        await hf.native.sweep()
        assert await promoted(hf) == [FACT, "Ada speaks Portuguese"]


@pytest.mark.parametrize(("enabled", "pause"), [("true", 15.0), ("false", 60.0)])
@through("library")
async def test_without_a_ttl_sweeps_are_as_frequent_as_consolidation_needs(
    world: World, enabled: str, pause: float
) -> None:
    async with world.open("sessions: {ttl: 0}", f"consolidation: {{enabled: {enabled}, interval: 1m}}") as hf:
        assert sweep_pause(hf.native) == pause


@through("library")
async def test_with_consolidation_off_only_a_request_promotes(world: World) -> None:
    async with world.open("dreaming: {enabled: false}") as hf:
        await hf.remember(FACT, user="ada")
        await recall(world, hf, *QUESTIONS)
        await hf.native.sweep()
        assert await promoted(hf) == []
        await consolidate(hf)
        assert await promoted(hf) == [FACT]


@through("library", "rest")
async def test_a_session_begins_with_what_was_promoted_by_then(world: World) -> None:
    async with world.open("agents: {guide: {memory: {enabled: true}}}", script=["Yes."] * 4) as hf:
        await hf.remember(FACT, user="ada")
        await recall(world, hf, *QUESTIONS)
        old = await hf.create("old", user="ada", agent="guide")
        await old.send(user("Where is the station?"))
        world.clock.now += 1000
        await consolidate(hf)
        await old.send(user("And the harbour?"))
        new = await hf.create("new", user="ada", agent="guide")
        await new.send(user("Where is the station?"))
        seen = [FACT in str(texts(request.body["messages"])) for request in hf.upstream.requests]
        assert seen == [False, False, True]
        (row,) = await hf.memories(user="ada")
        await hf.forget(row["id"])
        await new.send(user("And the harbour?"))
        assert FACT not in str(texts(hf.upstream.requests[-1].body["messages"]))


@through("library")
async def test_promoted_memories_are_written_into_the_workspace(world: World) -> None:
    folder = world.folder / "workspaces"
    git = f"hooks: {{workspace_git: {{path: {json.dumps(str(folder))}}}}}"
    async with world.open(git) as hf:
        await hf.remember(FACT, user="ada")
        await recall(world, hf, *QUESTIONS)
        await hf.native.sweep()
        home = folder / "default"
        assert FACT in (home / "MEMORY.ada.md").read_text()
        assert "promoted" in (home / "DREAMS.ada.md").read_text()
        workspace = hf.native.workspaces.workspace("default", "default")
        assert (await workspace.history(limit=1)).commits[0].subject == "dream: 1 promotion"
        (row,) = await hf.memories(user="ada")
        await hf.forget(row["id"])
        await hf.native.sweep()
        assert FACT not in (home / "MEMORY.ada.md").read_text()
        assert (await workspace.history(limit=1)).commits[0].subject == "forget: 1 memory"
        (entry,) = await diary(hf)
        assert entry["candidates"][0]["content"] is None


@through("library")
async def test_the_history_of_a_workspace_hides_what_was_promoted_for_others(world: World) -> None:
    git = f"hooks: {{workspace_git: {{path: {json.dumps(str(world.folder / 'w'))}}}}}"
    script = [Reply(tool_calls=[("memory_history", {})]), "Ok."] * 2
    async with world.open(git, "agents: {guide: {tools: [memory_history]}}", script=script) as hf:
        await hf.remember(FACT, user="ada", agent="guide")
        await recall(world, hf, *QUESTIONS)
        await hf.native.sweep()
        for name in ("ada", "bob"):
            session = await hf.create(name, user=name, agent="guide")
            await session.send(user("Show me."))
            assert (FACT[:20] in str(hf.upstream.requests[-1].body["messages"])) is (name == "ada")


@through("cli")
async def test_the_command_line_consolidates(world: World) -> None:
    async with world.open() as hf:
        await hf.remember(FACT, user="ada")
        for question in QUESTIONS:
            await hf.memories(question, user="ada")
        dry = await hf.ask("memories", "consolidate", user="ada", dry_run=True)
        done = await hf.ask("memories", "consolidate", all=True)
        assert (dry["owner"], dry["promotions"], dry["written"]) == ({"kind": "user", "id": "ada"}, 0, False)
        assert [one["promotions"] for one in done] == [0], "a recall on the command line promotes nothing"
        with refused("", "--all"):
            await hf.call("memories", "consolidate", "--all", "--user", "ada")
