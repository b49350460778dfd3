"""Contexts that programs save between writes, transcripts of logs, and what a program may pass by mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

import holdfast
from tests.behaviour.kit import World, calls, refused, result, texts, through, user

MIB = 1024 * 1024
DIGEST = "context: {strategy: digest, budget: 600}"


def make_round(number: int) -> list[dict[str, Any]]:
    found = f"Order {number} costs {number * 17} euros and arrives on a Tuesday. " * 3
    return [calls((f"c{number}", "find", {})), result(f"c{number}", found)]


@through("library", "connect")
async def test_saved_contexts_continue_each_other_like_the_prompts_of_a_turn(world: World) -> None:
    """Most begin with the whole previous one."""
    async with world.open(DIGEST) as hf:
        outside, inside = [await (await hf.given(name)).native() for name in ("outside", "inside")]
        await outside.append("Find all orders.")
        kept = kept_in_turn = 0
        before = expected_before = (await outside.context(save=True)).messages
        async with inside.turn("Find all orders.") as turn:
            for number in range(40):
                await outside.append(make_round(number))
                for message in make_round(number):
                    turn.add(message)
                context = await outside.context(save=True)
                expected = await turn.next()
                assert [len(str(m["content"])) for m in context.messages] == [len(str(m["content"])) for m in expected]
                kept += context.messages[: len(before)] == before
                kept_in_turn += expected[: len(expected_before)] == expected_before
                before, expected_before = context.messages, expected
        assert kept == kept_in_turn > 5
        assert (await outside.context()).messages == before


@through("library")
async def test_a_server_shows_nothing_of_a_session_that_another_server_has_replaced(world: World) -> None:
    """Although the new one has its name and its version, and the old one is in the cache."""
    url = f"sqlite:///{world.folder}/chat.db"
    async with world.open(DIGEST, store=url) as one, world.open(DIGEST, store=url) as two:
        old = await (await one.given("s", user("My salary is 123456."))).native()
        await old.context(save=True)
        await two.session("s").delete()
        await two.given("s", user("Hello."))
        assert texts((await old.context(save=True)).messages) == ["Hello."]
        async with old.turn("And now?") as turn:
            assert texts(turn.messages) == ["Hello.", "And now?"]


@through("library", "connect", "rest")
async def test_a_context_stores_nothing_and_is_the_same_again(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *(user(f"question {at} " + "word " * 20) for at in range(30)))
        version = (await session.info())["version"]
        contexts = [await session.context(strategy="token_window", budget=300) for _ in range(2)]
        assert contexts[0]["hash"] == contexts[1]["hash"]
        assert contexts[0]["conversation_tokens"] <= contexts[0]["budget"] == 300
        assert texts((await session.context(at_turn=0))["messages"])[0].startswith("question 0")
        assert (await session.info())["version"] == version
        with refused("invalid_request", "magic"):
            await session.context(strategy="magic")
        with refused("budget_too_small"):
            await session.context(strategy="token_window", budget=3)


@through("library")
async def test_a_message_with_its_origin_may_have_32_mib(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        text = {"x": "y " * (4 * MIB)}
        await session.append(user("hi", origin=text))
        too_much = [text] * 4
        for options in ({"origin": too_much}, {"content": "y " * (17 * MIB)}):
            with refused("too_large"):
                await session.append({**user("hi"), **options})
        with refused("too_large"):
            await session.append(note=too_much)
        assert len(await session.messages()) == 1


@through("library", "connect", "rest")
async def test_a_message_with_more_than_1000_after_it_is_not_replaced(world: World) -> None:
    """The error says what to do instead."""
    async with world.open() as hf:
        session = await hf.given("s", *(user(str(at)) for at in range(1002)))
        version = (await session.info())["version"]
        with refused("too_large", "retire_from=0"):
            await session.replace(0, "new")
        assert (await session.info())["version"] == version
        assert (await session.replace(1, "new"))["content"] == "new"
        assert len(await session.messages()) == 1002


@through("library")
async def test_transcripts_show_notes_origins_and_what_was_retired(world: World) -> None:
    folder = world.folder / "texts"
    async with world.open(f"hooks: {{transcripts_dir: '{folder}'}}", store="file") as hf:
        session = await hf.given("s", user("hi", origin={"raw": True}), {"role": "note", "origin": 1})
        await session.append(user("again"), retire_from=1)
        await session.append({"role": "note", "origin": {"n": 2}})
        await session.close()
        await hf.native.sweep()
        expected = await session.messages(retired=True)
    head, *lines = [json.loads(line) for line in read_only_file(folder)]
    assert (head["type"], head["id"]) == ("session", "s")
    shown = [(line["seq"], line["role"], line.get("origin"), line.get("retired_by")) for line in lines]
    assert shown == [(one["seq"], one["role"], one.get("origin"), one.get("retired_by")) for one in expected]


def read_only_file(folder: Path) -> list[bytes]:
    (file,) = folder.rglob("*.jsonl")
    return file.read_bytes().splitlines()


@through("library", "connect")
async def test_mistakes_of_programs_are_named(world: World) -> None:
    async with world.open() as hf:
        handle = await (await hf.given("s")).native()
        for given in (None, [1], "x", 5):
            with refused("invalid_request", "an object"):
                await hf.native.import_(given)
        with refused("invalid_request"):
            await hf.native.delete_user(5)
        with refused("invalid_request"):
            await handle.fork(id=5)
        with refused("invalid_request"):
            await handle.history(view="other")
        message = ChatCompletionMessage(role="assistant", content="Hello.")
        made = await hf.native.import_({"id": "t", "messages": [user("Hi"), message]})
        assert made.session.messages == 2


def test_a_tenant_must_be_a_text() -> None:
    with pytest.raises(holdfast.HoldfastError, match="tenant"):
        holdfast.Portal("sqlite://:memory:", tenant=5).start()


@through("library")
async def test_greeted_sessions_count_and_expire_like_others(world: World) -> None:
    agents = 'agents: {bot: {greeting: "Hello?"}}'
    async with world.open(agents, "sessions: {ttl: 10s, max_sessions: 2}") as hf:
        for name in "abc":
            world.clock.now += 1
            await hf.create(name, agent="bot")
        assert {row["id"] for row in await hf.sessions()} == {"b", "c"}
        world.clock.now += 10_000
        assert await hf.sessions() == []
        assert len(await (await hf.create("b", agent="bot")).history()) == 1
