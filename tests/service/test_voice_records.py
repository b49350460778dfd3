"""Voice records for an upstream of `vendor: custom`: each message that stands for an entry has that entry's fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents import Agent, Llm, Roster
from holdfast.context import recalled
from holdfast.context.build import Request, WorkingSet, build, build_from_view
from holdfast.context.dialects import CLOSING, OPENING, RECEIVED
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.units import NO_RESULT
from holdfast.context.view import decode_state, encode_state
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry
from holdfast.errors import BudgetTooSmall, InvalidRequest, ModelUnavailable
from holdfast.holdfast import Holdfast
from holdfast.models import OfflineModel
from holdfast.tokens import STORED
from holdfast.turns.interruptions import address_model
from tests.service.scripted_model import ScriptedModel, open_session, texts
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


def body_of(built: WorkingSet, llm: Llm = CUSTOM, **fields: Any) -> dict[str, Any]:
    """The request that a model is sent; each message is told by its place."""
    body = {"model": llm.model, "messages": [{"at": at} for at in range(len(built.messages))], **fields}
    return address_model(body, llm, built, turn_id=7, now=lambda: 1234)


def dated(entries: Sequence[Entry]) -> list[Entry]:
    """Entries with a turn and a time of their own each, so that no two can be taken for each other."""
    return [msgspec.structs.replace(entry, turn_id=100 + entry.seq, timestamp=10_000 + entry.seq) for entry in entries]


def check(built: WorkingSet, entries: Sequence[Entry]) -> None:
    """Each message is either nobody's, or has all fields of the entry whose words it says."""
    known = {entry.seq: entry for entry in entries}
    places = []
    for told, message in zip(body_of(built)["messages"], built.messages, strict=True):
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
    """What the message says is of the entry; one that was cut or cleared names it."""
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
    """Over random histories, strategies, budgets and dialects: cut, cleared, repaired and renamed ones too."""
    request, entries = data.draw(requests(name)), dated(log_of(data.draw(events)).entries)
    try:
        built = build(request, None, (), entries)
    except BudgetTooSmall:
        return
    check(built, entries)


def carried_on(request: Request, warm: WorkingSet | None, cold: WorkingSet) -> WorkingSet | None:
    """The next build of a view in memory, as turns have it: one that did without anything is read anew, here as `cold`."""
    if warm is None or cold.reduced:
        return None if cold.reduced else cold
    return build_from_view(request, warm.view, reduced=False)


@pytest.mark.parametrize("name", STRATEGIES)
@HALF
@given(data=st.data())
def test_a_warm_view_and_a_saved_one_tell_the_same(name: str, data: st.DataObject) -> None:
    """A view that is carried on in memory, and one that is read back at each step, give equal requests."""
    request: Request = data.draw(requests(name))
    warm = build_nothing(request)
    saved: bytes | None = None
    for log in logs(data.draw(events.filter(lambda drawn: all(event.kind != "retire" for event in drawn)))):
        entries = dated(log.entries)
        if warm is not None:
            warm.view.extend(entries[-1:])
        state = decode_state(saved) if saved else None
        kept = [entry for entry in entries if state and entry.seq in state.keep]
        rest = [entry for entry in entries if state is None or entry.seq >= state.frontier]
        try:
            cold = build(request, state, kept, rest)
        except BudgetTooSmall:
            return
        warm = carried_on(request, warm, cold)
        if warm is not None:
            assert body_of(warm)["messages"] == body_of(cold)["messages"]
        check(cold, entries)
        saved = encode_state(cold.state)


def build_nothing(request: Request) -> WorkingSet | None:
    """A view of an empty log, in memory."""
    try:
        return build(request, None, (), ())
    except BudgetTooSmall:
        return None


# -- what stands for nothing, and what is cut --------------------------------------


def log_with(*messages: Message) -> list[Entry]:
    log = Log()
    for message in messages:
        log.append(message)
    return dated(log.entries)


def request_for(strategy: str = "none", **options: Any) -> Request:
    return Request(strategy=make_strategy(ContextSettings(strategy, options)), count=STORED, input_budget=UNLIMITED)


def test_a_digest_has_no_fields_and_a_cut_message_keeps_its_own() -> None:
    """What left is told by a message of nobody's; what is cut says which entry it was."""
    said = [Message(role="user", content=f"Order #{at} is {at}-kelp.") for at in range(40)]
    entries = log_with(*said, Message(role="user", content="word " * 2000))
    built = build(request_for("digest", budget=600), None, (), entries)
    messages = body_of(built)["messages"]
    digest = next(at for at, one in enumerate(built.messages) if one.text.startswith("[Condensed"))
    assert messages[digest] == {"at": digest}
    assert "characters cut" in built.messages[-1].text
    assert messages[-1]["turn_id"] == entries[-1].turn_id


def test_a_stub_of_the_task_is_nobodys() -> None:
    """`[original task: …]` has no turn: it is not what was said in one."""
    entries = log_with(
        Message(role="user", content="Refund #1 " * 500), *[Message(role="user", content="on " * 50)] * 20
    )
    built = build(request_for("token_window", budget=400), None, (), entries)
    assert built.messages[0].text.startswith("[original task:")
    assert body_of(built)["messages"][0] == {"at": 0}
    assert "turn_id" in body_of(built)["messages"][-1]


# -- the request ---------------------------------------------------------------------


