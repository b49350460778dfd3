"""Every working set is legal for its provider: random histories, policies and budgets against `dialect_rules`."""

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
from holdfast.context.cut import ModelCount
from holdfast.context.dialects import RESERVE, Dialect, adapt_messages, parse_arguments, parse_thoughts
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.units import EMPTY, has_content
from holdfast.domain.messages import Content, Message, Part, ToolCall
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from holdfast.wire import anthropic, gemini
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


def _said(message: Message, parts: Sequence[Part], *, front: bool) -> Message:
    """`message` with `parts` beside its words."""
    own = message.content if isinstance(message.content, tuple) else (Part("text", message.text),)
    return message.evolve(content=(*parts, *own) if front else (*own, *parts))


@st.composite
def clients(draw: DrawFn) -> Callable[[Sequence[Entry]], list[Entry]]:
    """A client's ways: what it does to the messages of a plain log, each kind of message in its own way."""
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
            message = _said(message, [] if in_content is None else [thinking], front=front)
            return message.evolve(extra={**message.extra, **extra})
        if message.role == "tool":
            message = message.evolve(tool_call_id=ids(str(message.tool_call_id)), extra={"is_error": wrong})
        return _said(message, [PARTS[part] for part in parts], front=front).evolve(name=name)

    def sent(entries: Sequence[Entry]) -> list[Entry]:
        log = Log()
        for at, entry in enumerate(entries):
            tools = entry.message.tool_calls or entry.message.role == "tool"
            message = as_sent(entry.message) if tools or at % every == 0 else entry.message
            log.append(message, pinned=entry.pinned)
        return log.entries

    return sent


def legal_for_openai(message: Message) -> Message:
    """`message` as a client must send it, so that OpenAI takes it: a log keeps what came, legal or not."""
    content = message.content
    if isinstance(content, tuple):
        parts = tuple(part for part in content if part.text is not None or message.role == "user")
        content = parts or (Part("text", "…"),)
    elif not isinstance(content, str) and not message.tool_calls:
        content = "…"
    return message.evolve(content=content)


# -- what is sent ------------------------------------------------------------------


def wire(messages: Sequence[Message], dialect: Dialect) -> Json:
    """The request's fields for a working set."""
    match dialect:
        case "anthropic":
            return anthropic.build_request(messages)
        case "gemini":
            return gemini.build_request(messages)
        case _:
            return {"messages": [to_chat_message(message) for message in messages]}


def violations(messages: Sequence[Message], dialect: Dialect) -> list[str]:
    """What the provider would refuse it for."""
    sent = wire(messages, dialect)
    match dialect:
        case "anthropic":
            return dialect_rules.anthropic(sent)
        case "gemini":
            return dialect_rules.gemini(sent)
        case _:
            return dialect_rules.openai(sent["messages"])


def turns(messages: Sequence[Message], dialect: Dialect) -> list[Json]:
    """The turns of the conversation, without marks for a cache, which are no part of what it says."""
    sent = wire(messages, dialect)
    return [_unmarked(turn) for turn in sent["contents" if dialect == "gemini" else "messages"]]


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def attempted(request: Request, entries: Sequence[Entry]) -> WorkingSet | None:
    try:
        return build(request, None, [], entries)
    except BudgetTooSmall:
        return None


def everything(entries: Sequence[Entry], dialect: Dialect) -> tuple[Message, ...]:
    """A whole log, as it is sent."""
    request = Request(
        strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=UNLIMITED, dialect=dialect
    )  # fmt: skip
    return build(request, None, [], entries).messages


# -- the properties ------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_working_sets_are_legal(name: str, data: st.DataObject) -> None:
    """For Anthropic and Gemini, whatever clients and other providers put into the log."""
    request, history = data.draw(requests(name, dialects=FOREIGN)), data.draw(events)
    entries = data.draw(clients())(log_of(history).entries)
    built = attempted(request, entries) if entries else None
    event(f"{name}: {'built' if built else 'refused'}")
    if built is not None and visible_of(request, entries):
        assert violations(built.messages, request.dialect) == []


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_what_came_legal_leaves_legal_for_openai(name: str, data: st.DataObject) -> None:
    """OpenAI's messages leave as they came; what a strategy does to them makes none illegal."""
    request = data.draw(requests(name, dialects=("openai",)))
    log = Log()
    for entry in log_of(data.draw(events)).entries:
        log.append(legal_for_openai(entry.message), pinned=entry.pinned)
    built = attempted(request, log.entries) if log.entries else None
    if built is not None and visible_of(request, log.entries):
        assert violations(built.messages, "openai") == []


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
"""Contents without a word, and what else is told with them."""


