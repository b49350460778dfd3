"""A turn of the library reports what the user heard of the last reply, as a chat request does."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.errors import HeardMismatch, InvalidRequest, NoReply
from tests.unit.seed_voice import CONTENTS, CUT, JOKE

ASKED, ANSWERED, THEN = CONTENTS[1], CONTENTS[2], CONTENTS[3]
WHOLE = {"role": "assistant", "content": JOKE}


async def start_session(hf: holdfast.Holdfast) -> Any:
    session = await hf.session("s")
    await session.append([ASKED, WHOLE])
    return session


@pytest.mark.parametrize("way", ["turn", "send", "record"])
async def test_reply_is_corrected_in_the_same_write_as_the_new_message(way: str) -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await start_session(hf)
        version = (await session.info()).version
        said = {"chars": 22, "timestamp": 1678905225}
        if way == "send":
            await session.send(THEN, interrupt=said)
        else:
            given = {"messages": THEN, "interrupt": said} if way == "turn" else {"messages": [ASKED, ANSWERED, THEN]}
            async with session.turn(**given) as turn:
                assert [one["content"] for one in turn.messages] == [
                    ASKED["content"],
                    ANSWERED["content"],
                    THEN["content"],
                ]
                assert (await session.info()).version == version + 1
                turn.add({"role": "assistant", "content": "A story."})
        records = await session.history()
        assert [one["content"] for one in records[:3]] == [one["content"] for one in (ASKED, ANSWERED, THEN)]
        assert records[1]["metadata"] == CUT
        assert await session.verify()


async def test_tools_of_an_interrupted_reply_are_kept() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    log = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
        WHOLE,
    ]
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append(log)
        async with session.turn([ASKED, ANSWERED, THEN]) as turn:
            turn.add({"role": "assistant", "content": "A story."})
        roles = [entry.message.role for entry in await session.entries()]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert (await session.entries())[3].message.text == ANSWERED["content"]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"content": "Knock knock."}, HeardMismatch),
        ({"chars": 3, "turn_id": 9}, NoReply),
        ({"chars": 3, "ms": 5}, InvalidRequest),
        ({"letters": 3}, InvalidRequest),
    ],
)
async def test_invalid_interruptions_are_rejected_and_nothing_is_written(
    said: dict[str, Any], error: type[Exception]
) -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await start_session(hf)
        version = (await session.info()).version
        with pytest.raises(error):
            async with session.turn(THEN, interrupt=said):
                raise AssertionError("the turn begins")
        with pytest.raises(error):
            await session.send(THEN, interrupt=said)
        assert [entry.message.text for entry in await session.entries()] == [ASKED["content"], JOKE]
        assert (await session.info()).version == version
