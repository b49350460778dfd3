"""Which messages of a request are new: laws that hold for every conversation, and a table of small cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry, NewEntry, SessionRef, Tail
from holdfast.errors import ResultExists
from holdfast.holdfast import Holdfast
from holdfast.log.align import LogRemainder, align_delta, align_rest, drop_known_results
from holdfast.turns.place import plan_history

USER = "ada"


def user(text: str) -> Message:
    return Message(role="user", content=text)


def reply(text: str) -> Message:
    return Message(role="assistant", content=text)


def call(name: str) -> Message:
    return Message(role="assistant", content=None, tool_calls=(ToolCall(name, "look", "{}"),))


def result(name: str, text: str = "seen") -> Message:
    return Message(role="tool", tool_call_id=name, content=text)


def cut(text: str) -> tuple[Message, dict[str, Any]]:
    return reply(text), {"interrupted": True}


def own(name: str) -> tuple[Message, dict[str, Any]]:
    """Return a call of a tool that the server runs."""
    return call(name), {"returned": []}


def write(*given: Message | tuple[Message, dict[str, Any]]) -> list[Entry]:
    pairs = [(one, None) if isinstance(one, Message) else one for one in given]
    new = [NewEntry(message=message, tokens=1, timestamp=0, metadata=metadata) for message, metadata in pairs]
    return extend(Tail(), new)[0]


@pytest.mark.parametrize(
    ("log", "sent", "relation", "appended", "retired"),
    [
        ([], [user("1")], "new", 1, None),
        ([user("1")], [user("1")], "replayed", 0, None),
        ([user("1"), reply("r")], [user("1")], "delta", 1, None),
        ([user("1"), cut("r")], [user("1")], "regenerated", 0, 1),
        ([user("1"), cut("r")], [user("2")], "delta", 1, None),
        ([user("1"), own("c"), result("c")], [user("1")], "replayed", 0, None),
        ([user("1"), own("c"), result("c"), cut("r")], [user("1")], "regenerated", 0, 3),
        ([user("1"), call("c"), result("c")], [user("1")], "delta", 1, None),
        ([user("1"), call("c"), result("c"), cut("r")], [result("c")], "regenerated", 0, 3),
        ([user("0"), reply("r"), user("1"), user("2")], [user("1"), user("2")], "replayed", 0, None),
    ],
)
def test_delta(log: list[Any], sent: list[Message], relation: str, appended: int, retired: int | None) -> None:
    plan = align_delta(write(*log), sent)
    assert (plan.relation, len(plan.append), plan.retire_from) == (relation, appended, retired)


def test_known_results_are_passed_over_and_others_refused() -> None:
    log = write(user("1"), call("c"), result("c"), reply("r"))
    assert drop_known_results(log, [result("c"), user("2")]) == (user("2"),)
    assert drop_known_results(log, [result("d"), result("c"), result("d"), user("2")]) == (result("d"), user("2"))
    with pytest.raises(ResultExists):
        drop_known_results(log, [result("c", "other")])
    with pytest.raises(ResultExists):
        align_rest(LogRemainder(log[1:3], log[3]), [call("c"), result("c", "other")])


# -- histories -----------------------------------------------------------------------

TURNS = 6


async def live_after(log: Sequence[Message], sent: Sequence[Message], *, named: bool = True) -> tuple[list[str], Any]:
    """Return the live texts after a request, and its plan."""
    async with Holdfast("sqlite://:memory:", index=None) as hf:
        session = await (await hf.session("s", user_id=USER)).append(list(log))
        stored = await hf.store.get(SessionRef(USER, "s"))
        plan = await plan_history(hf.store, stored, sent, whole=False, named=named)
        entries = await hf.store.entries(stored.ref, stop=plan.retire_from)
        assert session is not None
        return [one.message.text for one in (*entries, *plan.restore)] + [one.text for one in plan.append], plan


def converse(replies: Sequence[str]) -> list[Message]:
    """Return a conversation with different questions and these replies."""
    return [one for at, text in enumerate(replies) for one in (user(f"q{at}"), reply(text))]


def last(history: list[Message], first: int, count: int) -> list[Message]:
    return history[-2 * count :]


def head_and_tail(history: list[Message], first: int, count: int) -> list[Message]:
    return [*history[:first], *history[-2 * count :]]


def summary(history: list[Message], first: int, count: int) -> list[Message]:
    return [user("Summary so far: …"), reply("Understood."), *history[-2 * count :]]


CLIENTS: dict[str, Callable[[list[Message], int, int], list[Message]]] = {
    "last": last,
    "head and tail": head_and_tail,
    "summary": summary,
}
REPLIES = st.lists(st.sampled_from(["ok", "Yes", "Yesterday"]), min_size=TURNS, max_size=TURNS)


@pytest.mark.parametrize("client", CLIENTS)
@given(replies=REPLIES, first=st.integers(1, 3), count=st.integers(1, 2))
def test_what_a_client_leaves_out_is_not_retired(client: str, replies: list[str], first: int, count: int) -> None:
    log = converse(replies)
    texts, plan = anyio.run(live_after, log, [*CLIENTS[client](log, first, count), user("new")])
    assert (texts, plan.relation, plan.retire_from) == ([*(one.text for one in log), "new"], "continued", None)


@given(replies=REPLIES, at=st.integers(0, TURNS - 1), keeps_rest=st.booleans())
def test_edit_of_a_whole_conversation_makes_the_log_what_was_sent(
    replies: list[str], at: int, keeps_rest: bool
) -> None:
    """From the edited question on. What is before it stays in place."""
    log = converse(replies)
    rest = [*log[2 * at + 1 :], user("new")] if keeps_rest else []
    sent = [*log[: 2 * at], user("else"), *rest]
    if not any(one.role == "assistant" for one in sent):
        return
    texts, plan = anyio.run(live_after, log, sent)
    assert texts == [one.text for one in sent]
    assert (plan.relation, plan.retire_from) == ("edited", 2 * at)


@given(replies=REPLIES, count=st.integers(2, TURNS))
def test_request_that_ends_with_the_last_question_makes_its_reply_again(replies: list[str], count: int) -> None:
    log = converse(replies)
    texts, plan = anyio.run(live_after, log, log[-2 * count : -1])
    assert (texts, plan.relation) == ([one.text for one in log[:-1]], "regenerated")


@given(replies=REPLIES)
def test_nothing_in_common_appends_what_follows_the_last_reply(replies: list[str]) -> None:
    log = converse(replies)
    texts, plan = anyio.run(live_after, log, [user("x"), reply("y"), user("z")])
    assert (texts, plan.warning) == ([*(one.text for one in log), "z"], "nothing_in_common")
