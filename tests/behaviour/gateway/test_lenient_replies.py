"""Streams of providers that do it their own way: what the clients of each API get, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import Served, apis, gateway, user
from tests.behaviour.kit.anthropic import AnthropicUpstream

Row = dict[str, Any]
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in "fgh"
]
OURS: Any = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in "fgh"]


def call(**delta: Any) -> Row:
    return {"tool_calls": [delta]}


def stream(*deltas: Row, reason: str = "stop", **more: Any) -> Reply:
    """Return a reply that consists of these deltas."""
    chunks = [{"id": "chatcmpl-1", "choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas]
    last = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more}
    return Reply(chunks=[*chunks, last])


async def ask(served: Served, api: str, streamed: bool) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return the reasoning, the text, and names and inputs of the calls that a client gets."""
    if api == "messages":
        message = await served.ask("Go", stream=streamed, tools=OURS, session_id="s")
        blocks = [block.to_dict() for block in message.content]
        made = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        thoughts = "".join(block.get("thinking", "") for block in blocks)
        return thoughts, "".join(block.get("text", "") for block in blocks), made
    if api == "responses":
        create: Any = served.openai.responses.create
        tools = [{"type": "function", "strict": False, **one["function"]} for one in TOOLS]
        answer = await create(model="default", input="Go", tools=tools, stream=streamed, extra_body={"session_id": "s"})
        if streamed:
            answer = [event async for event in answer][-1].response
        items = [item.to_dict() for item in answer.output]
        thoughts, text = (
            "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])
            for kind in ("reasoning", "message")
        )
        return (
            thoughts,
            text,
            [(one["name"], json.loads(one["arguments"] or "{}")) for one in items if "arguments" in one],
        )
    if streamed:
        async with served.openai.chat.completions.stream(
            model="default", messages=[user("Go")], tools=TOOLS, extra_body={"session_id": "s"}
        ) as events:
            answer = (await events.get_final_completion()).to_dict()
    else:
        answer = await served.chat("Go", tools=TOOLS)
    message = answer["choices"][0]["message"]
    functions = [one["function"] for one in message.get("tool_calls") or ()]
    assert len({one["id"] for one in message.get("tool_calls") or ()}) == len(functions)
    made = [(one["name"], json.loads(one["arguments"] or "{}")) for one in functions]
    assert answer["choices"][0]["finish_reason"] == ("tool_calls" if made else "stop")
    return message.get("reasoning_content") or "", message.get("content") or "", made


