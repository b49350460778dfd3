"""Forks and rewinds: whole turns, nothing lost, the original unchanged, and messages that sessions share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.behaviour.kit import World, assistant, calls, refused, result, texts, through, user

LOG: list[dict[str, Any]] = [
    user("one", pinned=True),
    calls(("a", "find", {}), ("b", "find", {})),
    result("b", "found b"),
    result("a", "found a"),
    assistant("first", importance=0.5, metadata={"source": "llm"}),
    user("two"),
    assistant("second"),
    user("three"),
    assistant("third"),
]
TEXTS = texts(LOG)


async def test_a_fork_is_independent_of_the_original(world: World) -> None:
    """It has the turns up to the given one, the state, and metadata with its origin."""
    async with world.open() as hf:
        session = await hf.given(
            "s", *LOG, user="ada", state={"step": 3}, metadata={"channel": "web"}, ttl=10**9, system_messages="Be kind."
        )
        before = await session.export(retired=True)
        fork = await session.fork(at_turn=1, id="f")
        info = await fork.info()
        assert (info["id"], info["user_id"], info["ttl"]) == ("f", "ada", 10**9)
        assert texts(await fork.messages()) == TEXTS[:7]
        assert texts(info["system_messages"]) == ["Be kind."]
        assert info["metadata"] == {"channel": "web", "forked_from": {"id": "s", "turn": 1, "seq": 6}}
        await fork.annotate(5, pinned=True)
        await fork.rewind(0)
        assert await session.export(retired=True) == before


async def test_a_fork_without_a_turn_copies_everything(world: World) -> None:
    """Including pins, importance, turns and times. Retired messages are not copied; numbers start again."""
    async with world.open() as hf:
        session = await hf.given("s", *LOG, user("gone"))
        await session.rewind(2)
        fork = await session.fork(id="f")
        assert await fork.messages(retired=True) == await session.messages()
        made = await session.fork()
        assert len(made.id) > 8
        assert (await made.info())["metadata"]["forked_from"] == {"id": "s", "turn": 2, "seq": 8}
        if world.driver != "cli":
            await session.append(user("four"), retire_from=5)
            assert [one["seq"] for one in await (await session.fork(id="g")).messages()] == [*range(6)]


@through("library", "connect", "rest")
async def test_a_fork_keeps_results_with_their_call(world: World) -> None:
    """Whatever turn they have. A result without its call is not taken along."""
    async with world.open() as hf:
        late = [{**result("a", "late"), "turn_id": 1}, {**result("z", "orphan"), "turn_id": 1}]
        session = await hf.given("s", user("go"), {**calls(("a", "find", {})), "turn_id": 0}, *late)
        assert texts(await (await session.fork(at_turn=0)).messages()) == ["go", None, "late"]
        await session.rewind(0)
        assert texts(await session.messages()) == ["go", None, "late"]


@pytest.mark.parametrize("turn", [3, -1])
async def test_a_missing_turn_is_refused_and_nothing_is_made(world: World, turn: Any) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *LOG)
        with refused("invalid_request", "turn", param="at_turn"):
            await session.fork(at_turn=turn, id="x")
        with refused("invalid_request", "turn", param="at_turn"):
            await session.rewind(turn)
        assert [row["id"] for row in await hf.sessions()] == ["s"]
        assert texts(await session.messages()) == TEXTS


async def test_a_turn_in_a_gap_is_missing(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a", turn_id=2), user("b", turn_id=7))
        with refused("invalid_request", "has no turn 5; its last one is 7"):
            await session.fork(at_turn=5)
        assert texts(await (await session.fork(at_turn=2)).messages()) == ["a"]


async def test_a_fork_replaces_no_session(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"))
        await hf.given("f", user("mine"))
        with refused("session_exists", "'f'"):
            await session.fork(id="f")
        with refused("session_exists", "'s'"):
            await session.fork(id="s")
        assert texts(await hf.session("f").messages()) == ["mine"]


@through("library", "connect", "rest")
async def test_concurrent_forks_to_one_id_make_one_session(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *LOG)
        done = await asyncio.gather(*(session.fork(id="x") for _ in range(8)), return_exceptions=True)
        assert [getattr(one, "code", None) for one in done].count("session_exists") == 7
        assert texts(await hf.session("x").messages()) == TEXTS


@through("library", "connect", "rest")
async def test_a_fork_at_an_earlier_turn_has_the_state_of_that_turn(world: World) -> None:
    """Keys written later are left out, whatever their earlier value."""
    async with world.open() as hf:
        session = await hf.given("s", state={"made": 1, "raised": 1, "same": 1})
        for turn in range(3):
            await session.append(user("a"), assistant("b"))
            await session.change_state(**{f"turn{turn}": turn, "raised": turn, "same": 1})
        states = [await (await session.fork(at_turn=turn, id=f"f{turn}")).state() for turn in range(3)]
        assert states[0] == {"made": 1, "same": 1, "turn0": 0}
        assert states[1] == {"made": 1, "same": 1, "turn0": 0, "turn1": 1}
        assert states[2] == await session.state()
        again = await hf.session("f1").fork(at_turn=1, id="again")
        assert await again.state() == states[1]


async def test_a_rewind_retires_later_messages(world: World) -> None:
    """New messages take their place in the numbering of turns."""
    async with world.open() as hf:
        session = await hf.given("s", *LOG, state={"step": 3})
        info = await session.rewind(0)
        assert texts(await session.messages()) == TEXTS[:5]
        assert info["message_count"] == 5
        assert await session.state() == {"step": 3}
        whole = await session.messages(retired=True)
        assert texts(whole) == TEXTS
        assert [("retired_by" in one) for one in whole] == [False] * 5 + [True] * 4
        if world.driver != "cli":
            (entry,) = await session.append(user("two, otherwise"))
            assert (entry["seq"], entry["turn_id"]) == (9, 1)
            assert [one.get("retired_by") for one in await session.messages(retired=True)][5:9] == [9] * 4
            turn = await session.turn("more")
            assert texts(turn["messages"])[-2:] == ["two, otherwise", "more"]


@through("library", "connect", "rest")
async def test_concurrent_rewinds_and_appends_all_succeed(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *LOG)
        work = (session.rewind(0) if at % 3 == 0 else session.append(user(f"m{at}")) for at in range(24))
        await asyncio.gather(*work)
        whole = await session.messages(retired=True)
        assert [one["seq"] for one in whole] == [*range(9 + 16)]
        if world.driver == "library":
            assert await (await session.native()).verify() == 25


# -- shared messages -----------------------------------------------------------------


@through("library", "connect", "rest")
@pytest.mark.parametrize("named", ["one", "two", "three"])
async def test_a_message_is_erased_in_every_session_that_shares_it(world: World, named: str) -> None:
    """Whichever copy is named. The same words in another session stay, and so do those written after the fork."""
    async with world.open() as hf:
        one = await hf.given("one", user("my card is kelp-4711"), assistant("Noted."))
        await hf.given("other", user("my card is kelp-4711"))
        two = await one.fork(id="two")
        await (await two.fork(id="three")).rewind(0)
        for session in (one, two):
            await session.append(user("the same words"))
        await hf.session(named).erase(0)
        for name in ("one", "two", "three"):
            assert "kelp" not in str(await hf.session(name).export(retired=True))
        assert {hit["session_id"] for hit in await hf.search("kelp card")} == {"other"}
        await one.erase(2)
        assert texts(await two.messages())[2] == "the same words"


@through("library", "connect", "rest")
async def test_copies_at_positions_moved_by_edits_are_erased(world: World) -> None:
    async with world.open() as hf:
        one = await hf.given("one", user("first"), assistant("ok"), user("wrong"), assistant("ok"))
        await one.rewind(0)
        await one.append(user("my card is kelp-4711"), assistant("ok"))
        two = await one.fork(id="two")
        three = await two.fork(id="three")
        await two.erase(2)
        for session in (one, two, three):
            assert "kelp" not in str(await session.export(retired=True))
            assert len(await session.messages()) == 4


@through("library", "connect", "rest")
async def test_a_message_of_several_sessions_is_found_once(world: World) -> None:
    """It stays when the first session is deleted, and erasing it still reaches the other ones."""
    async with world.open() as hf:
        one = await hf.given("one", user("the kelp harvest is in May"), assistant("Noted."))
        two = await one.fork(id="two")
        three = await two.fork(id="three")
        await two.append(user("kelp soup from the second fork"))
        found = [(hit["session_id"], hit["seq"]) for hit in await hf.search("kelp", limit=20)]
        assert sorted(seq for _, seq in found) == [0, 1, 2]
        assert ("two", 2) in found
        await one.delete()
        found = [(hit["session_id"], hit["seq"]) for hit in await hf.search("kelp harvest", limit=20)]
        assert sorted(seq for _, seq in found) == [0, 1, 2]
        assert {name for name, _ in found} <= {"two", "three"}
        await two.erase(0)
        assert texts(await three.messages()) == ["[erased]", "Noted."]


@through("library", "connect", "rest")
async def test_messages_of_other_users_are_never_erased(world: World) -> None:
    """A session that moved to another user belongs to that user."""
    async with world.open() as hf:
        one = await hf.given("one", user("kelp-4711"), assistant("ok"), user="ada")
        await hf.given("one", user("kelp-4711"), user="bob")
        two = await one.fork(id="two")
        moved = await two.move(user_id="bob", id="three")
        await one.erase(0)
        for session in (hf.session("one", "bob"), moved):
            assert texts(await session.messages())[0] == "kelp-4711"
