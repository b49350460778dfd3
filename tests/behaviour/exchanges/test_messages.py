"""Replies of models, whole and streamed, to clients of both APIs: blocks, calls in any order, reasoning, stop reasons and usage."""

from __future__ import annotations

from typing import Any

from holdfast.testing import Reply
from tests.behaviour.kit.claude import THOUGHT, Row, ask, chat, claude, text
from tests.behaviour.kit.exchanges import Exchange, exchange

USED = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 64}}
ASKED = {"type": "server_tool_use", "id": "st1", "name": "web_search", "input": {"query": "kelp"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "st1", "content": []}
CITED: Row = text("Kelp.", citations=[{"cited_text": "x"}, {"cited_text": "y"}])


def piece(reason: str | None = None, usage: Any = None, native: Row | None = None, **delta: Any) -> Row:
    made = {
        "id": "x",
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason, **(native or {})}],
    }
    return made if usage is None else {**made, "usage": usage}


def call(index: Any, arguments: Any = None, name: str | None = None, **more: Any) -> Row:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return piece(tool_calls=[{**({} if index is None else {"index": index}), "function": function, **more}])


def chunks(*made: Row, reason: str = "stop", **more: Any) -> Reply:
    return Reply(chunks=[piece(role="assistant"), *made, piece(reason)], **more)


def finished(reason: str, native: Row) -> Reply:
    return Reply(chunks=[piece(content="A"), piece(reason, native=native)])


