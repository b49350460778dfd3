"""Anthropic's messages: a working set in their shape, and the way back."""

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
    """Legal `messages` of a request, in the form in which they are sent: blocks, results and reasoning first, calls last."""
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
    """Every block leaves as it came, also after it was stored and as OpenAI has it; what came is left alone."""
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


def test_strings_are_taken_too() -> None:
    """As content of a message, of a result, and as system prompt."""
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
def test_what_is_no_message_is_refused_with_its_place(messages: Any, param: str) -> None:
    """The error says where, and what would be right."""
    with pytest.raises(InvalidMessage) as caught:
        parse_messages(messages)
    assert str(caught.value.param).startswith(param)


@given(st.recursive(values, lambda inner: st.fixed_dictionaries({"role": st.just("user") | inner, "content": inner})))
def test_anything_is_messages_or_an_error(data: Any) -> None:
    """No JSON makes it fail in any other way."""
    assert attempted(data).startswith("messages[0]")


def attempted(data: Any) -> str:
    """The error for `data`; its place alone when it is a message."""
    try:
        parse_messages([data])
    except InvalidMessage as exc:
        return str(exc)
    return "messages[0]"


# -- out ------------------------------------------------------------------------------


def sent(*messages: Json) -> Json:
    """What is sent for Chat Completions messages."""
    made = [parse_message(message) for message in messages]
    front = [message for message in made[:1] if message.role == "system"]
    return build_request([*front, *adapt_messages(made[len(front) :], "anthropic")])


def test_a_tool_round() -> None:
    """System apart; parallel results in one message, before what the user says next."""
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}} for name in "ab"]
    request = sent(
        {"role": "system", "content": "Sys."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "one moment ", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "user", "content": "and?"},
    )
    use = {"type": "tool_use", "name": "f", "input": {"x": 1}}
    assert request == {
        "system": [{"type": "text", "text": "Sys."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "one moment "}, use | {"id": "a"}, use | {"id": "b"}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}]},
                    {"type": "tool_result", "tool_use_id": "a"},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
    }


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
def test_reasoning_goes_back_in_front(extra: Json, blocks: list[Json]) -> None:
    """Signed by Anthropic: as it was; otherwise its words, marked; what only another vendor can read stays behind."""
    request = sent({"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok", **extra})
    content = request["messages"][1]["content"]
    assert content[: len(blocks)] == blocks
    assert content[len(blocks)] == {"type": "text", "text": "ok"}


def test_reasoning_inside_the_content_keeps_its_place() -> None:
    """Interleaved reasoning stays between the texts; reasoning behind a text comes first, where it must."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    text = {"type": "text", "text": "ok"}
    for given_, expected in (
        ([thinking, text, thinking], [thinking, text, thinking]),
        ([text, thinking], [thinking, text]),
    ):
        request = sent({"role": "user", "content": "hi"}, {"role": "assistant", "content": given_})
        assert request["messages"][1]["content"] == expected


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://example.com/a"}, **MARK},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a"}, **MARK},
        ),
        (
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
                "title": "a.pdf",
            },
        ),
        (
            {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain,hello%20you"}},
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "hello you"},
                "title": "a.txt",
            },
        ),
        (
            {"type": "input_file", "file_url": "https://example.com/a.pdf"},
            {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
        ),
    ],
)
def test_images_and_documents(part: Json, block: Json) -> None:
    """Data URLs become data, links stay links."""
    assert sent({"role": "user", "content": [part]})["messages"][0]["content"] == [block]


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
def test_what_anthropic_does_not_take_is_named(part: Json) -> None:
    """Nothing is left out silently."""
    block = sent({"role": "user", "content": [part]})["messages"][0]["content"][0]
    assert block["type"] == "text"
    assert f"a part of type {part['type']} is left out" in block["text"]


def test_an_assistants_image_is_named() -> None:
    """Only users send images."""
    image = Part("image_url", extra={"image_url": {"url": "data:image/png;base64,AAAA"}})
    told = adapt_messages(
        [Message(role="user", content="hi"), Message(role="assistant", content=(image,))], "anthropic"
    )
    assert "left out" in build_request(told)["messages"][1]["content"][0]["text"]


def test_of_more_than_four_cache_marks_those_in_front_and_in_what_is_new_stay() -> None:
    """Then the last ones of older messages, which a log keeps from other requests; the API refuses a fifth."""
    texts_ = [{"type": "text", "text": str(at), **MARK} for at in range(3)]
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = sent(
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


# -- blocks that Chat Completions have no place for -------------------------------------

SEARCH: list[Json] = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": "Searching. "},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "kelp"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "thinking", "thinking": "so", "signature": "t"},
    {"type": "text", "text": "Kelp.", "citations": [{"type": "char_location", "cited_text": "x"}]},
]


def replied(content: str, blocks: Any, **extra: Any) -> list[Json]:
    """The assistant's blocks in a request whose log has a reply with `blocks` beside its content."""
    if isinstance(blocks, list):
        blocks = [{**block, "index": at} if isinstance(block, dict) else block for at, block in enumerate(blocks)]
    message = {"role": "assistant", "content": content, "content_blocks": blocks, **extra}
    told = sent({"role": "user", "content": "hi"}, message)["messages"]
    return [block for one in told if one["role"] == "assistant" for block in one["content"]]


