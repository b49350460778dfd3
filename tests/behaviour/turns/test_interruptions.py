"""What a user heard of a reply: the log keeps all of it, and the model sees only that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import (
    Session,
    World,
    assistant,
    calls,
    fresh_store,
    gateway,
    refused,
    result,
    texts,
    through,
    until,
    user,
)
from tests.behaviour.kit.rest import ask
from tests.behaviour.kit.voice import CONTENTS, CUT, HEARD, JOKE

DOORS = ("library", "connect", "rest")
LOOK = {**calls(("c", "f", {})), "content": "Let me look."}
ROUNDS = [user("a"), LOOK, result("c", "done"), assistant("It is five.", metadata={"preface": "Let me look.\n\n"})]


async def describe(session: Session) -> list[tuple[Any, ...]]:
    """Return turn and text of each message, and the generated text of cut replies."""
    found = []
    for one in await session.messages():
        original = (one.get("metadata") or {}).get("original")
        found.append((one["turn_id"], one["content"], *([original] if original else [])))
    return found


@through(*DOORS)
async def test_the_heard_part_replaces_the_reply(world: World) -> None:
    """In the same turn, with its agent, time, pin and metadata. Later messages are written again after it."""
    async with world.open() as hf:
        reply = assistant(
            JOKE, agent="bot", timestamp=7, metadata={"source": "llm", "x": 1}, pinned=True, importance=0.5
        )
        session = await hf.given("s", user("joke?"), reply, user("No.", metadata={"source": "asr"}))
        done = await session.interrupt(content=HEARD, timestamp=99)
        assert (done["interrupted"], done["stopped"], done["entry"]["content"]) == (True, False, HEARD)
        assert await describe(session) == [(0, "joke?"), (0, HEARD, JOKE), (1, "No.")]
        entry = (await session.messages())[1]
        kept = (entry["seq"], entry["agent"], entry["timestamp"], entry["pinned"], entry["importance"])
        assert kept == (3, "bot", 7, True, 0.5)
        marks = {"interrupted": True, "interrupt_timestamp": 99, "original": JOKE}
        assert entry["metadata"] == {"source": "llm", "x": 1, **marks}
        gone = [(one["seq"], one["retired_by"]) for one in await session.messages(retired=True) if "retired_by" in one]
        assert gone == [(1, 3), (2, 3)]
        assert texts((await session.context())["messages"]) == ["joke?", HEARD, "No."]


@pytest.mark.parametrize(
    ("heard", "text"),
    [
        ({"content": "Why did the scarecrow"}, "Why did the scarecrow"),
        ({"content": "Why  did\nthe scarecrow…"}, "Why did the scarecrow"),
        ({"content": "Why did the scarecrow \u2013"}, "Why did the scarecrow"),
        ({"content": "Why did the scarecrow."}, "Why did the scarecrow"),
        ({"chars": 3}, "Why"),
        ({"chars": 22}, HEARD),
        ({"ms": 1800, "total_ms": 5200}, "Why did the scarecrow win"),
        ({"ms": 1000}, "Why did the"),
        ({"chars": 0}, None),
        ({"ms": 0}, None),
    ],
)
@through(*DOORS)
async def test_what_was_heard_is_said_in_one_of_several_ways(world: World, heard: Any, text: str | None) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("joke?"), assistant(JOKE))
        done = await session.interrupt(**heard)
        assert done["interrupted"]
        found = texts(await session.messages())
        if text is None:
            assert (done["entry"], found) == (None, ["joke?"])
        else:
            assert found[1].rstrip() == text.rstrip()


@pytest.mark.parametrize("heard", [{}, {"content": JOKE}, {"chars": 10_000}, {"ms": 10**6}, {"ms": 5, "total_ms": 5}])
@through(*DOORS)
async def test_a_reply_that_was_heard_completely_is_not_changed(world: World, heard: Any) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("joke?"), assistant(JOKE))
        version = (await session.info())["version"]
        done = await session.interrupt(**heard)
        assert (done["interrupted"], done["entry"]["content"], done["version"]) == (False, JOKE, version)


@through(*DOORS)
async def test_a_second_report_can_only_shorten_the_reply(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("joke?"), assistant(JOKE))
        for heard, text in ((22, HEARD), (40, HEARD), (3, "Why"), (3, "Why")):
            await session.interrupt(chars=heard)
            assert await describe(session) == [(0, "joke?"), (0, text, JOKE)]


@through(*DOORS)
async def test_a_repeated_report_that_nothing_was_heard_reaches_no_earlier_reply(world: World) -> None:
    """A client may retry after a lost answer. An earlier reply is reached by its turn."""
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("A"), user("b"), assistant("B"), user("b, still"))
        await session.interrupt(chars=0)
        left = await describe(session)
        with refused("no_reply", "turn 1"):
            await session.interrupt(chars=0)
        with refused("no_reply"):
            await session.interrupt(chars=0, turn_id=1)
        assert await describe(session) == left == [(0, "a"), (0, "A"), (1, "b"), (2, "b, still")]
        await session.interrupt(chars=0, turn_id=0)
        assert texts(await session.messages()) == ["a", "b", "b, still"]


@through(*DOORS)
@pytest.mark.parametrize(
    ("heard", "code", "param"),
    [
        ({"content": "Something else"}, "heard_mismatch", "content"),
        ({"chars": 1, "turn_id": 7}, "no_reply", None),
        ({"content": 5}, "invalid_request", "content"),
        ({"chars": -1}, "invalid_request", "chars"),
        ({"chars": "1"}, "invalid_request", "chars"),
        ({"content": "Why", "chars": 3}, "invalid_request", "chars"),
        ({"chars": 3, "ms": 3}, "invalid_request", "ms"),
        ({"total_ms": 1}, "invalid_request", "total_ms"),
        ({"ms": 1, "total_ms": 0}, "invalid_request", "total_ms"),
        ({"ms": -1}, "invalid_request", "ms"),
        ({"timestamp": "now"}, "invalid_request", "timestamp"),
        ({"chars": 3, "turn_id": "x"}, "invalid_request", "turn_id"),
    ],
)
async def test_a_wrong_report_changes_nothing(world: World, heard: Any, code: str, param: Any) -> None:
    """As an interruption, and with the next message. The error does not quote the conversation."""
    async with world.open() as hf:
        session = await hf.given("s", user("joke?"), assistant(JOKE))
        version = (await session.info())["version"]
        with refused(code, param=param) as caught:
            await session.interrupt(**heard)
        assert JOKE not in str(caught.value)
        with refused(code):
            await session.turn("No.", interrupt=heard)
        assert (await session.info())["version"] == version


@through(*DOORS)
async def test_without_a_reply_there_is_nothing_to_interrupt(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        for heard in ({}, {"chars": 1}):
            with refused("no_reply"):
                await session.interrupt(**heard)
        await session.append(user("a"))
        with refused("no_reply"):
            await session.interrupt(chars=1)
        await session.turn("b", interrupt={"chars": 0})
        await session.append(assistant("secret"))
        await session.erase(2)
        with refused("no_reply", "erased"):
            await session.interrupt(content="sec")
        with refused("session_not_found"):
            await hf.session("gone").interrupt()


@through(*DOORS)
async def test_tools_before_the_cut_stay_and_later_ones_go(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *ROUNDS)
        await session.interrupt(content="Let me look. It is")
        assert texts(await session.messages()) == ["a", "Let me look.", "done", "It is"]
        await session.interrupt(content="Let me")
        assert await describe(session) == [(0, "a"), (0, "Let me", "Let me look.\n\nIt is five.")]


@through(*DOORS)
async def test_calls_without_results_are_dropped_whatever_was_heard(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), LOOK)
        assert (await session.interrupt())["interrupted"]
        assert await describe(session) == [(0, "a"), (0, "Let me look.", "Let me look.")]
        assert "tool_calls" not in (await session.messages())[1]
        await session.append(user("b"), calls(("d", "f", {})))
        await session.interrupt()
        assert (await describe(session))[-1] == (1, "b")


@through(*DOORS)
async def test_an_interruption_opens_a_closed_session_again(world: World) -> None:
    async with world.open(store="file") as hf:
        session = await hf.given("s", user("joke?"), assistant(JOKE))
        await session.close()
        await session.interrupt(chars=3)
        assert (await session.info())["status"] == "active"


@through(*DOORS)
async def test_secrets_are_redacted_in_what_was_heard(world: World) -> None:
    secret = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3  # made up
    async with world.open("redaction: {enabled: true}") as hf:
        session = await hf.given("s", user("a"), assistant(f"The key is {secret} and that is all."))
        await session.interrupt(content=f"The key is {secret} and")
        reply = (await session.messages())[1]
        assert reply["content"].endswith(" and")
        assert secret not in str(await session.export(retired=True))


# -- with the next message -----------------------------------------------------------------


@through(*DOORS)
async def test_the_reply_is_cut_in_the_write_of_the_next_message(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", CONTENTS[1], assistant(JOKE, turn_id=2))
        version = (await session.info())["version"]
        turn = await session.turn(CONTENTS[3], interrupt={"chars": 22, "timestamp": 1678905225})
        expected = [one["content"] for one in CONTENTS[1:4]]
        assert texts(turn["messages"]) == expected
        assert (await session.info())["version"] == version + 1
        assert (await session.history())[1]["metadata"] == CUT


@through(*DOORS)
async def test_a_changed_record_in_a_resent_history_cuts_the_reply(world: World) -> None:
    """With tools before it, too. A client that heard nothing sends an empty record. What `interrupt` says goes before."""
    async with world.open() as hf:
        log = [CONTENTS[1], calls(("c", "f", {})), result("c", "found"), assistant(JOKE)]
        session = await hf.given("s", *log)
        turn = await session.turn(*CONTENTS[1:4], reply="A story.")
        assert texts(turn["messages"])[-2:] == [HEARD, CONTENTS[3]["content"]]
        roles = [one["role"] for one in await session.messages()]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert (await session.history())[1]["metadata"] == CUT
        other = await hf.given("t", CONTENTS[1], assistant(JOKE))
        await other.turn(CONTENTS[1], {**CONTENTS[2], "content": ""}, CONTENTS[3])
        assert texts(await other.messages()) == [CONTENTS[1]["content"], CONTENTS[3]["content"]]
        named = await hf.given("u", CONTENTS[1], assistant(JOKE))
        await named.turn({**CONTENTS[2], "content": ""}, CONTENTS[3], interrupt={"chars": 3})
        assert texts(await named.messages()) == [CONTENTS[1]["content"], "Why", CONTENTS[3]["content"]]


@through(*DOORS)
async def test_a_branch_that_is_continued_again_is_not_cut(world: World) -> None:
    """The last reply of the log, of which the report speaks, is of another branch."""
    async with world.open() as hf:
        begin, branch = [user("A story?"), assistant("Once upon a time.")], [user("joke?"), assistant(JOKE)]
        session = await hf.given("s", *begin, *branch)
        await session.turn(*begin, user("Another?"), reply="Another.")
        await session.turn(*begin, *branch, user("No."), reply="Pity.", interrupt={"chars": 3})
        assert texts(await session.messages()) == texts([*begin, *branch, user("No."), assistant("Pity.")])


@through(*DOORS)
@pytest.mark.parametrize("knows", [HEARD, JOKE, "Why did the scarecrow win an award?", "Why did"])
@pytest.mark.parametrize("more", [0, 1, 2])
async def test_a_client_with_any_part_of_the_reply_continues_the_session(world: World, knows: str, more: int) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("joke?"), assistant(JOKE), *([user("No.")] if more else []))
        await session.interrupt(content=HEARD)
        history = [user("joke?"), assistant(knows), *([user("No.")] if more else [])]
        if more == 2:
            await session.append(assistant("Well."))
            history.append(assistant("Well."))
        await session.turn(*history, user("x"), reply="y")
        assert texts(await session.messages()) == ["joke?", HEARD, *texts(history[2:]), "x", "y"]


@through(*DOORS)
@pytest.mark.parametrize("knows", ["Let me look.\n\nIt is five.", "Let me look.\n\nIt is", "Let me look."])
@pytest.mark.parametrize("heard", ["Let me look. It is", "Let me"])
async def test_a_client_with_the_texts_of_rounds_continues_the_session(world: World, knows: str, heard: str) -> None:
    """It received all texts of the reply as one message."""
    async with world.open() as hf:
        session = await hf.given("s", *ROUNDS)
        await session.interrupt(content=heard)
        before = await describe(session)
        await session.turn(user("a"), assistant(knows), user("b"))
        assert await describe(session) == [*before, (1, "b")]


@pytest.mark.parametrize("store", ["memory", "postgres", "mysql"])
@through("library")
async def test_erased_texts_do_not_return_through_interruptions(world: World, store: str) -> None:
    """Neither from what a client resends, nor from copies that an interruption wrote."""
    with fresh_store(store, world.folder) as url:
        async with world.open(store=url) as hf:
            session = await hf.given("s", user("a"), assistant(JOKE), user("my pin is zebra"))
            await session.erase(2)
            await session.interrupt(content=HEARD)
            sent = [user("a"), assistant(JOKE), user("my pin is zebra"), assistant("B"), user("c")]
            await session.turn(*sent)
            assert texts(await session.messages()) == ["a", HEARD, "[erased]", "B", "c"]
            await session.interrupt(chars=0)
            await session.interrupt(content="Why", turn_id=0)
            assert texts(await session.messages())[1:3] == ["Why", "[erased]"]
            assert "zebra" not in str(await session.export(retired=True))
            other = await hf.given("t", user("a"), assistant(JOKE), user("my pin is zebra"))
            await other.interrupt(content=HEARD)
            fork = await other.fork(id="f")
            await other.erase(4)
            await other.erase(3)
            for one in (other, fork):
                assert "zebra" not in str(exported := await one.export(retired=True))
                assert HEARD not in str(exported)
            assert await (await session.native()).verify() > 0


# -- running turns ---------------------------------------------------------------------


async def test_a_running_stream_ends_normally_and_keeps_what_was_heard() -> None:
    gate = Gate()
    async with gateway([Reply(text="one two three", hold=gate, hold_after=2), "ok"]) as served:
        said = [user("Count.")]
        extra = {"session_id": "s"}
        stream = await served.openai.chat.completions.create(model="m", messages=said, stream=True, extra_body=extra)
        chunks = []
        async for chunk in stream:
            chunks.append(chunk)
            if chunk.choices[0].delta.content:
                break
        done = await ask(served.http, "POST", "/v1/sessions/s/interrupt", {})
        assert (done["stopped"], done["entry"]["content"]) == (True, "one ")
        chunks += [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[-1].model_extra["session"]["interrupted"] is True
        again = await ask(served.http, "POST", "/v1/sessions/s/interrupt", {})
        assert (again["stopped"], again["interrupted"], again["version"]) == (False, True, done["version"])
        answer = await served.chat([*said, assistant("one two"), user("b")])
        assert answer["session"]["reconciled"] in ("continued", "edited")
        gate.open()


async def test_a_waiting_client_gets_a_409_and_should_not_retry() -> None:
    gate = Gate()
    async with gateway([Reply(text="x", hold=gate)]) as served:
        first = asyncio.create_task(served.chat("a"))
        await served.upstream.until(lambda: served.upstream.requests)
        done = await ask(served.http, "POST", "/v1/sessions/s/interrupt", {"chars": 0})
        assert (done["stopped"], done["entry"], done["interrupted"]) == (True, None, False)
        answer = await first
        assert (answer["status"], answer["error"]["code"]) == (409, "turn_interrupted")
        assert answer["headers"]["x-should-retry"] == "false"
        assert texts(await served.rest.session().messages()) == ["a"]
        gate.open()


@through("library")
async def test_a_turn_block_is_stopped_and_an_earlier_reply_stays(world: World) -> None:
    """Unless an earlier turn is named: then the running turn goes on."""
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant(JOKE))
        handle = await session.native()
        other = await session.fork(id="other")

        async def work(*said: str, until_stopped: bool = True) -> None:
            async with handle.turn("b") as turn:
                for text in said:
                    turn.add(text)
                inside.set()
                if until_stopped:
                    await until(lambda: turn.interrupted)
                await go_on.wait()

        for said in ((), ("half",)):
            inside, go_on = asyncio.Event(), asyncio.Event()
            running = asyncio.create_task(work(*said))
            await inside.wait()
            stopping = asyncio.create_task(session.interrupt(chars=2, **({"turn_id": 1} if said else {})))
            await asyncio.sleep(0)
            go_on.set()
            done = await stopping
            await asyncio.wait([running])
            assert done["stopped"]
            assert (done["entry"] or {}).get("content") == ("ha" if said else None)
            assert texts(await session.messages())[1] == JOKE
        handle, inside, go_on = await other.native(), asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(work("kept", until_stopped=False))
        await inside.wait()
        assert not (await other.interrupt(chars=3, turn_id=0))["stopped"]
        go_on.set()
        await running
        assert texts(await other.messages()) == ["a", "Why", "b", "kept"]


@through("library", "connect", "rest")
async def test_what_was_said_after_an_interrupted_reply_stays(world: World) -> None:
    """A message that came in while the reply was spoken follows what was heard of it, whoever reports the interruption."""
    for how in ("at once", "with the next turn"):
        async with world.open() as hf:
            said = (user("Tell me."), assistant("It was a dark and stormy night."), user("Wait."))
            session = await hf.given("s", *said)
            if how == "at once":
                await session.interrupt(content="It was a dark")
                assert texts(await session.messages()) == ["Tell me.", "It was a dark", "Wait."]
            else:
                await session.turn(user("Go on."), interrupt={"content": "It was a dark"}, reply="And then?")
                assert texts(await session.messages()) == ["Tell me.", "It was a dark", "Wait.", "Go on.", "And then?"]


@through(*DOORS)
async def test_of_a_very_long_reply_the_text_before_its_tools_is_left_out_first(world: World) -> None:
    """The generated text is kept, as long as the metadata of a message may have it."""
    before, after = "Let me look. " * 50_000, "It is five. " * 60_000
    async with world.open() as hf:
        look = {**calls(("c", "f", {})), "content": before}
        session = await hf.given("s", user("a"), look, result("c", "done"), assistant(after))
        await session.interrupt(chars=len(before) + 10)
        metadata = (await session.messages())[-1]["metadata"]
        assert (metadata.get("preface"), metadata["original"] == after) == (None, True)
