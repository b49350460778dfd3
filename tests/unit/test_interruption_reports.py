"""Interruptions: how much of a reply was heard, by text, characters or time, and which messages are kept."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.interruptions import (
    Cut,
    HeardReport,
    count_heard_chars,
    cut_reply,
    join_reply_text,
    split_rounds,
)
from holdfast.domain.log import extend, to_sent_message
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry, NewEntry, Tail

# -- heard length --------------------------------------------------------------------


def test_a_script_without_spaces_is_cut_between_its_characters() -> None:
    text = "\u4f60\u597d\u4e16\u754c\u3002\u518d\u89c1"
    assert text[: count_heard_chars(text, HeardReport(ms=1, total_ms=2))] == text[:3]


@given(
    text=st.text(alphabet="ab \n\u00e9", max_size=30),
    cut=st.integers(0, 30),
    spaces=st.text(alphabet=" \n", max_size=3),
)
def test_any_prefix_of_the_reply_is_found(text: str, cut: int, spaces: str) -> None:
    """With any white space: the found prefix has the same words."""
    beginning = text[:cut]
    at = count_heard_chars(text, HeardReport(content=spaces + spaces.join(beginning.split()) + spaces))
    assert text[:at].split() == beginning.split() or not spaces
    assert "".join(text[:at].split()) == "".join(beginning.split())
    assert text[: count_heard_chars(text, HeardReport(content=beginning))].rstrip() == beginning.rstrip()


# -- kept messages --------------------------------------------------------------------


def call(name: str) -> ToolCall:
    return ToolCall(name, "f", "{}")


def calls(text: str | None, *ids: str) -> Message:
    return Message(role="assistant", content=text, tool_calls=tuple(call(name) for name in ids))


def result(name: str) -> Message:
    return Message(role="tool", tool_call_id=name, content="done")


def make_reply(text: Any) -> Message:
    return Message(role="assistant", content=text)


def reply(*messages: Message | tuple[Message, dict[str, Any]]) -> list[Entry]:
    """Return the entries of a reply that follows a user's message."""
    new = [NewEntry(message=Message(role="user", content="u"), tokens=1, timestamp=1)]
    for one in messages:
        message, metadata = one if isinstance(one, tuple) else (one, None)
        new.append(NewEntry(message=message, tokens=1, timestamp=2, metadata=metadata))
    return extend(Tail(), new)[0][1:]


def cut(entries: list[Entry], at: int, now: int = 9) -> Cut | None:
    return cut_reply(split_rounds(entries), at, now)


words = st.lists(st.sampled_from(["one", "two ", "\n", "three."]), max_size=4).map("".join)


@st.composite
def replies(draw: st.DrawFn) -> list[Entry]:
    """Rounds of calls, answered or not, and perhaps a last word."""
    messages: list[Message] = []
    for number in range(draw(st.integers(0, 3))):
        ids = [f"c{number}{at}" for at in range(draw(st.integers(1, 2)))]
        messages.append(calls(draw(words) or None, *ids))
        messages += [result(name) for name in ids]
    if draw(st.booleans()) or not messages:
        messages.append(make_reply(draw(words)))
    elif draw(st.booleans()):
        del messages[-1]
    return reply(*messages)


@given(entries=replies(), at=st.integers(0, 60))
def test_kept_messages_are_valid_and_a_prefix_of_the_sent_text(entries: list[Entry], at: int) -> None:
    """No call without a result, no result without a call, and the kept text is a prefix of the sent text."""
    text = join_reply_text(split_rounds(entries))
    found = cut(entries, min(at, len(text)))
    left = list(entries)
    if found is not None:
        left = [entry for entry in entries if entry.seq < found.head.seq]
        new = (
            []
            if found.message is None
            else [NewEntry(message=found.message, tokens=1, timestamp=1, metadata=found.metadata)]
        )
        new += [NewEntry(message=one.message, tokens=1, timestamp=1) for one in found.results]
        tail = Tail(next_seq=found.head.seq)
        left += extend(tail, new)[0]
    rounds = split_rounds(left)
    assert not any(one.open for one in rounds)
    assert all(entry.kind != "result" or entry.unit != entry.seq for entry in left if entry not in entries)
    sent = "".join(entry.message.text for entry in left if entry.kind != "result")
    assert "".join(text.split()).startswith("".join(sent.split()))
    assert len("".join(sent.split())) <= len("".join(text[:at].split()))
    if left and found is not None and found.message is not None and not found.message.tool_calls:
        whole = to_sent_message(left[-1].message, left[-1].metadata).text
        assert whole == text[: len(whole)]
