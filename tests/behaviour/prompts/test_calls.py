"""Recorded model calls, and their prompts as they were sent."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.behaviour.kit import World, calls, refused, result, texts, through, user
from tests.behaviour.kit.dialogues import STRATEGIES, talk

pytestmark = through("library", "connect", "rest")
TURNS = 14
SYSTEM = "You help with boats."


def words(number: int) -> dict[str, Any]:
    return user(f"Where is order ORD-{number}? It was sent to {number} Harbour Street on 2026-03-{number + 1:02}.")


async def run(hf: Any, turns: int = TURNS) -> tuple[Any, list[Any]]:
    """Run turns; return the session, and what the model got in each."""
    session = await hf.create("trip", user="ada", system_messages=[SYSTEM])
    for number in range(turns):
        await session.send(words(number))
    sent = [one.body["messages"] for one in hf.upstream.requests]
    return session, [one for one in sent if one[0]["content"] == SYSTEM]  # the others are for summaries


def reply(body: dict[str, Any]) -> str:
    return f"{body['messages'][-1]['content'][9:20]} is lost; a parcel follows. " * 3


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_past_prompts_are_rebuilt_exactly(world: World, strategy: str) -> None:
    keys = "window_size: 6" if strategy in {"buffer_window", "head_tail"} else "budget: 400"
    async with world.open(f"context: {{strategy: {strategy}, {keys}}}", script=reply) as hf:
        session, sent = await run(hf)
        for turn, messages in enumerate(sent):
            past = await session.context(at_turn=turn)
            assert past["messages"] == messages
            assert past["hash"] == past["sent_hash"]


@through("library", "rest")
async def test_prompts_are_rebuilt_after_a_restart_with_other_settings(world: World) -> None:
    url = f"sqlite:///{world.folder}/s.db"
    async with world.open("context: {strategy: digest, budget: 400}", store=url, script=reply) as hf:
        _, sent = await run(hf)
    async with world.open("context: {strategy: none}", store=url) as hf:
        session = hf.session("trip", "ada")
        for turn, messages in enumerate(sent):
            assert (await session.context(at_turn=turn))["messages"] == messages


@through("library")
async def test_what_another_version_saved_of_a_prompt_is_not_used(world: World) -> None:
    config, url = "context: {strategy: token_window, budget: 400}", f"sqlite:///{world.folder}/s.db"
    async with world.open(config, store=url, script=reply) as hf:
        session, _ = await run(hf)
        before = await session.context()
    with closing(sqlite3.connect(world.folder / "s.db")) as db, db:
        ((data,),) = db.execute("SELECT data FROM saved_views").fetchall()
        newer = re.sub(rb'"version":(\d+)', lambda one: b'"version":%d' % (int(one[1]) + 1), data)
        assert len(newer) == len(data)
        # The second byte is the place of the first entry without gaps.
        db.execute("UPDATE saved_views SET data = ?", (newer[:1] + bytes([newer[1] + 2]) + newer[2:],))
    async with world.open(config, store=url) as hf:
        assert (await hf.session("trip", "ada").context())["messages"] == before["messages"]


async def test_calls_are_listed_page_by_page(world: World) -> None:
    async with world.open("context: {strategy: digest, budget: 400}", script=reply) as hf:
        session, _ = await run(hf)
        newest = await session.calls(limit=5, order="desc")
        assert [one["id"] for one in newest] == [f"{turn}.0" for turn in range(13, 8, -1)]
        further = await session.calls(limit=5, after=newest[-1]["id"], order="desc")
        assert [one["id"] for one in further] == [f"{turn}.0" for turn in range(8, 3, -1)]
        (first,) = await session.calls(limit=1, order="asc")
        assert (first["id"], first["strategy"], first["budget"], first["common"]) == ("0.0", "digest", 400, None)
        assert (await session.calls(limit=1, after="3", order="asc"))[0]["id"] == "4.0"


async def test_a_prompt_is_shown_as_it_was_sent(world: World) -> None:
    async with world.open("context: {strategy: digest, budget: 400}", script=reply) as hf:
        session, sent = await run(hf)
        shown = await session.prompt("10.0", log_limit=8, dialect="anthropic")
        assert (shown["exact"], shown["previous"], shown["next"], shown["turn_calls"]) == (True, "9.0", "11.0", 1)
        assert [one["message"] for one in shown["messages"]] == sent[10]
        assert sum(one["tokens"] for one in shown["sections"]) == shown["window"]
        assert [one["name"] for one in shown["sections"]][:2] == ["system", "task"]
        assert len(shown["log"]) == 8
        assert {"whole"} < {mark["state"] for mark in shown["log"]}
        assert SYSTEM in str(shown["request"]["system"])
        assert (await session.prompt("10"))["id"] == "10.0"
        assert await session.prompt("10.0", log_limit=8, dialect="anthropic") == shown


async def test_the_next_prompt_and_other_settings_are_shown(world: World) -> None:
    async with world.open("context: {strategy: digest, budget: 400}", script=reply) as hf:
        session, _ = await run(hf)
        await session.append(user("And now?"))
        following = await session.prompt("next")
        assert (following["call"], following["before"]) == (None, f"{TURNS - 1}.0")
        assert texts([one["message"] for one in following["messages"]])[-1] == "And now?"
        other = await session.prompt("10.0", strategy="token_window", budget=300)
        assert (other["strategy"]["strategy"], other["budget"], other["exact"]) == ("token_window", 300, None)
        assert len(await session.calls(limit=50)) == TURNS


@through("rest")
async def test_a_past_prompt_is_shown_as_it_would_be_for_another_agent(world: World) -> None:
    agents = "agents: {a: {llm: default, instruction: Be A.}, b: {llm: default, instruction: Be B.}}"
    async with world.open(agents, script=reply) as hf:
        session = await hf.create("trip", agent="a")
        await session.send(words(1), model="a")
        shown = [(await session.prompt("0", **other))["messages"][0]["message"] for other in ({}, {"agent": "b"})]
        assert [one["content"] for one in shown] == ["Be A.", "Be B."]


async def test_what_differs_from_the_prompt_before_is_shown(world: World) -> None:
    async with world.open(script=reply) as hf:
        session, sent = await run(hf, 3)
        shown = await session.prompt("2")
        assert shown["difference"]["common"] == len(sent[1])
        assert shown["broken"] is None
        assert shown["difference"]["added"] == 2


async def test_a_prompt_with_an_erased_message_is_not_exact(world: World) -> None:
    async with world.open(script=reply) as hf:
        session, _ = await run(hf, 4)
        await session.erase(2)
        shown = await session.prompt("3")
        assert shown["exact"] is False
        assert "ORD-1?" not in str([one["message"] for one in shown["messages"]])
        past = await session.context(at_turn=3)
        assert past["hash"] != past["sent_hash"]


@pytest.mark.parametrize(
    ("call_id", "options", "code", "param"),
    [
        ("x", {}, "invalid_request", "call_id"),
        ("99", {}, None, None),
        ("0.9", {}, None, None),
        ("next", {"log_limit": 201}, "invalid_request", "log_limit"),
        ("next", {"log_after": -2}, "invalid_request", "log_after"),
        ("next", {"strategy": "digets"}, "invalid_request", "strategy"),
        ("next", {"budget": 0}, "invalid_request", "budget"),
        ("next", {"dialect": "x"}, "invalid_request", "dialect"),
    ],
)
async def test_wrong_arguments_are_named(
    world: World, call_id: str, options: Any, code: str | None, param: str | None
) -> None:
    async with world.open(script=reply) as hf:
        session, _ = await run(hf, 2)
        with refused(code or "call_not_found", param=param):
            await session.prompt(call_id, **options)


@through("cli")
async def test_the_command_prints_each_message(world: World) -> None:
    async with world.open("context: {strategy: digest, budget: 500, recall: false}") as hf:
        tool = [calls(("c1", "find", {"n": 1})), result("c1", "harbour 1\nis \x1b[2J open")]
        session = await hf.given("s", *talk(30), user("Look."), *tool, user("And now?"), system_messages=["Be kind."])
        printed = (await hf.call("prompt", "s")).out
        headings = [line for line in printed.splitlines()[1:] if line and not line.startswith(" ")]
        shown = await session.prompt("next")
        assert printed.startswith("the next prompt: ")
        assert len(headings) == len(shown["messages"])
        assert headings[0].startswith("system  system, ")
        assert headings[-1].startswith("user  current, message 63, ")
        assert '        -> find {"n": 1}\n' in printed
        assert "        <- find: harbour 1\n           is \\x1b[2J open\n" in printed
        request = json.loads((await hf.call("prompt", "s", "--format", "openai")).out)
        assert request["messages"] == [one["message"] for one in shown["messages"]]


async def test_past_prompts_do_not_change_with_what_happens_later(world: World) -> None:
    async with world.open("context: {strategy: digest, budget: 400}", script=reply) as hf:
        session, sent = await run(hf)
        await session.annotate(4, pinned=True)
        await session.annotate(6, importance=0.9)
        await session.update(system_messages=["You are a poet."])
        await session.rewind(8)
        await session.send(user("Something else."))
        for turn in (3, 7, 12):
            shown = await session.prompt(f"{turn}.0")
            assert shown["exact"] is True
            assert [one["message"] for one in shown["messages"]] == sent[turn]


@through("library", "rest")
async def test_past_prompts_are_exported_and_imported(world: World) -> None:
    async with world.open("context: {strategy: digest, budget: 400}", script=reply) as hf:
        session, sent = await run(hf)
        exported = await session.export(retired=True, calls=True)
        await hf.import_session({**exported, "id": "copy"})
        past = await hf.session("copy", "ada").context(at_turn=11)
        assert (past["messages"], past["hash"]) == (sent[11], past["sent_hash"])


@through("library")
async def test_the_explanation_of_a_turn_does_not_change_after_the_next_one(world: World) -> None:
    async with world.open("context: {strategy: token_window, budget: 300}", script=reply) as hf:
        handle = await hf.native.session("s", user_id="ada")
        earlier = []
        for number in range(8):
            async with handle.turn(words(number)["content"]) as turn:
                turn.add("It is lost; a parcel follows. " * 3)
            earlier.append((turn, turn.explain(), turn.explanation()))
        for turn, text, data in earlier:
            assert turn.explain() == text
            assert turn.explanation()["decisions"] == data["decisions"]
