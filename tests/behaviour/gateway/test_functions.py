"""OpenAI's deprecated functions: old histories, old requests and old upstreams become tool rounds."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import assistant, gateway, user
from tests.behaviour.kit.anthropic import AnthropicUpstream

Row = dict[str, Any]
FUNCTIONS = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name in ("get", "put")]
CALL = {"name": "get", "arguments": '{"x": 1}'}


def asked(**call: str) -> Row:
    return assistant(None, function_call={**CALL, **call})


def answered(content: str, name: str = "get") -> Row:
    return {"role": "function", "name": name, "content": content}


async def test_an_old_history_becomes_tool_rounds() -> None:
    """A call and its result have the same id, in each request again. The reply says what was converted."""
    history = [
        user("Time?"),
        asked(),
        answered("12:00"),
        asked(name="put"),
        answered("done", "put"),
        assistant("Noon."),
    ]
    async with gateway(["First.", "Second."]) as served:
        first = await served.chat([*history, user("Thanks.")])
        assert [one["code"] for one in first["session"]["warnings"]] == ["functions_converted"]
        sent = served.sent["messages"]
        assert [one["role"] for one in sent] == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
        ids = [one["tool_calls"][0]["id"] for one in sent if "tool_calls" in one]
        assert ids == [one["tool_call_id"] for one in sent if one["role"] == "tool"]
        assert ids[0] != ids[1]
        assert "function_call" not in str(sent)
        second = await served.chat([*history, user("Thanks."), assistant("First."), user("And?")])
        assert second["session"]["reconciled"] == "continued"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("upstream", ["chat", "anthropic", "old"])
async def test_an_old_client_gets_a_function_call_and_answers_it(upstream: str, stream: bool) -> None:
    """It resends the history with the call, which has no id, and its result."""
    reply = Reply(tool_calls=[("get", {"x": 1})])
    if upstream == "old":
        deltas = [{"function_call": {"name": "get", "arguments": ""}}, {"function_call": {"arguments": '{"x": 1}'}}]
        chunks = [{"choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas]
        reply = Reply(chunks=[*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "function_call"}]}])
    claude: Row = {
        "upstream": AnthropicUpstream([reply, "Noon."]),
        "llm": {"provider": "anthropic", "model": "claude-sonnet-4-5"},
    }
    async with gateway([reply, "Noon."], **(claude if upstream == "anthropic" else {})) as served:
        more: Row = {"functions": FUNCTIONS, "function_call": "auto", "extra_body": {"session_id": "s"}}
        create: Any = served.openai.chat.completions.create
        answer = await create(model="default", messages=[user("Time?")], stream=stream, **more)
        if stream:
            got: list[Row] = [one.choices[0].to_dict() async for one in answer if one.choices]
            made = [one["delta"]["function_call"] for one in got if one["delta"].get("function_call")]
            call: Row = {key: "".join(one.get(key) or "" for one in made) for key in ("name", "arguments")}
            reason, message = got[-1]["finish_reason"], assistant(None, function_call=call)
        else:
            message, reason = answer.choices[0].message.to_dict(), answer.choices[0].finish_reason
            call = message["function_call"]
            assert "tool_calls" not in message
        assert (call["name"], call["arguments"].replace(" ", ""), reason) == ("get", '{"x":1}', "function_call")
        last = await create(model="default", messages=[user("Time?"), message, answered("12:00")], **more)
        assert last.choices[0].message.content == "Noon."
        assert [role for role, _ in await served.log()] == ["user", "assistant", "tool", "assistant"]
        assert [
            one["name"] if upstream == "anthropic" else one["function"]["name"] for one in served.sent["tools"]
        ] == ["get", "put"]


async def test_of_two_calls_an_old_client_gets_the_first() -> None:
    async with gateway([Reply(tool_calls=[("get", {"x": 1}), ("put", {"y": 2})])]) as served:
        create: Any = served.openai.chat.completions.create
        answer = await create(model="default", messages=[user("Time?")], functions=FUNCTIONS, stream=True)
        made = [one.choices[0].delta.function_call async for one in answer if one.choices]
        assert [one.name for one in made if one and one.name] == ["get"]
        assert "".join(one.arguments or "" for one in made if one).replace(" ", "") == '{"x":1}'


async def test_a_result_needs_the_name_of_its_function() -> None:
    async with gateway(()) as served:
        answer = await served.chat([user("hi"), {"role": "function", "content": "x"}])
        assert (answer["status"], answer["error"]["param"]) == (400, "messages[1].name")
