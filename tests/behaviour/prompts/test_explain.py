"""Explanations: where a message is, why, since when, and what brings it back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit import World, assistant, calls, refused, result, through, user
from tests.behaviour.kit.dialogues import talk

DIGEST = "context: {strategy: digest, budget: 500}"
SEASICK = "By the way, I get seasick. Find me a way around all ferries."
SAID, TURNS = 4, 16
SAIL: Any = lambda _: "That is fine: a boat with a large sail takes you there. " * 2  # noqa: E731
CALLER = through("library", "connect", "rest")


async def sail(hf: Any, turns: int = TURNS) -> Any:
    """Run turns; message 4, of turn 2, is worth keeping."""
    session = await hf.create("trip", user="ada")
    for number in range(turns):
        words = SEASICK if number == 2 else f"What about harbour number {number} and its {number * 7} boats? " * 2
        await session.send(user(words))
    return session


def only(explained: Any) -> Any:
    (one,) = explained["messages"]
    return one


def kinds(message: Any) -> set[str]:
    return {one["kind"] for one in message["remedies"]}


@CALLER
@pytest.mark.parametrize(
    ("keys", "remedies"),
    [
        ("strategy: digest, budget: 500", {"pin", "budget", "recall"}),
        ("strategy: token_window, budget: 500", {"pin", "budget", "recall"}),
        ("strategy: head_tail, window_size: 6", {"pin", "window_size", "recall"}),
    ],
)
async def test_a_message_departs_in_the_first_turn_without_it(world: World, keys: str, remedies: set[str]) -> None:
    async with world.open(f"context: {{{keys}}}", script=SAIL) as hf:
        session = await sail(hf)
        past = [await session.explain(seq=SAID, turn=turn) for turn in range(2, TURNS)]
        assert {one["exact"] for one in past} == {True}
        states = [only(one)["state"] for one in past]
        gone = next(at for at, state in enumerate(states) if state != "whole")
        assert states[:gone] == ["whole"] * gone
        assert "whole" not in states[gone:]
        now = only(await session.explain(seq=SAID))
        assert now["departure"]["turn_id"] == 2 + gone
        assert now["departure"]["reason"]
        assert kinds(now) == remedies
        assert (now["turn_id"], now["role"], now["text"]) == (2, "user", SEASICK)


@CALLER
async def test_a_budget_that_is_suggested_keeps_the_message_whole(world: World) -> None:
    async with world.open("context: {strategy: token_window, budget: 500}", script=SAIL) as hf:
        session = await sail(hf)
        remedies = only(await session.explain(seq=SAID))["remedies"]
        (budget,) = [one["budget"] for one in remedies if one["kind"] == "budget"]
        assert budget > 500
        assert only(await session.explain(seq=SAID, budget=budget))["state"] == "whole"
        assert only(await session.explain(seq=SAID, budget=budget * 3 // 4))["state"] == "no"


@CALLER
async def test_a_pin_brings_it_back_and_unpinning_takes_it_away(world: World) -> None:
    async with world.open(DIGEST, script=SAIL) as hf:
        session = await sail(hf)
        assert only(await session.explain(seq=SAID))["decision"] == "compacted"
        await session.annotate(SAID, pinned=True)
        found = only(await session.explain(seq=SAID))
        assert (found["state"], found["block"], found["departure"], found["remedies"]) == ("whole", "pins", None, [])
        await session.annotate(SAID, pinned=False)
        assert only(await session.explain(seq=SAID))["state"] != "whole"


@CALLER
async def test_words_of_a_condensed_message_are_quoted_from_the_prompt(world: World) -> None:
    async with world.open(DIGEST, script=SAIL) as hf:
        session = await sail(hf)
        prompt = str((await session.context())["messages"])
        explained = await session.explain(seq=SAID)
        found = only(explained)
        assert found["state"] == "part"
        assert found["excerpts"]
        assert all(one["words"] and one["words"] in prompt for one in found["excerpts"])
        assert {one["block"] for one in found["excerpts"]} <= {"digest", "facts"}
        condensed = [one for one in explained["compactions"] if one["kind"] == "digest"]
        assert condensed[0]["source_tokens"] > condensed[0]["tokens"]


@CALLER
async def test_a_turn_is_explained_with_the_settings_it_was_sent_with(world: World) -> None:
    async with world.open("context: {strategy: digest, budget: 20000}", script=SAIL) as hf:
        session = await sail(hf)
        await session.send(user("And now?"), strategy="token_window", budget=500)
        found = await session.explain(seq=SAID, turn=TURNS)
        assert (found["exact"], found["strategy"], found["budget"]) == (True, "token_window", 500)
        assert only(found)["state"] == "no"
        other = await session.explain(seq=SAID, turn=TURNS, strategy="none")
        assert (other["exact"], other["strategy"], only(other)["state"]) == (None, "none", "whole")
        past = await session.context(at_turn=TURNS)
        assert past["hash"] == past["sent_hash"]
        assert (await session.context(at_turn=TURNS, strategy="none")).get("sent_hash") is None


async def test_what_other_settings_would_do_is_explained_and_not_stored(world: World) -> None:
    async with world.open(DIGEST) as hf:
        session = await hf.given("s", *talk(40), user("And now?"))
        before = await session.explain()
        large = await session.explain(seq=3, budget=50_000)
        assert (large["strategy"], large["budget"], only(large)["state"]) == ("digest", 50_000, "whole")
        window = await session.explain(seq=3, strategy="token_window", budget=400)
        assert (window["strategy"], only(window)["decision"], only(window)["state"]) == (
            "token_window",
            "evicted",
            "no",
        )
        assert await session.explain() == before
        assert [before["decisions"][0]["from"], before["decisions"][-1]["to"]] == [0, 80]
        assert before["messages"] == []


async def test_messages_are_found_by_text_newest_first_in_pages(world: World) -> None:
    """Case and white space do not count; calls of tools are searched too."""
    async with world.open() as hf:
        tool = [calls(("c1", "find", {"order": 77})), result("c1", "gone")]
        session = await hf.given("s", *talk(12), *tool, user("I must NOT\n eat nuts. " + "Hello there. " * 40))
        seen: list[int] = []
        more: dict[str, Any] = {}
        while True:
            found = await session.explain(text="happened  TO parcel", limit=4, **more)
            seen += [one["seq"] for one in found["messages"]]
            if found["before"] is None:
                break
            more = {"before": found["before"]}
        assert seen == [2 * number for number in range(11, 0, -1)]
        assert only(await session.explain(text='"order": 77'))["seq"] == 24
        nuts = only(await session.explain(text="not eat NUTS"))
        assert nuts["match"].startswith("I must NOT eat nuts.")
        assert nuts["match"].endswith("…")


@CALLER
async def test_messages_that_are_in_no_prompt_are_explained(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *talk(4), user("A secret."), assistant(""), user("And now?"))
        await session.erase(8)
        erased = only(await session.explain(seq=8))
        assert (erased["state"], erased["decision"], erased["text"], erased["excerpts"]) == ("no", "erased", "", [])
        empty = only(await session.explain(seq=9))
        assert (empty["state"], empty["remedies"]) == ("no", [])
        assert "no content" in empty["reason"]
        await session.annotate(4, refused_by=["default", "offline"])
        left_out = only(await session.explain(seq=4))
        assert (left_out["decision"], kinds(left_out)) == ("refused", {"send"})
        await session.rewind(1)
        await session.append(user("Something else."))
        retired = only(await session.explain(seq=5))
        assert (retired["state"], retired["decision"], kinds(retired)) == ("no", "retired", {"append"})


@CALLER
async def test_an_explanation_of_a_past_turn_knows_nothing_of_later_messages(world: World) -> None:
    async with world.open(script=SAIL) as hf:
        session = await sail(hf, 4)
        assert only(await session.explain(seq=6, turn=1))["decision"] == "later"
        redacted = await hf.given("r", user("My key is [REDACTED:aws]."))
        assert only(await redacted.explain(seq=0))["redacted"] is True


@CALLER
async def test_a_turn_without_a_recorded_call_says_so(world: World) -> None:
    async with world.open(DIGEST) as hf:
        session = await hf.given("s", user("Hi."))
        found = await session.explain(seq=0, turn=0)
        assert (found["exact"], only(found)["state"]) == (None, "whole")
        assert found["not_sent"] == (
            "no prompt of this turn is recorded; this is what the current settings (strategy digest, budget 500) would give"
        )


async def test_a_session_or_message_that_is_not_there_is_named(world: World) -> None:
    async with world.open() as hf:
        with refused("session_not_found", "'nope'"):
            await hf.session("nope").explain(seq=0)
        session = await hf.given("s", user("Hi."))
        with refused("message_not_found", "seq 7"):
            await session.explain(seq=7)


@CALLER
@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"seq": -1}, {"seq"}),
        ({"turn": 99}, {"turn"}),
        ({"text": " "}, {"text", "q"}),
        ({"text": "x" * 5_000}, {"text", "q"}),
        ({"text": "x", "seq": 1}, {"seq", "q"}),
        ({"before": 3}, {"before"}),
        ({"text": "x", "limit": 0}, {"limit"}),
        ({"text": "x", "limit": 51}, {"limit"}),
        ({"strategy": "digets"}, {"strategy"}),
        ({"budget": 0}, {"budget"}),
    ],
)
async def test_wrong_arguments_are_named(world: World, wrong: dict[str, Any], param: set[str]) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *talk(3))
        with refused("invalid_request") as caught:
            await session.explain(**wrong)
        assert caught.value.param in param


# -- why the prefix changed ---------------------------------------------------------


@CALLER
async def test_the_first_difference_from_the_last_prompt_is_explained(world: World) -> None:
    async with world.open("context: {strategy: token_window, budget: 700}", script=SAIL) as hf:
        session, whys = await hf.create("trip", user="ada"), []
        for number in range(20):
            await session.send(user(f"Question {number}? " + "Please look. " * 10))
            broken = (await session.prompt(str(number)))["broken"]
            whys += [] if broken is None else [broken["why"]]
        assert 2 <= len(whys) <= 8
        assert all("frontier moved" in why for why in whys)


# -- the command --------------------------------------------------------------------


@through("cli")
async def test_the_command_explains_in_words(world: World) -> None:
    """Stored text cannot control the terminal, and the printed command brings the message back."""
    async with world.open(DIGEST) as hf:
        said = user("I get seasick \x1b[2J\u202e always.")
        session = await hf.given("s", *talk(2), said, *talk(40)[2:], user("And now?"))
        printed = (await hf.call("explain", "s", "--text", "seasick")).out
        assert printed.startswith("session s, the next prompt: strategy digest, ")
        assert "message 4 of turn 2, user" in printed
        assert "  why: compacted, " in printed
        assert "\x1b" not in printed
        assert "\u202e" not in printed
        (line,) = [one for one in printed.splitlines() if "to get it back: pin it" in one]
        assert "sessions annotate --pin" in line
        pinned = await hf.call("sessions", "annotate", "--pin", "s", "4")
        assert pinned.out == "Message 4, pinned: I get seasick \\x1b[2J\\u202e always.\n"
        assert (await session.explain(seq=4))["messages"][0]["state"] == "whole"
        missing = await hf.run("explain", "s", "--text", "nobody said that at all")
        assert (missing.code, missing.err.splitlines()[0]) == (0, "No message contains that text.")


@through("cli")
async def test_the_command_lists_all_decisions(world: World) -> None:
    async with world.open("context: {strategy: token_window, budget: 500}") as hf:
        session = await hf.given("s", *talk(40), user("And now?"))
        rows = [one.split() for one in (await hf.call("explain", "s")).out.splitlines()[1:]]
        decisions = (await session.explain())["decisions"]
        assert [row[1] for row in rows] == [one["decision"] for one in decisions]
        assert rows[0] == ["0", "anchored", str(decisions[0]["tokens"]), "tokens", "the", "task"]