@pytest.mark.parametrize("dialect", ["openai", *FOREIGN])
@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=examples(17))  # for each of many pairs
@given(data=st.data())
def test_no_message_without_content_is_sent(name: str, dialect: Dialect, data: st.DataObject) -> None:
    """Whichever of a log's messages say nothing: null, missing, blank, only a refusal, only reasoning."""
    request = data.draw(requests(name, dialects=(dialect,)))
    request = msgspec.structs.replace(request, system=(*request.system, Message(role="system", content=None)))
    log = Log()
    log.append(Message(role="user", content="Plan the trip."))
    for entry in log_of(data.draw(events)).entries:
        message = legal_for_openai(entry.message)
        if data.draw(st.booleans()):
            content, extra = data.draw(st.sampled_from(MUTE))
            message = message.evolve(content=content, extra=extra if message.role == "assistant" else {})
        log.append(message, pinned=entry.pinned)
    built = attempted(request, log.entries)
    event(f"{name}: {'built' if built else 'refused'}")
    if built is not None:
        assert violations(built.messages, dialect) == []


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=examples(50))
@given(data=st.data())
def test_a_prompt_without_refused_messages_is_legal(name: str, data: st.DataObject) -> None:
    """Whichever messages a provider refused: calls, results, system messages, several at once. The current one stays."""
    request = data.draw(requests(name))
    log = Log()
    for entry in log_of(data.draw(events)).entries:
        log.append(legal_for_openai(entry.message), pinned=entry.pinned)
    seqs = [entry.seq for entry in log.entries]
    refused = data.draw(st.sets(st.sampled_from(seqs), max_size=4)) if seqs else set()
    request = msgspec.structs.replace(request, upstream="main", without=dict.fromkeys(refused, "400"))
    built = attempted(request, log.entries) if visible_of(request, log.entries) else None
    event(f"{name}: {'built' if built else 'refused'}")
    if built is None:
        return
    assert violations(built.messages, request.dialect) == []
    assert built.window.current not in built.refused
    gone = {seq for seq in built.list_seqs() if seq is not None} & built.refused.keys()
    runs = [run for run in built.list_decisions() if run.decision == "refused"]
    told = {seq for seq in seqs if any(run.first <= seq <= run.last for run in runs)}
    assert told == gone, "what is left out is explained"


@pytest.mark.parametrize("dialect", FOREIGN)
@given(history=events, client=clients())
def test_nothing_is_lost(
    dialect: Dialect, history: list[Any], client: Callable[[Sequence[Entry]], list[Entry]]
) -> None:
    """Every word of the adapted messages is in what is sent, arguments as objects."""
    messages = everything(client(log_of(history).entries), dialect)
    sent = wire(messages, dialect)
    strings, objects = "\0".join(_strings(sent)), list(_objects(sent))
    for message in messages:
        for text in _texts(message):
            assert text in strings
        for call in message.tool_calls:
            assert json.loads(call.arguments) in objects
        if message.role == "user" and message.name and message.name.strip():
            assert f"{message.name}:" in strings


def _texts(message: Message) -> Iterator[str]:
    """What `message` says, in its content and outside of it."""
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
def test_a_longer_conversation_begins_with_the_shorter_one(
    dialect: Dialect, history: list[Any], client: Callable[[Sequence[Entry]], list[Entry]]
) -> None:
    """All turns but the last stay as they were, byte for byte: only the last one can be joined by what follows."""
    entries = client(log_of(history).entries)
    whole = turns(everything(entries, dialect), dialect)
    for until in range(1, len(entries)):
        if callable_behind([entry for entry in entries[:until] if has_content(entry.message)]):
            before = turns(everything(entries[:until], dialect), dialect)[:-1]
            assert msgspec.json.encode(whole[: len(before)]) == msgspec.json.encode(before)


