"""Voice records for an upstream with `vendor: custom`: each message that represents an entry has the fields of that
entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents import Llm
from holdfast.context import recalled
from holdfast.context.build import WorkingSet, build
from holdfast.context.fitting import CLOSING, OPENING, RECEIVED
from holdfast.context.settings import STRATEGIES
from holdfast.context.units import NO_RESULT
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.models.base import ModelRequest
from holdfast.models.codecs.chat import encode_request
from holdfast.models.offline import OfflineModel
from holdfast.turns.interruptions import address_model
from tests.unit.strategies import events, log_of, requests

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
    messages = [Message(role="user", extra={"at": at}) for at in range(len(built.messages))]
    request = ModelRequest(messages, {"model": llm.model, **fields})
    return encode_request(address_model(request, llm, built, turn_id=7, now=lambda: 1234))


def with_times(entries: Sequence[Entry]) -> list[Entry]:
    """Give each entry a distinct turn and time, so that no two can be confused."""
    return [msgspec.structs.replace(entry, turn_id=100 + entry.seq, timestamp=10_000 + entry.seq) for entry in entries]


def check(built: WorkingSet, entries: Sequence[Entry]) -> None:
    """Check that each message has either no fields or all fields of the entry it quotes."""
    known = {entry.seq: entry for entry in entries}
    places = []
    for told, message in zip(request_body(built)["messages"], built.messages, strict=True):
        if "turn_id" not in told:
            assert told.keys() == {"role", "at"}
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