INTERLEAVED = (
    {"role": "assistant", "content": "", "tool_calls": None},
    {"reasoning_content": "hm "},
    call(index=0, id="a", function={"name": "f", "arguments": '{"x"'}),
    {"content": "One "},
    call(index=1, id="b", function={"name": "g", "arguments": '{"y":'}),
    {"reasoning_content": "so"},
    call(index=0, function={"arguments": ":1}"}),
    {"content": "two."},
    call(index=1, function={"arguments": "2}"}),
)
CASES: dict[str, tuple[Reply, tuple[str, str, list[tuple[str, Any]]]]] = {
    "interleaved calls, text and reasoning": (
        stream(*INTERLEAVED),
        ("hm so", "One two.", [("f", {"x": 1}), ("g", {"y": 2})]),
    ),
    "all calls are numbered 0": (
        stream(
            call(index=0, id="a", function={"name": "f", "arguments": "{}"}),
            call(index=0, id="b", function={"name": "f", "arguments": '{"x":'}),
            call(index=0, function={"arguments": "1}"}),
        ),
        ("", "", [("f", {}), ("f", {"x": 1})]),
    ),
    "parallel calls with the same id": (
        stream(
            call(index=0, id="a", function={"name": "f", "arguments": "{"}),
            call(index=1, id="a", function={"name": "g", "arguments": '{"y":'}),
            call(index=0, id="a", function={"name": "f", "arguments": "}"}),
            call(index=1, id="a", function={"name": "g", "arguments": "2}"}),
        ),
        ("", "", [("f", {}), ("g", {"y": 2})]),
    ),
    "reasoning that is no text": (
        stream({"reasoning_content": {"text": "hm"}, "content": [{"type": "thinking", "thinking": " so"}]}),
        ("hm so", "", []),
    ),
    "calls without numbers": (
        stream(
            call(id="a", function={"name": "f", "arguments": "{"}),
            call(function={"arguments": "}"}),
            call(id="b", function={"name": "g", "arguments": '{"y"'}),
            call(id="b", function={"arguments": ":2}"}),
            call(function={"name": "h", "arguments": "{}"}),
        ),
        ("", "", [("f", {}), ("g", {"y": 2}), ("h", {})]),
    ),
    "all calls are numbered 0, without ids": (
        stream(
            call(index=0, id="", function={"name": "f", "arguments": '{"x":1}'}),
            call(index=0, id="", function={"name": "f", "arguments": '{"x":2}'}),
            call(index=0, id="", function={"name": "g", "arguments": "{}"}),
        ),
        ("", "", [("f", {"x": 1}), ("f", {"x": 2}), ("g", {})]),
    ),
    "the name on every fragment, without ids": (
        stream(
            call(index=0, function={"name": "f", "arguments": ""}),
            call(index=0, function={"name": "f", "arguments": '{"x":{}'}),
            call(index=0, function={"name": "f", "arguments": "}"}),
        ),
        ("", "", [("f", {"x": {}})]),
    ),
    "arguments as an object, or null": (
        stream(
            call(index=0, id="a", function={"name": "f", "arguments": {"x": 1}}),
            call(index=1, function={"name": "g", "arguments": None}),
        ),
        ("", "", [("f", {"x": 1}), ("g", {})]),
    ),
    "calls of a whole answer, all numbered 0 and without ids": (
        Reply(
            tool_calls=[
                {"index": 0, "function": {"name": "f", "arguments": ""}},
                {"index": 0, "function": {"name": "f", "arguments": {"x": 1}}},
            ],
            stream=False,
        ),
        ("", "", [("f", {}), ("f", {"x": 1})]),
    ),
    "content in parts": (
        stream(
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
            {"content": [{"type": "text", "text": "One "}]},
            {"content": "two."},
        ),
        ("hm", "One two.", []),
    ),
    "content of a whole answer in parts": (
        Reply(message={"content": [{"type": "text", "text": "One "}, {"type": "text", "text": "two."}]}, stream=False),
        ("", "One two.", []),
    ),
    "a name in a later fragment, and in none": (
        stream(
            call(index=0, id="a", function={"arguments": "{"}),
            call(index=0, function={"name": "f", "arguments": "}"}),
            call(index=1, function={"arguments": "{}"}),
        ),
        ("", "", [("f", {}), ("", {})]),
    ),
    "names and ids sent again": (
        stream(
            call(index=0, id="a", function={"name": "f", "arguments": ""}),
            call(index=0, id="a", function={"name": "f", "arguments": "{}"}),
            call(index=0, id="", function={"name": None, "arguments": " "}),
        ),
        ("", "", [("f", {})]),
    ),
    "one id at two positions": (
        stream(
            call(index=0, id="a", function={"name": "f", "arguments": '{"x":'}),
            call(index=1, id="a", function={"name": "g", "arguments": "{}"}),
            call(index=0, id="a", function={"arguments": "1}"}),
        ),
        ("", "", [("f", {"x": 1}), ("g", {})]),
    ),
    "a message so far next to the delta, and no reason": (
        Reply(chunks=[{"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "message": {"content": "a"}}]}]),
        ("", "a", []),
    ),
    "a first chunk of filters": (
        Reply(
            chunks=[
                {"id": "", "model": "", "created": 0, "choices": [], "prompt_filter_results": [1]},
                {"id": "c1", "model": "gpt", "created": 5, "choices": [{"index": 0, "delta": {"content": "x"}}]},
                {"id": "c2", "model": "gpt", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            ]
        ),
        ("", "x", []),
    ),
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize(("reply", "expected"), CASES.values(), ids=CASES)
async def test_every_client_gets_the_whole_reply(reply: Reply, expected: Any, api: str, streamed: bool) -> None:
    """Whatever the order of its chunks. The log has it, too, with each call once."""
    async with gateway([reply]) as served:
        thoughts, text, made = await ask(served, api, streamed)
        assert (thoughts, text, made) == expected
        last = (await served.entries())[-1]
        stored = [
            (one["function"]["name"], json.loads(one["function"]["arguments"] or "{}"))
            for one in last.get("tool_calls") or ()
        ]
        assert (last["content"] or "", stored) == (expected[1], expected[2])


async def test_usage_within_the_choice_counts() -> None:
    chunks = [
        {
            "id": "x",
            "choices": [
                {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop", "usage": {"prompt_tokens": 2}}
            ],
        }
    ]
    async with gateway([Reply(chunks=chunks)]) as served:
        assert (await served.chat("Hi"))["usage"]["prompt_tokens"] == 2
        assert (await served.rest.session().info())["usage"]["prompt_tokens"] == 2


# -- fields and blocks of the Messages API ----------------------------------------------------------


@pytest.mark.parametrize("given", [[1], "x", 5, None, {"a": 1}])
async def test_inputs_that_are_not_objects_are_sent_back_and_match(given: Any) -> None:
    reply = stream(call(index=0, id="a", function={"name": "f", "arguments": json.dumps(given)}), reason="tool_calls")
    async with gateway([reply, "ok"]) as served:
        await served.chat("Go", tools=TOOLS)
        use = {"type": "tool_use", "id": "a", "name": "f", "input": given}
        result = {"type": "tool_result", "tool_use_id": "a", "content": "r"}
        history = [user("Go"), {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        body = {"model": "default", "max_tokens": 9, "session_id": "s", "messages": history, "tools": OURS}
        answer = (await served.http.post("/v1/messages", json=body)).json()
        assert answer["session"]["reconciled"] == "continued"
        assert len(await served.entries()) == 4


ASKED = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "kelp"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
TEXT = {"type": "text", "text": "Kelp."}


@pytest.mark.parametrize(
    ("blocks", "sent"),
    [
        ([TEXT, ASKED, FOUND], [TEXT, ASKED, FOUND]),
        ([TEXT, ASKED], [TEXT]),
        ([FOUND, TEXT], [TEXT]),
        ([{"type": "search_result", "source": "s", "title": "t", "content": []}, TEXT], None),
    ],
    ids=["whole", "call alone", "result alone", "in the wrong role"],
)
async def test_an_anthropic_model_gets_only_blocks_that_it_accepts(blocks: list[Row], sent: list[Row] | None) -> None:
    async with apis((), ["ok"]) as served:
        await served.ask([user("Hi"), {"role": "assistant", "content": blocks}, user("And?")], model="claude")
        got = [
            {k: v for k, v in one.items() if k != "cache_control"}
            for one in served.claude.requests[0].body["messages"][1]["content"]
        ]
        assert (got == sent) if sent is not None else ({one["type"] for one in got} == {"text"})
        assert served.claude.violations == []


@pytest.mark.parametrize(
    "blocks",
    ["x", 5, [], [5, None], [{}], [{"type": "text"}], [{"type": 5, "text": "Kelp."}], [TEXT, {**ASKED, "id": [1]}]],
)
async def test_blocks_of_a_client_that_make_no_sense_do_not_break_calls(blocks: Any) -> None:
    """They stay in the log, so every later call would fail."""
    llm = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    async with gateway((), upstream=AnthropicUpstream(["ok"]), llm=llm) as served:
        history = [user("Hi"), {"role": "assistant", "content": "Kelp.", "content_blocks": blocks}, user("And?")]
        assert (await served.chat(history))["status"] == 200
        (block,) = served.sent["messages"][1]["content"]
        assert (block["type"], block["text"]) == ("text", "Kelp.")
