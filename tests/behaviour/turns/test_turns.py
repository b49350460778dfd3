"""A turn in which the caller is the model: what is in the log at each moment, and what the next prompt has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessage

from holdfast import Message
from tests.behaviour.kit import World, assistant, calls, refused, result, texts, through, user

CALL = calls(("c1", "find", {"n": 1}))
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]
LONG = [message for _ in range(10) for message in (user("word " * 60), assistant("word " * 60))]


@through("library", "connect", "rest")
async def test_the_next_prompt_has_what_was_said_before(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", system_messages="Be kind.")
        await session.turn("a", reply="A")
        assert texts((await session.turn("b"))["messages"]) == ["Be kind.", "a", "A", "b"]


@through("library", "connect")
async def test_a_message_is_in_the_log_before_the_code_in_the_block_runs(world: World) -> None:
    """Added ones at the latest when the block ends."""
    async with world.open() as hf:
        session = await hf.given("s")
        handle = await session.native()
        async with handle.turn("a") as turn:
            assert texts(turn.messages) == texts(await session.messages()) == ["a"]
            turn.add("b", usage=CompletionUsage(prompt_tokens=7, completion_tokens=1, total_tokens=8))
        assert texts(await session.messages()) == ["a", "b"]
        assert (await session.info())["usage"]["prompt_tokens"] == 7
        with refused("invalid_request", "the turn has ended"):
            turn.add("c")
        with refused("invalid_request", "the turn has ended"):
            await turn.next()


@through("library", "connect")
async def test_what_was_added_is_stored_when_the_block_fails(world: World) -> None:
    """The error passes through. An unanswered message and the next one are both in the next prompt."""
    async with world.open() as hf:
        session = await hf.given("s")
        handle = await session.native()

        async def fail(text: str, *parts: str) -> None:
            async with handle.turn(text) as turn:
                for part in parts:
                    turn.add(part)
                raise ZeroDivisionError

        for said in (("a", "half an answer"), ("b",)):
            with pytest.raises(ZeroDivisionError):
                await fail(*said)
        async with handle.turn("c") as turn:
            assert texts(turn.messages) == ["a", "half an answer", "b", "c"]


@through("library", "connect")
async def test_what_was_added_is_stored_when_the_block_is_cancelled(world: World) -> None:
    async with world.open() as hf:
        handle = await (await hf.given("s")).native()
        inside = asyncio.Event()

        async def work() -> None:
            async with handle.turn("a") as turn:
                turn.add("so far")
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(10), handle.turn("b") as turn:
            assert texts(turn.messages) == ["a", "so far", "b"]


@through("library", "connect", "rest")
async def test_an_unanswered_message_that_is_sent_again_is_stored_once(world: World) -> None:
    """After a reply, it is a new message."""
    async with world.open() as hf:
        session = await hf.given("s")
        for _ in range(3):
            assert texts((await session.turn("Where is it?"))["messages"]) == ["Where is it?"]
        await session.turn("Where is it?", reply="Here.")
        assert texts((await session.turn("Where is it?"))["messages"]) == ["Where is it?", "Here.", "Where is it?"]


@through("library", "connect")
async def test_a_round_of_tools_is_one_turn(world: World) -> None:
    """All of it is durable when `next` returns."""
    async with world.open() as hf:
        session = await hf.given("s", system_messages="Be kind.")
        handle = await session.native()
        async with handle.turn("Find it.", tools=TOOLS) as turn:
            turn.add(ChatCompletionMessage.model_validate(CALL))
            turn.add(result("c1", "found"))
            prompt = await turn.next()
            assert [one["role"] for one in prompt] == ["system", "user", "assistant", "tool"]
            assert [(one.kind, one.seqs) for one in turn.sources][1:] == [("entry", (at,)) for at in range(3)]
            assert texts(await session.messages()) == ["Find it.", None, "found"]
            turn.add(Message(role="assistant", content="There."), usage={"prompt_tokens": 9, "completion_tokens": 2})
        assert {one["turn_id"] for one in await session.messages()} == {0}
        usage = (await session.info())["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (9, 2)
        if world.driver == "library":
            units = [entry.unit for entry in await handle.entries()]
            assert units == [0, 1, 1, 3]
            assert await handle.verify() == 4


@through("library", "connect")
async def test_the_usage_of_several_calls_is_added_up(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        async with (await session.native()).turn("a") as turn:
            for text, size in (("b", 70), ("c", 700)):
                cached = {"prompt_tokens_details": {"cached_tokens": size - 50}}
                turn.add(text, usage={"prompt_tokens": size, "completion_tokens": size - 40, **cached})
            await turn.next()
            turn.add("d", usage={"prompt_tokens": 7, "completion_tokens": 3})
        usage = (await session.info())["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["cached_tokens"]) == (777, 693, 670)


@through("library", "connect")
async def test_an_invalid_message_is_refused_when_it_is_added(world: World) -> None:
    """What was added before is kept."""
    async with world.open() as hf:
        session = await hf.given("s")
        handle = await session.native()
        async with handle.turn("a") as turn:
            turn.add(assistant("b"))
            for wrong in ({"role": "robot", "content": "x"}, {"content": "x"}, 5, result("", "x")):
                with refused("invalid_message"):
                    turn.add(wrong)
            turn.add("c")
        assert texts(await session.messages()) == ["a", "b", "c"]


@through("library", "connect")
@pytest.mark.parametrize(
    ("messages", "options"),
    [
        (5, {}),
        ([5], {}),
        ([{"role": "user"}], {}),
        (result("c1", "found"), {}),
        ({"messages": "a", "contents": "b"}, {}),
        ("a", {"strategy": "digets"}),
        ("a", {"budget": 0}),
        ("a", {"budget": "300"}),
        ("a", {"budget": 300, "strategy": "none"}),
        ("a", {"tools": "abc"}),
        ("a", {"tools": [{"function": "x"}]}),
        ("a", {"session_queue": "wait"}),
        ("a", {"interrupt": {"letters": 3}}),
    ],
)
async def test_an_invalid_turn_does_not_begin(world: World, messages: Any, options: dict[str, Any]) -> None:
    """Nothing is written, and nothing stays locked."""
    async with world.open() as hf:
        session = await hf.given("s")
        handle = await session.native()
        with refused("invalid_message" if isinstance(messages, list) or "role" in str(messages) else "invalid_request"):
            await handle.begin_turn(messages, **options)
        assert await session.messages() == []
        async with asyncio.timeout(10), handle.turn("b"):
            pass
        for unknown in ({"foo": 1}, {"sesion_queue": "reject"}):
            with pytest.raises(TypeError, match=next(iter(unknown))):
                await handle.begin_turn("a", **unknown)


@through("rest")
@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": "hi"},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [user("a")], "budget": 0},
        {"messages": [user("a")], "strategy": "digets"},
        {"messages": [user("a")], "request": {"foo": 1}},
        {"messages": [user("a")], "request": {"mode": "delta"}},
        {"messages": [user("a")], "agent": "nobody"},
        {"messages": [user("a")], "mode": "both"},
        {},
    ],
)
async def test_an_invalid_turn_over_http_writes_nothing(world: World, wrong: dict[str, Any]) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        with refused("invalid_message" if "robot" in str(wrong) else "invalid_request") as caught:
            await session.ask("POST", "turns", body=wrong)
        assert caught.value.status == 400
        assert await session.messages() == []


@through("library", "connect", "rest")
async def test_strategy_and_budget_hold_for_one_turn(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *LONG)
        short = await session.turn("short", reply="ok", budget=300, strategy="token_window")
        assert len(short["messages"]) < 8
        whole = await session.turn("whole", reply="ok")
        assert len(whole["messages"]) == len(LONG) + 3
        with refused("budget_too_small"):
            await session.turn("small", budget=3, strategy="token_window")


@through("library")
async def test_a_turn_explains_its_prompt(world: World) -> None:
    async with world.open("context: {strategy: token_window, budget: 300}") as hf:
        handle = await (await hf.given("s", *LONG)).native()
        async with handle.turn("now") as turn:
            lines = turn.explain().splitlines()
            assert lines[0].startswith(f"{len(turn.messages)} messages, strategy token_window, ")
            assert "of 300 tokens" in lines[0]
            assert [line.split()[1] for line in lines[1:]][:2] == ["anchored", "evicted"]
            assert "current user message" in lines[-1]
            assert turn.explanation()["strategy"]["strategy"] == "token_window"
            assert "of 300 tokens" in repr(turn)


@through("library", "connect", "rest")
async def test_a_turn_with_a_key_is_begun_once(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        if world.driver == "rest":
            hf.http.headers["idempotency-key"] = "key"
        options = {} if world.driver == "rest" else {"idempotency_key": "key"}
        for _ in range(2):
            assert texts((await session.turn("a", **options))["messages"]) == ["a"]
        await session.append({"role": "assistant", "content": "done"})
        assert texts((await session.turn("a", **options))["messages"]) == ["a", "done"]
        with refused("idempotency_conflict"):
            await session.turn("b", **options)
        assert texts(await session.messages()) == ["a", "done"]


@through("library", "connect")
async def test_changes_of_state_in_a_turn_are_written_with_its_messages(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        async with (await session.native()).turn("a") as turn:
            if world.driver == "library":
                await turn.load_state()
            turn.state["seat"] = "12A"
            turn.state["user:theme"] = "dark"
            turn.state["temp:x"] = 1
            turn.state.increment("asked")
            turn.state.append("seen", 1, 2)
            assert await session.state() == {}
            turn.add("b")
            await turn.next()
            assert turn.state["seat"] == "12A"
        assert await session.state() == {"seat": "12A", "user:theme": "dark", "asked": 1, "seen": [1, 2]}


@through("library", "connect")
async def test_changes_from_outside_do_not_disturb_a_turn(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        async with (await session.native()).turn("a") as turn:
            await session.change_state(seat="12A")
            await session.update(metadata={"x": 1})
            turn.add("b")
            await turn.next()
        assert texts(await session.messages()) == ["a", "b"]
        assert (await session.info())["metadata"] == {"x": 1}


@through("library", "connect", "rest")
async def test_the_system_prompt_of_a_running_session_can_be_changed(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", system_messages=["Be old."])
        await session.turn("a", reply="b")
        await session.update(system_messages=["Be new.", "Be brief."])
        assert texts((await session.turn("c"))["messages"]) == ["Be new.", "Be brief.", "a", "b", "c"]


# -- without a block -----------------------------------------------------------------


@through("library", "connect")
async def test_another_task_may_end_a_turn(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        handle = await session.native()
        turn = await asyncio.create_task(handle.begin_turn("a"))

        async def answer() -> None:
            turn.add("b")
            await turn.next()
            turn.add("c")
            await turn.end()
            await turn.end()

        await asyncio.create_task(answer())
        assert texts(await session.messages()) == ["a", "b", "c"]


@through("library", "connect")
async def test_an_aborted_turn_keeps_what_was_added(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        handle = await session.native()
        turn = await handle.begin_turn("a")
        turn.add("half an answer")
        await turn.abort(RuntimeError("the model failed"))
        await (await handle.begin_turn("b")).abort()
        assert texts(await session.messages()) == ["a", "half an answer", "b"]


@through("library", "connect")
async def test_a_cancelled_end_still_writes(world: World) -> None:
    async with world.open() as hf:
        handle = await (await hf.given("s")).native()
        turn = await handle.begin_turn("a")
        turn.add("b")
        ending = asyncio.create_task(turn.end())
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait([ending])
        if world.driver == "connect":
            await turn.end()
        async with asyncio.timeout(10), handle.turn("c") as following:
            assert texts(following.messages) == ["a", "b", "c"]


@through("library", "connect")
async def test_a_turn_may_be_ended_within_its_block(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        handle = await session.native()
        async with handle.turn("a") as turn:
            turn.add("b")
            await turn.end()
            async with handle.turn("c") as inner:
                inner.add("d")
        assert texts(await session.messages()) == ["a", "b", "c", "d"]


@through("library")
async def test_a_turn_that_is_lost_is_ended_with_a_warning(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        handle = await session.native()
        turns = [await handle.begin_turn("a")]
        with pytest.warns(ResourceWarning, match="neither ended nor aborted"):
            turns.clear()
        async with asyncio.timeout(10), handle.turn("b"):
            pass
        assert texts(await session.messages()) == ["a", "b"]


@through("connect")
async def test_a_client_that_disappears_in_a_turn_blocks_nothing(world: World) -> None:
    async with world.open() as hf:
        handle = await (await hf.given("s")).native()
        turn = await handle.begin_turn("a")
        turn.add("lost")
        del turn
        async with asyncio.timeout(10), handle.turn("b") as following:
            assert texts(following.messages) == ["a", "b"]


@through("connect", "rest")
async def test_a_turn_that_another_client_overtook_writes_nothing(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        if world.driver == "rest":
            turn = await session.turn("a")
            await session.append(user("b"))
            with refused("stale_session"):
                await session.append(assistant("late"), expect_log=turn["session"]["log_marker"])
        else:
            running = await (await session.native()).begin_turn("a")
            await session.append(user("b"))
            running.add("late")
            for ending in (running.next, running.end):
                with refused("stale_session", "log of session 's' has changed"):
                    await ending()
        assert texts(await session.messages()) == ["a", "b"]
        assert texts((await session.turn(mode="auto"))["messages"]) == ["a", "b"]


# -- after a crash --------------------------------------------------------------------


@through("library", "connect", "rest")
async def test_a_turn_continues_with_the_results_of_its_open_calls(world: World) -> None:
    """No message is stored twice. The unfinished turn is counted."""
    async with world.open(store="file") as hf:
        session = await hf.given("s", user("Find it."), calls(("c1", "find", {}), ("c2", "find", {})))
        assert (await session.info())["turns"] == 1
        turn = await session.turn(result("c1", "one"), result("c2", "two"), reply="There.")
        assert [one["role"] for one in turn["messages"]] == ["user", "assistant", "tool", "tool"]
        assert {one["turn_id"] for one in await session.messages()} == {0}
        assert texts(await session.messages()) == ["Find it.", None, "one", "two", "There."]


@through("library", "connect", "rest")
async def test_a_turn_continues_without_messages(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Find it."), CALL, result("c1", "one"))
        turn = await session.turn(reply="There.", mode="auto")
        assert [one["role"] for one in turn["messages"]] == ["user", "assistant", "tool"]
        assert [one["turn_id"] for one in await session.messages()] == [0] * 4


@through("library", "connect", "rest")
async def test_a_late_result_is_accepted_once(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *[user("hm")] * 300, user("find it"), CALL, user("well?"))
        for _ in range(2):
            await session.turn(result("c1", "found"), reply="There.")
        assert [one["role"] for one in await session.messages()].count("tool") == 1
        with refused("result_exists", "another result"):
            await session.turn(result("c1", "lost"))
        with refused("invalid_message", "the result of call 'zz' has no matching call"):
            await session.turn(result("zz", "x"))


@through("library", "connect")
async def test_an_explanation_is_a_text_that_says_why(world: World) -> None:
    """Of the next prompt, of an earlier one, and of messages that are found by their words."""
    async with world.open("context: {strategy: token_window, budget: 300}") as hf:
        handle = await (await hf.given("s", user("the kelp harvest is in May"), *LONG)).native()
        async with handle.turn("now") as turn:
            turn.add("ok")
        task, gone, found = [
            str(await handle.explain(**options)) for options in ({"seq": 0}, {"seq": 3}, {"text": "kelp harvest"})
        ]
        assert task.startswith("session s, the next prompt: strategy token_window, ")
        assert "message 0 of turn 0, user, " in task
        assert "the kelp harvest is in May" in found
        assert "  why: evicted, " in gone
        earlier = str(await handle.explain(turn=10, seq=0))
        recorded = (
            "the prompt of turn 10" if world.driver == "library" else "turn 10: no prompt of this turn is recorded"
        )
        assert earlier.startswith(f"session s, {recorded}")
