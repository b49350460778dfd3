"""Checks of the table of provider rules: each rule refuses its request. `test_strict.py` has requests that no rule refuses."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from tests.providers.providers import PROVIDERS, find_fault, find_refusal, make_signature

Body = dict[str, Any]
MODELS = {
    "gemini": "gemini-3-flash-preview",
    "gemini_native": "gemini-3-flash-preview",
    "deepseek": "deepseek-reasoner",
}
CHAT = [name for name, provider in PROVIDERS.items() if provider.api == "chat"]
CALLERS = [name for name in CHAT if name != "mistral"]
SIGNATURE = {"google": {"thought_signature": make_signature("google", "1")}}
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}]


def make_png(side: int = 8, size: int = 64) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII5B", 13, b"IHDR", side, side, 8, 2, 0, 0, 0)
    return base64.b64encode(head + b"\0" * size).decode()


def make_call(number: int, **changes: Any) -> Body:
    function = {"name": "get", "arguments": changes.pop("arguments", "{}")}
    return {"id": f"call{number:05d}", "type": "function", "function": function, **changes}


def make_result(number: int, **changes: Any) -> Body:
    return {"role": "tool", "tool_call_id": f"call{number:05d}", "content": "Graz", **changes}


def make_body(*messages: Body, **parameters: Any) -> Body:
    return {"model": "gpt-4o", "messages": list(messages), **parameters}


SYSTEM: Body = {"role": "system", "content": "Be brief."}
USER: Body = {"role": "user", "content": "Where?"}
ANSWER: Body = {"role": "assistant", "content": "In Graz."}


def make_round(name: str, count: int = 1, **changes: Any) -> list[Body]:
    calls = [make_call(k) for k in range(count)]
    if name == "gemini":
        calls[0]["extra_content"] = SIGNATURE
    message: Body = {"role": "assistant", "content": "", "tool_calls": calls, **changes}
    if name == "deepseek":
        message["reasoning_content"] = ""
    return [USER, message, *(make_result(k) for k in range(count))]


def make_image(side: int = 8, size: int = 64, kind: str = "png") -> Body:
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{make_png(side, size)}"}}


def make_user(*parts: Body) -> Body:
    return {"role": "user", "content": list(parts)}


CUT = '{"command": "echo half'
CHAT_REFUSALS: list[tuple[list[str], str, Body]] = [
    (
        ["mistral", "deepseek", "groq", "gemini", "vllm", "llama.cpp", "bedrock", "together", "generic"],
        "role",
        make_body({"role": "developer", "content": "env"}, USER),
    ),
    (["vllm", "llama.cpp"], "alternation", make_body(USER, USER)),
    (["vllm", "llama.cpp"], "alternation", make_body(*make_round("vllm"), USER)),
    (["generic"], "alternation", make_body(USER, USER)),
    (["vllm", "llama.cpp", "generic"], "system_count", make_body(SYSTEM, SYSTEM, USER)),
    (["vllm", "llama.cpp", "generic"], "system_place", make_body(USER, ANSWER, SYSTEM)),
    (["vllm", "llama.cpp", "bedrock", "generic"], "user_first", make_body(SYSTEM, ANSWER, USER)),
    (["mistral"], "order", make_body(*make_round("mistral"), USER)),
    (["mistral"], "order", make_body(USER, ANSWER, SYSTEM, USER)),
    (["mistral"], "last_role", make_body(USER, ANSWER)),
    (["mistral"], "call_id", make_body(USER, {**ANSWER, "tool_calls": [make_call(1, id="call_PTLP8xhu3uwZk4")]})),
    (
        ["bedrock", "litellm", "generic"],
        "call_id",
        make_body(USER, {**ANSWER, "tool_calls": [make_call(1, id="a:b")]}, tools=TOOLS),
    ),
    (
        ["openai", "azure", "generic"],
        "string_length",
        make_body(USER, {**ANSWER, "tool_calls": [make_call(1, id="c" * 41)]}, make_result(1, tool_call_id="c" * 41)),
    ),
    (["bedrock"], "string_length", make_body(USER, {**ANSWER, "tool_calls": [make_call(1, id="c" * 65)]}, tools=TOOLS)),
    (["openai", "azure", "generic"], "name", make_body({**USER, "name": "Ada Lovelace"})),
    (["mistral", "groq"], "field", make_body({**USER, "name": "ada"})),
    (["mistral", "groq", "generic"], "field", make_body(USER, {**ANSWER, "reasoning_content": "Hm."}, USER)),
    (["mistral", "groq", "generic"], "field", make_body(USER, {**ANSWER, "refusal": None, "annotations": []}, USER)),
    (
        ["mistral", "generic"],
        "field",
        make_body(USER, {**ANSWER, "content": "", "tool_calls": [make_call(1, name="x")]}),
    ),
    (["openai", "azure", "groq"], "parameter", make_body(USER, session_id="s")),
    (["mistral"], "parameter", make_body(USER, max_completion_tokens=9)),
    (["gemini"], "parameter", make_body(USER, store=False)),
    (["groq", "litellm"], "parameter", make_body(USER, logprobs=True)),
    (["groq"], "choices", make_body(USER, n=2)),
    (["openai", "azure"], "max_tokens", {**make_body(USER, max_tokens=9), "model": "gpt-5"}),
    (["openai", "groq", "generic"], "array_length", make_body(USER, stop=list("abcde"))),
    (["openai", "azure", "deepseek", "groq", "generic"], "array_length", make_body(USER, tools=TOOLS * 129)),
    (["openai", "azure"], "array_length", make_body(*[USER, ANSWER] * 1025)),
    (["openai", "azure"], "metadata_count", make_body(USER, metadata={str(k): "x" for k in range(17)})),
    (["openai", "azure"], "metadata_value", make_body(USER, metadata={"k": "x" * 513})),
    (["openai", "azure", "generic"], "choice", make_body(USER, parallel_tool_calls=True)),
    (["openai", "azure", "vllm", "generic"], "choice", make_body(USER, tool_choice="auto")),
    (["openai", "azure", "generic"], "empty_array", make_body(USER, tools=[])),
    (["openai", "azure", "generic"], "empty_array", make_body(USER, {**ANSWER, "tool_calls": []}, USER)),
    (CHAT, "tool_name", make_body(USER, tools=[{"type": "function", "function": {"name": "get weather"}}])),
    (["gemini", "generic"], "tool_unique", make_body(USER, tools=TOOLS * 2)),
    (
        ["openai", "azure", "gemini", "generic"],
        "schema_items",
        make_body(USER, tools=[{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "array"}}}}}]),
    ),
    (CHAT, "content_null", make_body({"role": "user", "content": None})),
    (["ollama", "gemini", "generic"], "content_null", make_body(*make_round("openai", content=None), tools=TOOLS)),
    (CHAT, "content_null", make_body(*make_round("openai")[:2], make_result(0, content=None), tools=TOOLS)),
    (["deepseek", "generic"], "content_missing", make_body(USER, {"role": "assistant", "tool_calls": [make_call(0)]})),
    (["mistral", "gemini", "bedrock", "generic"], "content_blank", make_body(USER, {**ANSWER, "content": " "}, USER)),
    (
        ["bedrock", "generic"],
        "content_blank",
        make_body(*make_round("openai")[:2], make_result(0, content=""), tools=TOOLS),
    ),
    (
        [name for name in CHAT if name not in ("openrouter", "together", "litellm")],
        "part",
        make_body(make_user({"type": "pdf", "pdf": {}})),
    ),
    (
        ["openai", "azure", "groq", "generic"],
        "part",
        make_body(*make_round("openai")[:2], make_result(0, content=[make_image()]), tools=TOOLS),
    ),
    (["deepseek"], "part", make_body(make_user(make_image()))),
    (["vllm", "llama.cpp", "deepseek", "groq", "ollama"], "part", make_body(make_user({"type": "file", "file": {}}))),
    (
        [name for name in CALLERS if PROVIDERS[name].arguments == "object"],
        "arguments",
        make_body(USER, {**ANSWER, "tool_calls": [make_call(0, arguments=CUT)]}, make_result(0), tools=TOOLS),
    ),
    (
        [name for name in CALLERS if PROVIDERS[name].arguments == "object"],
        "arguments",
        make_body(USER, {**ANSWER, "tool_calls": [make_call(0, arguments="[]")]}, make_result(0), tools=TOOLS),
    ),
    (
        [name for name in CALLERS if PROVIDERS[name].arguments == "object"],
        "arguments",
        make_body(USER, {**ANSWER, "tool_calls": [make_call(0, arguments="")]}, make_result(0), tools=TOOLS),
    ),
    (CALLERS, "arguments_type", make_body(USER, {**ANSWER, "tool_calls": [make_call(0, arguments={})]}, tools=TOOLS)),
    (
        ["openai", "azure", "llama.cpp", "generic"],
        "call_type",
        make_body(USER, {**ANSWER, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}),
    ),
    (
        ["openai", "azure", "openrouter", "litellm", "bedrock", "generic"],
        "call_unanswered",
        make_body(*make_round("openai", 2)[:3], tools=TOOLS),
    ),
    (["mistral"], "call_unanswered", make_body(*make_round("openai", 2)[:3])),
    (
        ["openai", "azure", "deepseek", "gemini", "bedrock", "generic"],
        "call_unanswered",
        make_body(*make_round("openai")[:2], USER, make_result(0), tools=TOOLS),
    ),
    (["openai", "azure", "deepseek", "gemini", "generic"], "result_orphan", make_body(USER, make_result(0))),
    (
        ["openai", "azure", "deepseek", "gemini", "generic"],
        "result_unknown",
        make_body(*make_round("openai"), make_result(7), tools=TOOLS),
    ),
    (
        ["gemini", "litellm", "bedrock", "generic"],
        "result_twice",
        make_body(*make_round("openai"), make_result(0), tools=TOOLS),
    ),
    (["gemini"], "call_order", make_body(USER, ANSWER, *make_round("gemini")[1:], tools=TOOLS)),
    (["bedrock", "litellm"], "tools_needed", make_body(*make_round("openai"))),
    (["deepseek"], "reasoning_missing", {**make_body(*make_round("openai"), tools=TOOLS), "model": "deepseek-v4-pro"}),
    (["gemini"], "signature_missing", {**make_body(*make_round("openai")), "model": "gemini-3-pro-preview"}),
    (["mistral"], "image_count", make_body(make_user(*[make_image()] * 9))),
    (["groq"], "image_count", make_body(make_user(*[make_image()] * 6))),
    (["azure"], "image_count", make_body(make_user(*[make_image()] * 51))),
    (["openai"], "image_count", make_body(make_user(*[make_image()] * 501))),
    (["bedrock"], "image_count", make_body(make_user(*[make_image()] * 21))),
    (["bedrock"], "image_bytes", make_body(make_user(make_image(size=3_800_000)))),
    (["bedrock"], "image_pixels", make_body(make_user(make_image(side=8001)))),
    (["groq"], "request_bytes", make_body(make_user(make_image(size=3_200_000)))),
    (["groq"], "image_pixels", make_body(make_user(make_image(side=6000)))),
    (["ollama"], "image_format", make_body(make_user(make_image(kind="gif")))),
    (
        ["ollama"],
        "image_format",
        make_body(make_user({"type": "image_url", "image_url": {"url": "https://a.org/a.png"}})),
    ),
    ([name for name in CHAT if name != "ollama"], "json", make_body({**USER, "content": "list: \ud83d\u2026"})),
    (["generic"], "nul", make_body({**USER, "content": "a\0b"})),
]


@pytest.mark.parametrize(
    ("name", "rule", "body"), [(name, rule, body) for names, rule, body in CHAT_REFUSALS for name in names]
)
def test_chat_provider_refuses(name: str, rule: str, body: Body) -> None:
    check_refusal(name, rule, body)


def check_refusal(name: str, rule: str, body: Body) -> None:
    fault, refusal = find_fault(name, body), find_refusal(name, body)
    assert fault is not None
    assert refusal is not None
    assert fault.rule == rule, (fault, refusal)
    assert 400 <= refusal[0] <= 500
    assert json.dumps(refusal[1])


def test_signature_of_another_family_is_refused_by_gemini() -> None:
    body = make_body(*make_round("gemini"), tools=TOOLS)
    body["messages"][1]["tool_calls"][0]["extra_content"] = {
        "google": {"thought_signature": make_signature("openai", "1")}
    }
    check_refusal("gemini", "signature", body)


def test_signature_is_not_needed_outside_the_current_turn() -> None:
    body = {**make_body(*make_round("openai"), ANSWER, USER, tools=TOOLS), "model": "gemini-3-pro-preview"}
    assert find_refusal("gemini", body) is None


def test_error_forms_are_those_of_the_provider() -> None:
    foreign = make_body(USER, {**ANSWER, "reasoning_content": "Hm."}, USER)
    status, body = find_refusal("groq", foreign) or (0, {})
    assert status == 400
    assert body["error"]["message"] == (
        "'messages.1' : for 'role:assistant' the following must be satisfied"
        "[('messages.1' : property 'reasoning_content' is unsupported)]"
    )
    status, body = find_refusal("mistral", foreign) or (0, {})
    assert status == 422
    assert body["detail"][0]["loc"] == ["body", "messages", 1, "assistant", "reasoning_content"]
    long_id = "c" * 51
    status, body = find_refusal("openai", make_body(USER, {**ANSWER, "tool_calls": [make_call(1, id=long_id)]})) or (
        0,
        {},
    )
    assert body["error"]["param"] == "messages[1].tool_calls[0].id"
    assert body["error"]["code"] == "string_above_max_length"


def make_claude(*messages: Body, **parameters: Any) -> Body:
    return {"model": "claude-sonnet-4-5", "max_tokens": 2048, "messages": list(messages), **parameters}


def use(number: int, **changes: Any) -> Body:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "get", "input": {}, **changes}


def answer(number: int, **changes: Any) -> Body:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "Graz", **changes}


def say(role: str, *blocks: Body) -> Body:
    return {"role": role, "content": list(blocks)}


def text(words: str) -> Body:
    return {"type": "text", "text": words}


def image(side: int = 8, size: int = 64) -> Body:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": make_png(side, size)}}


CLAUDE_TOOLS = [{"name": "get", "input_schema": {"type": "object"}}]
THINKING = {"type": "enabled", "budget_tokens": 1024}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": make_signature("anthropic", "1")}
FOREIGN_THOUGHT = {**THOUGHT, "signature": make_signature("openai", "1")}


ANTHROPIC_REFUSALS: list[tuple[str, Body]] = [
    ("required", {"model": "claude", "messages": [USER]}),
    ("parameter", make_claude(USER, session_id="s")),
    ("extra", make_claude({**USER, "name": "ada"})),
    ("extra", make_claude(USER, metadata={"user_id": "u", "team": "t"})),
    ("extra", make_claude(say("user", {**text("a"), "foo": 1}))),
    ("user_id", make_claude(USER, metadata={"user_id": "u" * 257})),
    ("stop_blank", make_claude(USER, stop_sequences=["\n"])),
    ("choice", make_claude(USER, tool_choice={"type": "auto"})),
    ("cache_count", make_claude(say("user", *[{**text("a"), "cache_control": {"type": "ephemeral"}}] * 5))),
    ("no_messages", make_claude()),
    ("tool_name", make_claude(USER, tools=[{"name": "get weather", "input_schema": {}}])),
    ("tool_unique", make_claude(USER, tools=CLAUDE_TOOLS * 2)),
    ("role", make_claude(SYSTEM, USER)),
    ("user_first", make_claude(ANSWER, USER)),
    ("message_empty", make_claude({"role": "user", "content": ""})),
    ("text_empty", make_claude(say("user", text("")))),
    ("content_blank", make_claude(say("user", text(" \n")))),
    ("tag", make_claude(say("user", {"type": "video_url", "video_url": {}}))),
    ("block_role", make_claude(USER, say("assistant", image()), USER)),
    ("pattern", make_claude(USER, say("assistant", use(1, id="call:1")))),
    ("name_length", make_claude(USER, say("assistant", use(1, name="n" * 201)))),
    ("input_type", make_claude(USER, say("assistant", use(1, input="{}")))),
    ("signature", make_claude(USER, say("assistant", FOREIGN_THOUGHT, text("a")), USER)),
    ("required", make_claude(USER, say("assistant", {"type": "thinking", "thinking": "Hm."}, text("a")), USER)),
    ("call_twice", make_claude(USER, say("assistant", use(1), use(1)), say("user", answer(1)))),
    ("result_orphan", make_claude(say("user", answer(1)))),
    ("result_twice", make_claude(USER, say("assistant", use(1)), say("user", answer(1), answer(1)))),
    ("call_unanswered", make_claude(USER, say("assistant", use(1)), USER)),
    ("call_unanswered", make_claude(USER, say("assistant", use(1)), say("user", text("a"), answer(1)))),
    ("thinking_choice", make_claude(USER, thinking=THINKING, tools=CLAUDE_TOOLS, tool_choice={"type": "any"})),
    ("thinking_budget", make_claude(USER, thinking={"type": "enabled", "budget_tokens": 10})),
    ("thinking_max_tokens", make_claude(USER, thinking={"type": "enabled", "budget_tokens": 4096})),
    ("thinking_temperature", make_claude(USER, thinking=THINKING, temperature=0)),
    ("thinking_first", make_claude(USER, say("assistant", use(1)), say("user", answer(1)), thinking=THINKING)),
    ("prefill", {**make_claude(USER, ANSWER), "model": "claude-opus-4-6"}),
    ("prefill_space", make_claude(USER, {"role": "assistant", "content": "In "})),
    ("image_count", make_claude(say("user", *[image()] * 101))),
    ("image_bytes", make_claude(say("user", image(size=5 * 1024 * 1024)))),
    ("image_pixels", make_claude(say("user", image(side=8001)))),
    ("image_many_pixels", make_claude(say("user", *[image(side=2001)] * 21))),
    ("request_bytes", make_claude(say("user", *[image(size=3_900_000)] * 7))),
    ("json", make_claude({"role": "user", "content": "\ud83d"})),
]


@pytest.mark.parametrize(("rule", "body"), ANTHROPIC_REFUSALS)
def test_anthropic_refuses(rule: str, body: Body) -> None:
    check_refusal("anthropic", rule, body)


def make_response(*items: Body, **parameters: Any) -> Body:
    return {"model": "gpt-5", "input": list(items), **parameters}


CALL = {"type": "function_call", "call_id": "call_1", "name": "get", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "Graz"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": make_signature("openai", "1")}
INPUT = {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "In Graz."}]}
INPUT_IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{make_png()}"}


VIDEO = {"role": "user", "content": [{"type": "video_url", "video_url": {}}]}
RESPONSES_REFUSALS: list[tuple[str, Body]] = [
    ("moved", make_response(INPUT, max_tokens=9)),
    ("parameter", make_response(INPUT, stop=["x"])),
    ("choice", make_response(INPUT, tool_choice="required")),
    ("output_tokens", make_response(INPUT, max_output_tokens=1)),
    ("metadata_value", make_response(INPUT, metadata={"k" * 65: "x"})),
    ("value", make_response(VIDEO)),
    ("value", make_response({"role": "tool", "content": "Graz"})),
    ("value", make_response({"role": "assistant", "content": INPUT["content"]})),
    ("value", make_response({"type": "thinking"})),
    ("field", make_response({**INPUT, "name": "ada"})),
    ("field", make_response({**SAID, "reasoning_content": "Hm."})),
    ("id_prefix", make_response({**SAID, "id": "chatcmpl_1"})),
    ("string_length", make_response({**CALL, "call_id": "c" * 65})),
    ("id_characters", make_response({**CALL, "call_id": "a:b"})),
    ("tool_name", make_response({**CALL, "name": "get weather"})),
    ("type", make_response({**CALL, "arguments": {}})),
    ("type", make_response(CALL, {**OUTPUT, "output": None})),
    ("type", make_response({"role": "user", "content": None})),
    ("call_unanswered", make_response(INPUT, CALL)),
    ("result_orphan", make_response(INPUT, OUTPUT)),
    ("reasoning_alone", make_response(INPUT, REASONING)),
    ("reasoning_alone", make_response(REASONING, INPUT)),
    ("item_missing", make_response({"type": "reasoning", "id": "rs_1", "summary": []}, SAID, store=False)),
    ("encrypted", make_response({**REASONING, "encrypted_content": make_signature("anthropic", "1")}, SAID)),
    ("array_length", make_response(INPUT, tools=[{"type": "function", "name": "f"}] * 129)),
    ("image_count", make_response({"role": "user", "content": [INPUT_IMAGE] * 501})),
    ("json", make_response({"role": "user", "content": "\ud83d"})),
]


@pytest.mark.parametrize(("rule", "body"), RESPONSES_REFUSALS)
def test_responses_refuses(rule: str, body: Body) -> None:
    check_refusal("responses", rule, body)


def make_gemini(*contents: Body, **parameters: Any) -> Body:
    return {"model": "gemini-3-pro-preview", "contents": list(contents), **parameters}


def turn(role: str, *parts: Body) -> Body:
    return {"role": role, "parts": list(parts)}


def declare(schema: Body, name: str = "get") -> list[Body]:
    return [{"functionDeclarations": [{"name": name, "parameters": schema}]}]


WORDS = {"text": "Where?"}
SIGNED = {"functionCall": {"name": "get", "args": {}}, "thoughtSignature": make_signature("google", "1")}
UNSIGNED = {"functionCall": {"name": "get", "args": {}}}
RESPONSE = {"functionResponse": {"name": "get", "response": {"city": "Graz"}}}


GEMINI_REFUSALS: list[tuple[str, Body]] = [
    ("unknown", make_gemini(turn("user", WORDS), messages=[])),
    ("unknown_at", make_gemini({**turn("user", WORDS), "name": "ada"})),
    ("unknown_at", make_gemini(turn("user", {**WORDS, "type": "text"}))),
    ("role", make_gemini(turn("assistant", WORDS))),
    ("contents", make_gemini()),
    ("parts_empty", make_gemini(turn("user"))),
    ("part_data", make_gemini(turn("user", {"text": ""}))),
    ("part_data", make_gemini(turn("user", {}))),
    ("struct", make_gemini(turn("user", WORDS), turn("model", {"functionCall": {"name": "get", "args": "{}"}}))),
    ("name_empty", make_gemini(turn("user", {"functionResponse": {"name": "", "response": {}}}))),
    ("user_first", make_gemini(turn("model", WORDS), turn("user", WORDS))),
    ("last_role", make_gemini(turn("user", WORDS), turn("model", WORDS))),
    (
        "call_order",
        make_gemini(turn("user", WORDS), turn("model", WORDS), turn("model", SIGNED), turn("user", RESPONSE)),
    ),
    ("call_unanswered", make_gemini(turn("user", WORDS), turn("model", SIGNED), turn("user", WORDS))),
    ("result_orphan", make_gemini(turn("user", RESPONSE))),
    ("signature_missing", make_gemini(turn("user", WORDS), turn("model", UNSIGNED), turn("user", RESPONSE))),
    ("signature", make_gemini(turn("user", WORDS), turn("model", {**WORDS, "thoughtSignature": "gAAAAAx"}))),
    ("stops", make_gemini(turn("user", WORDS), generationConfig={"stopSequences": list("abcdef")})),
    ("tool_name", make_gemini(turn("user", WORDS), tools=declare({"type": "object"}, "1 get"))),
    ("tool_unique", make_gemini(turn("user", WORDS), tools=[{"functionDeclarations": [{"name": "a"}] * 2}])),
    ("schema_keyword", make_gemini(turn("user", WORDS), tools=declare({"type": "object", "$schema": "x"}))),
    ("schema_keyword", make_gemini(turn("user", WORDS), tools=declare({"properties": {"a": {"const": 1}}}))),
    ("schema_items", make_gemini(turn("user", WORDS), tools=declare({"properties": {"a": {"type": "array"}}}))),
    (
        "schema_enum",
        make_gemini(turn("user", WORDS), tools=declare({"properties": {"a": {"type": "integer", "enum": [1]}}})),
    ),
    ("json", make_gemini(turn("user", {"text": "\ud83d"}))),
]


@pytest.mark.parametrize(("rule", "body"), GEMINI_REFUSALS)
def test_gemini_native_refuses(rule: str, body: Body) -> None:
    check_refusal("gemini_native", rule, body)


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("value", [None, 0, "", "x", [], [0], {}, {"a": [None]}, [[{}]], [{"role": 1, "content": {}}]])
def test_odd_values_never_raise(name: str, value: Any) -> None:
    keys = ("messages", "input", "contents", "tools", "tool_choice", "metadata", "thinking", "n", "stop", "system")
    for key in keys:
        find_refusal(name, {"model": "gpt-4o", "max_tokens": 9, "messages": [USER], "contents": [], key: value})
    for key in ("content", "tool_calls", "parts", "tool_call_id", "role", "name", "type", "function_call"):
        odd = {"role": "assistant", "content": "a", key: value}
        find_refusal(name, {"messages": [USER, odd, USER], "input": [odd], "contents": [odd], "tools": [odd]})


def test_messages_have_no_unfilled_placeholders() -> None:
    refusals = [(name, body) for names, _, body in CHAT_REFUSALS for name in names]
    texts = [json.dumps((find_refusal(name, body) or (0, {}))[1]) for name, body in refusals]
    assert not [text for text in texts if "{" + "i}" in text or "{" + "name}" in text]
