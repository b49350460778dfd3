"""A session's log: appending, rewinding, erasing, and reconciling requests with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.domain.log import erase_content, extend, rewind
from holdfast.domain.messages import GENESIS, Message, Part, ToolCall, chain, encode_canonical, make_alias
from holdfast.domain.reconcile import Plan, reconcile_delta
from holdfast.domain.session import (
    ERASED,
    Entry,
    Kind,
    NewEntry,
    Tail,
    get_kind,
)


def u(text: str) -> Message:
    """Make a user message."""
    return Message(role="user", content=text)


def a(text: str) -> Message:
    """Make an assistant message."""
    return Message(role="assistant", content=text)


def tc(*ids: str) -> Message:
    """Make an assistant message with tool calls of these ids."""
    return Message(role="assistant", content=None, tool_calls=tuple(ToolCall(id_, "f", '{"a":1}') for id_ in ids))


def t(id_: str, text: str = "seen") -> Message:
    """Make the result of the call `id_`."""
    return Message(role="tool", content=text, tool_call_id=id_)


def new(messages: Sequence[Message]) -> list[NewEntry]:
    """Make new entries of ten tokens each."""
    return [NewEntry(message=message, tokens=10, timestamp=0) for message in messages]


def log_of(*messages: Message) -> list[Entry]:
    """Make the log of these messages."""
    return extend(Tail(), new(messages))[0]


_ids = st.sampled_from(["x", "y"])
some_message = st.one_of(
    st.sampled_from([u("hi"), u("ho"), a("yes"), a("no"), a(""), Message(role="system", content="s")]),
    st.lists(_ids, min_size=1, max_size=3).map(lambda ids: tc(*ids)),
    st.builds(t, _ids, st.sampled_from(["1", "2"])),
)
some_log = st.lists(some_message, max_size=12)


# -- appending -----------------------------------------------------------------


def test_kind_follows_from_role_and_calls() -> None:
    messages = [Message(role="system"), u("x"), a("x"), tc("c"), t("c"), Message(role="note")]
    assert tuple(get_kind(message) for message in messages) == get_args(Kind)
    assert get_kind(Message(role="developer")) == "system"


@given(some_log, st.integers(0, 12))
def test_appending_in_parts_equals_appending_at_once(messages: list[Message], at: int) -> None:
    """Appending needs only the tail."""
    first, tail = extend(Tail(), new(messages[:at]))
    rest, end = extend(tail, new(messages[at:]))
    assert (first + rest, end) == extend(Tail(), new(messages))


@given(some_log)
def test_tool_messages_do_not_affect_digests(messages: list[Message]) -> None:
    """Clients that do not resend tool messages can still be matched."""
    visible = [entry.digest for entry in log_of(*messages) if entry.message.visible]
    assert [entry.digest for entry in log_of(*(message for message in messages if message.visible))] == visible


def test_aliases_match_replies_as_the_client_received_them() -> None:
    """An interrupted reply matches by the part that was heard, other replies by preface and text."""
    entries, _ = extend(
        Tail(),
        [
            NewEntry(message=u("hi"), tokens=1, timestamp=0),
            NewEntry(message=a("yes"), tokens=1, timestamp=0, metadata={"preface": "Oh "}),
            NewEntry(message=a("no"), tokens=1, timestamp=0, metadata={"interrupted": True}),
        ],
    )
    hi, yes, no = entries
    assert (yes.digest, yes.alias) == (chain(hi.digest, a("Oh yes")), make_alias(hi.digest, a("Oh yes")))
    assert no.alias == make_alias(yes.digest, a("no"), cut=True) != make_alias(yes.digest, a("no"))


# -- rewinding --------------------------------------------------------------


@given(some_log, st.integers(0, 12))
@example([u("hi"), tc("x", "y"), t("x"), u("ho")], 3)  # one of two results is present
@example([u("hi"), tc("x"), a("no"), t("x"), u("ho")], 4)  # a result that arrived too late
def test_rewinding_restores_the_earlier_tail(messages: list[Message], at: int) -> None:
    """Only the next `seq` differs."""
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
def test_an_erased_message_keeps_its_kind(message: Message) -> None:
    """It stays in its unit, and erasing it again changes nothing."""
    gone = erase_content(message)
    assert get_kind(gone) == get_kind(message)
    assert gone.tool_call_id == message.tool_call_id
    assert [call.id for call in gone.tool_calls] == [call.id for call in message.tool_calls]
    assert erase_content(gone) == gone


def test_an_erased_message_has_no_content() -> None:
    """Text, media, arguments, name and unknown fields are removed."""
    call = ToolCall("c", "f", '{"secret":1}', extra={"secret": 1}, function_extra={"secret": 1})
    parts = (Part("text", "secret"), Part("image_url", extra={"secret": 1}))
    message = Message(role="assistant", content=parts, tool_calls=(call,), name="secret", extra={"secret": 1})
    assert b"secret" not in encode_canonical(erase_content(message))
    assert erase_content(message) == Message(role="assistant", content=None, tool_calls=(ToolCall("c", "f", "{}"),))
    assert erase_content(u("secret")) == u(ERASED)


# -- reconcile: a delta ------------------------------------------------------


def test_a_retried_delta_is_stored_once() -> None:
    """A delta that equals the unanswered end of the log is a retry."""
    log = log_of(u("q"), tc("x"), t("x"), u("and"))
    assert reconcile_delta(log[-2:], [t("x"), u("and ")]) == Plan("replayed")
    assert reconcile_delta(log[-1:], [u("and")]) == Plan("replayed")
    assert reconcile_delta(log[-1:], [u("other")]) == Plan("delta", (u("other"),))
    assert reconcile_delta(log[-2:], [u("new"), u("and")]).relation == "delta"
    assert reconcile_delta(log, [u("new"), *(entry.message for entry in log)]).relation == "delta"
