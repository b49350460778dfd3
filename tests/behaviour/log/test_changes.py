"""Changing what a log has: annotations, replacements, `pop`, `clear` and erasures. Nothing but an erasure is lost."""

from __future__ import annotations

import asyncio

from tests.behaviour.kit import World, assistant, calls, refused, result, texts, through, user

PIXELS = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * 200
PICTURE = user([{"type": "text", "text": "secret"}, {"type": "image_url", "image_url": {"url": PIXELS}}])
CALLS = calls(("x", "look", {}), ("y", "look", {}))


async def test_a_message_is_pinned_and_unpinned_at_any_time(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Mind the kelp."), user("b", pinned=True, importance=0.5))
        assert (await session.annotate(0, pinned=True))["pinned"] is True
        assert "pinned" not in await session.annotate(1, pinned=False) or world.driver == "rest"
        first, second = await session.messages()
        assert (first["pinned"], second.get("pinned"), second["importance"]) == (True, None, 0.5)


@through("library", "connect", "rest")
async def test_importance_is_set_and_removed(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"))
        assert (await session.annotate(0, importance=1.0))["importance"] == 1.0
        await session.annotate(0, importance=None)
        assert "importance" not in (await session.messages())[0]
        with refused("invalid_message", "importance must be a number from 0 to 1"):
            await session.annotate(0, importance=2)
        if world.driver == "library":
            with refused("invalid_message", "pinned"):
                await session.annotate(0, pinned="yes")
        with refused("message_not_found", "9"):
            await session.annotate(9, pinned=True)


@through("library", "connect", "rest")
async def test_a_replaced_message_stays_in_the_log_and_later_ones_in_their_turns(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("b"), user("c", pinned=True), assistant("d"))
        before = await session.messages()
        world.clock.now += 1000
        replaced = await session.replace(1, assistant("B"))
        after = await session.messages()
        assert texts(after) == ["a", "B", "c", "d"]
        assert after[1] == replaced
        kept = ("turn_id", "pinned", "content", "tokens", "timestamp")
        assert [[one.get(name) for name in kept] for one in after[2:]] == [
            [one.get(name) for name in kept] for one in before[2:]
        ]
        assert texts(await session.messages(retired=True)) == ["a", "b", "c", "d", "B", "c", "d"]
        assert (await session.info())["message_count"] == 4
        assert texts((await session.context())["messages"]) == ["a", "B", "c", "d"]


@through("library", "connect", "rest")
async def test_a_call_and_its_results_stay_together_when_one_of_them_is_replaced(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), CALLS, result("x", "1"), result("y", "2"), assistant("b"))
        for seq, wrong, reason in (
            (1, calls(("x", "look", {})), "tool calls x, y"),
            (1, assistant("no calls"), "tool calls x, y"),
            (2, result("y", "1"), "tool_call_id 'x'"),
            (2, assistant("1"), "tool_call_id 'x'"),
            (4, calls(("z", "look", {})), "no results"),
            (0, result("x", "1"), "the result of the same call"),
        ):
            with refused("invalid_message", reason):
                await session.replace(seq, wrong)
        await session.replace(1, {**CALLS, "content": "both", "tool_calls": CALLS["tool_calls"][::-1]})
        first = (await session.messages())[1]["seq"]
        await session.replace(first + 1, result("x", "one"))
        assert texts(await session.messages()) == ["a", "both", "one", "2", "b"]
        for wrong_seq in (0, 1, 99):
            with refused("message_not_found"):
                await session.replace(wrong_seq if wrong_seq != 0 else 2, "x")
        with refused("invalid_message", "note"):
            await session.replace(0, {"role": "note", "origin": 1})


@through("library", "connect")
async def test_what_cannot_be_replaced_is_named(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"))
        with refused("invalid_request", "one message"):
            await session.replace(0, ["x", "y"])
        handle = await session.native()
        if world.driver == "library":
            async with handle.turn("b"):
                for waiting in (handle.replace(0, "A"), handle.pop(), handle.clear(), handle.rewind(0)):
                    with refused("invalid_request", "open in this task"):
                        await waiting
        await session.delete()
        with refused("session_not_found", "'s'"):
            await handle.replace(0, "x")


@through("library", "connect", "rest")
async def test_a_replacement_can_erase_what_it_replaces_in_forks_too(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("secret"), user("c"))
        fork = await session.fork(id="f")
        await session.replace(1, assistant("public"), erase=True)
        assert texts(await session.messages()) == ["a", "public", "c"]
        assert texts(await fork.messages()) == ["a", "[erased]", "c"]
        assert "secret" not in str(await session.export(retired=True))


@through("library", "connect", "rest")
async def test_the_prompt_of_an_earlier_turn_is_the_one_that_was_sent(world: World) -> None:
    """A turn that another program called the model for has no prompt: that of now is shown, with the replacement."""
    async with world.open() as hf:
        session = await hf.given("s")
        for text in ("a", "c", "e"):
            await session.turn(text, reply=f"{text}!")
        await session.replace(1, assistant("A!"))
        prompts = [texts((await session.context(at_turn=at))["messages"]) for at in range(3)]
        sent = "a!" if world.driver == "library" else "A!"
        assert prompts == [["a"], ["a", sent, "c"], ["a", sent, "c", "c!", "e"]]
        assert (await session.context(at_turn=2, budget=400))["budget"] == 400
        if world.driver == "library":
            assert [(await session.explain(turn=at))["not_sent"] for at in (0, 1)] == [None, None]
        assert texts(await (await session.fork(at_turn=1)).messages()) == ["a", "A!", "c", "c!"]
        await session.rewind(1)
        assert texts(await session.messages()) == ["a", "A!", "c", "c!"]


@through("library", "connect")
async def test_pop_takes_the_newest_message_and_clear_takes_all(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("b"), user("c"), {"role": "note", "origin": "d"})
        handle = await session.native()
        popped = await handle.pop()
        assert (popped.seq, popped.message.text) == (2, "c")
        assert texts(await session.messages()) == ["a", "b"]
        assert texts(await session.messages(retired=True)) == ["a", "b", "c", None]
        assert (await handle.clear()).messages == 0
        assert await session.messages() == []
        assert await handle.pop() is None
        await session.append(user("e"))
        async with handle.turn("f") as turn:
            assert texts(turn.messages) == ["e", "f"]


@through("library", "connect")
async def test_concurrent_pops_take_different_messages(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *(user(str(number)) for number in range(10)))
        handle = await session.native()
        popped = await asyncio.gather(*(handle.pop() for _ in range(10)))
        assert sorted(int(one.message.text) for one in popped) == [*range(10)]
        assert await session.messages() == []


@through("library", "connect", "rest")
async def test_an_erased_message_is_gone_from_everything(world: World) -> None:
    """Only its place stays. It can be neither read nor found nor erased again with another result."""
    async with world.open() as hf:
        session = await hf.given("s", user("kelp-4711", origin={"raw": "kelp-4711"}, name="Ada"), assistant("ok"))
        erased = await session.erase(0)
        assert erased.get("erased") is True
        assert "kelp" not in str(await session.export(retired=True))
        assert texts(await session.messages()) == ["[erased]", "ok"]
        assert texts((await session.context())["messages"])[-1] == "ok"
        assert await hf.search("kelp-4711") == []
        assert (await session.erase(0)).get("erased") is True
        with refused("message_not_found", "7"):
            await session.erase(7)
        assert texts((await session.turn("more"))["messages"])[-1] == "more"


@through("library", "connect", "rest")
async def test_erasing_a_message_erases_every_copy_of_it(world: World) -> None:
    """The retired ones, those in forks made before or after replacements, and their pictures."""
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("b"), PICTURE, assistant("d"))
        early = await session.fork(id="early")
        await session.replace(1, assistant("B"))
        middle = await session.fork(id="middle")
        await session.replace(0, "A")
        late = await session.fork(id="late")
        assert texts(await late.messages())[:2] == ["A", "B"]
        await session.erase((await session.messages())[2]["seq"])
        for one in (session, early, middle, late):
            export = str(await one.export(retired=True))
            assert "secret" not in export
            assert "iVBOR" not in export
            assert texts(await one.messages())[3] == "d"
        assert texts(await session.messages()) == ["A", "B", "[erased]", "d"]


@through("library", "connect", "rest")
async def test_an_append_names_the_messages_that_it_repeats(world: World) -> None:
    """They are erased with their originals, also as copies of copies, in the session and its forks."""
    async with world.open() as hf:
        session = await hf.given("s", user("a"), user("b"), user("secret"), user("d"))
        fork = await session.fork(id="f")
        version = (await session.info())["version"]
        again = [user("secret"), user("new"), user("d")]
        for wrong in ([2], [2, -1, 3], [2, None, 9]):
            with refused("invalid_request", "copy_of"):
                await session.append(*again, retire_from=1, expect=version, copy_of=wrong)
        with refused("invalid_request", "copy_of"):
            await session.append(*again, copy_of=[2, None, 3])
        with refused("stale_session"):
            await session.append(*again, expect=version - 1, copy_of=[2, None, 3])
        note = {} if world.driver == "rest" else {"note": "x"}  # there, a note is one of the messages
        await session.append(*again, retire_from=1, expect=version, copy_of=[2, None, 3], **note)
        version = (await session.info())["version"]
        await session.append(user("secret"), user("new"), retire_from=4, expect=version, copy_of=[4, 5])
        await session.append(user("secret of its own"))
        await session.erase((await session.messages())[1]["seq"])
        assert texts(await session.messages()) == ["a", "[erased]", "new", "secret of its own"]
        assert texts(await session.messages(retired=True)).count("[erased]") == 3
        assert texts(await fork.messages()) == ["a", "b", "[erased]", "d"]


@through("library")
async def test_the_chain_of_digests_holds_after_every_change(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), CALLS, result("x", "1"), result("y", "2"), assistant("b"), user("c"))
        handle = await session.native()
        await session.replace(4, assistant("B"))
        await session.erase((await session.messages())[3]["seq"])
        await handle.pop()
        await session.append(user("d"), note=1)
        await session.rewind(0)
        assert await handle.verify() == len(await session.messages(retired=True))
