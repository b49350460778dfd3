"""Replies in Anthropic's format: streamed and whole replies are equal, and resent ones match the stored ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.messages import encode_canonical
from holdfast.errors import InvalidRequest
from holdfast.models import Collector
from holdfast.models.anthropic_stream import ReplyChunks
from holdfast.models.collect import to_chunks
from holdfast.testing.anthropic_upstream import _make_events
from holdfast.wire.anthropic import parse_messages
from holdfast.wire.anthropic_replies import ReplyEvents, make_message
from holdfast.wire.anthropic_requests import (
    ELSEWHERE,
    convert_fields,
    drop_anthropic_fields,
    parse_fields,
    to_plain_prompt,
)
from holdfast.wire.openai import convert_parts, move_media_after_results, parse_message, to_chat_message

Json = dict[str, Any]

words = st.text("abc é\n", min_size=1, max_size=12).filter(str.strip)
thinking = st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "c2ln"}, words) | st.just(
    {"type": "redacted_thinking", "data": "c2VhbGVk"}
)
texts = st.builds(lambda text: {"type": "text", "text": text}, words)
cited = st.builds(
    lambda text, at: {"type": "text", "text": text, "citations": [{"type": "char_location", "start_char_index": at}]},
    words,
    st.integers(0, 9),
)
inputs = st.dictionaries(st.text("ab", max_size=3), st.integers() | words, max_size=2)
served = st.builds(
    lambda number, given: [
        {"type": "server_tool_use", "id": f"srv_{number}", "name": "web_search", "input": given},
        {"type": "web_search_tool_result", "tool_use_id": f"srv_{number}", "content": []},
    ],
    st.integers(0, 99),
    inputs,
)
calls = st.builds(lambda name, given: {"type": "tool_use", "name": name, "input": given}, st.sampled_from("fg"), inputs)


@st.composite
def contents(draw: st.DrawFn) -> list[Json]:
    """Draw the blocks of a reply of Anthropic."""
    found = [*draw(st.lists(thinking, max_size=2))]
    for piece in draw(st.lists(texts | cited | served | thinking, max_size=4)):
        found += piece if isinstance(piece, list) else [piece]
    found += [{**call, "id": f"toolu_{at}"} for at, call in enumerate(draw(st.lists(calls, max_size=3)))]
    return found


def chunks_of(content: list[Json]) -> list[Json]:
    """Convert a streamed reply of Anthropic to chunks."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 5},
    }
    reader = ReplyChunks()
    reader.begin_part()
    return [chunk for event in _make_events(message) for chunk in reader.convert(event)]


def accumulate(events: list[Json]) -> Json:
    """Collect events with the official client."""
    from anthropic.lib.streaming._messages import accumulate_event  # imported late, because it takes a second

    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)  # type: ignore[arg-type]
    told: Json = snapshot.to_dict(exclude_none=True)
    return told


def stream_message(chunks: list[Json]) -> Json:
    telling = ReplyEvents()
    events = [event for chunk in chunks for event in telling.add(chunk)]
    events += telling.end()
    check_order(events)
    return accumulate(events)


def check_order(events: list[Json]) -> None:
    """Check that blocks do not overlap and their indexes count up."""
    opened, count = None, 0
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert (opened, event["index"]) == (None, count)
            opened, count = event["index"], count + 1
        else:
            assert event["index"] == opened
            opened = None if event["type"] == "content_block_stop" else opened
    assert opened is None
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]


def collect_completion(chunks: list[Json]) -> Json:
    collector = Collector()
    for chunk in chunks:
        collector.add(chunk)
    return collector.build_completion()


def join_texts(content: list[Json]) -> list[Json]:
    """Join adjacent text blocks without citations, whose boundaries chunks do not contain."""
    found: list[Json] = []
    for block in content:
        if (
            found
            and {block["type"], found[-1]["type"]} == {"text"}
            and not (block.keys() | found[-1].keys()) & {"citations"}
        ):
            found[-1] = {**found[-1], "text": found[-1]["text"] + block["text"]}
        else:
            found.append({name: value for name, value in block.items() if value != []})
    return found


def expect_streamed(content: list[Json]) -> list[Json]:
    """Join blocks as the stream does: the first cited block also contains the text before it."""
    found, known = list[Json](), False
    for block in join_texts(drop_empty_fields(content)):
        cited = bool(block.get("citations"))
        before = found.pop()["text"] if cited and not known and found and found[-1]["type"] == "text" else ""
        later = block["type"] in ("thinking", "redacted_thinking") and any(one["type"] == "text" for one in found)
        known = known or cited or later or block["type"] in ("server_tool_use", "web_search_tool_result")
        found.append({**block, "text": before + block["text"]} if before else block)
    return found


def drop_empty_fields(content: list[Json]) -> list[Json]:
    return [{name: value for name, value in block.items() if value not in ([], None)} for block in content]


