"""Every working set is valid for its provider: random histories, strategies and budgets against `dialect_rules`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from msgspec import UNSET

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.dialects import Dialect, parse_arguments, parse_thoughts
from holdfast.context.fitting import RESERVE, adapt_messages
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.units import has_content
from holdfast.domain.counting import TokenCounter
from holdfast.domain.messages import Content, Message, Part, ToolCall
from holdfast.domain.refusals import Refusal
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.models.codecs import gemini
from holdfast.models.codecs.messages.blocks import encode_messages
from holdfast.tokens import STORED
from holdfast.wire.openai import to_chat_message
from tests.amounts import examples
from tests.unit import dialect_rules
from tests.unit.context_units import callable_behind, visible_of
from tests.unit.strategies import IMAGE, UNLIMITED, Log, events, log_of, requests

Json = dict[str, Any]
FOREIGN: tuple[Dialect, ...] = ("anthropic", "gemini")

# -- what clients send ------------------------------------------------------------

PARTS = {
    "gif": Part("image_url", extra={"image_url": {"url": "data:image/gif;base64,R0lGODlhAQABAA=="}}),
    "link": Part("image_url", extra={"image_url": "https://example.com/a.png?b=1"}),
    "tiff": Part("input_image", extra={"image_url": "data:image/tiff;base64,AAAA"}),
    "audio": Part("input_audio", extra={"input_audio": {"data": "AAAA", "format": "wav"}}),
    "pdf": Part("file", extra={"file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}}),
    "text": Part("file", extra={"file": {"file_data": "data:text/plain;base64,aGVsbG8=", "filename": "a.txt"}}),
    "id": Part("file", extra={"file": {"file_id": "file-1"}}),
    "video": Part("video_url", extra={"video_url": {"url": "https://example.com/a.mp4"}}),
    "block": Part("image", extra={"source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}),
    "unknown": Part("hologram", extra={"angle": 30, "of": "a kelp forest"}),
    "broken": Part("image_url", extra={"image_url": None}),
    "blank": Part("text", " \n"),
}
REASONING: dict[str, Json] = {
    "litellm": {"thinking_blocks": [{"type": "thinking", "thinking": "signed thought", "signature": "c2ln"}]},
    "redacted": {"thinking_blocks": [{"type": "redacted_thinking", "data": "c2VhbGVk"}]},
    "unsigned": {"thinking_blocks": [{"type": "thinking", "thinking": "unsigned thought"}], "reasoning_content": "x"},
    "openrouter": {
        "reasoning": "routed thought",
        "reasoning_details": [
            {"type": "reasoning.text", "text": "routed thought", "signature": "c2ln", "format": "anthropic-claude-v1"}
        ],
    },
    "google": {
        "reasoning_details": [
            {"type": "reasoning.text", "text": "google thought", "format": "google-gemini-v1"},
            {"type": "reasoning.encrypted", "data": "Z29vZw==", "format": "google-gemini-v1", "id": "a"},
        ]
    },
    "signature": {"extra_content": {"google": {"thought_signature": "Z29vZw=="}}},
    "plain": {"reasoning_content": "plain thought"},
    "refusal": {"refusal": "I would rather not"},
    "spoken": {"audio": {"id": "audio_1", "transcript": "spoken words"}},
    "odd": {"thinking_blocks": "?", "reasoning_details": [5], "reasoning_content": ["?"], "audio": 7},
}
ARGUMENTS = ['[1, "list"]', "plain words", '{"a": 1, "a": "twice"}', '{"n": 123456789012345678901234567890}', "{}", " "]
IDS: list[Callable[[str], str]] = [
    lambda name: name,
    lambda name: f"functions.{name}:0",
    lambda name: f"{name}|{'x' * 80}",
    lambda name: "" if name == "b" else name,
]


def _add_parts(message: Message, parts: Sequence[Part], *, front: bool) -> Message:
    """Return `message` with `parts` before or after its text."""
    own = message.content if isinstance(message.content, tuple) else (Part("text", message.text),)
    return message.evolve(content=(*parts, *own) if front else (*own, *parts))


@st.composite
def clients(draw: DrawFn) -> Callable[[Sequence[Entry]], list[Entry]]:
    """Draw a client: a function that changes the messages of a plain log, by kind of message."""
    parts = draw(st.lists(st.sampled_from(list(PARTS)), max_size=3))
    front, name = draw(st.booleans()), draw(st.sampled_from([None, "ada", " "]))
    reasons = draw(st.lists(st.sampled_from(list(REASONING)), max_size=2, unique=True))
    in_content = draw(st.sampled_from([None, "c2ln", ""]))
    arguments, ids = draw(st.none() | st.sampled_from(ARGUMENTS)), draw(st.sampled_from(IDS))
    signed, wrong = draw(st.booleans()), draw(st.booleans())
    tool = draw(st.sampled_from(["look_up", "look.up now!", "", "7up"]))
    every = draw(st.integers(1, 3))

    def as_sent(message: Message) -> Message:
        if message.tool_calls:
            extra = {"extra_content": {"google": {"thought_signature": "c2ln"}}} if signed else {}
            calls = tuple(
                ToolCall(ids(call.id), tool, call.arguments if arguments is None else arguments, extra=extra)
                for call in message.tool_calls
            )
            message = message.evolve(tool_calls=calls)
        if message.role == "assistant":
            extra = {key: value for reason in reasons for key, value in REASONING[reason].items()}
            thinking = Part("thinking", extra={"thinking": "thought inside", "signature": in_content})
            message = _add_parts(message, [] if in_content is None else [thinking], front=front)
            return message.evolve(extra={**message.extra, **extra})
        if message.role == "tool":
            message = message.evolve(tool_call_id=ids(str(message.tool_call_id)), extra={"is_error": wrong})
        return _add_parts(message, [PARTS[part] for part in parts], front=front).evolve(name=name)

    def build_sent(entries: Sequence[Entry]) -> list[Entry]:
        log = Log()
        for at, entry in enumerate(entries):
            tools = entry.message.tool_calls or entry.message.role == "tool"
            message = as_sent(entry.message) if tools or at % every == 0 else entry.message
            log.append(message, pinned=entry.pinned)
        return log.entries

    return build_sent


def make_valid_for_openai(message: Message) -> Message:
    """Return `message` in a form that OpenAI accepts; a log also stores invalid messages."""
    content = message.content
    if isinstance(content, tuple):
        parts = tuple(part for part in content if part.text is not None or message.role == "user")
        content = parts or (Part("text", "…"),)
    elif not isinstance(content, str) and not message.tool_calls:
        content = "…"
    return message.evolve(content=content)


# -- what is sent ------------------------------------------------------------------


def to_request(messages: Sequence[Message], dialect: Dialect) -> Json:
    """Return the request fields for a working set."""
    match dialect:
        case "anthropic":
            return encode_messages(messages)
        case "gemini":
            return gemini.encode_messages(messages)
        case _:
            return {"messages": [to_chat_message(message) for message in messages]}


def list_violations(messages: Sequence[Message], dialect: Dialect) -> list[str]:
    """Return the reasons for which the provider would reject it."""
    sent = to_request(messages, dialect)
    match dialect:
        case "anthropic":
            return dialect_rules.anthropic(sent)
        case "gemini":
            return dialect_rules.gemini(sent)
        case _:
            return dialect_rules.openai(sent["messages"])


def turns(messages: Sequence[Message], dialect: Dialect) -> list[Json]:
    """Return the turns of the conversation without cache marks."""
    sent = to_request(messages, dialect)
    return [_remove_marks(turn) for turn in sent["contents" if dialect == "gemini" else "messages"]]


def _remove_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _remove_marks(item) for key, item in value.items() if key != "cache_control"}
    return [_remove_marks(item) for item in value] if isinstance(value, list) else value


def try_build(request: Request, entries: Sequence[Entry]) -> WorkingSet | None:
    try:
        return build(request, None, [], entries)
    except BudgetTooSmall:
        return None


def send_all(entries: Sequence[Entry], dialect: Dialect) -> tuple[Message, ...]:
    """Return a whole log as it is sent."""
    request = Request(
        strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=UNLIMITED, dialect=dialect
    )  # fmt: skip
    return build(request, None, [], entries).messages


# -- the properties ------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_working_sets_are_valid(name: str, data: st.DataObject) -> None:
    """For Anthropic and Gemini, with any messages of clients and other providers in the log."""
    request, history = data.draw(requests(name, dialects=FOREIGN)), data.draw(events)
    entries = data.draw(clients())(log_of(history).entries)
    built = try_build(request, entries) if entries else None
    event(f"{name}: {'built' if built else 'refused'}")
    if built is not None and visible_of(request, entries):
        assert list_violations(built.messages, request.dialect) == []


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_valid_openai_messages_stay_valid(name: str, data: st.DataObject) -> None:
    """OpenAI messages are sent unchanged, and no strategy makes them invalid."""
    request = data.draw(requests(name, dialects=("openai",)))
    log = Log()
    for entry in log_of(data.draw(events)).entries:
        log.append(make_valid_for_openai(entry.message), pinned=entry.pinned)
    built = try_build(request, log.entries) if log.entries else None
    if built is not None and visible_of(request, log.entries):
        assert list_violations(built.messages, "openai") == []


MUTE: list[tuple[Content, Json]] = [
    (content, extra)
    for content in (None, UNSET, "", " \n", (), (Part("text", ""),), (Part("text", " "), Part("text", "")))
    for extra in (
        {},
        {"refusal": "I would rather not"},
        {"reasoning_content": "hm"},
        REASONING["litellm"],
        REASONING["odd"],
    )
]
"""Contents without text, with the extra fields of their messages."""


@pytest.mark.parametrize("dialect", ["openai", *FOREIGN])
@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=examples(17))  # for each of many pairs
@given(data=st.data())
def test_no_message_without_content_is_sent(name: str, dialect: Dialect, data: st.DataObject) -> None:
    """For null, missing and blank content, and content with only a refusal or reasoning."""
    request = data.draw(requests(name, dialects=(dialect,)))
    request = msgspec.structs.replace(request, system=(*request.system, Message(role="system", content=None)))
    log = Log()
    log.append(Message(role="user", content="Plan the trip."))
    for entry in log_of(data.draw(events)).entries:
        message = make_valid_for_openai(entry.message)
        if data.draw(st.booleans()):
            content, extra = data.draw(st.sampled_from(MUTE))
            message = message.evolve(content=content, extra=extra if message.role == "assistant" else {})
        log.append(message, pinned=entry.pinned)
    built = try_build(request, log.entries)
    event(f"{name}: {'built' if built else 'refused'}")
    if built is not None:
        assert list_violations(built.messages, dialect) == []


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=examples(50))
@given(data=st.data())
def test_a_prompt_without_refused_messages_is_valid(name: str, data: st.DataObject) -> None:
    """For any refused messages: calls, results, system messages, several at once. The current one is kept."""
    request = data.draw(requests(name))
    log = Log()
    for entry in log_of(data.draw(events)).entries:
        log.append(make_valid_for_openai(entry.message), pinned=entry.pinned)
    seqs = [entry.seq for entry in log.entries]
    refused = data.draw(st.sets(st.sampled_from(seqs), max_size=4)) if seqs else set()
    request = msgspec.structs.replace(request, upstream="main", without=dict.fromkeys(refused, Refusal("400")))
    built = try_build(request, log.entries) if visible_of(request, log.entries) else None
    event(f"{name}: {'built' if built else 'refused'}")
    if built is None:
        return
    assert list_violations(built.messages, request.dialect) == []
    assert built.window.current not in built.refused
    gone = {seq for seq in built.list_seqs() if seq is not None} & built.refused.keys()
    runs = [run for run in built.list_decisions() if run.decision == "refused"]
    told = {seq for seq in seqs if any(run.first <= seq <= run.last for run in runs)}
    assert told == gone, "omitted messages are explained"


@pytest.mark.parametrize("dialect", FOREIGN)
@given(history=events, client=clients())
def test_no_text_is_lost(
    dialect: Dialect, history: list[Any], client: Callable[[Sequence[Entry]], list[Entry]]
) -> None:
    """The request contains every text of the adapted messages, and arguments as objects."""
    messages = send_all(client(log_of(history).entries), dialect)
    sent = to_request(messages, dialect)
    strings, objects = "\0".join(_strings(sent)), list(_objects(sent))
    for message in messages:
        for text in _texts(message):
            assert text in strings
        for call in message.tool_calls:
            assert json.loads(call.arguments) in objects
        if message.role == "user" and message.name and message.name.strip():
            assert f"{message.name}:" in strings


def _texts(message: Message) -> Iterator[str]:
    """Yield the texts of `message`, in its content and in other fields."""
    parts = message.content if isinstance(message.content, tuple) else (Part("text", message.text),)
    yield from (part.text for part in parts if part.text and part.text.strip())
    if message.role == "assistant":
        yield from (thought.text for thought in parse_thoughts(message))
        if message.extra.get("refusal"):
            yield message.extra["refusal"]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(item)


def _objects(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(item)


@pytest.mark.parametrize("dialect", FOREIGN)
@given(history=events, client=clients())
def test_a_longer_conversation_starts_with_the_shorter_one(
    dialect: Dialect, history: list[Any], client: Callable[[Sequence[Entry]], list[Entry]]
) -> None:
    """All turns except the last are unchanged, byte for byte; only the last can be merged with new messages."""
    entries = client(log_of(history).entries)
    whole = turns(send_all(entries, dialect), dialect)
    for until in range(1, len(entries)):
        if callable_behind([entry for entry in entries[:until] if has_content(entry.message)]):
            before = turns(send_all(entries[:until], dialect), dialect)[:-1]
            assert msgspec.json.encode(whole[: len(before)]) == msgspec.json.encode(before)


@settings(max_examples=settings().max_examples // 2)
@given(request=requests(dialects=FOREIGN), history=events, client=clients())
def test_the_request_takes_no_more_tokens_than_counted(
    request: Request, history: list[Any], client: Callable[[Sequence[Entry]], list[Entry]]
) -> None:
    """The provider's format adds no text to the adapted messages, and is deterministic."""
    entries = client(log_of(history).entries)
    built = try_build(request, entries) if entries else None
    if built is None:
        return
    again = try_build(request, entries)
    assert again is not None
    assert to_request(again.messages, request.dialect) == to_request(built.messages, request.dialect)
    assert again.hash == built.hash
    counted = sum(request.count.message(message) for message in built.messages[len(request.system) :])
    assert built.tokens + built.recalled_tokens == counted
    assert _count_turns(turns(built.messages, request.dialect), request.count) <= counted + RESERVE


