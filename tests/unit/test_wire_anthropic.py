"""The Anthropic Messages format: parsing requests and building them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from holdfast.context.dialects import adapt_messages
from holdfast.domain.messages import Message, Part, ToolCall, decode_payload, encode_canonical, encode_payload
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.testing import anthropic_rules as rules
from holdfast.wire.anthropic import build_request, convert_tools, parse_messages, parse_system
from holdfast.wire.openai import parse_message

Json = dict[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}

# -- a round trip ---------------------------------------------------------------------

words = st.text("abc é\n", min_size=1, max_size=8).filter(str.strip)
marks = st.sampled_from([{}, {}, {}, {}, MARK])
values: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=2),
    max_leaves=4,
)
texts = st.builds(lambda text, mark: {"type": "text", "text": text, **mark}, words, marks)
images = st.sampled_from(
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "x"},
            "title": "t",
            "citations": {"enabled": True},
        },
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]},
    ]
)
thinking = st.sampled_from(
    [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "thinking", "thinking": "", "signature": "sig"},
        {"type": "redacted_thinking", "data": "c2VhbGVk"},
    ]
)
SERVED: list[Json] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "kelp"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
]


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    """Draw valid `messages` of a request in the form that is sent: results and reasoning first, calls last."""
    told: list[Json] = []
    open_calls: list[str] = []
    for turn in range(draw(st.integers(1, 4))):
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call_id,
                **draw(st.sampled_from([{}, {"is_error": True}])),
                **draw(st.sampled_from([{}, {"content": draw(st.lists(texts | images, min_size=1, max_size=2))}])),
            }
            for call_id in open_calls
        ]
        said = draw(st.lists(texts | images, min_size=0 if results else 1, max_size=2))
        told.append({"role": "user", "content": [*results, *said]})
        open_calls = [f"toolu_{turn}_{at}" for at in range(draw(st.integers(0, 2)))]
        calls = [
            {
                "type": "tool_use",
                "id": call_id,
                "name": "look_up",
                "input": draw(st.dictionaries(words, values, max_size=2)),
            }
            for call_id in open_calls
        ]
        first = draw(st.lists(thinking, max_size=2))
        more = texts | thinking if first else texts
        rest = draw(st.lists(more, min_size=0 if calls or first else 1, max_size=2))
        rest += draw(st.sampled_from([[], copy.deepcopy(SERVED)]))
        told.append({"role": "assistant", "content": [*first, *rest, *calls]})
    return told


def _marks(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_marks, value))
    return ("cache_control" in value) + sum(map(_marks, value.values())) if isinstance(value, dict) else 0


@given(conversations())
def test_a_round_trip_loses_nothing(messages: list[Json]) -> None:
    """Every block is sent unchanged, also after storage and conversion; the input is not modified."""
    before = copy.deepcopy(messages)
    made = parse_messages(messages)
    assert messages == before
    assert [decode_payload(encode_payload(message)) for message in made] == made
    sent = build_request(made)["messages"]
    if _marks(messages) <= 4:
        assert sent == messages
    assert parse_messages(sent) == parse_messages(build_request(parse_messages(sent))["messages"])
    again = adapt_messages(made, "anthropic")
    assert build_request(again)["messages"][: len(messages)] == sent, "what is legal is not adapted"


def test_strings_are_accepted_as_content() -> None:
    """In messages, results and the system prompt."""
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    made = parse_messages(
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "found"}]},
        ]
    )
    assert made == [
        Message(role="user", content="hi"),
        Message(role="assistant", content=None, tool_calls=(ToolCall("a", "f", "{}"),)),
        Message(role="tool", content="found", tool_call_id="a"),
    ]
    assert parse_system("Sys.") == [Message(role="system", content="Sys.")]
    assert parse_system([{"type": "text", "text": "Sys.", **MARK}])[0].text == "Sys."
    assert parse_system(None) == parse_system([]) == []


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hi", "messages"),
        (None, "messages"),
        ([5], "messages[0]"),
        ([{"role": "tool", "content": "x"}], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "tool_use", "id": "a"}]}], "messages[0].content"),
        ([{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}], "messages[0].content"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "tool_result"}]}], "messages[0].content[0]"),
    ],
)
def test_invalid_messages_are_rejected_with_their_position(messages: Any, param: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        parse_messages(messages)
    assert str(caught.value.param).startswith(param)


@given(st.recursive(values, lambda inner: st.fixed_dictionaries({"role": st.just("user") | inner, "content": inner})))
def test_any_json_is_parsed_or_rejected(data: Any) -> None:
    assert parse_or_get_error(data).startswith("messages[0]")


def parse_or_get_error(data: Any) -> str:
    """Return the error for `data`, or only its position if it is a message."""
    try:
        parse_messages([data])
    except InvalidMessage as exc:
        return str(exc)
    return "messages[0]"


# -- building requests ------------------------------------------------------------------------------


def convert_messages(*messages: Json) -> Json:
    """Build the request for Chat Completions messages."""
    made = [parse_message(message) for message in messages]
    front = [message for message in made[:1] if message.role == "system"]
    return build_request([*front, *adapt_messages(made[len(front) :], "anthropic")])


@pytest.mark.parametrize(
    ("extra", "blocks"),
    [
        (
            {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}], "reasoning_content": "hm"},
            [{"type": "thinking", "thinking": "hm", "signature": "s"}],
        ),
        (
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "format": "anthropic-claude-v1"}]},
            [{"type": "redacted_thinking", "data": "x"}],
        ),
        (
            {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": None}]},
            [{"type": "text", "text": "[reasoning] hm"}],
        ),
        (
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "format": "openai-responses-v1"}]},
            [],
        ),
        ({"reasoning_content": "hm"}, [{"type": "text", "text": "[reasoning] hm"}]),
        ({"refusal": "no", "annotations": [], "reasoning_content": None}, []),
    ],
)
def test_reasoning_is_sent_before_the_text(extra: Json, blocks: list[Json]) -> None:
    """Signed reasoning is unchanged, other text is marked, and other vendors' encrypted reasoning is left out."""
    request = convert_messages({"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok", **extra})
    content = request["messages"][1]["content"]
    assert content[: len(blocks)] == blocks
    assert content[len(blocks)] == {"type": "text", "text": "ok"}