def test_a_replys_own_blocks_go_back_as_they_came() -> None:
    """In their order, and once: not its text and its reasoning a second time."""
    thinking_ = {"thinking_blocks": [SEARCH[0], SEARCH[4]], "reasoning_content": "hmso"}
    assert replied("Searching. Kelp.", SEARCH, **thinking_) == SEARCH


def test_blocks_that_no_longer_say_what_the_content_says_stay_behind() -> None:
    """An interrupted or edited reply is what its content says."""
    assert replied("Searching.", SEARCH) == [{"type": "text", "text": "Searching."}]


def test_a_server_tool_that_was_cut_off_leaves_no_half_pair() -> None:
    """The API refuses a call without its result, and a result without its call."""
    assert replied("Searching. ", SEARCH[:3]) == SEARCH[:2]
    assert replied("Searching. ", [SEARCH[1], SEARCH[3]]) == [SEARCH[1]]


@pytest.mark.parametrize(
    "blocks", [None, "x", 5, [], [5, None], [{}], [{"type": "text"}], [{"type": 5, "text": "Kelp."}]]
)
def test_what_is_no_list_of_blocks_is_passed_over(blocks: Any) -> None:
    """A log holds what came."""
    assert replied("Kelp.", blocks)[-1] == {"type": "text", "text": "Kelp."}


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("None", [{"type": "text"}]),
        ("7", [{"type": "text", "text": 7}]),
        ("Kelp.", [{"type": "text", "text": "Kelp."}, {"type": "server_tool_use", "id": [1]}]),
        ("Kelp.", [{"type": "text", "text": "Kelp."}, {"type": "web_search_tool_result", "tool_use_id": {"a": 1}}]),
    ],
)
def test_blocks_of_a_clients_own_making_break_no_call(content: str, blocks: Any) -> None:
    """What a client puts into a field of ours is in the log for good: every later call is made of it."""
    assert replied(content, blocks) == [{"type": "text", "text": content}]


def test_names_of_users_are_told_and_fields_of_others_left() -> None:
    """A name is a text of its own; fields that the API does not know would be refused."""
    user = {"role": "user", "name": "ada", "content": [{"type": "text", "text": "hi", "foo": 1}], "bar": 2}
    assert sent(user)["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "ada:"}, {"type": "text", "text": "hi"}]}
    ]


# -- tools ------------------------------------------------------------------------------


def test_tools() -> None:
    """OpenAI's functions become tools with a schema; Anthropic's own stay."""
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
def test_what_is_no_tool_is_refused(tool: Json) -> None:
    """With its place: a renamed tool could not be found again."""
    with pytest.raises(InvalidRequest) as caught:
        convert_tools([tool])
    assert str(caught.value.param).startswith("tools[0]")


def told(role: str, *blocks: Json) -> list[list[Json]]:
    """The contents that Anthropic is sent of a conversation of one message and a word before it."""
    given_ = [{"role": "user", "content": "Hi"}, {"role": role, "content": [*blocks]}]
    request = build_request(adapt_messages(parse_messages(given_), "anthropic"), cache=None)
    assert rules.check_prompt(request) == []
    return [message["content"] for message in request["messages"]]


def test_half_of_what_a_server_tool_did_stays_behind() -> None:
    """Of a reply that ended on its way: the API refuses a call without its result, and a result without its call."""
    asked, found = SERVED
    text = {"type": "text", "text": "Let me see."}
    assert told("assistant", text, asked)[1] == [text]
    assert told("assistant", found, text)[1] == [text]
    assert told("assistant", text, *SERVED)[1] == [text, *SERVED]


def test_blocks_stand_where_the_api_takes_them() -> None:
    """In another role's message they are told as text, not refused."""
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
        assert [one["type"] for one in told("user", block)[0]] == ["text", "text"]
    search = {"type": "search_result", "source": "s", "title": "t", "content": []}
    assert [one["type"] for one in told("assistant", search)[1]] == ["text"]


@pytest.mark.parametrize("given_", [[1], "x", 5, None, {"a": 1}])
def test_an_input_is_taken_as_the_client_has_it(given_: Any) -> None:
    """Models write arguments that are no object, and a client that reads a stream has them so: the call is known again."""
    use = {"type": "tool_use", "id": "a", "name": "f", "input": given_}
    (made,) = parse_messages([{"role": "assistant", "content": [use]}])
    function = {"name": "f", "arguments": json.dumps(given_)}
    said = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    assert encode_canonical(made) == encode_canonical(parse_message(said))
