"""Chunks to a completion and back: nothing lost, wherever a stream was cut, whoever sent it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ModelProtocolError
from holdfast.models.collect import Collector, collect, to_chunks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# -- any completion, cut anywhere, is the same completion again ----------------

texts = st.text(max_size=30)
scalars = st.none() | st.booleans() | st.integers(-5, 5) | texts
extras = st.dictionaries(
    st.sampled_from(["reasoning_content", "provider_note", "flag", "details"]),
    scalars | st.dictionaries(st.sampled_from(["text", "score"]), scalars, max_size=2) | st.lists(texts, max_size=3),
    max_size=2,
)
calls = st.builds(
    lambda at, name, arguments, more: {
        "id": f"call_{at}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
        **more,
    },
    st.integers(0, 99),
    st.text(min_size=1, max_size=8),
    texts,
    st.fixed_dictionaries({}, optional={"extra_content": st.fixed_dictionaries({"thought": texts})}),
)
reasoning = st.lists(
    st.fixed_dictionaries({"type": st.just("reasoning.text"), "text": texts, "format": st.just("v1")}), max_size=2
).map(lambda items: [item | {"index": at} for at, item in enumerate(items)])
logprobs = st.none() | st.fixed_dictionaries(
    {"content": st.lists(st.fixed_dictionaries({"token": texts, "logprob": st.just(-0.5)}), max_size=4)}
)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | texts), **draw(extras)}
    found = draw(st.lists(calls, max_size=3, unique_by=lambda call: call["id"]))
    if found:
        message["tool_calls"] = found
    details = draw(reasoning)
    if details:
        message["reasoning_details"] = details
    return message


@st.composite
def completions(draw: st.DrawFn) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": message,
            "finish_reason": draw(st.sampled_from(["stop", "tool_calls", "length"])),
            "logprobs": draw(logprobs),
        }
        for index, message in enumerate(draw(st.lists(messages(), min_size=1, max_size=3)))
    ]
    completion: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 17,
        "model": "m",
        "choices": choices,
    }
    if draw(st.booleans()):
        completion["usage"] = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}
    return completion | draw(st.fixed_dictionaries({}, optional={"system_fingerprint": texts, "provider": texts}))


def cut(data: st.DataObject, text: str) -> list[str]:
    """`text` in pieces, empty ones among them."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]


def delta_parts(data: st.DataObject, message: dict[str, Any]) -> list[dict[str, Any]]:
    """`message` as deltas, each of its growing fields cut at random."""
    parts: list[dict[str, Any]] = [{"role": message["role"], "content": None}]
    for key, value in message.items():
        if key == "tool_calls":
            parts += [part for at, call in enumerate(value) for part in call_parts(data, at, call)]
        elif key == "reasoning_details":
            for item in value:
                pieces = cut(data, item["text"])
                parts += [{key: [item | {"text": piece}]} for piece in pieces]
        elif isinstance(value, str) and key != "role":
            parts += [{key: piece} for piece in cut(data, value)]
        elif isinstance(value, list):
            parts += [{key: []}, *({key: [item]} for item in value)]
        elif isinstance(value, dict):
            parts += [{key: {}}, *({key: {inner: item}} for inner, item in value.items())]
        else:
            parts.append({key: value})
    return parts


def call_parts(data: st.DataObject, at: int, call: dict[str, Any]) -> list[dict[str, Any]]:
    first, *rest = cut(data, call["function"]["arguments"])
    resent = data.draw(st.sampled_from([{}, {"id": call["id"]}, {"id": None, "type": None}]))
    opening = call | {"function": call["function"] | {"arguments": first}, "index": at}
    later = [{"index": at, "function": {"arguments": piece}, **resent} for piece in rest]
    return [{"tool_calls": [part]} for part in [opening, *later]]