def _count_turns(sent: Sequence[Json], count: TokenCounter) -> int:
    """Return the tokens of turns in a provider's format, with OpenAI's fixed overheads and without media."""
    total = 0
    for turn in sent:
        total += 4
        for block in turn["parts" if "parts" in turn else "content"]:
            total += _count_block(block, count)
    return total


def _count_block(block: Json, count: TokenCounter) -> int:
    if "functionCall" in block or block.get("type") == "tool_use":
        call = block.get("functionCall", block)
        return count.text(call["name"]) + count.text(msgspec.json.encode(call.get("args", call.get("input"))).decode())
    if "functionResponse" in block:
        return count.text("".join(block["functionResponse"]["response"].values()))
    if block.get("type") == "tool_result":
        return sum(_count_block(inner, count) for inner in block.get("content", ()))
    return count.text(block.get("text", "")) + count.text(block.get("thinking", ""))


# -- examples -------------------------------------------------------------------------


def user(text: str = "hi") -> Message:
    return Message(role="user", content=text)


def reply(text: str = "ok", **extra: Any) -> Message:
    return Message(role="assistant", content=text, extra=extra)


SIGNED = [{"type": "thinking", "thinking": "hm", "signature": "sig"}]


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        ("", {}),
        ("  ", {}),
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ('{"arguments": "x"}', {"arguments": "x"}),
        *[
            (text, {"arguments": text})
            for text in ('{"a"', "null", "[1]", '"x"', '{"a":1,"a":2}', '{"a":NaN}', '{"a":1e999}', '{"a":"\\ud800"}')
        ],
        ("[" * 100_000, {"arguments": "[" * 100_000}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_arguments_become_an_object_without_loss(arguments: str, made: Json) -> None:
    """Text that is not a JSON object, or would lose data as one, is kept as text."""
    assert parse_arguments(arguments) == made
    told = adapt_messages([user(), Message(role="assistant", tool_calls=(ToolCall("a", "f", arguments),))], "gemini")
    assert json.loads(told[1].tool_calls[0].arguments) == made


# -- the rules themselves ---------------------------------------------------------------


def _make_valid_request(dialect: Dialect) -> Json:
    call = Message(role="assistant", content="let me see", tool_calls=(ToolCall("c1", "f", '{"a":1}'),))
    result = Message(role="tool", tool_call_id="c1", content="found")
    thinking = reply("done", thinking_blocks=SIGNED)
    said = Message(role="user", content=(Part("text", "look"), IMAGE))
    talk = [said, call, result, thinking, user("thanks")]
    return to_request([Message(role="system", content="Sys."), *adapt_messages(talk, dialect)], dialect)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_a_plain_conversation_is_valid(dialect: Dialect) -> None:
    """The rules accept everything that providers accept."""
    rules: Callable[[Any], list[str]] = getattr(dialect_rules, dialect)
    assert (
        rules(_make_valid_request(dialect)["messages"] if dialect == "openai" else _make_valid_request(dialect)) == []
    )
