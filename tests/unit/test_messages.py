"""Messages: nothing is lost, and two of them are equal when a reader would say so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from holdfast.domain.messages import (
    DIGEST_SIZE,
    GENESIS,
    ROLES,
    Message,
    Part,
    ToolCall,
    chain,
    decode_payload,
    encode_canonical,
    encode_payload,
)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
extras = st.dictionaries(words, values, max_size=3)
parts = st.builds(Part, st.sampled_from(["text", "image_url"]), words | st.none(), extras)
tool_calls = st.builds(ToolCall, words, words, words | st.just('{"a": 1}'), extra=extras, function_extra=extras)
messages = st.builds(
    Message,
    role=st.sampled_from(ROLES),
    content=words | st.none() | st.just(UNSET) | st.lists(parts, max_size=3).map(tuple),
    tool_calls=st.lists(tool_calls, max_size=3).map(tuple),
    tool_call_id=words | st.none(),
    name=words | st.none(),
    extra=extras,
)


@given(messages)
def test_payloads_lose_nothing(message: Message) -> None:
    """What is stored is what comes back, and is stored the same way again."""
    payload = encode_payload(message)
    assert decode_payload(payload) == message
    assert encode_payload(decode_payload(payload)) == payload


@given(messages, messages)
def test_the_canonical_form_is_a_pure_function(one: Message, other: Message) -> None:
    """Equal messages say the same, and a stored copy says what the original said."""
    assert encode_canonical(decode_payload(encode_payload(one))) == encode_canonical(one)
    if encode_canonical(one) == encode_canonical(other):
        assert one.role == other.role
        assert one.tool_call_id == other.tool_call_id


def canonicalize(content: Any, role: str = "user", **fields: Any) -> bytes:
    """The canonical form of a message."""
    return encode_canonical(Message(role=role, content=content, **fields))


def text(*pieces: str) -> tuple[Part, ...]:
    """A content of text parts."""
    return tuple(Part("text", piece) for piece in pieces)


IMAGE = Part("image_url", extra={"image_url": {"url": "data:1"}})
OTHER_IMAGE = Part("image_url", extra={"image_url": {"url": "data:2"}})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x", text("x")),
        ("xy", text("x", "y")),
        ("x", text("x", "")),
        ("x", "x \n\t"),
        ("x", text("x", "  \n")),
        ("", None),
        (None, UNSET),
        ("", ()),
        ("  ", None),
        ("x", (Part("output_text", "x", {"annotations": []}),)),
        ((*text("a"), IMAGE), (*text("a"), IMAGE, *text("  "))),
    ],
)
def test_contents_that_say_the_same(one: Any, other: Any) -> None:
    """Parts are joined, trailing white space and unknown fields ignored."""
    assert canonicalize(one) == canonicalize(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x", "X"),
        ("x", " x"),
        ("a b", "a  b"),
        ("é", "e\u0301"),
        ("x", (*text("x"), IMAGE)),
        ((IMAGE,), (OTHER_IMAGE,)),
        ((*text("a"), IMAGE), (IMAGE, *text("a"))),
        ((*text("a"), IMAGE, *text("b")), (*text("ab"), IMAGE)),
    ],
)
def test_contents_that_say_something_else(one: Any, other: Any) -> None:
    """Case, inner white space, normal forms and media count, and so does their order."""
    assert canonicalize(one) != canonicalize(other)


def test_what_else_counts() -> None:
    """Role, calls and the id a result answers count; name and unknown fields do not."""
    assert canonicalize("x", "user") != canonicalize("x", "assistant")
    assert canonicalize("x", "tool", tool_call_id="1") != canonicalize("x", "tool", tool_call_id="2")
    assert canonicalize("x", name="n", extra={"refusal": None}) == canonicalize("x")


def canonicalize_call(arguments: str, id_: str = "c", name: str = "f", **fields: Any) -> bytes:
    """The canonical form of a message with one tool call."""
    return canonicalize(None, "assistant", tool_calls=(ToolCall(id_, name, arguments, **fields),))


def test_arguments_are_compared_as_json() -> None:
    """Order of keys and white space do not count; values, ids and names do; what is no JSON counts as it is."""
    assert (
        canonicalize_call('{"a": 1, "b": [2]}')
        == canonicalize_call('{"b":[2],"a":1}')
        == canonicalize_call('{"a":1,"b":[2]}', extra={"index": 0})
    )
    assert canonicalize_call('{"a": 1}') != canonicalize_call('{"a": 2}')
    assert canonicalize_call('{"a": 1}') != canonicalize_call('{"a": "1"}')
    assert canonicalize_call("{}", id_="c") != canonicalize_call("{}", id_="d")
    assert canonicalize_call("{}", name="f") != canonicalize_call("{}", name="g")
    assert canonicalize_call("{ bad") != canonicalize_call("{bad")
    assert canonicalize_call('{"a":1}') != canonicalize_call("eyJhIjoxfQ==")
    assert canonicalize_call('{"n":123456789012345678901234}') != canonicalize_call('{"n":123456789012345678901235}')


@pytest.mark.parametrize("arguments", ["", "[NaN]", '{"a":1e999}', "[" * 100_000, '"\\ud800"', "null", "\0"])
def test_no_arguments_are_too_odd(arguments: str) -> None:
    """A model may write anything."""
    assert canonicalize_call(arguments) == canonicalize_call(arguments)


@given(st.lists(messages, min_size=1, max_size=5))
def test_a_digest_stands_for_its_whole_history(history: list[Message]) -> None:
    """Any change, anywhere, changes the last digest."""

    def digest(log: list[Message]) -> bytes:
        last = GENESIS
        for message in log:
            last = chain(last, message)
        return last

    whole = digest(history)
    assert len(whole) == len(GENESIS) == DIGEST_SIZE
    assert digest(history) == whole
    for at, message in enumerate(history):
        changed = message.evolve(content=message.text + "!", tool_call_id=message.tool_call_id)
        assert digest([*history[:at], changed, *history[at + 1 :]]) != whole
        assert digest([*history[:at], *history[at + 1 :]]) != whole


def test_text_and_media() -> None:
    """The words, and what is not words."""
    message = Message(role="user", content=(*text("a", "b"), IMAGE, *text("c")))
    assert (message.text, message.media) == ("abc", (IMAGE,))
    assert (Message(role="user").text, Message(role="user", content="x").media) == ("", ())


def test_what_clients_show() -> None:
    """Tool results and messages with tool calls are not visible."""
    assert Message(role="user").visible
    assert Message(role="assistant", content="x").visible
    assert not Message(role="assistant", content="x", tool_calls=(ToolCall("c", "f"),)).visible
    assert not Message(role="tool", content="x").visible


def test_messages_are_frozen() -> None:
    """`evolve` makes a changed copy."""
    message = Message(role="user", content="x")
    with pytest.raises(AttributeError):
        message.content = "y"  # type: ignore[misc]
    assert message.evolve(content="y") == Message(role="user", content="y")
    assert msgspec.json.decode(encode_payload(message)) == {"role": "user", "content": "x"}