def random_chunks(data: st.DataObject, completion: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream of `completion`: every choice in random deltas, the choices interleaved."""
    head = {key: value for key, value in completion.items() if key not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    queues: list[list[dict[str, Any]]] = []
    for choice in completion["choices"]:
        queue = [{"index": choice["index"], "delta": part} for part in delta_parts(data, choice["message"])]
        for item in (choice["logprobs"] or {}).get("content", ()):
            queue.append({"index": choice["index"], "delta": {}, "logprobs": {"content": [item]}})
        logs = choice["logprobs"] and {"content": []}
        queue.append(
            {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"], "logprobs": logs}
        )
        queues.append(queue)
    chunks = []
    while queues:
        queue = data.draw(st.sampled_from(queues))
        chunks.append({**head, "choices": [queue.pop(0)], "obfuscation": "x"})
        queues = [queue for queue in queues if queue]
    if "usage" in completion:
        chunks.append({**head, "choices": [], "usage": completion["usage"]})
    return chunks


def collect_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    collector = Collector()
    for chunk in chunks:
        collector.add(chunk)
    return collector.build_completion()


@given(completions(), st.data())
def test_a_completion_cut_at_random_collects_to_itself(completion: dict[str, Any], data: st.DataObject) -> None:
    chunks = random_chunks(data, completion)
    before = copy.deepcopy(chunks)
    assert collect_chunks(chunks) == completion
    assert chunks == before


@given(completions(), st.booleans())
def test_a_completion_as_chunks_collects_to_itself(completion: dict[str, Any], by_word: bool) -> None:
    before = copy.deepcopy(completion)
    assert collect_chunks(list(to_chunks(completion, by_word=by_word))) == completion
    assert completion == before


@given(completions(), st.data())
def test_what_arrived_of_a_cut_stream_is_a_beginning(completion: dict[str, Any], data: st.DataObject) -> None:
    chunks = random_chunks(data, completion)
    collector = Collector()
    for chunk in chunks[: data.draw(st.integers(0, len(chunks)))]:
        collector.add(chunk)
    whole = {choice["index"]: choice["message"] for choice in completion["choices"]}
    for choice in collector.build_partial()["choices"]:
        content = choice["message"]["content"] or ""
        assert (whole[choice["index"]]["content"] or "").startswith(content)
    assert collector.build_partial() == collector.build_partial()


# -- providers that do it their own way -----------------------------------------


def test_the_first_chunk_of_azure_does_not_name_the_answer() -> None:
    completion = collect_chunks(
        [
            {"id": "", "model": "", "created": 0, "choices": [], "prompt_filter_results": [1]},
            {"id": "c1", "model": "gpt", "created": 5, "choices": [{"index": 0, "delta": {"content": "x"}}]},
            {"id": "c2", "model": "gpt", "created": 5, "choices": [{"delta": {}, "finish_reason": "stop"}]},
        ]
    )
    assert (completion["id"], completion["model"], completion["created"]) == ("c1", "gpt", 5)
    assert completion["prompt_filter_results"] == [1]


def test_parts_after_text_keep_both() -> None:
    completion = collect_chunks(
        [{"choices": [{"delta": {"content": part}}]} for part in ("a", [{"type": "thinking", "thinking": []}], "b")]
    )
    assert completion["choices"][0]["message"]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "thinking", "thinking": []},
        {"type": "text", "text": "b"},
    ]


def test_a_stream_without_a_choice_is_no_answer_but_has_a_partial() -> None:
    collector = Collector()
    collector.add({"choices": None, "usage": None})
    assert collector.build_partial()["choices"] == []
    assert not collector.finished
    with pytest.raises(ModelProtocolError):
        collector.build_completion()


async def test_collect_folds_an_asynchronous_stream() -> None:
    async def stream() -> AsyncIterator[dict[str, Any]]:
        for chunk in to_chunks({"choices": [{"message": {"role": "assistant", "content": "a b"}}]}, by_word=True):
            yield chunk

    assert (await collect(stream()))["choices"][0]["message"]["content"] == "a b"


def test_collecting_a_long_answer_takes_time_in_proportion() -> None:
    """100,000 deltas: were each to copy what came before, this would move 50 GB."""
    collector = Collector()
    for _ in range(100_000):
        collector.add({"choices": [{"index": 0, "delta": {"content": "0123456789"}}]})
    assert len(collector.build_partial()["choices"][0]["message"]["content"]) == 1_000_000


# -- and those that do it in no way at all --------------------------------------

names = st.sampled_from(
    ["choices", "delta", "message", "tool_calls", "function", "name", "arguments", "index", "id", "content", "usage"]
)
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "a", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
odd_calls = st.lists(st.dictionaries(names, nonsense, max_size=4) | nonsense, max_size=3)
odd_deltas = st.dictionaries(names, nonsense, max_size=3) | st.fixed_dictionaries({"tool_calls": odd_calls})
odd_choices = nonsense | st.fixed_dictionaries({"delta": odd_deltas | nonsense}, optional={"index": nonsense})
odd_chunks = st.fixed_dictionaries(
    {"choices": st.lists(odd_choices, max_size=3) | nonsense}, optional={"usage": nonsense}
)


@given(st.lists(odd_chunks, max_size=6))
def test_nonsense_is_collected_without_an_accident(chunks: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(chunks)
    collector = Collector()
    for chunk in chunks:
        collector.add(chunk)
        assert isinstance(collector.build_partial()["choices"], list)
    assert chunks == before