REPLIES: dict[str, Reply] = {
    "usage": Reply(text="Hello there.", usage=USED),
    "odd usage": Reply(text="Hi", usage={"prompt_tokens": 5, "completion_tokens": -1, "prompt_tokens_details": {"cached_tokens": 9}}),
    "usage of floats": Reply(text="Hi", usage={"prompt_tokens": 5.5, "completion_tokens": True, "prompt_tokens_details": "x"}),
    "usage of anthropic": Reply(text="Hi", usage={"input_tokens": 7, "output_tokens": 2, "cache_creation": {"x": 1}, "zone": 1}),
    "no usage": Reply(text="Hi", usage={}),
    "length": Reply(text="Hel", finish_reason="length"),
    "filter": Reply(text="", finish_reason="content_filter", message={"refusal": "I must not."}),
    "unheard reason": Reply(text="Hi", finish_reason="unheard"),
    "function": chunks(call(0, "{}", "look", id="a"), reason="function_call"),
    "calls": Reply(text="Let me see.", tool_calls=[("look", {"at": 1}), ("look", '{"at": 2}'), ("find", "")]),
    "calls that stop": Reply(tool_calls=[("look", {})], finish_reason="stop"),
    "pieces of two calls": chunks(
        call(0, "", "look", id="a"), call(1, '{"q', "find", id="b"), piece(content="Wait"), call(0, '{"at"'), call(0, ": 1}"),
        call(1, '": 2}'), piece(content=" now."), reason="tool_calls",
    ),
    "three calls at once": chunks(
        call(0, "{", "a", id="a"), call(1, "{", "b", id="b"), call(2, "{", "c", id="c"), call(2, "}"), call(1, "}"), call(0, "}"),
        call(0, " ", id="a"), reason="tool_calls",
    ),
    "calls of one number": chunks(call(0, '{"at": 1}', "look", id="a"), call(0, '{"at": 2}', "look", id="b"), call(0, "", id="b")),
    "calls without a number": chunks(call(None, '{"at"', "look", id="a"), call(None, ": 1}"), call(None, "{}", "find", id="b")),
    "calls without an id": chunks(call(0, "{}", "look"), call(1, "{}", "find"), call(1, None, "find")),
    "an id in each piece": chunks(call(0, '{"at"', "look", id="a"), call(0, ": 1}", id="b")),
    "arguments of other kinds": chunks(call(0, "[1]", "look", id="a"), call(1, '{"a', "look", id="b"), call(2, "}", "look", id="c")),
    "custom": chunks(piece(tool_calls=[{"index": 0, "id": "a", "type": "custom", "custom": {"name": "run", "input": "x = 1"}}])),
    "reasoning": chunks(piece(reasoning_content="Let "), piece(reasoning_content="me."), piece(content="Four."), piece(reasoning="So.")),
    "signed reasoning": chunks(
        piece(reasoning_content="a", thinking_blocks=[{"type": "thinking", "thinking": "a", "index": 0}]),
        piece(thinking_blocks=[{"type": "thinking", "signature": "s", "index": 0}, {"type": "redacted_thinking", "data": "x", "index": 1}]),
        piece(thinking_blocks=[{"type": "thinking", "thinking": "b", "signature": "t", "index": 2}, 5]), piece(content="Four."),
    ),
    "parts": Reply(message={"content": [{"type": "thinking", "thinking": "hm"}, CITED, {"type": "refusal", "refusal": "No."}]}),
    "a part without a type": Reply(message={"content": [text("Hi"), {"x": 1}]}),
    "parts after text": chunks(piece(content="One "), piece(content=[text("two"), text("")]), piece(content=" three")),
    "blocks": chunks(piece(content="Kelp."), piece(content_blocks=[{**ASKED, "index": 0}, {**FOUND, "index": 1}, {**CITED, "index": 2}])),
    "blocks of another text": Reply(text="Sand.", message={"content_blocks": [ASKED, FOUND, CITED, "x"], "reasoning_content": "hm"}),
    "two choices": Reply(chunks=[
        {"id": "x", "choices": [{"index": 1, "delta": {"content": "B"}}, {"index": 0, "delta": {"content": "A"}}]},
        {"id": "x", "choices": [{"index": at, "delta": {}, "finish_reason": "stop"} for at in (0, 1)]},
    ]),
    "a message at the end": Reply(chunks=[piece(content="A"), {"choices": [{"message": {"content": "B"}, "finish_reason": "stop"}]}]),
    "first chunks of filters": Reply(chunks=[
        {"id": "chatcmpl-a/b", "model": "", "created": 0, "choices": [], "prompt_filter_results": [1]},
        {"id": "c1", "model": "one", "created": 5, "choices": [{"index": 0, "delta": {"content": "A"}}], "obfuscation": "p"},
        {"id": "c2", "model": "two", "created": 6, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "container": {"id": "k"}},
    ]),
    "nothing": chunks(),
    "native reasons": finished("stop", {"native_finish_reason": "stop_sequence", "stop_sequence": "END"}),
    "another native reason": finished("length", {"native_finish_reason": "end_turn", "stop_sequence": 5}),
    "calls out of order": chunks(call(2, "{}", "c", id="c"), call(0, "{}", "a", id="a"), call(1, "{}", "b", id="b"), reason="tool_calls"),
    "lines that end in other ways": Reply(raw=[
        b"\xef", b"\xbb\xbf: a comment\r\nid: 7\r\nretry: 9\r", b'\ndata:{"id": "x", "choices": [{"index": 0,\r\ndata: "delta": {"content": "caf\xc3',
        b'\xa9"}}]}\r\r', b'data: {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}',
    ]),
    "an error by another name": Reply(raw=[b'event: error\ndata: {"message": "It broke."}\n\n']),
    "an error in its own field": Reply(raw=[b'error: {"message": "It broke.", "code": 400}\n\n']),
    "json": Reply(text="Hello there.", tool_calls=[("look", {})], stream=False, usage=USED),
    "an error": Reply(text="One two three", error="It broke.", cut_after=3),
    "a limit": Reply(text="One two three", error={"error": {"message": "slow", "code": 429}}, cut_after=3),
    "a cut": Reply(text="One two three", cut_after=3),
}  # fmt: skip


async def through_both(x: Exchange, replies: dict[str, Any], **fields: Any) -> None:
    for name in replies:
        for api, stream in ((ask, False), (ask, True), (chat, False), (chat, True)):
            await api(x, name, stream=stream, session_id=f"{name} {api.__name__} {stream}", **fields)
    await x.get("/v1/sessions/calls ask True/messages")


@exchange(lambda body: REPLIES[body["messages"][-1]["content"]])
async def test_replies_of_chat_completions(x: Exchange) -> None:
    await through_both(x, REPLIES)


def begin(usage: Any = {"input_tokens": 9, "output_tokens": 1}, **more: Any) -> Row:  # noqa: B006
    return {
        "type": "message_start",
        "message": {"id": "msg_9", "type": "message", "model": "m", "usage": usage, **more},
    }


def block(start: Row, *deltas: Row) -> list[Row]:
    """Return the events of a block. A delta is what its type is called, and its value."""
    made = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    return [
        {"type": "content_block_start", "index": 0, "content_block": start},
        *made,
        {"type": "content_block_stop", "index": 0},
    ]


