"""The log of a session: what was written is read, in order, and nothing else."""

from __future__ import annotations

from tests.behaviour.kit import World, assistant, refused, texts, through, user


async def test_messages_are_read_in_the_order_in_which_they_were_written(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."), assistant("Two."), user("Three."), user="ada")
        entries = await session.messages()
        assert texts(entries) == ["One.", "Two.", "Three."]
        assert [entry["seq"] for entry in entries] == [0, 1, 2]
        assert [entry["turn_id"] for entry in entries] == [0, 0, 1]


async def test_sessions_of_two_users_may_have_one_name(world: World) -> None:
    async with world.open() as hf:
        await hf.given("s", user("Ada's."), user="ada")
        await hf.given("s", user("Bob's."), user="bob")
        assert texts(await hf.session("s", "ada").messages()) == ["Ada's."]
        assert texts(await hf.session("s", "bob").messages()) == ["Bob's."]
        assert [row["id"] for row in await hf.sessions(user="ada")] == ["s"]


async def test_a_session_that_does_not_exist_is_named(world: World) -> None:
    async with world.open() as hf:
        with refused("session_not_found", "'nope'"):
            await hf.session("nope").info()


async def test_a_fork_ends_where_it_was_cut(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."), assistant("Yes."), user("Two."))
        fork = await session.fork(at_turn=0, id="f")
        assert texts(await fork.messages()) == ["One.", "Yes."]
        assert texts(await session.messages()) == ["One.", "Yes.", "Two."]


async def test_what_a_deletion_removed_is_counted(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."), assistant("Yes."))
        receipt = await session.delete()
        assert (receipt["sessions"], receipt["messages"]) == (1, 2)
        with refused("session_not_found", "'s'"):
            await session.info()


@through("library", "connect", "rest")
async def test_a_write_with_a_key_happens_once(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        first = await session.append(user("One."), idempotency_key="k" * 20)
        again = await session.append(user("One."), idempotency_key="k" * 20)
        assert [entry["seq"] for entry in first] == [entry["seq"] for entry in again] == [0]
        assert texts(await session.messages()) == ["One."]


@through("library", "connect", "rest")
async def test_a_model_of_the_configuration_answers(world: World) -> None:
    async with world.open(script=["Sent."]) as hf:
        reply = await hf.session("s", "ada").send(user("Where is it?"))
        assert reply["choices"][0]["message"]["content"] == "Sent."
        assert texts(hf.upstream.requests[0].body["messages"]) == ["Where is it?"]
        assert texts(await hf.session("s", "ada").messages()) == ["Where is it?", "Sent."]


@through("library", "connect", "rest")
async def test_memories_are_recalled_for_their_owner(world: World) -> None:
    async with world.open() as hf:
        await hf.remember("Ada drinks green tea.", user="ada")
        assert [row["content"] for row in await hf.memories("tea", user="ada")] == ["Ada drinks green tea."]
        assert [row["content"] for row in await hf.memories(user="ada")] == ["Ada drinks green tea."]
        assert await hf.memories("tea", user="bob") == []
