"""What a client sends after an interruption: it continues the session, however much of the cut reply it knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.domain.messages import Message
from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import parse_message
from tests.service.matching_kit import find_landing
from tests.service.turns_kit import REF, SHARED, log, open_stage, say
from tests.service.voice_kit import (
    HEARD,
    MEMORY,
    NOW,
    calls,
    describe_log,
    make_reply,
    open_session,
    open_session_and_holdfast,
    result,
    user,
)
from tests.stores.servers import place
from tests.unit.seed_voice import JOKE
from tests.words import says


@pytest.mark.parametrize("knows", [HEARD, JOKE, "Why did the scarecrow win an award?", "Why did"])
@pytest.mark.parametrize("more", [0, 1, 2])
async def test_client_with_any_part_of_the_reply_continues_the_session(knows: str, more: int) -> None:
    """It knows the whole reply, the heard text, or any prefix; also later, and if its next message was already
    stored.
    """
    async with open_session(user("joke?"), make_reply(JOKE), *([user("No.")] if more else [])) as session:
        await session.interrupt(HEARD)
        history = [user("joke?"), make_reply(knows)]
        if more:
            history += [user("No.")]
        if more == 2:
            await session.append([make_reply("Well.")])
            history += [make_reply("Well.")]
        async with session.turn([*history, user("x")]) as turn:
            turn.add(make_reply("y"))
        after = [one["content"] for one in history[2:]]
        assert [text for _, _, text, *_ in await describe_log(session)] == ["joke?", HEARD, *after, "x", "y"]


async def test_client_without_a_session_id_is_matched() -> None:
    async with open_session_and_holdfast(user("joke?"), make_reply(JOKE)) as (hf, session):
        await session.interrupt(HEARD)
        for knows in (HEARD, JOKE, "Why did the"):
            sent = [
                Message(role=role, content=text)
                for role, text in (("user", "joke?"), ("assistant", knows), ("user", "x"))
            ]
            found = await find_landing(hf.store, "default", sent)
            assert found is not None, knows
            assert (found.place.ref, found.place.live, found.sent) == (REF, True, 2)


async def test_edited_branch_can_be_resumed() -> None:
    """An interruption does not make Holdfast forget what an edit retired."""
    async with open_session(user("joke?"), make_reply("One."), user("more")) as session:
        async with session.turn([user("joke?"), make_reply("Two."), user("more")]) as turn:
            turn.add("Two more.")
        async with session.turn([user("joke?"), make_reply("One."), user("other")]) as turn:
            turn.add("Other.")
        assert [text for _, _, text, *_ in await describe_log(session)] == ["joke?", "One.", "other", "Other."]


async def test_client_with_texts_of_tool_rounds_continues_the_session() -> None:
    """It received all texts as one message."""
    sent = "Let me look.\n\nIt is five."
    tools = [
        user("a"),
        calls("Let me look."),
        result(),
        make_reply("It is five.", metadata={"preface": "Let me look.\n\n"}),
    ]
    for knows in (sent, "Let me look.\n\nIt is", "Let me look."):
        for heard in ("Let me look. It is", "Let me"):
            async with open_session(*tools) as session:
                await session.interrupt(heard)
                before = await describe_log(session)
                async with session.turn([user("a"), make_reply(knows), user("b")]):
                    pass
                assert (await describe_log(session)) == [*before, (1, "user", "b")], (knows, heard)


@SHARED
async def test_erased_message_after_the_reply_stays_erased(kind: str, tmp_path: Any) -> None:
    """A client that resends the whole history continues the session, and the erased text is not stored again."""
    with place(kind, tmp_path) as url:
        async with holdfast.open(url, clock=lambda: NOW) as hf:
            session = await hf.session("s")
            await session.append([user("a"), make_reply(JOKE), user("my pin is 7461")])
            await hf.erase(REF, 2)
            await session.interrupt(HEARD)
            await session.verify()
            sent = [user("a"), make_reply(JOKE), user("my pin is 7461"), make_reply("B"), user("c")]
            async with session.turn(sent):
                pass
            log = await session.entries()
            assert [entry.message.text for entry in log] == ["a", HEARD, "[erased]", "B", "c"]
            assert [entry.erased for entry in log] == [False, False, True, False, False]
            await session.interrupt(chars=0)
            await session.interrupt("Why", turn_id=0)
            assert [(entry.message.text, entry.erased) for entry in await session.entries()][1:3] == [
                ("Why", False),
                ("[erased]", True),
            ]
            assert not says(str(await hf.export(REF, retired=True)), "7461")
            await session.verify()


@SHARED
async def test_erasing_a_message_erases_what_an_interruption_replaced(kind: str, tmp_path: Any) -> None:
    """A cut reply and the messages after it are written again. The log, the fork and the export lose the old text as well."""
    with place(kind, tmp_path) as url:
        async with holdfast.open(url, clock=lambda: NOW) as hf:
            session = await hf.session("s")
            await session.append([user("a"), make_reply(JOKE), user("my pin is 7461")])
            await session.interrupt(HEARD)
            fork = await session.fork()
            live = await session.entries()
            assert [(entry.seq, entry.message.text) for entry in live] == [(0, "a"), (3, HEARD), (4, "my pin is 7461")]
            await hf.erase(REF, 4)
            await hf.erase(REF, 3)
            for ref in (REF, fork.ref):
                exported = str(await hf.export(ref, retired=True))
                assert not says(exported, "7461")
                assert HEARD not in exported
            await session.verify()


@SHARED
async def test_erased_message_of_a_resumed_branch_does_not_return(kind: str, tmp_path: Any) -> None:
    """A client that returns to an earlier branch has the branch written again, and erasing a message erases both."""
    with place(kind, tmp_path) as url:
        async with holdfast.open(url, clock=lambda: NOW) as hf:
            session, pin = await hf.session("s"), {**result(), "content": "pin 7461"}
            await session.append([user("a"), make_reply("One."), user("b"), calls(None), pin, make_reply("Found.")])
            edited = [user("a"), make_reply("One."), user("c")]
            async with session.turn(edited) as turn:
                turn.add("Two.")
            branch = [user("a"), make_reply("One."), user("b"), make_reply("Found."), user("d")]
            async with session.turn(branch) as turn:
                turn.add("Three.")
            (found,) = [entry for entry in await session.entries() if says(entry.message.text, "7461")]
            await hf.erase(REF, found.seq)
            assert not says(str(await hf.export(REF, retired=True)), "7461")
            for sent in (edited, branch):
                async with session.turn(sent) as turn:
                    turn.add("Four.")
            assert not says(str(await session.messages()), "7461")
            await session.verify()


async def test_retry_returns_its_reply_after_an_earlier_one_was_cut() -> None:
    """The interruption moved the question; the reply is returned again, however often the earlier reply is shortened."""
    async with open_stage(MEMORY) as ([hf], stage):
        session = hf.handle(await hf.store.get(REF))

        async def ask() -> str:
            responder, incoming = hf.roster.find_responder(), (parse_message(user("b")),)
            request = TurnRequest(
                ref=REF, responder=responder, incoming=incoming, idempotency_key="k", fingerprint=b"b"
            )
            texts = [chunk["choices"][0]["delta"].get("content") async for chunk in respond(Turn(hf.engine, request))]
            return "".join(filter(None, texts))

        await say(hf, "a")
        stage.held = {"b"}
        running = asyncio.create_task(ask())
        await stage.until("b")
        for heard in ("re:", "re"):
            assert (await session.interrupt(heard, turn_id=0)).interrupted
        stage.go_on("b")
        assert await running == "re: b"
        for _ in range(2):
            assert await ask() == "re: b"
            assert await log(hf) == ["a", "re|", "b", "re: b"]
        await session.verify()
