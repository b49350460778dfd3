"""Deltas: streams cut anywhere give the same ones, and chunks survive decoding and encoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.log.items import Delta, Text
from holdfast.models.answer import AnswerReader
from holdfast.models.anthropic import MessageReader
from holdfast.models.codecs.chat import ChatDecoder, ChatEncoder
from holdfast.models.codecs.messages.reply_decoder import ReplyDecoder
from holdfast.models.collect import Collector
from holdfast.models.responses import ResponseReader
from holdfast.testing import AnthropicUpstream, Reply, ResponsesUpstream, ScriptedUpstream

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "Zürich"}'}}
REPLY = Reply(text="Grüße, 世界 👋", message={"reasoning_content": "let me see"}, tool_calls=[CALL])
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "input": "Hi", "max_tokens": 9}
APIS: dict[str, tuple[type[ScriptedUpstream], Callable[[], AnswerReader]]] = {
    "chat": (ScriptedUpstream, lambda: AnswerReader("u")),
    "messages": (AnthropicUpstream, lambda: MessageReader("u", ReplyDecoder())),
    "responses": (ResponsesUpstream, lambda: ResponseReader("u")),
}


def read(reader: AnswerReader, *pieces: bytes) -> list[list[Delta]]:
    found = [deltas for piece in pieces for deltas in reader.feed(piece)]
    return found if reader.done else [*found, *reader.end()]


@pytest.mark.parametrize("api", APIS)
def test_a_stream_cut_at_any_byte_gives_the_same_deltas(api: str) -> None:
    upstream, make_reader = APIS[api]
    data = b"".join([*upstream([REPLY]).format_events(REPLY, BODY, 1), REPLY.end if api == "chat" else b""])
    whole = read(make_reader(), data)
    assert "".join(one.text for deltas in whole for one in deltas if isinstance(one, Text)) == REPLY.text
    for at in range(1, len(data)):
        assert read(make_reader(), data[:at], data[at:]) == whole
    assert read(make_reader(), *(data[at : at + 1] for at in range(len(data)))) == whole


WORD = st.text(max_size=4)
JSON = st.recursive(
    st.booleans() | st.integers() | WORD, lambda one: st.lists(one) | st.dictionaries(WORD, one), max_leaves=3
)
UNKNOWN = st.dictionaries(st.sampled_from(["x_one", "x_two", "citations", "annotations"]), JSON, max_size=2)
TEXTS = st.fixed_dictionaries({"content": WORD}, optional={"reasoning": st.just("hm"), "refusal": WORD})


@st.composite
def make_chunk(draw: st.DrawFn) -> dict[str, Any]:
    choices = {
        index: {
            "index": index,
            "delta": {**draw(TEXTS), **draw(UNKNOWN), "role": "assistant"},
            "finish_reason": draw(st.sampled_from([None, "stop"])),
            **draw(UNKNOWN),
        }
        for index in draw(st.lists(st.integers(0, 2), min_size=1, unique=True))
    }
    about = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    return {**draw(UNKNOWN), **about, "choices": list(choices.values()), "usage": {"prompt_tokens": 1}}


@given(make_chunk())
def test_decoding_and_encoding_a_chunk_loses_nothing(chunk: dict[str, Any]) -> None:
    assert ChatEncoder().encode(ChatDecoder().decode(json.loads(json.dumps(chunk)))) == chunk


@given(st.lists(make_chunk(), min_size=1, max_size=3))
def test_encoded_chunks_collect_to_the_same_completion(chunks: list[dict[str, Any]]) -> None:
    decoder, encoder, collector, again = ChatDecoder(), ChatEncoder(), Collector(), ChatDecoder()
    passed = Collector()
    for chunk in chunks:
        collector.add(deltas := decoder.decode(chunk))
        passed.add(again.decode(encoder.encode(deltas) or {}))
    assert passed.build_completion() == collector.build_completion()