@settings(max_examples=settings().max_examples // 2)
@given(request=requests(dialects=FOREIGN), history=events, client=clients())
def test_what_is_sent_takes_no_more_than_was_counted(
    request: Request, history: list[Any], client: Callable[[Sequence[Entry]], list[Entry]]
) -> None:
    """The provider's shape has no word that the adapted messages did not have; and it is the same each time."""
    entries = client(log_of(history).entries)
    built = attempted(request, entries) if entries else None
    if built is None:
        return
    again = attempted(request, entries)
    assert again is not None
    assert wire(again.messages, request.dialect) == wire(built.messages, request.dialect)
    assert again.hash == built.hash
    counted = sum(request.count.message(message) for message in built.messages[len(request.system) :])
    assert built.tokens + built.recalled_tokens == counted
    assert _takes(turns(built.messages, request.dialect), request.count) <= counted + RESERVE


def _takes(sent: Sequence[Json], count: ModelCount) -> int:
    """Tokens of turns in a provider's own shape, by the fixed amounts that hold for OpenAI's; media left out."""
    total = 0
    for turn in sent:
        total += 4
        for block in turn["parts" if "parts" in turn else "content"]:
            total += _block_takes(block, count)
    return total


def _block_takes(block: Json, count: ModelCount) -> int:
    if "functionCall" in block or block.get("type") == "tool_use":
        call = block.get("functionCall", block)
        return count.text(call["name"]) + count.text(msgspec.json.encode(call.get("args", call.get("input"))).decode())
    if "functionResponse" in block:
        return count.text("".join(block["functionResponse"]["response"].values()))
    if block.get("type") == "tool_result":
        return sum(_block_takes(inner, count) for inner in block.get("content", ()))
    return count.text(block.get("text", "")) + count.text(block.get("thinking", ""))


# -- by hand -------------------------------------------------------------------------


def user(text: str = "hi") -> Message:
    return Message(role="user", content=text)


def reply(text: str = "ok", **extra: Any) -> Message:
    return Message(role="assistant", content=text, extra=extra)


SIGNED = [{"type": "thinking", "thinking": "hm", "signature": "sig"}]


def test_a_reply_with_signed_reasoning_begins_a_turn_of_its_own() -> None:
    """Behind another reply it would not stand first; two plain replies become one turn."""
    told = adapt_messages([user(), reply("a"), reply("b"), reply("c", thinking_blocks=SIGNED), user()], "anthropic")
    sent = anthropic.build_request(told)["messages"]
    assert [[block["type"] for block in turn["content"]] for turn in sent] == [
        ["text"],
        ["text", "text"],
        ["text"],
        ["thinking", "text"],
        ["text"],
    ]


@pytest.mark.parametrize("content", [None, "", " \n", (), UNSET, (Part("text", ""),)])
@pytest.mark.parametrize("dialect", FOREIGN)
def test_a_user_message_without_a_word_says_so(dialect: Dialect, content: Any) -> None:
    """Providers refuse an empty one; an empty reply says nothing and leaves."""
    told = adapt_messages([Message(role="user", content=content), reply(""), user()], dialect)
    assert told[0].content == EMPTY
    assert len(turns(told, dialect)) == 1


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
def test_arguments_are_an_object_with_everything_in_it(arguments: str, made: Json) -> None:
    """What is no JSON object, or would lose something as one, is kept as text."""
    assert parse_arguments(arguments) == made
    told = adapt_messages([user(), Message(role="assistant", tool_calls=(ToolCall("a", "f", arguments),))], "gemini")
    assert json.loads(told[1].tool_calls[0].arguments) == made


def test_ids_are_plain_and_differ() -> None:
    """In the characters that Anthropic takes; two that become alike are numbered, results follow."""
    calls = tuple(ToolCall(call_id, "f") for call_id in ("a.b", "a_b", "a:b", ""))
    results = [Message(role="tool", tool_call_id=call.id, content=call.id) for call in calls]
    told = adapt_messages([user(), Message(role="assistant", tool_calls=calls), *results], "anthropic")
    assert [call.id for call in told[1].tool_calls] == ["a_b", "a_b-2", "a_b-3", "call"]
    assert [(message.tool_call_id, message.text) for message in told[2:]] == [
        ("a_b", "a.b"), ("a_b-2", "a_b"), ("a_b-3", "a:b"), ("call", ""),
    ]  # fmt: skip


def test_a_part_of_an_unknown_type_is_told_as_text() -> None:
    """Nobody else knows it; its fields are all that can be said of it."""
    told = adapt_messages([Message(role="user", content=(PARTS["unknown"],))], "gemini")
    assert told[0].text == '[a part of type hologram]\n{"angle":30,"of":"a kelp forest"}'


# -- the rules themselves ---------------------------------------------------------------


_MARKED: Json = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}


def _changed(base: Json, change: Callable[[Json], Any]) -> Json:
    made: Json = json.loads(json.dumps(base))
    change(made)
    return made