def test_interleaved_reasoning_keeps_its_position() -> None:
    """Reasoning between texts stays there; content that begins with a text gets its reasoning first, as required."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    text = {"type": "text", "text": "ok"}
    for given_, expected in (
        ([thinking, text, thinking], [thinking, text, thinking]),
        ([text, thinking], [thinking, text]),
    ):
        request = convert_messages({"role": "user", "content": "hi"}, {"role": "assistant", "content": given_})
        assert request["messages"][1]["content"] == expected


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "gs://bucket/a.png"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
    ],
)
def test_unsupported_parts_are_replaced_by_a_note(part: Json) -> None:
    block = convert_messages({"role": "user", "content": [part]})["messages"][0]["content"][0]
    assert block["type"] == "text"
    assert f"a part of type {part['type']} is left out" in block["text"]


def test_an_assistant_image_is_replaced_by_a_note() -> None:
    """Anthropic accepts images in user messages only."""
    image = Part("image_url", extra={"image_url": {"url": "data:image/png;base64,AAAA"}})
    told = adapt_messages(
        [Message(role="user", content="hi"), Message(role="assistant", content=(image,))], "anthropic"
    )
    assert "left out" in build_request(told)["messages"][1]["content"][0]["text"]


def test_at_most_four_cache_marks_are_kept_first_in_system_and_new_messages() -> None:
    """The last marks of older messages fill the rest; the API rejects a fifth."""
    texts_ = [{"type": "text", "text": str(at), **MARK} for at in range(3)]
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = convert_messages(
        {"role": "system", "content": [{"type": "text", "text": "Sys.", **MARK}]},
        {"role": "user", "content": texts_},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "r", **MARK}]},
        {"role": "user", "content": [{"type": "text", "text": "go", **MARK}]},
    )
    assert _marks(request) == 4
    assert _marks(request["system"]) == 1
    assert ["cache_control" in block for block in request["messages"][0]["content"]] == [False, False, True]
    assert _marks(request["messages"][2]) == 2


# -- blocks without a Chat Completions form -------------------------------------

SEARCH: list[Json] = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": "Searching. "},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "kelp"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "thinking", "thinking": "so", "signature": "t"},
    {"type": "text", "text": "Kelp.", "citations": [{"type": "char_location", "cited_text": "x"}]},
]


def build_reply_blocks(content: str, blocks: Any, **extra: Any) -> list[Json]:
    """Return the assistant's blocks in a request whose log has a reply with `blocks` and content."""
    if isinstance(blocks, list):
        blocks = [{**block, "index": at} if isinstance(block, dict) else block for at, block in enumerate(blocks)]
    message = {"role": "assistant", "content": content, "content_blocks": blocks, **extra}
    told = convert_messages({"role": "user", "content": "hi"}, message)["messages"]
    return [block for one in told if one["role"] == "assistant" for block in one["content"]]


def test_blocks_of_a_reply_are_sent_back_unchanged() -> None:
    """They keep their order, and text and reasoning are not repeated."""
    thinking_ = {"thinking_blocks": [SEARCH[0], SEARCH[4]], "reasoning_content": "hmso"}
    assert build_reply_blocks("Searching. Kelp.", SEARCH, **thinking_) == SEARCH


def test_blocks_that_differ_from_the_content_are_dropped() -> None:
    """The content of an interrupted or edited reply takes precedence."""
    assert build_reply_blocks("Searching.", SEARCH) == [{"type": "text", "text": "Searching."}]


def test_incomplete_server_tool_pairs_are_dropped() -> None:
    """The API refuses a call without its result, and a result without its call."""
    assert build_reply_blocks("Searching. ", SEARCH[:3]) == SEARCH[:2]
    assert build_reply_blocks("Searching. ", [SEARCH[1], SEARCH[3]]) == [SEARCH[1]]


