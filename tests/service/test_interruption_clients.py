"""What a client sends after an interruption: it continues the session, however much of the cut reply it knows."""

from __future__ import annotations

import asyncio

from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import parse_message
from tests.service.turns_kit import REF, log, open_stage, say
from tests.service.voice_kit import (
    MEMORY,
    describe_log,
    make_reply,
    open_session,
    user,
)


async def test_edited_branch_can_be_resumed() -> None:
    """An interruption does not make Holdfast forget what an edit retired."""
    async with open_session(user("joke?"), make_reply("One."), user("more")) as session:
        async with session.turn([user("joke?"), make_reply("Two."), user("more")]) as turn:
            turn.add("Two more.")
        async with session.turn([user("joke?"), make_reply("One."), user("other")]) as turn:
            turn.add("Other.")
        assert [text for _, _, text, *_ in await describe_log(session)] == ["joke?", "One.", "other", "Other."]


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
