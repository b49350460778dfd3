"""Parameters of a single turn, changes of the system prompt, and tool results in the library."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.errors import IdempotencyConflict, InvalidMessage, InvalidRequest
from tests.edges.server import gateway

LONG = [{"role": role, "content": "word " * 60} for _ in range(10) for role in ("user", "assistant")]
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "found"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}],
}


async def test_strategy_and_budget_apply_to_one_turn() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append(LONG)
        async with session.turn("short", budget=300, strategy="token_window") as turn:
            assert turn.explanation()["strategy"]["strategy"] == "token_window"
            assert len(turn.messages) < 8
            turn.add("ok")
        async with session.turn("whole") as turn:
            assert len(turn.messages) == len(LONG) + 3
            turn.add("ok")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"foo": 1}, TypeError),
        ({"sesion_queue": "reject"}, TypeError),
        ({"strategy": "digets"}, InvalidRequest),
        ({"budget": 0}, InvalidRequest),
        ({"budget": "300"}, InvalidRequest),
        ({"budget": 300, "strategy": "none"}, InvalidRequest),
    ],
)
async def test_invalid_turn_options_are_rejected(given: dict[str, Any], error: type[Exception]) -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        with pytest.raises(error):
            async with session.turn("hello", **given):
                pass
        assert await session.messages() == []


async def test_send_accepts_strategy_and_budget() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append(LONG)
        await session.send("short", budget=300, strategy="token_window")
        with pytest.raises(InvalidRequest):
            await session.send("none", strategy="digets")


async def test_changed_system_prompt_is_stored() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        await hf.session("s", system="Be old.")
        session = await hf.session("s", system="Be new.")
        async with session.turn("hello") as turn:
            assert turn.messages[0] == {"role": "system", "content": "Be new."}
        version = (await session.info()).version
        for system in ("Be new.", None):
            assert (await (await hf.session("s", system=system)).info()).version == version
        assert [one.text for one in (await session.info()).system_messages] == ["Be new."]


async def test_changed_system_prompt_keeps_the_carried_over_summary() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        await (await hf.session("before")).append(LONG[:2])
        await hf.session("s", system="Be old.", carry_over="before")
        texts = [one.text for one in (await (await hf.session("s", system="Be new.")).info()).system_messages]
        assert texts[0] == "Be new."
        assert len(texts) == 2
        assert "conversation-" in texts[1]


async def test_tool_result_without_its_call_is_rejected() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        for _ in range(2):
            with pytest.raises(InvalidMessage, match="the result of call 'c1' has no matching call"):
                async with session.turn(RESULT):
                    pass
            await session.append("hello")
        assert len(await session.messages()) == 2


async def test_late_or_repeated_tool_result_is_accepted() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append(["find it", CALL, {"role": "user", "content": "well?"}])
        for _ in range(2):
            async with session.turn(RESULT) as turn:
                turn.add("There.")
        assert [one["role"] for one in await session.messages()].count("tool") == 2


async def test_gateway_creates_no_session_for_a_tool_result_without_its_call() -> None:
    async with gateway(lambda _: "ok") as (served, upstream):
        for session_id in ("s", None):
            answer = await served.chat([RESULT], session_id)
            assert (answer["status"], answer["error"]["code"]) == (400, "invalid_message")
        assert not upstream.requests
        assert not (await served.hf.sessions()).sessions


async def test_a_turn_with_the_same_key_writes_its_messages_once() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        for _ in range(2):
            async with session.turn("a", idempotency_key="k") as turn:
                assert [message["content"] for message in turn.messages] == ["a"]
        with pytest.raises(IdempotencyConflict):
            await session.begin_turn("b", idempotency_key="k")
        assert len(await session.messages()) == 1
