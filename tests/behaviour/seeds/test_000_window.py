"""Seed 000, short-term buffer: what is kept, what is sent, and what outlives it."""

from __future__ import annotations

import json

import pytest

import holdfast
from holdfast.testing import Reply
from tests.behaviour.kit import World, assistant, calls, refused, result, texts, through, user

HERE = ("library", "connect", "rest")
WINDOW = "short_term:\n  max_history_turns: 4"
TALK = [one for number in range(5) for one in (user(f"Question {number}."), assistant(f"Answer {number}."))]


@through(*HERE)
async def test_000_1_each_model_call_has_the_turns_before_it(world: World) -> None:
    async with world.open(script=["A", "B", "C"]) as hf:
        for text in ("One.", "Two.", "Three."):
            await hf.session().send(user(text))
        assert texts(hf.upstream.requests[-1].body["messages"]) == ["One.", "A", "Two.", "B", "Three."]


@through(*HERE)
async def test_000_2_the_buffer_lives_wholly_in_memory_if_it_is_chosen(world: World) -> None:
    config = "storage: {sessions: {backend: inmemory}}"
    async with world.open(config, store="sqlite://:memory:") as hf:
        session = await hf.given("s", user("One."))
        assert texts(await session.messages()) == ["One."]
        assert [path.name for path in world.folder.iterdir()] == ["holdfast.yaml"]
    async with world.open(config, store="sqlite://:memory:") as hf:
        assert await hf.sessions() == []


async def test_000_3_turns_are_in_order_oldest_first(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *TALK)
        assert texts(await session.messages()) == [message["content"] for message in TALK]


