"""Moving a session moves everything, leaves nothing, and disturbs nobody."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import World, assistant, calls, fresh_store, refused, texts, through, user
from tests.behaviour.kit.rest import ask

PIXELS = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * 200
KELP = user("where does the kelp grow", pinned=True, timestamp=5)
PICTURE = user([{"type": "text", "text": "and here?"}, {"type": "image_url", "image_url": {"url": PIXELS}}])


async def make_full(hf: Any) -> Any:
    """Make a session of Ada with something of each kind."""
    session = await hf.given(
        "s",
        KELP,
        assistant("on the rocks", importance=0.5),
        PICTURE,
        assistant("not here"),
        user="ada",
        state={"k": 1},
        metadata={"m": [2]},
        ttl=10**9,
        system_messages="Be brief.",
    )
    await session.rewind(0)
    return session


async def read_all(session: Any) -> dict[str, Any]:
    found = await session.export(retired=True, calls=True)
    return {name: value for name, value in found.items() if name not in {"id", "user_id", "version", "exported_at"}}


async def test_a_move_takes_everything_to_the_other_user(world: World) -> None:
    """Log with retired messages and pictures, state, metadata, system messages and times."""
    async with world.open() as hf:
        session = await make_full(hf)
        before = await read_all(session)
        assert PIXELS in str(before)
        world.clock.now += 50_000
        moved = await session.move(user_id="bob")
        assert (moved.id, moved.user) == ("s", "bob")
        assert await read_all(moved) == before
        assert await hf.sessions(user="ada") == []
        with refused("session_not_found"):
            await session.info()
        with refused("session_not_found"):
            await session.move(user_id="bob")


async def test_a_move_can_change_the_id_or_only_the_agent(world: World) -> None:
    async with world.open("agents: {guide: {}}") as hf:
        session = await make_full(hf)
        before = await read_all(session)
        named = await session.move(id="renamed")
        assert (named.id, named.user) == ("renamed", "ada")
        assert await read_all(named) == before
        same = await named.move(agent="guide")
        assert (same.id, (await same.info())["agent"]) == ("renamed", "guide")
        with refused("invalid_request", "nobody"):
            await named.move(agent="nobody")
        with refused("invalid_request"):
            await named.move(user_id="..")
        assert [row["id"] for row in await hf.sessions(user="ada")] == ["renamed"]


async def test_a_move_replaces_no_session(world: World) -> None:
    async with world.open() as hf:
        session = await make_full(hf)
        await hf.given("s", user("mine"), user="bob")
        before = await read_all(session)
        with refused("session_exists", "'s'"):
            await session.move(user_id="bob")
        assert await read_all(session) == before
        assert texts(await hf.session("s", "bob").messages()) == ["mine"]


@through("library", "connect", "rest")
async def test_state_and_memories_of_the_user_stay(world: World) -> None:
    async with world.open() as hf:
        session = await make_full(hf)
        await hf.change_shared_state({"user:theme": "dark"}, "ada")
        await hf.remember("Ada likes tea.", user="ada")
        moved = await session.move(user_id="bob")
        assert await moved.state() == {"k": 1}
        assert await hf.shared_state("ada") == {"user:theme": "dark"}
        assert len(await hf.memories(user="ada")) == 1
        assert await hf.memories(user="bob") == []


@through("library", "connect")
async def test_artifacts_and_records_move_and_those_of_the_user_stay(world: World) -> None:
    async with world.open() as hf:
        session = await make_full(hf)
        handle = await session.native()
        for text in ("one", "two"):
            await handle.artifacts.save("note.txt", text.encode(), author="ada", metadata={"text": text})
        await handle.artifacts.save("user:shared.txt", b"Ada's")
        await handle.records("steps").put("1", {"tool": "book"})
        moved = await (await session.move(user_id="bob")).native()
        assert [one.name for one in await moved.artifacts.list()] == ["note.txt"]
        assert [(await moved.artifacts.load("note.txt", at)).data for at in (0, 1)] == [b"one", b"two"]
        assert [one.metadata for one in await moved.artifacts.versions("note.txt")] == [
            {"text": "one"},
            {"text": "two"},
        ]
        assert (await moved.records("steps").get("1")).value == {"tool": "book"}
        again = await (await hf.create("s", user="ada")).native()
        assert [one.name for one in await again.artifacts.list()] == ["user:shared.txt"]
        assert await again.records("steps").get("1") is None


@through("library", "connect", "rest")
async def test_a_closed_session_stays_closed(world: World) -> None:
    async with world.open(store="file") as hf:
        session = await make_full(hf)
        before = await session.close()
        after = await (await session.move(user_id="bob")).info()
        assert (after["status"], after["ended_at"], after["end_reason"]) == ("closed", before["ended_at"], "close")


@through("library", "connect", "rest")
async def test_model_calls_and_usage_move(world: World) -> None:
    async with world.open(script=["Here.", "There."]) as hf:
        session = hf.session("s", "ada")
        for text in ("one", "two"):
            await session.send(user(text))
        before, usage = await session.calls(), (await session.info())["usage"]
        moved = await session.move(user_id="bob")
        assert await moved.calls() == before
        assert (await moved.info())["usage"] == usage
        assert len(before) == usage["calls"] == 2


@through("library", "connect", "rest")
async def test_sessions_of_called_agents_move_too(world: World) -> None:
    agents = "agents: {boss: {llm: default, agent_tools: [clerk]}, clerk: {llm: default, description: writes}}"
    call = calls(("c1", "clerk", {"request": "Write."}))
    made = Reply(tool_calls=call["tool_calls"])
    async with world.open(agents, script=[made, "Written.", "Done."], store="file") as hf:
        session = await hf.create("s", user="ada", agent="boss")
        await session.send(user("Have it written."))
        assert len(await hf.sessions(user="ada")) == 2
        await session.move(user_id="bob", id="renamed")
        assert await hf.sessions(user="ada") == []
        (child,) = [row for row in await hf.sessions(user="bob") if row["id"] != "renamed"]
        assert "renamed" in str(child["metadata"])


@through("rest")
async def test_a_resent_conversation_finds_the_session_only_for_its_new_user(world: World) -> None:
    async with world.open(script=["on the rocks", "when the tide is out", "hm", "yes"]) as hf:
        sent: list[Any] = [user("where does the kelp grow")]

        async def chat(user_id: str) -> str:
            body = {"messages": sent, "user": user_id}
            found: str = (await ask(hf.http, "POST", "/v1/chat/completions", body))["session_id"]
            return found

        first = await chat("ada")
        sent += [assistant("on the rocks"), user("when?")]
        assert await chat("ada") == first
        await hf.session(first, "ada").move(user_id="bob")
        assert await chat("ada") != first
        assert await chat("bob") == first


@through("library")
async def test_a_session_with_a_running_turn_is_busy_and_moves_afterwards(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        turn = await (await session.native()).begin_turn("a")
        with refused("session_busy"):
            await session.move(user_id="bob")
        turn.add("b")
        await turn.end()
        assert texts(await (await session.move(user_id="bob")).messages()) == ["a", "b"]


@pytest.mark.parametrize("store", ["file", "postgres", "mysql"])
@through("library")
async def test_every_database_moves_a_whole_session(world: World, store: str) -> None:
    with fresh_store(store, world.folder) as url:
        async with world.open(store=url) as hf:
            session = await make_full(hf)
            before = await read_all(session)
            moved = await session.move(user_id="bob", id="t")
            assert await read_all(moved) == before
            assert await (await moved.native()).verify() == 4


@through("library")
async def test_an_ending_that_hooks_have_not_received_moves(world: World) -> None:
    told: list[tuple[str, str]] = []
    async with world.open("sessions: {ttl: 0}", store="file") as hf:
        down = True

        async def end(session: Any, reason: str) -> None:
            if down:
                raise RuntimeError("not now")
            told.append((session.user_id, reason))

        hf.native.on_expire(end)
        session = await hf.given("s", user("hello"), user="ada")
        await session.close()
        await hf.native.sweep()
        await session.move(user_id="bob")
        down = False
        world.clock.now += 10**7
        await hf.native.sweep()
        assert told == [("bob", "close")]
