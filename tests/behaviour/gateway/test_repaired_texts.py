"""Texts with half a surrogate pair, as JavaScript leaves them when it cuts an emoji in two: repaired, and reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import World, assistant, calls, gateway, result, texts, through, user

Row = dict[str, Any]
HALF, WHOLE = "list: \ud83d…", "list: \ufffd…"
CALL = {"id": f"c{HALF}", "name": HALF}
TOOL = {"name": "f", "description": HALF}
HELD: dict[str, tuple[str, Row, str]] = {
    "content": ("chat/completions", {"messages": [user("hi"), assistant(HALF), user("so?")]}, "messages[1]"),
    "a part": ("chat/completions", {"messages": [user([{"type": "text", "text": HALF}])]}, "messages[0]"),
    "a nested field": ("chat/completions", {"messages": [user("hi", vendor={HALF: [HALF]})]}, "messages[0]"),
    "a call and its result": (
        "chat/completions",
        {"messages": [user("hi"), calls((CALL["id"], HALF, {"x": HALF})), result(CALL["id"], HALF)]},
        "messages[1]",
    ),
    "a tool": ("chat/completions", {"messages": [user("hi")], "tools": [{"type": "function", "function": TOOL}]}, "tools[0]"),
    "system": ("messages", {"system": HALF, "messages": [user("hi")]}, "system"),
    "an input": (
        "messages",
        {
            "messages": [
                user("hi"),
                {"role": "assistant", "content": [{"type": "tool_use", **CALL, "input": {"x": HALF}}]},
                user([{"type": "tool_result", "tool_use_id": CALL["id"], "content": HALF}]),
            ]
        },
        "messages[1]",
    ),
    "input": ("responses", {"input": HALF}, "input"),
    "an item": ("responses", {"input": [user("hi"), {"type": "function_call", "call_id": "c", "name": "f", "arguments": HALF}, {"type": "function_call_output", "call_id": "c", "output": HALF}]}, "input[1]"),
    "instructions": ("responses", {"input": "hi", "instructions": HALF}, "instructions"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body", "place"), HELD.values(), ids=HELD)
async def test_half_a_pair_is_replaced_and_reported(path: str, body: Row, place: str) -> None:
    async with gateway(["ok"]) as served:
        answer = await served.http.post(
            f"/v1/{path}", content=json.dumps({"model": "default", "max_tokens": 9, **body})
        )
        assert answer.status_code == 200, answer.text
        warnings = answer.json()["session"]["warnings"]
        assert [(one["code"], one["param"]) for one in warnings][:1] == [("text_repaired", place)]
        assert "\ufffd" in json.dumps(served.sent, ensure_ascii=False)


@pytest.mark.parametrize("field", ["session_id", "user_id", "user", "agent", "safety_identifier"])
async def test_half_a_pair_in_an_id_is_refused(field: str) -> None:
    """Two ids could become one."""
    async with gateway(()) as served:
        answer = await served.http.post(
            "/v1/chat/completions", content=json.dumps({"messages": [user("hi")], field: HALF})
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(("empty", "sent"), [("", ""), ([], "[empty message]")], ids=["text", "parts"])
async def test_an_empty_message_of_the_past_is_accepted(empty: Any, sent: str) -> None:
    """A client that dropped a picture keeps the message around it. As the question it has no meaning. OpenAI accepts an empty text."""
    async with gateway(["ok"]) as served:
        body = {"messages": [user(empty), assistant("Yes?"), user("hi")]}
        answer = await served.http.post("/v1/chat/completions", json=body)
        warnings = answer.json()["session"]["warnings"]
        assert [(one["code"], one["param"]) for one in warnings] == [("empty_message", "messages[0].content")]
        assert texts(served.sent["messages"]) == [sent, "Yes?", "hi"]
        last = await served.http.post("/v1/chat/completions", json={"messages": [user(empty)]})
        assert (last.status_code, last.json()["error"]["param"]) == (400, "messages[0].content")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_half_a_pair_of_a_model_is_replaced(stream: bool) -> None:
    key = "delta" if stream else "message"
    answer = json.dumps({"choices": [{"index": 0, key: {"content": HALF}, "finish_reason": "stop"}]}).encode()
    async with gateway([Reply(raw=[b"data: " + answer + b"\n\ndata: [DONE]\n\n" if stream else answer])]) as served:
        assert (await served.chat("hi"))["choices"][0]["message"]["content"] == WHOLE
        assert (await served.entries())[-1]["content"] == WHOLE


APPENDED: list[Row] = [user(HALF), assistant(HALF), user([{"type": "text", "text": HALF}], name=HALF)]


@through("library", "connect", "cli")
async def test_half_a_pair_is_replaced_in_what_programs_append(world: World) -> None:
    async with world.open() as hf:
        assert texts(await (await hf.given("s", *APPENDED)).messages()) == [WHOLE] * 3


async def test_half_a_pair_is_replaced_in_appends_over_http() -> None:
    async with gateway(()) as served:
        await served.rest.given("s")
        sent = json.dumps({"messages": APPENDED})
        headers = {"Idempotency-Key": "k"}
        assert (await served.http.post("/v1/sessions/s/messages", content=sent, headers=headers)).status_code == 200
        assert [text for _, text in await served.log()][:2] == [WHOLE] * 2


@through("library")
async def test_two_halves_become_the_character_that_they_are(world: World) -> None:
    async with world.open() as hf:
        assert texts(await (await hf.given("s", user("\ud83d\ude00"))).messages()) == ["😀"]


@pytest.mark.parametrize(("time", "unit"), [(1_700_000_000, "seconds"), (1_700_000_000_000_000, "microseconds"), (1_700_000_000_000, None), (5, None)])  # fmt: skip
async def test_a_time_in_another_unit_is_kept_and_reported(time: int, unit: str | None) -> None:
    async with gateway(["ok"]) as served:
        message = user("hi", timestamp=time)
        answer = await served.http.post("/v1/chat/completions", json={"model": "default", "messages": [message]})
        warnings = answer.json()["session"].get("warnings", [])
        assert [one["message"].rpartition(" ")[2] for one in warnings] == ([unit] if unit else [])
        (entry, _) = (await served.http.get(f"/v1/sessions/{answer.json()['session_id']}/messages")).json()["data"]
        assert entry["timestamp"] == time