def end(reason: str | None = "end_turn", usage: Any = {"output_tokens": 5}, **more: Any) -> list[Row]:  # noqa: B006
    return [
        {"type": "message_delta", "delta": {"stop_reason": reason, **more}, "usage": usage},
        {"type": "message_stop"},
    ]


def said(words: str) -> list[Row]:
    return block({"type": "text", "text": ""}, {"type": "text_delta", "text": words})


def events(*made: Any, **more: Any) -> Reply:
    return Reply(chunks=[event for one in made for event in (one if isinstance(one, list) else [one])], **more)


def written(*pieces: str) -> list[Row]:
    return [{"type": "input_json_delta", "partial_json": one} for one in pieces]


THINKING = {"type": "thinking", "thinking": "", "signature": ""}
NATIVE: dict[str, Reply] = {
    "calls": Reply(text="Wait.", tool_calls=[("look", {"at": 1}), ("look", {})], message={"thinking_blocks": [THOUGHT]}),
    "starts": events(begin(), block(text("A"), {"type": "text_delta", "text": "B"}), block({**THINKING, "thinking": "c"}), end()),
    "signatures": events(
        begin(), block(THINKING, {"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "s1"},
        {"type": "signature_delta", "signature": "s2"}), block({"type": "redacted_thinking", "data": "x"}), said("Hi"), end(),
    ),
    "inputs": events(
        begin(), block({"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}, "caller": {"type": "direct"}}),
        block({"type": "tool_use", "id": "b", "name": "g", "input": {}, "toolset_name": "t"}, *written("", '{"y"', ": 2}")),
        end("tool_use"),
    ),
    "server tools": events(begin(), said("Wait."), block({**ASKED, "input": {}}, *written('{"query"', ': "kelp"}')), block(FOUND),
        block(text(""), {"type": "text_delta", "text": "Kelp."}, {"type": "citations_delta", "citation": {"cited_text": "x"}}),
        block({"type": "tool_use", "id": "a", "name": "f", "input": {}}), end("tool_use")),
    "cited": events(begin(), block({**text("Ke"), "citations": None}, {"type": "citations_delta", "citation": {"x": 1}}), said("lp."), end()),
    "thinking between": events(begin(), said("One."), block(THINKING, {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "s"}), said(" Two."), end()),
    "compaction": events(begin(), block({"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "Sum.",
        "encrypted_content": None, "signature": "z"}), said("Hi"), end()),
    "stop sequence": events(begin(), said("Hi"), end("stop_sequence", stop_sequence="END", container={"id": "k"})),
    "refusal": events(begin(), said("Hi"), end("refusal", stop_details={"category": "x"})),
    "window": events(begin(), said("Hi"), end("model_context_window_exceeded")),
    "limit": events(begin(), {"type": "unheard_event"}, said("Hi"), end("max_tokens")),
    "unheard reason": events(begin(), said("Hi"), end("unheard")),
    "no reason at first": events(begin(), said("Hi"), end(None)[:1], end()),
    "nothing": events(begin(), end()),
    "usage": events(begin({"input_tokens": 9, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 4, "output_tokens": 1}),
        said("Hi"), end(usage={"output_tokens": 5, "input_tokens": 12, "output_tokens_details": {"thinking_tokens": 3}, "z": None})),
    "late usage": events(begin(None), said("Hi"), end(usage={"input_tokens": 12, "cache_read_input_tokens": True, "output_tokens": 5})),
    "no usage": events(begin(None), said("Hi"), end(usage=None)),
    "json": Reply(stream=False, text="Hi", message={"thinking_blocks": [THOUGHT]}, tool_calls=[("f", {"x": 1})], usage={"input_tokens": 3}),
    "no stop": events(begin(), said("Hi"), end()[:1]),
    "cut": events(begin(), said("Hi")),
    "stop alone": events(begin(), said("Hi"), end()[1:]),
    "malformed": events(begin(), said("Hi"), [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": 5}}]),
    "no event": Reply(raw=[b'data: {"x": 1}\n\n']),
    "no message": Reply(raw=[b'{"type": "message", "content": "x"}']),
    "json error": Reply(raw=[b'{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}']),
    **{kind: Reply(text="One two", error={"type": "error", "error": {"type": kind, "message": "told"}}, cut_after=5) for kind in (
        "overloaded_error", "invalid_request_error", "rate_limit_error", "unheard_error")},
}  # fmt: skip


@claude(script=lambda body: NATIVE[body["messages"][-1]["content"][0]["text"]])
async def test_replies_of_anthropic(x: Exchange) -> None:
    await through_both(x, NATIVE)
