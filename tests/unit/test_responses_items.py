"""Items of the Responses API and messages, in both directions, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.messages import Message, ToolCall
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.compaction_references import CompactionNote, make_reference
from holdfast.wire.openai import parse_message
from holdfast.wire.response_ids import (
    Place,
    make_conversation_id,
    parse_conversation_id,
    parse_place,
)
from holdfast.wire.responses_items import ITEMS, ToolName, make_function_name, parse_choice, parse_items, parse_tools
from holdfast.wire.responses_replies import make_items
from holdfast.wire.responses_requests import find_compaction, parse_request

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}


def shape(messages: list[Message]) -> list[tuple[str, str, int]]:
    """Return role, text and number of calls of each message."""
    return [(message.role, message.text, len(message.tool_calls)) for message in messages]


@given(st.text(min_size=1, max_size=80), st.integers(0, 2**52 - 1), st.sampled_from(["", "0af3"]), st.integers(0, 999))
def test_ids_return_their_place(session_id: str, seq: int, secret: str, number: int) -> None:
    """Every session id and place survives the way through an id."""
    place = Place(session_id, seq, secret, number)
    assert parse_place(place.make_id("msg")) == place
    assert parse_conversation_id(make_conversation_id(session_id)) == session_id


@given(st.text(max_size=60))
def test_other_texts_are_no_ids(text: str) -> None:
    """No text raises an error."""
    parse_place(text)
    parse_place(f"resp_{text}")
    parse_conversation_id(f"conv_{text}")


def test_positions_that_no_log_has_are_no_ids() -> None:
    """A number beyond the integers of a database would be an error of the database."""
    for seq in (2**52, 2**63 - 1, 2**63, 2**64 - 1):
        for secret in ("", "0af3"):
            assert parse_place(Place("s", seq, secret).make_id("msg")) is None


def test_ids_of_made_sessions_are_short() -> None:
    """An id fits into the 64 characters that some clients allow."""
    session_id = "sess_" + "0123456789abcdef" * 2
    assert make_conversation_id(session_id) == "conv_" + "0123456789abcdef" * 2
    made = "conv_" + "0123456789abcdef" * 2
    assert make_conversation_id(made) == "conv_c" + "0123456789abcdef" * 2
    assert parse_conversation_id(make_conversation_id(made)) == made
    assert len(Place(made, 10_000, "0123456789ab").make_id("resp")) <= 64
    assert len(Place(session_id, 10_000, "0123456789ab").make_id("resp")) <= 64


def test_calls_and_the_text_before_them_are_one_message() -> None:
    """Parallel calls stay together, with their text."""
    items = [
        {"role": "user", "content": "Go"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
        CALL,
        {**CALL, "call_id": "c2"},
        OUTPUT,
        {**OUTPUT, "call_id": "c2"},
    ]
    assert shape(parse_items(items)) == [
        ("user", "Go", 0),
        ("assistant", "Wait.", 2),
        ("tool", "seen", 0),
        ("tool", "seen", 0),
    ]


def test_text_between_a_call_and_its_output_does_not_split_them() -> None:
    """The text belongs to the message with the call."""
    text = {"role": "assistant", "content": "Looking."}
    assert shape(parse_items([CALL, text, OUTPUT])) == [("assistant", "Looking.", 1), ("tool", "seen", 0)]


def test_unknown_items_are_kept_whole() -> None:
    """An item without an equivalent is in the origin of the reply that it belongs to."""
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"}
    messages = parse_items(
        [{"role": "user", "content": "Hi"}, reasoning, search, {"role": "assistant", "content": "Yes"}]
    )
    assert shape(messages) == [("user", "Hi", 0), ("assistant", "Yes", 0)]
    assert messages[1].origin[ITEMS][:2] == [reasoning, search]
    listed = make_items(messages[1], Place("s", 1, ""), {})
    assert [item["type"] for item in listed] == ["reasoning", "web_search_call", "message"]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"type": "function_call_output", "output": "x"}], "input[0].call_id"),
        ([{"type": "function_call", "call_id": "c"}], "input[0].name"),
        ([{"role": "robot", "content": "x"}], "input[0].role"),
        ([{"content": "x"}], "input[0].type"),
        (["x"], "input[0]"),
        (7, "input"),
    ],
)
def test_wrong_items_are_named(items: Any, param: str) -> None:
    """The error names the item and the field."""
    with pytest.raises(InvalidMessage) as caught:
        parse_items(items)
    assert caught.value.param == param


def test_long_names_of_namespaces_fit_and_differ() -> None:
    """A function's name has at most 64 characters, and two tools never share one."""
    names = [make_function_name("a" * 60 + end, "server.one") for end in ("x", "y")]
    assert len({*names}) == 2
    assert all(len(name) <= 64 for name in names)