@given(contents())
def test_anthropic_replies_round_trip_streamed_and_whole(content: list[Json]) -> None:
    """Reasoning, citations and server tools keep their positions."""
    chunks = chunks_of(content)
    told = stream_message(chunks)
    whole = make_message(collect_completion(chunks))
    assert join_texts(told["content"]) == expect_streamed(content)
    assert join_texts(drop_empty_fields(whole["content"])) == join_texts(drop_empty_fields(content))
    assert told["stop_reason"] == whole["stop_reason"]
    assert told["usage"]["output_tokens"] == 5


@given(contents(), st.booleans())
def test_a_resent_reply_has_the_digest_of_the_stored_one(content: list[Json], by_stream: bool) -> None:
    """For Anthropic and Chat Completions clients."""
    chunks = chunks_of(content)
    completion = collect_completion(chunks)
    data = completion["choices"][0]["message"]
    stored = parse_message({**data, "role": "assistant"})
    sent = stream_message(chunks) if by_stream else make_message(completion)
    (again,) = parse_messages([{"role": "assistant", "content": sent["content"]}]) or (stored,)
    assert encode_canonical(again) == encode_canonical(stored)
    plain = {name: data[name] for name in ("role", "content", "tool_calls") if name in data}
    assert encode_canonical(parse_message(plain)) == encode_canonical(stored)


@given(contents(), st.booleans())
def test_a_stored_reply_is_replayed_unchanged(content: list[Json], by_word: bool) -> None:
    """This answers a repeated request."""
    first = collect_completion(chunks_of(content))
    again = {**first, "choices": [{**first["choices"][0]}]}
    stored = to_chat_message(parse_message({**first["choices"][0]["message"], "role": "assistant"}))
    again["choices"][0]["message"] = stored
    assert join_texts(stream_message(list(to_chunks(again)))["content"]) == join_texts(
        drop_empty_fields(make_message(first)["content"])
    )


@given(words, st.lists(st.tuples(st.sampled_from("fg"), inputs), max_size=3), st.booleans())
def test_replies_of_other_models_are_converted(text: str, asked: list[tuple[str, Json]], by_word: bool) -> None:
    """From Chat Completions chunks of any size."""
    function = [{"name": name, "arguments": json.dumps(given)} for name, given in asked]
    message: Json = {"role": "assistant", "content": text, "reasoning_content": "hm"}
    if function:
        message["tool_calls"] = [
            {"id": f"c{at}", "type": "function", "function": one} for at, one in enumerate(function)
        ]
    completion = {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if function else "stop"}],
    }
    told, whole = stream_message(list(to_chunks(completion, by_word=by_word))), make_message(completion)
    assert told["content"] == whole["content"]
    assert [(b["name"], b["input"]) for b in whole["content"] if b["type"] == "tool_use"] == asked
    assert told["stop_reason"] == whole["stop_reason"] == ("tool_use" if function else "end_turn")
    assert told["id"] == whole["id"] == "msg_1"


@st.composite
def draw_interleaved(draw: st.DrawFn) -> list[Json]:
    """Draw a stream with calls, texts and reasoning interleaved in any order."""
    queues: list[list[Json]] = []
    for at in range(draw(st.integers(0, 4))):
        given = json.dumps(
            draw(st.dictionaries(st.text("ab}", max_size=2), st.integers() | st.text('{"}', max_size=3)))
        )
        arguments = "" if given == "{}" and draw(st.booleans()) else given
        cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=4)))
        pieces = [arguments[start:end] for start, end in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        calls: list[Json] = [{"index": at, "function": {"arguments": piece}} for piece in pieces]
        calls[0] |= {"id": f"c{at}", "function": {"name": f"f{at}", "arguments": pieces[0]}}
        queues.append([{"tool_calls": [call]} for call in calls])
    queues.append([{"content": text} for text in draw(st.lists(st.text("xy ", max_size=3), max_size=4))])
    queues.append([{"reasoning_content": text} for text in draw(st.lists(st.text("r", max_size=3), max_size=2))])
    deltas: list[Json] = [{"role": "assistant", "content": "", "tool_calls": None}]
    while left := [queue for queue in queues if queue]:
        deltas.append(draw(st.sampled_from(left)).pop(0))
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas]
    return [*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]


@given(draw_interleaved())
def test_only_one_block_is_open_for_any_chunk_order(chunks: list[Json]) -> None:
    """Nothing is lost and no closed block grows, even if parallel calls alternate with texts."""
    told, said = stream_message(chunks)["content"], collect_completion(chunks)["choices"][0]["message"]
    for kind, name, field in (("text", "text", "content"), ("thinking", "thinking", "reasoning_content")):
        assert "".join(block[name] for block in told if block["type"] == kind) == (said.get(field) or "")
    uses = sorted((block["id"], block["name"], block["input"]) for block in told if block["type"] == "tool_use")
    functions = [(call["id"], call["function"]) for call in said.get("tool_calls") or ()]
    assert uses == [(name, one["name"], json.loads(one["arguments"] or "{}")) for name, one in functions]