@pytest.mark.parametrize(
    "blocks", [None, "x", 5, [], [5, None], [{}], [{"type": "text"}], [{"type": 5, "text": "Kelp."}]]
)
def test_malformed_content_blocks_are_ignored(blocks: Any) -> None:
    assert build_reply_blocks("Kelp.", blocks)[-1] == {"type": "text", "text": "Kelp."}


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("None", [{"type": "text"}]),
        ("7", [{"type": "text", "text": 7}]),
        ("Kelp.", [{"type": "text", "text": "Kelp."}, {"type": "server_tool_use", "id": [1]}]),
        ("Kelp.", [{"type": "text", "text": "Kelp."}, {"type": "web_search_tool_result", "tool_use_id": {"a": 1}}]),
    ],
)
def test_malformed_blocks_of_a_client_do_not_break_calls(content: str, blocks: Any) -> None:
    """They stay in the log, so every later call would fail."""
    assert build_reply_blocks(content, blocks) == [{"type": "text", "text": content}]


def test_user_names_become_text_and_unknown_fields_are_dropped() -> None:
    """The API rejects unknown fields."""
    user = {"role": "user", "name": "ada", "content": [{"type": "text", "text": "hi", "foo": 1}], "bar": 2}
    assert convert_messages(user)["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "ada:"}, {"type": "text", "text": "hi"}]}
    ]


# -- tools ------------------------------------------------------------------------------


def test_tools_are_converted() -> None:
    """OpenAI functions become tools with a schema; Anthropic tools are unchanged."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    own = {"type": "web_search_20250305", "name": "web_search"}
    function = {"name": "find", "description": "Finds.", "parameters": schema, "strict": True}
    given_: list[Json] = [
        {"type": "function", "function": function},
        own,
        {"type": "function", "function": {"name": "go"}},
    ]
    before = json.dumps(given_)
    assert convert_tools(given_) == [
        {"name": "find", "description": "Finds.", "input_schema": schema},
        own,
        {"name": "go", "input_schema": {"type": "object", "properties": {}}},
    ]
    assert json.dumps(given_) == before


@pytest.mark.parametrize(
    "tool",
    [
        {},
        {"type": "function"},
        {"type": "custom", "custom": {"name": "x"}},
        {"type": "function", "function": {"name": "a b"}},
    ],
)
def test_invalid_tools_are_rejected(tool: Json) -> None:
    """A renamed tool could not be matched again, so the error names the position."""
    with pytest.raises(InvalidRequest) as caught:
        convert_tools([tool])
    assert str(caught.value.param).startswith("tools[0]")


def build_contents(role: str, *blocks: Json) -> list[list[Json]]:
    """Return the contents sent to Anthropic for a greeting and one message."""
    given_ = [{"role": "user", "content": "Hi"}, {"role": role, "content": [*blocks]}]
    request = build_request(adapt_messages(parse_messages(given_), "anthropic"), cache=None)
    assert rules.check_prompt(request) == []
    return [message["content"] for message in request["messages"]]


def test_incomplete_server_tools_of_an_aborted_reply_are_dropped() -> None:
    """The API rejects a call without a result or a result without a call."""
    asked, found = SERVED
    text = {"type": "text", "text": "Let me see."}
    assert build_contents("assistant", text, asked)[1] == [text]
    assert build_contents("assistant", found, text)[1] == [text]
    assert build_contents("assistant", text, *SERVED)[1] == [text, *SERVED]


def test_blocks_in_roles_that_do_not_allow_them_become_text() -> None:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}, "toolset_name": "browser"}
    found: list[Json] = [{"type": "tool_reference", "tool_name": "g"}, {"type": "browser_state", "tabs": []}]
    result = {"type": "tool_result", "tool_use_id": "a", "content": found, "toolset_name": "browser"}
    image = {
        "type": "image",
        "source": {"type": "url", "url": "https://a.b/c.png"},
        "transformations": {"resize": "none"},
    }
    messages: list[Json] = [
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    request = build_request(adapt_messages(parse_messages(messages), "anthropic"), cache=None)
    assert request["messages"] == messages
    assert rules.check_prompt(request) == []
    for block in (*found, *SERVED):
        assert [one["type"] for one in build_contents("user", block)[0]] == ["text", "text"]
    search = {"type": "search_result", "source": "s", "title": "t", "content": []}
    assert [one["type"] for one in build_contents("assistant", search)[1]] == ["text"]


@pytest.mark.parametrize("given_", [[1], "x", 5, None, {"a": 1}])
def test_tool_inputs_that_are_not_objects_are_accepted(given_: Any) -> None:
    """Models write such arguments and clients resend them, so the call must still match."""
    use = {"type": "tool_use", "id": "a", "name": "f", "input": given_}
    (made,) = parse_messages([{"role": "assistant", "content": [use]}])
    function = {"name": "f", "arguments": json.dumps(given_)}
    said = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    assert encode_canonical(made) == encode_canonical(parse_message(said))