def test_tools_become_functions() -> None:
    """Each kind of tool that a model can call is a function; others are left out by name."""
    tools = parse_tools(
        [
            {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True},
            {
                "type": "custom",
                "name": "run",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
            },
            {"type": "namespace", "name": "mail", "tools": [{"type": "function", "name": "send"}]},
            {"type": "web_search"},
        ]
    )
    assert [tool["function"]["name"] for tool in tools.functions] == ["look", "run", "mail__send"]
    assert tools.names["run"] == ToolName("run", is_custom=True)
    assert tools.names["mail__send"] == ToolName("send", "mail")
    assert [tool["type"] for tool in tools.hosted] == ["web_search"]
    assert "lark grammar" in tools.functions[1]["function"]["parameters"]["properties"]["input"]["description"]


def test_choice_must_name_a_tool_of_the_request() -> None:
    """A choice that no tool has would be ignored by some models."""
    with pytest.raises(InvalidRequest, match="not in tools"):
        parse_choice({"type": "function", "name": "other"}, {"look"})
    assert parse_choice({"type": "function", "name": "look"}, {"look"}) == {
        "type": "function",
        "function": {"name": "look"},
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format"),
        ({"input": "x", "instructions": [{"role": "user", "content": "Obey."}]}, "instructions"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "metadata": {"k": 7}}, "metadata"),
        ({"input": "x", "truncation": "middle"}, "truncation"),
        ({"input": "x", "prompt_cache_key": "k" * 65}, "prompt_cache_key"),
    ],
)
def test_wrong_fields_are_named(body: dict[str, Any], param: str) -> None:
    """What is not served is refused by name."""
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body)
    assert caught.value.param == param


def test_format_of_text_is_the_default() -> None:
    for text in ({"format": {"type": "text"}}, {"verbosity": "low"}, {}):
        assert "response_format" not in parse_request({"input": "x", "text": text}).fields


def test_instructions_may_be_messages_of_the_system() -> None:
    given = [{"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Be kind."}]
    parsed = parse_request({"input": "x", "instructions": given})
    assert [one.text for one in parsed.messages] == ["Be brief.", "Be kind.", "x"]


def test_newest_compaction_item_counts_also_at_the_end() -> None:
    own = {
        "type": "compaction",
        "encrypted_content": make_reference("s", 3, CompactionNote(secret="a" * 32, through=2)),
    }
    other = {"type": "compaction", "encrypted_content": "of a provider"}
    message = {"role": "user", "content": "x"}
    assert find_compaction([own, message, other]) == 0
    assert find_compaction([own, message, own]) == 2
    assert find_compaction([message, other]) is None


def test_parts_of_a_message_from_another_api_are_input_parts() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    message = parse_message({"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]})
    (item,) = make_items(message, Place("s", 0, ""), {})
    assert (item["type"], item["role"], item["status"]) == ("message", "user", "completed")
    assert item["content"] == [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
    ]


def test_calls_of_custom_tools_keep_their_item() -> None:
    """The log has a function call; the client's item is listed again."""
    item = {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": "print(1)"}
    (message,) = parse_items([item])
    assert message.tool_calls == (ToolCall(id="c1", name="run", arguments='{"input":"print(1)"}'),)
    (listed,) = make_items(message, Place("s", 3, ""), {})
    assert {name: listed[name] for name in item} == item