def _legal(dialect: Dialect) -> Json:
    call = Message(role="assistant", content="let me see", tool_calls=(ToolCall("c1", "f", '{"a":1}'),))
    result = Message(role="tool", tool_call_id="c1", content="found")
    thinking = reply("done", thinking_blocks=SIGNED)
    said = Message(role="user", content=(Part("text", "look"), IMAGE))
    talk = [said, call, result, thinking, user("thanks")]
    return wire([Message(role="system", content="Sys."), *adapt_messages(talk, dialect)], dialect)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_a_plain_conversation_is_legal(dialect: Dialect) -> None:
    """The rules refuse nothing that providers take."""
    rules: Callable[[Any], list[str]] = getattr(dialect_rules, dialect)
    assert rules(_legal(dialect)["messages"] if dialect == "openai" else _legal(dialect)) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: sent["messages"].pop(0),
        lambda sent: sent["messages"].pop(),
        lambda sent: sent["messages"].pop(2),
        lambda sent: sent["messages"].clear(),
        lambda sent: sent["messages"][0].update(content=[]),
        lambda sent: sent["messages"][0]["content"][0].update(text=" "),
        lambda sent: sent["messages"][0]["content"][0].update(name="x"),
        lambda sent: sent["messages"][0]["content"][1]["source"].update(media_type="image/tiff"),
        lambda sent: sent["messages"][1]["content"][1].update(id="a.b"),
        lambda sent: sent["messages"][1]["content"][1].update(input="{}"),
        lambda sent: sent["messages"][1]["content"].append(sent["messages"][1]["content"][1]),
        lambda sent: sent["messages"][2]["content"].insert(0, {"type": "text", "text": "x"}),
        lambda sent: sent["messages"][2]["content"].append(sent["messages"][2]["content"][0]),
        lambda sent: sent["messages"][2]["content"][0].update(tool_use_id="other"),
        lambda sent: sent["messages"][3]["content"].reverse(),
        lambda sent: sent["messages"][3]["content"][0].pop("signature"),
        lambda sent: [sent["messages"][0]["content"].append(_MARKED) for _ in range(5)],
        lambda sent: sent["messages"][3]["content"].append(_MARKED | {"type": "image"}),
        lambda sent: sent["system"].append({"type": "text", "text": ""}),
    ],
)
def test_anthropics_rules_see(change: Callable[[Json], Any]) -> None:
    """Each kind of mistake, made in a legal request."""
    assert dialect_rules.anthropic(_changed(_legal("anthropic"), change))


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: sent["contents"].pop(0),
        lambda sent: sent["contents"].pop(),
        lambda sent: sent["contents"].pop(2),
        lambda sent: sent["contents"].clear(),
        lambda sent: sent["contents"].insert(3, {"role": "user", "parts": [{"text": " "}]}),
        lambda sent: sent["contents"].insert(1, {"role": "model", "parts": [{"text": "x"}]}),
        lambda sent: sent["contents"][0].update(parts=[]),
        lambda sent: sent["contents"][0].update(role="system"),
        lambda sent: sent["contents"][0]["parts"][0].update(inlineData={}),
        lambda sent: sent["contents"][0]["parts"][1]["inlineData"].update(mimeType="image/gif"),
        lambda sent: sent["contents"][1]["parts"][1].pop("thoughtSignature"),
        lambda sent: sent["contents"][1]["parts"][1]["functionCall"].update(args="{}"),
        lambda sent: sent["contents"][1]["parts"][1]["functionCall"].update(name="a b"),
        lambda sent: sent["contents"][1]["parts"].append(sent["contents"][1]["parts"][1]),
        lambda sent: sent["contents"][2]["parts"].append({"text": "x"}),
        lambda sent: sent["contents"][2]["parts"][0]["functionResponse"].update(name="g"),
        lambda sent: sent["contents"][2]["parts"][0]["functionResponse"].update(response="found"),
        lambda sent: sent["systemInstruction"]["parts"].append({"inlineData": {}}),
    ],
)
def test_geminis_rules_see(change: Callable[[Json], Any]) -> None:
    """Each kind of mistake, made in a legal request."""
    assert dialect_rules.gemini(_changed(_legal("gemini"), change))


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: sent["messages"].clear(),
        lambda sent: sent["messages"].pop(2),
        lambda sent: sent["messages"].pop(3),
        lambda sent: sent["messages"].insert(3, {"role": "user", "content": "x"}),
        lambda sent: sent["messages"][1].update(content=None),
        lambda sent: sent["messages"][1].update(content=[]),
        lambda sent: sent["messages"][1].update(role="model"),
        lambda sent: sent["messages"][2]["tool_calls"].append(sent["messages"][2]["tool_calls"][0]),
        lambda sent: sent["messages"][2]["tool_calls"][0]["function"].update(arguments={}),
        lambda sent: sent["messages"][2].update(tool_calls=[]),
        lambda sent: sent["messages"][4].update(content=[{"type": "image_url", "image_url": {"url": "x"}}]),
        lambda sent: sent["messages"].__delitem__(slice(3, None)),
    ],
)
def test_openais_rules_see(change: Callable[[Json], Any]) -> None:
    """Each kind of mistake, made in a legal request."""
    assert dialect_rules.openai(_changed(_legal("openai"), change)["messages"])