def spoken(*said: tuple[str, dict[str, Any] | None]) -> list[Entry]:
    """A log of replies with metadata."""
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
def test_interruptable(entries: Any, fields: dict[str, Any], expected: bool) -> None:
    """The request's own word, else the last reply's, else true."""
    built = build(request_for(), None, (), spoken(*entries))
    body = body_of(built, **fields)
    assert body["interruptable"] is expected
    assert (body["turn_id"], body["timestamp"], body["model"]) == (7, 1234, "xxxx")


def test_what_the_client_was_sent_of_a_reply_is_nobody_elses_business() -> None:
    """`preface` and `returned` stay here; whatever else somebody noted of a message is told."""
    metadata = {"preface": "Let me see.", "returned": [0], "source": "command", "interruptable": False, "mood": "kind"}
    built = build(request_for(), None, (), spoken(("Found.", metadata)))
    assert body_of(built)["messages"][0]["metadata"] == {"source": "command", "mood": "kind"}


def test_any_other_vendor_gets_none_of_it() -> None:
    """Neither fields of messages nor of the request, whatever a request brought."""
    llm = msgspec.structs.replace(CUSTOM, records=False)
    built = build(request_for(), None, (), spoken(("a", {"source": "greeting", "interruptable": False})))
    body = body_of(built, llm, turn_id=3, timestamp=4, interruptable=False, metadata={"of": "the client"})
    assert body == {"model": "xxxx", "messages": [{"at": 0}], "metadata": {"of": "the client"}}


def test_the_clock_is_not_asked_for_others() -> None:
    """It costs nothing where it is not wanted: neither the clock nor the window is looked at."""
    llm = msgspec.structs.replace(CUSTOM, records=False)
    built = build(request_for(), None, (), spoken(("a", None)))

    def never() -> int:
        raise AssertionError("asked")

    built.window.list_sources = never  # type: ignore[method-assign, assignment]  # it must not be called
    address_model({"messages": []}, llm, built, turn_id=0, now=never)


# -- in a turn -------------------------------------------------------------------------


async def test_the_hash_covers_the_messages_without_the_fields() -> None:
    """What is recorded of a call is the same for both vendors."""
    hashes = []
    for records in (False, True):
        async with open_session(records=records) as (hf, model):
            session = await hf.session("s")
            await session.send("Hi")
            assert ("turn_id" in model.prompts[0][0]) is records
            (call,) = await hf.store.calls(session.ref)
            hashes.append(call.hash)
    assert hashes[0] == hashes[1]


async def test_tool_rounds_have_the_fields_too() -> None:
    """A message with calls and its result are records of their turn; a source is what user and assistant have."""

    def weather(city: str) -> str:
        """The weather."""
        return f"fine in {city}"

    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    rounds: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"content": "Fine."},
    ]

    def say(_: dict[str, Any]) -> list[dict[str, Any]]:
        message = rounds.pop(0)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        return [{"choices": [{"index": 0, "delta": message, "finish_reason": reason}]}]

    model = ScriptedModel(say)
    llm = Llm(name="default", model="gpt-4o", client=model, records=True)
    async with Holdfast("sqlite://:memory:", roster=Roster({"default": llm}), tools=[weather]) as hf:
        session = await hf.session("s")
        await session.send("Weather?")
        asked, result = model.prompts[1][1:]
        assert asked["metadata"] == {"source": "llm"}
        assert (asked["turn_id"], result["turn_id"], model.bodies[1]["turn_id"]) == (0, 0, 0)
        assert result == {**result, "role": "tool", "tool_call_id": "c", "metadata": {}}
        assert result["timestamp"] >= asked["timestamp"]


async def test_an_interruptable_that_is_none_is_refused_before_anything_is_written() -> None:
    """It is told by its name."""
    async with open_session() as (hf, _):
        session = await hf.session("s")
        with pytest.raises(InvalidRequest, match="interruptable must be true or false") as told:
            await session.send("Hi", interruptable="no")
        assert told.value.param == "interruptable"
        assert await texts(hf) == []


async def test_an_agents_instruction_stands_first_without_fields() -> None:
    """System messages are no records, and those in the log are."""
    model = ScriptedModel(lambda _: "ok")
    llm = Llm(name="default", model="gpt-4o", client=model, records=True)
    roster = Roster({"default": llm}, {"a": Agent(name="a", instruction="Be kind.")})
    async with Holdfast("sqlite://:memory:", roster=roster) as hf:
        session = await hf.session("s", agent="a", system="Speak slowly.")
        note = NewEntry(message=Message(role="user", content="Hi"), tokens=1, timestamp=5, metadata={"source": "asr"})
        await session.write([note])
        await session.send([])
        assert model.prompts[0] == [
            {"role": "system", "content": "Be kind."},
            {"role": "system", "content": "Speak slowly."},
            {"role": "user", "content": "Hi", "turn_id": 0, "timestamp": 5, "metadata": {"source": "asr"}},
        ]


async def test_one_that_stands_in_is_sent_what_its_own_vendor_takes() -> None:
    """Records go where they are wanted, whoever was asked first."""
    first, second = ScriptedModel(lambda _: [ModelUnavailable("down")]), ScriptedModel(lambda _: "ok")
    for records in (False, True):
        usual = Llm(name="default", model="gpt-4o", client=first, records=records, fallbacks=("other",))
        other = Llm(name="other", model="gpt-4o", client=second, records=not records)
        async with Holdfast("sqlite://:memory:", roster=Roster({"default": usual, "other": other})) as hf:
            await (await hf.session("s")).send("Hi", interruptable=False)
        asked, stood_in = first.bodies[-1], second.bodies[-1]
        for body, wanted in ((asked, records), (stood_in, not records)):
            assert ("turn_id" in body["messages"][0]) is wanted
            assert body.get("interruptable") is (False if wanted else None)