@through(*HERE)
async def test_000_4_a_record_has_role_content_and_timestamp(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."))
        world.clock.now += 5
        await session.append(assistant("Two."))
        rows = [(row["role"], row["content"], row["timestamp"]) for row in await session.messages()]
        assert rows == [("user", "One.", world.clock.now - 5), ("assistant", "Two.", world.clock.now)]


async def test_000_5_roles_are_user_assistant_and_tool(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Weigh it."), calls(("c1", "weigh", {})), result("c1", "Two pounds."))
        assert [row["role"] for row in await session.messages()] == ["user", "assistant", "tool"]


@through(*HERE)
async def test_000_5_other_roles_are_not_stored(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."))
        with refused("invalid_message", "wizard"):
            await session.append({"role": "wizard", "content": "Abracadabra."})
        assert texts(await session.messages()) == ["One."]


async def test_000_6_a_session_carries_json_of_its_own(world: World) -> None:
    blob = {"cart": [{"sku": "A-1", "n": 2}], "paid": False, "note": None}
    async with world.open() as hf:
        await hf.given("s", user("One."))
        await hf.given("t", user("One."))
        assert await hf.session("s").change_state(blob=blob) == {"blob": blob}
        assert await hf.session("s").state() == {"blob": blob}
        assert await hf.session("t").state() == {}


@through("library")
async def test_000_7_a_session_has_a_time_of_last_access(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."))
        world.clock.now += 60_000_000
        await session.context()
        row = await session.info()
        assert (row["accessed_at"], row["updated_at"]) == (world.clock.now, world.clock.now - 60_000_000)


@through("connect", "rest", "cli")
@pytest.mark.xfail(strict=True, reason="issue 49: only the library knows the time of last access")
async def test_000_7_the_time_of_last_access_is_known_everywhere(world: World) -> None:
    async with world.open(store="file") as hf:
        session = await hf.given("s", user("One."))
        if world.driver != "cli":
            world.clock.now += 60_000_000
            await session.context()
        row = await session.info()
        assert row["accessed_at"] >= row["updated_at"] + (0 if world.driver == "cli" else 60_000_000)


@through("library")
async def test_000_9_the_window_takes_an_integer(world: World) -> None:
    async with world.open("short_term:\n  max_history_turns: 50") as hf:
        session = await hf.given("s", *[user(f"Message {number}.") for number in range(120)])
        assert len((await session.context())["messages"]) == 51  # and the task
    async with holdfast.open("sqlite://:memory:", max_history_turns=50) as native:
        handle = await native.session("s")
        await handle.append([user(f"Message {number}.") for number in range(120)])
        assert len((await handle.context()).messages) == 51


@through("library")
@pytest.mark.parametrize("wrong", ["many", "1.5", "-1", "10001"])
async def test_000_9_the_window_takes_nothing_else(world: World, wrong: str) -> None:
    with pytest.raises(holdfast.errors.ConfigError, match="max_history_turns"):
        async with world.open(f"short_term:\n  max_history_turns: {wrong}"):
            pass


@through(*HERE)
async def test_000_10_there_is_no_window_if_nothing_is_said(world: World) -> None:
    """On purpose: the seed's 50 would lose what fits."""
    async with world.open() as hf:
        session = await hf.given("s", *[user(f"Message {number}.") for number in range(120)])
        assert len((await session.context(strategy="none"))["messages"]) == 120


@through(*HERE)
async def test_000_11_above_the_limit_the_oldest_goes_and_the_task_stays(world: World) -> None:
    async with world.open(WINDOW) as hf:
        session = await hf.given("s", *TALK)
        first = texts((await session.context())["messages"])
        assert first == ["Question 0.", "Question 3.", "Answer 3.", "Question 4.", "Answer 4."]
        await session.append(user("Question 5."))
        assert len((await session.context())["messages"]) <= 5
        assert "Question 3." not in texts((await session.context())["messages"])


@through(*HERE)
async def test_000_11_buffer_window_is_an_exact_queue(world: World) -> None:
    async with world.open("context: {strategy: buffer_window, window_size: 4}") as hf:
        session = await hf.given("s", *TALK)
        assert texts((await session.context())["messages"]) == ["Question 3.", "Answer 3.", "Question 4.", "Answer 4."]


@through(*HERE)
async def test_000_12_what_came_first_goes_first(world: World) -> None:
    async with world.open(WINDOW) as hf:
        session = await hf.given("s", *TALK)
        (gone,) = [one for one in (await session.context())["decisions"] if one["decision"] == "evicted"]
        assert (gone["from"], gone["to"]) == (1, 5)
        assert gone["reason"] == "out of the buffer: max_history_turns"
        await session.annotate(3, pinned=True)
        runs = [(one["decision"], one["from"], one["to"]) for one in (await session.context())["decisions"]]
        assert runs[:4] == [("anchored", 0, 0), ("evicted", 1, 2), ("pinned", 3, 3), ("evicted", 4, 5)]


@through(*HERE)
async def test_000_13_what_left_the_window_is_in_the_log_and_found(world: World) -> None:
    """On purpose: the seed loses it."""
    async with world.open(WINDOW) as hf:
        session = await hf.given("s", *TALK, user("The parcel is orange."), *TALK)
        assert "The parcel is orange." not in texts((await session.context())["messages"])
        assert len(await session.messages()) == 21
        assert (await hf.search("orange parcel", user="default"))[0]["seq"] == 10


@through(*HERE)
async def test_000_14_what_left_the_window_is_no_memory(world: World) -> None:
    async with world.open(WINDOW, store="file") as hf:
        session = await hf.given("s", *TALK * 6)
        await session.context()
        await session.close()
        assert await hf.memories() == []


@through(*HERE)
async def test_000_15_the_model_keeps_a_fact_with_the_memory_tool(world: World) -> None:
    fact = {"action": "remember", "content": "Ada is allergic to nuts."}
    script = [Reply(tool_calls=[("memory", fact)]), "Noted.", "No nuts."]
    config = "memory: {enabled: true}"
    async with world.open(config, script=script) as hf:
        await hf.session("s", "ada").send(user("Remember: I, Ada, am allergic to nuts."))
        assert [row["content"] for row in await hf.memories(user="ada")] == ["Ada is allergic to nuts."]
        await hf.session("t", "ada").send(user("Which snack is right for somebody allergic to nuts?"))
        assert "Ada is allergic to nuts." in json.dumps(hf.upstream.requests[-1].body["messages"])
        offered = [tool["function"]["name"] for tool in hf.upstream.requests[0].body["tools"]]
        assert "memory" in offered


async def test_000_36_long_term_memory_is_in_the_database(world: World) -> None:
    async with world.open(store="file") as hf:
        await hf.remember("Ada drinks tea.", user="ada")
        url = hf.url
    async with world.open(store=url) as hf:
        assert [row["content"] for row in await hf.memories(user="ada")] == ["Ada drinks tea."]


@through(*HERE)
async def test_000_39_nothing_is_promoted_by_itself(world: World) -> None:
    async with world.open("short_term: {session_ttl: 1h}", script=["Hello Ada."] * 4, store="file") as hf:
        for _ in range(4):
            await hf.session().send(user("My name is Ada and I always drink tea."))
        world.clock.now += 3_600_001
        assert (await hf.session().info())["status"] == "closed"
        assert await hf.memories() == []


@through(*HERE)
async def test_000_41_a_turn_that_left_the_window_is_read_again(world: World) -> None:
    """On purpose: the seed says that it cannot be recovered."""
    async with world.open(WINDOW) as hf:
        session = await hf.given("s", *TALK)
        await session.context()
        assert texts(await session.messages())[:2] == ["Question 0.", "Answer 0."]
        (row,) = (await session.explain(seq=1))["messages"]
        assert (row["seq"], row["decision"]) == (1, "evicted")
