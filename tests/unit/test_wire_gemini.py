"""Gemini's contents: a working set in their shape."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.context.dialects import adapt_messages
from holdfast.errors import InvalidRequest
from holdfast.wire.gemini import SKIP_SIGNATURE, build_request, convert_tools
from holdfast.wire.openai import parse_message

Json = dict[str, Any]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def call(name: str, arguments: str = "{}", **extra: Any) -> Json:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": arguments}, **extra}


def convert_messages(*messages: Json) -> Json:
    """What is sent for Chat Completions messages."""
    made = [parse_message(message) for message in messages]
    front = [message for message in made[:1] if message.role == "system"]
    return build_request([*front, *adapt_messages(made[len(front) :], "gemini")])


def test_a_tool_round() -> None:
    """Results in the order of their calls, in a turn of their own; a word of the model, and what the user says next."""
    request = convert_messages(
        {"role": "system", "content": "Sys."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "one moment"},
        {"role": "assistant", "content": None, "tool_calls": [call("a", '{"x": 1}'), call("b")]},
        {"role": "tool", "tool_call_id": "b", "content": '{"n": 2}'},
        {"role": "tool", "tool_call_id": "a", "content": "no", "is_error": True},
        {"role": "user", "content": "and?"},
    )
    made = [{"id": "a", "name": "f", "args": {"x": 1}}, {"id": "b", "name": "f", "args": {}}]
    assert request == {
        "systemInstruction": {"parts": [{"text": "Sys."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "one moment"},
                    {"functionCall": made[0], "thoughtSignature": SKIP_SIGNATURE},
                    {"functionCall": made[1]},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "a", "name": "f", "response": {"error": "no"}}},
                    {"functionResponse": {"id": "b", "name": "f", "response": {"output": '{"n": 2}'}}},
                ],
            },
            {"role": "model", "parts": [{"text": "[received]"}]},
            {"role": "user", "parts": [{"text": "and?"}]},
        ],
    }


@pytest.mark.parametrize(
    "assistant",
    [
        {"tool_calls": [call("a", extra_content={"google": {"thought_signature": "sig"}}), call("b")]},
        {"tool_calls": [call("a", provider_specific_fields={"thought_signature": "sig"}), call("b")]},
        {
            "tool_calls": [call("a"), call("b")],
            "reasoning_details": [
                {"type": "reasoning.encrypted", "data": "sig", "id": "a", "format": "google-gemini-v1"},
            ],
        },
    ],
)
def test_signatures_stay_on_their_call(assistant: Json) -> None:
    """As Google's OpenAI endpoint, LiteLLM and OpenRouter hand them out."""
    results = [{"role": "tool", "tool_call_id": name, "content": "x"} for name in "ab"]
    request = convert_messages(
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": None, **assistant}, *results
    )
    assert [part.get("thoughtSignature") for part in request["contents"][1]["parts"]] == ["sig", None]


def test_signatures_of_texts() -> None:
    """On the part they came with, or the last one of the reply."""
    texts = [{"type": "text", "text": "a", "thoughtSignature": "one"}, {"type": "text", "text": "b"}]
    whole = {"extra_content": {"google": {"thought_signature": "two"}}}
    request = convert_messages({"role": "user", "content": "hi"}, {"role": "assistant", "content": texts, **whole})
    assert request["contents"][1]["parts"] == [
        {"text": "a", "thoughtSignature": "one"},
        {"text": "b", "thoughtSignature": "two"},
    ]


def test_reasoning_is_a_thought() -> None:
    """In front of what was said; another vendor's signature and sealed thoughts stay behind."""
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "claude's"},
        {"type": "redacted_thinking", "data": "claude's"},
    ]
    request = convert_messages(
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok", "thinking_blocks": blocks}
    )
    assert request["contents"][1]["parts"] == [{"text": "hm", "thought": True}, {"text": "ok"}]


@pytest.mark.parametrize(
    ("part", "made"),
    [
        (IMAGE, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
        (
            {"type": "image_url", "image_url": "https://example.com/a.jpg?x"},
            {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.com/a.jpg?x"}},
        ),
        (
            {"type": "video_url", "video_url": {"url": "gs://bucket/a"}},
            {"fileData": {"fileUri": "gs://bucket/a"}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
            {"inlineData": {"mimeType": "audio/mp3", "data": "AAAA"}},
        ),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}},
            {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0="}},
        ),
        (
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}},
            {"inlineData": {"mimeType": "text/plain", "data": "aGk="}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/gif;base64,AAAA"}},
            {"text": "[a part of type image_url is left out here: Gemini does not take it]"},
        ),
    ],
)
def test_media(part: Json, made: Json) -> None:
    """Data as data, links as files; what Gemini does not take is named."""
    assert convert_messages({"role": "user", "content": [part]})["contents"] == [{"role": "user", "parts": [made]}]


def test_media_of_a_result_stand_behind_it() -> None:
    """A result is JSON; its image follows as the user's, and what the user says joins it."""
    request = convert_messages(
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call("a")]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "see"}, IMAGE]},
        {"role": "user", "content": "and?"},
    )
    assert request["contents"][2]["parts"][0]["functionResponse"]["response"] == {"output": "see"}
    assert request["contents"][3] == {"role": "model", "parts": [{"text": "[received]"}]}
    assert request["contents"][4]["parts"] == [
        {"text": "[returned by f]"},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"text": "and?"},
    ]


def test_tools() -> None:
    """OpenAI's functions are declared in one tool; Gemini's own stay."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    function = {"name": "find", "description": "Finds.", "parameters": schema, "strict": True}
    assert convert_tools([{"type": "function", "function": function}, {"googleSearch": {}}]) == [
        {"functionDeclarations": [{"name": "find", "description": "Finds.", "parametersJsonSchema": schema}]},
        {"googleSearch": {}},
    ]
    assert convert_tools([]) == []


@pytest.mark.parametrize("tool", [{"type": "custom"}, {"type": "function", "function": {"name": "7 up"}}])
def test_what_is_no_tool_is_refused(tool: Json) -> None:
    """With its place."""
    with pytest.raises(InvalidRequest) as caught:
        convert_tools([tool])
    assert str(caught.value.param).startswith("tools[0].function")
