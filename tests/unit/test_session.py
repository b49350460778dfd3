"""A log: how it grows, how it goes back, and how a transcript somebody sent relates to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.messages import GENESIS, Message, Part, ToolCall, canonical
from holdfast.domain.reconcile import Plan, mode_of, reconcile_delta
from holdfast.domain.session import (
    ERASED,
    Entry,
    Kind,
    ModelCall,
    NewEntry,
    Tail,
    Usage,
    erased,
    extend,
    kind_of,
    rewind,
)


def u(text: str) -> Message:
    """What a user said."""
    return Message(role="user", content=text)


def a(text: str) -> Message:
    """What the model said."""
    return Message(role="assistant", content=text)


def tc(*ids: str) -> Message:
    """An assistant message with tool calls of those ids."""
    return Message(role="assistant", content=None, tool_calls=tuple(ToolCall(id_, "f", '{"a":1}') for id_ in ids))


def t(id_: str, text: str = "seen") -> Message:
    """What a tool answered to the call `id_`."""
    return Message(role="tool", content=text, tool_call_id=id_)


def new(messages: Sequence[Message]) -> list[NewEntry]:
    """Entries about to be appended, ten tokens each."""
    return [NewEntry(message=message, tokens=10, timestamp=0) for message in messages]


def log_of(*messages: Message) -> list[Entry]:
    """The log of those messages."""
    return extend(Tail(), new(messages))[0]


_ids = st.sampled_from(["x", "y"])
some_message = st.one_of(
    st.sampled_from([u("hi"), u("ho"), a("yes"), a("no"), a(""), Message(role="system", content="s")]),
    st.lists(_ids, min_size=1, max_size=3).map(lambda ids: tc(*ids)),
    st.builds(t, _ids, st.sampled_from(["1", "2"])),
)
some_log = st.lists(some_message, max_size=12)


# -- growing -----------------------------------------------------------------


def test_kinds() -> None:
    """What an entry is follows from its role and its calls."""
    messages = [Message(role="system"), u("x"), a("x"), tc("c"), t("c")]
    assert tuple(kind_of(message) for message in messages) == get_args(Kind)
    assert kind_of(Message(role="developer")) == "system"


class Case(NamedTuple):
    """A log, and the units and turns that its entries belong to."""

    messages: list[Message]
    units: list[int]
    turns: list[int]


UNITS = {
    "plain": Case([u("q"), a("r"), u("q")], [0, 1, 2], [0, 0, 1]),
    "users in a row are one turn": Case([u("q"), u("q"), a("r")], [0, 1, 2], [0, 0, 0]),
    "the model begins": Case([a("hello"), u("q")], [0, 1], [0, 1]),
    "parallel calls, in any order": Case([tc("x", "y"), t("y"), t("x"), a("r")], [0, 0, 0, 3], [0] * 4),
    "a result without its call": Case([u("q"), t("x")], [0, 1], [0, 0]),
    "a result twice": Case([tc("x"), t("x"), t("x")], [0, 0, 2], [0] * 3),
    "the same id called twice": Case([tc("x", "x"), t("x"), t("x")], [0, 0, 0], [0] * 3),
    "an id used again": Case([tc("x"), t("x"), tc("x"), t("x")], [0, 0, 2, 2], [0] * 4),
    "an orphan in between": Case([tc("x", "y"), t("?"), t("y")], [0, 1, 0], [0] * 3),
    "a message in between closes the unit": Case([tc("x"), u("q"), t("x")], [0, 1, 2], [0, 1, 1]),
    "calls after calls": Case([tc("x"), tc("y"), t("x"), t("y")], [0, 1, 2, 1], [0] * 4),
}


@pytest.mark.parametrize("name", UNITS)
def test_units_and_turns(name: str) -> None:
    """Results belong to the calls they stand behind; a user message opens a turn."""
    case = UNITS[name]
    entries = log_of(*case.messages)
    assert [entry.unit for entry in entries] == case.units
    assert [entry.turn_id for entry in entries] == case.turns


@given(some_log, st.integers(0, 12))
def test_growing_bit_by_bit_is_growing_at_once(messages: list[Message], at: int) -> None:
    """The tail is all that appending needs to know."""
    first, tail = extend(Tail(), new(messages[:at]))
    rest, end = extend(tail, new(messages[at:]))
    assert (first + rest, end) == extend(Tail(), new(messages))


@given(some_log)
def test_a_log_without_its_tool_messages_has_the_same_digests(messages: list[Message]) -> None:
    """Clients do not resend tool messages, and still can be matched."""
    visible = [entry.digest for entry in log_of(*messages) if entry.message.visible]
    assert [entry.digest for entry in log_of(*(message for message in messages if message.visible))] == visible


def test_a_turn_may_be_named() -> None:
    """An import says which turn it was; what follows goes on from there."""
    named = NewEntry(message=u("x"), tokens=1, timestamp=0, turn_id=7)
    entries, tail = extend(Tail(), [named, *new([a("r"), u("next")])])
    assert [entry.turn_id for entry in entries] == [7, 7, 8]
    assert tail.turn_id == 8


def test_usage_sums() -> None:
    """Call by call."""
    call = ModelCall(model="m", timestamp=0, prompt_tokens=5, completion_tokens=2, cached_tokens=1)
    assert Usage().plus(call).plus(call) == Usage(2, 10, 4, 2)


# -- going back --------------------------------------------------------------


@given(some_log, st.integers(0, 12))
def test_going_back_is_as_never_having_gone_on(messages: list[Message], at: int) -> None:
    """The tail after a rewind is the tail there was, but for the `seq` that is given next."""
    at = min(at, len(messages))
    entries, end = extend(Tail(), new(messages))
    kept, there = extend(Tail(), new(messages[:at]))
    begin = max((entry.seq for entry in kept if entry.kind != "result"), default=0)
    digest = next((entry.digest for entry in reversed(kept) if entry.message.visible), GENESIS)
    anchor = next((entry.seq for entry in kept if entry.kind == "user"), None)
    back = rewind(end, kept[begin:], digest=digest, anchor=anchor)
    assert back == Tail(**{**_fields(there), "next_seq": len(entries)})


def _fields(tail: Tail) -> dict[str, Any]:
    return {name: getattr(tail, name) for name in tail.__struct_fields__}


# -- erasing -----------------------------------------------------------------


@given(some_message)
def test_an_erased_message_is_still_of_its_kind(message: Message) -> None:
    """It keeps its place in its unit, and erasing it again changes nothing."""
    gone = erased(message)
    assert kind_of(gone) == kind_of(message)
    assert gone.tool_call_id == message.tool_call_id
    assert [call.id for call in gone.tool_calls] == [call.id for call in message.tool_calls]
    assert erased(gone) == gone


def test_an_erased_message_says_nothing() -> None:
    """Words, media, arguments, name and unknown fields are gone."""
    call = ToolCall("c", "f", '{"secret":1}', extra={"secret": 1}, function_extra={"secret": 1})
    parts = (Part("text", "secret"), Part("image_url", extra={"secret": 1}))
    message = Message(role="assistant", content=parts, tool_calls=(call,), name="secret", extra={"secret": 1})
    assert b"secret" not in canonical(erased(message))
    assert erased(message) == Message(role="assistant", content=None, tool_calls=(ToolCall("c", "f", "{}"),))
    assert erased(u("secret")) == u(ERASED)


# -- reconcile: a delta ------------------------------------------------------


def test_modes() -> None:
    """Without an assistant message it is a delta; the request may decide otherwise."""
    assert mode_of([u("x")], "auto") == mode_of([t("x"), u("y")], "auto") == "delta"
    assert mode_of([u("x"), a("y"), u("z")], "auto") == mode_of([tc("x")], "auto") == "transcript"
    assert mode_of([u("x")], "transcript") == "transcript"
    assert mode_of([a("x")], "delta") == "delta"


def test_a_delta_comes_after_the_log() -> None:
    """Even where it equals an old message."""
    log = log_of(u("yes"), a("sure?"))
    assert reconcile_delta(log[-1:], [u("yes")]) == Plan("delta", (u("yes"),))
    assert reconcile_delta([], [u("yes")]) == Plan("new", (u("yes"),))


def test_a_retried_delta_is_written_once() -> None:
    """A log that ends in just these messages, unanswered, has them."""
    log = log_of(u("q"), tc("x"), t("x"), u("and"))
    assert reconcile_delta(log[-2:], [t("x"), u("and ")]) == Plan("replayed")
    assert reconcile_delta(log[-1:], [u("and")]) == Plan("replayed")
    assert reconcile_delta(log[-1:], [u("other")]) == Plan("delta", (u("other"),))
    assert reconcile_delta(log[-2:], [u("new"), u("and")]).relation == "delta"
    assert reconcile_delta(log, [u("new"), *(entry.message for entry in log)]).relation == "delta"
