"""Voice records for an upstream with `vendor: custom`: each message that represents an entry has the fields of that
entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents import Llm
from holdfast.context import recalled
from holdfast.context.build import Request, WorkingSet, build, build_from_view
from holdfast.context.dialects import CLOSING, OPENING, RECEIVED
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.units import NO_RESULT
from holdfast.context.view import decode_state, encode_state
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.models import OfflineModel
from holdfast.tokens import STORED
from holdfast.turns.interruptions import address_model
from tests.unit.strategies import UNLIMITED, Log, events, log_of, logs, requests

HALF = settings(max_examples=settings().max_examples // 2)
CUSTOM = Llm(name="voice", model="xxxx", client=OfflineModel(), records=True)
_NUMBER = re.compile(r"#\d+")
_NAMED = re.compile(r'(?:message |load_artifact\("result-)(\d+)(?: of the (?:session|log)|"\))')
_NOBODYS = (
    "[Summary of messages",
    "[Condensed from messages",
    NO_RESULT,
    "[original task:",
    OPENING,
    CLOSING,
    RECEIVED,
    recalled.OPENING,
    recalled.SESSION_OPENING,
    "[Earlier statements of the user",
)
"""How messages begin that stand for no entry."""


def request_body(built: WorkingSet, llm: Llm = CUSTOM, **fields: Any) -> dict[str, Any]:
    """Build the request for a model; each message is identified by its position."""
    body = {"model": llm.model, "messages": [{"at": at} for at in range(len(built.messages))], **fields}
    return address_model(body, llm, built, turn_id=7, now=lambda: 1234)


def with_times(entries: Sequence[Entry]) -> list[Entry]:
    """Give each entry a distinct turn and time, so that no two can be confused."""
    return [msgspec.structs.replace(entry, turn_id=100 + entry.seq, timestamp=10_000 + entry.seq) for entry in entries]


def check(built: WorkingSet, entries: Sequence[Entry]) -> None:
    """Check that each message has either no fields or all fields of the entry it quotes."""
    known = {entry.seq: entry for entry in entries}
    places = []
    for told, message in zip(request_body(built)["messages"], built.messages, strict=True):
        if "turn_id" not in told:
            assert told.keys() == {"at"}
            assert message in built.request.system or message.text.startswith(_NOBODYS), message
            continue
        seq = told["turn_id"] - 100
        entry = known[seq]
        assert told["timestamp"] == 10_000 + seq
        assert told["metadata"].get("source") == {"user": "message", "assistant": "llm"}.get(entry.message.role)
        places.append(seq)
        check_words(message, entry)
    assert len(places) == len(set(places)), "none twice"
    told_sent = {"kept", "pinned", "anchored", "cut", "cleared"}
    sent = {
        seq for run in built.list_decisions() if run.decision in told_sent for seq in range(run.first, run.last + 1)
    }
    stubbed = {entry.seq for entry in entries if entry.seq not in places and entry.seq in sent & known.keys()}
    assert stubbed <= {built.window.anchor}, "what is sent has its fields, but for a stub"


def check_words(message: Message, entry: Entry) -> None:
    """Check that the words are the entry's; a cut or cleared message names its entry."""
    named = set(_NAMED.findall(words_of(message)))
    if named:
        assert named == {str(entry.seq)}
        return
    assert set(_NUMBER.findall(words_of(message))) <= set(_NUMBER.findall(words_of(entry.message)))


def words_of(message: Message) -> str:
    return " ".join([message.text, *(call.arguments for call in message.tool_calls)])


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_each_message_has_the_fields_of_its_entry(name: str, data: st.DataObject) -> None:
    """For random histories, strategies, budgets and dialects, including cut, cleared, repaired and renamed messages."""
    request, entries = data.draw(requests(name)), with_times(log_of(data.draw(events)).entries)
    try:
        built = build(request, None, (), entries)
    except BudgetTooSmall:
        return
    check(built, entries)


def continue_view(request: Request, warm: WorkingSet | None, cold: WorkingSet) -> WorkingSet | None:
    """Build the next view from the one in memory, as turns do; a reduced view is read again, here as `cold`."""
    if warm is None or cold.reduced:
        return None if cold.reduced else cold
    return build_from_view(request, warm.view, reduced=False)


@pytest.mark.parametrize("name", STRATEGIES)
@HALF
@given(data=st.data())
def test_warm_and_saved_views_give_the_same_request(name: str, data: st.DataObject) -> None:
    """One view is continued in memory, the other is read back at each step."""
    request: Request = data.draw(requests(name))
    warm = build_nothing(request)
    saved: bytes | None = None
    for log in logs(data.draw(events.filter(lambda drawn: all(event.kind != "retire" for event in drawn)))):
        entries = with_times(log.entries)
        if warm is not None:
            warm.view.extend(entries[-1:])
        state = decode_state(saved) if saved else None
        kept = [entry for entry in entries if state and entry.seq in state.keep]
        rest = [entry for entry in entries if state is None or entry.seq >= state.frontier]
        try:
            cold = build(request, state, kept, rest)
        except BudgetTooSmall:
            return
        warm = continue_view(request, warm, cold)
        if warm is not None:
            assert request_body(warm)["messages"] == request_body(cold)["messages"]
        check(cold, entries)
        saved = encode_state(cold.state)


def build_nothing(request: Request) -> WorkingSet | None:
    """Return a view of an empty log, in memory."""
    try:
        return build(request, None, (), ())
    except BudgetTooSmall:
        return None


# -- messages without an entry, and cut ones -----------------------------------------


def log_with(*messages: Message) -> list[Entry]:
    log = Log()
    for message in messages:
        log.append(message)
    return with_times(log.entries)


def request_for(strategy: str = "none", **options: Any) -> Request:
    return Request(strategy=make_strategy(ContextSettings(strategy, options)), count=STORED, input_budget=UNLIMITED)


# -- the request ---------------------------------------------------------------------


def replies_with(*said: tuple[str, dict[str, Any] | None]) -> list[Entry]:
    """Return a log of replies with metadata."""
    entries = log_with(*(Message(role="assistant", content=text) for text, _ in said))
    return [
        msgspec.structs.replace(entry, metadata=metadata) for entry, (_, metadata) in zip(entries, said, strict=True)
    ]


@pytest.mark.parametrize(
    ("entries", "fields", "expected"),
    [
        ((), {}, True),
        ((("a", None),), {}, True),
        ((("a", {"interruptable": False}),), {}, False),
        ((("a", {"interruptable": False}), ("b", None)), {}, True),
        ((("a", {"interruptable": False}),), {"interruptable": True}, True),
        ((("a", None),), {"interruptable": False}, False),
        ((("a", None),), {"interruptable": None}, True),
    ],
)
def test_interruptable_comes_from_the_request_then_the_last_reply_then_true(
    entries: Any, fields: dict[str, Any], expected: bool
) -> None:
    built = build(request_for(), None, (), replies_with(*entries))
    body = request_body(built, **fields)
    assert body["interruptable"] is expected
    assert (body["turn_id"], body["timestamp"], body["model"]) == (7, 1234, "xxxx")


# -- in a turn -------------------------------------------------------------------------