def test_fragmented_calls_of_lenient_providers_are_assembled() -> None:
    """Some providers index all calls 0, omit indexes or ids, and finish with `stop`."""

    def delta(**call: Any) -> Json:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}

    chunks = [
        delta(index=0, id="a", function={"name": "f", "arguments": "{}"}),
        delta(index=0, id="b", function={"name": "f", "arguments": '{"x":'}),
        delta(index=0, function={"arguments": "1}"}),
        delta(function={"name": "g", "arguments": ""}),
        delta(function={"arguments": '{"y":2}'}),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    told = stream_message(chunks)
    assert [(block["id"], block["name"], block["input"]) for block in told["content"]] == [
        ("a", "f", {}),
        ("b", "f", {"x": 1}),
        ("call_2", "g", {"y": 2}),
    ]
    assert told["stop_reason"] == "tool_use"


# -- digests -----------------------------------------------------------------


@given(contents())
def test_unspoken_parts_do_not_affect_the_digest(content: list[Json]) -> None:
    said = [block for block in content if block["type"] != "tool_use"]
    message = parse_message({"role": "assistant", "content": said})
    spoken = parse_message({"role": "assistant", "content": [block for block in said if block["type"] == "text"]})
    assert encode_canonical(message) == encode_canonical(spoken)


# -- requests ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [1]}, "stop_sequences"),
        ({"tools": "x"}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"name": "x", "input_schema": {}, "type": 1}]}, "tools[0].type"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": []}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"metadata": 1}, "metadata"),
        ({"metadata": {"user_id": 1}}, "metadata.user_id"),
    ],
)
def test_invalid_fields_are_rejected_by_name(body: Json, param: str) -> None:
    with pytest.raises(InvalidRequest) as told:
        parse_fields(body)
    assert told.value.param == param


def test_tool_choice_is_dropped_without_tools() -> None:
    """This happens if all tools are Anthropic's own."""
    fields = parse_fields({"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}})
    assert fields["tool_choice"] == "required"
    assert convert_fields(fields, "gpt-4o") == {}


def test_both_names_of_the_answer_format_are_converted() -> None:
    """`output_format` is the name of an earlier beta; `output_config.format` takes precedence."""
    old = {"type": "json_schema", "schema": {"type": "object"}}
    new = {"type": "json_schema", "schema": {"type": "array"}}
    converted = [
        convert_fields(one, "gpt-4o")
        for one in ({"output_format": old}, {"output_format": old, "output_config": {"format": new}})
    ]
    assert [one["response_format"]["json_schema"]["schema"]["type"] for one in converted] == ["object", "array"]


def test_other_providers_get_null_content_only_with_calls() -> None:
    """They reject replies and results without content, so a reasoning-only reply gets a note."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    messages = parse_messages(
        [
            {"role": "assistant", "content": [thought]},
            {"role": "assistant", "content": [thought, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
        ]
    )
    assert [to_chat_message(drop_anthropic_fields(message))["content"] for message in messages] == [
        ELSEWHERE.format(type="unknown"),
        None,
        "",
    ]


def test_parts_that_only_anthropic_reads_get_a_note() -> None:
    """Search results become their text."""
    found = {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "words"}]}
    parts = [found, {"type": "container_upload", "file_id": "f"}, {"type": "text", "text": "x", "citations": []}]
    told = to_chat_message(drop_anthropic_fields(parse_message({"role": "user", "content": parts})))
    assert [part["text"] for part in told["content"]] == [
        "T\nS\nwords",
        "[a part of type container_upload is left out here: only Anthropic can read it]",
        "x",
    ]
    assert all(set(part) == {"type", "text"} for part in told["content"])
    same = parse_message({"role": "user", "content": [{"type": "text", "text": "x"}]})
    assert drop_anthropic_fields(same) is same


plain = st.sampled_from(
    [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "hi", "name": "ada"},
        {"role": "assistant", "content": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "found", "tool_call_id": "c"},
    ]
)
special = st.sampled_from(
    [
        {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "x"}}]},
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "hm", "thinking_blocks": [{"type": "thinking", "thinking": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}, "caller": {}}]},
        {"role": "tool", "content": None, "tool_call_id": "c"},
        {"role": "tool", "content": [{"type": "image", "source": {}}], "tool_call_id": "c"},
    ]
)


@given(plain, special)
def test_plain_messages_are_sent_unchanged(one: Json, other: Json) -> None:
    message = parse_message(one)
    assert to_plain_prompt([message]) == [to_chat_message(message)] == [one]
    assert drop_anthropic_fields(convert_parts(message)) is message
    assert move_media_after_results([message]) == (message,)
    assert to_plain_prompt([message, parse_message(other), message]) is None


@given(contents())
def test_the_fast_path_gives_the_same_text_deltas(content: list[Json]) -> None:
    """Most chunks only append to the open text block."""
    short, long = ReplyEvents(), ReplyEvents()
    for chunk in chunks_of(content):
        events = long.add(chunk)
        if (words := short.get_appended_text(chunk)) is None:
            assert short.add(chunk) == events
        else:
            delta = {"type": "text_delta", "text": words}
            assert events == [{"type": "content_block_delta", "index": short.index, "delta": delta}]
    assert short.end() == long.end()
