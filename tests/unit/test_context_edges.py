"""Working sets at the edges: where a message is cut, dropped or refused, and what is repaired when it is sent."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.cut import cut
from holdfast.context.dialects import Dialect
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import Strategy, make_strategy
from holdfast.context.units import group_units
from holdfast.context.view import ViewState, decode_state, encode_state
from holdfast.context.window import Room, Window
from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from tests.unit.context_rules import check_rules
from tests.unit.context_units import anchor_of, groups_of
from tests.unit.strategies import (
    COUNTERS,
    IMAGE,
    UNLIMITED,
    Event,
    Log,
    events,
    log_of,
    policies,
)

LARGE_IMAGE = Part("image_url", extra={"image_url": {"url": "data:image/png;base64,AAAA", "detail": "high"}})
"""Takes 1445 tokens."""


# -- rule 1: where it is cut, dropped, refused -------------------------------------------


def words_log(*sizes: int, role: str = "user") -> Log:
    """A log of plain messages with so many words, users and assistants in turn."""
    roles = ["user", "assistant"] if role == "user" else ["assistant", "user"]
    return log_of([Event(roles[at % 2], size) for at, size in enumerate(sizes)])


def windowed(budget: int, **options: object) -> Request:
    """A `token_window` request for o200k and OpenAI."""
    rule = make_strategy(ContextSettings("token_window", {"budget": budget, **options}))
    return Request(strategy=rule, count=STORED, input_budget=UNLIMITED)


def decided(built: WorkingSet) -> dict[int, str]:
    """The decision by `seq`."""
    return {seq: run.decision for run in built.list_decisions() for seq in range(run.first, run.last + 1)}


def test_the_budget_to_the_token() -> None:
    """What fits exactly stays whole; with one token less the frontier moves."""
    entries = words_log(20, 20, 20, 20, 20, 20, 20).entries
    everything = entries[-1].total
    whole = build(windowed(everything), None, [], entries)
    assert set(decided(whole).values()) == {"anchored", "kept"}
    assert whole.tokens == everything
    moved = build(windowed(everything - 1, preserve_recent=1), None, [], entries)
    assert "evicted" in decided(moved).values()


def test_the_newest_messages_are_cut_before_they_are_dropped() -> None:
    """`preserve_recent` messages stay, cut where they are long; no older one does."""
    entries = words_log(20, 200, 20, 900, 20, 900, 20).entries
    built = build(windowed(1200, preserve_recent=4, target=0.2), None, [], entries)
    assert decided(built) == {0: "anchored", 1: "evicted", 2: "evicted", 3: "cut", 4: "kept", 5: "cut", 6: "kept"}


def test_the_oldest_are_cut_first_and_no_more_than_needed() -> None:
    """Of recent messages that do not fit, the oldest is cut, the newer ones stay whole as long as that is enough."""
    entries = words_log(5, 900, 300, 300, 20).entries
    room = sum(entry.tokens for entry in entries) - entries[1].tokens + 400
    built = build(windowed(room, preserve_recent=4), None, [], entries)
    assert decided(built) == {0: "anchored", 1: "cut", 2: "kept", 3: "kept", 4: "kept"}
    assert room - 15 <= built.tokens <= room, "the cut takes what is free"


def test_recent_messages_are_dropped_when_cutting_is_not_enough() -> None:
    """Where not even 128 tokens a message fit, the oldest of the recent ones leave."""
    entries = words_log(5, 900, 900, 900, 900, 20).entries
    built = build(windowed(420, preserve_recent=5), None, [], entries)
    assert decided(built)[1] == "evicted"
    assert decided(built)[5] == "kept"
    assert "cut" in decided(built).values()


def test_a_long_task_becomes_a_stub_behind_the_frontier() -> None:
    """A task over a quarter of the room is told as a marked stub once the frontier has passed it."""
    entries = words_log(400, 200, 200, 200, 200).entries
    room = entries[-1].total - 1
    built = build(windowed(room, preserve_recent=1), None, [], entries)
    stub = built.messages[0]
    assert stub.text.startswith("[original task: #1 ")
    assert 0.9 * room / 4 <= STORED.message(stub) <= room / 4


def test_a_long_task_with_an_image_keeps_it_or_says_that_it_left() -> None:
    """The stub of a task with media keeps them while they fit; otherwise it names them."""
    log = Log()
    log.append(Message(role="user", content=(Part("text", log.text(900)), LARGE_IMAGE)))
    for _ in range(8):
        log.append(Message(role="assistant", content=log.text(200)))
        log.append(Message(role="user", content=log.text(200)))
    image_task = log.entries
    roomy = build(windowed(7000), None, [], image_task).messages[0]
    assert [part.type for part in roomy.media] == ["image_url"]
    tight = build(windowed(700), None, [], image_task).messages[0]
    assert not tight.media
    assert "image_url is left out here; it is in message 0" in tight.text


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_giant_newest_message_is_cut_to_what_is_free(role: str) -> None:
    """A newest message of ten times the budget is cut, not refused, and takes the room that is there."""
    entries = words_log(5, 5, 5, *([5] if role == "assistant" else []), 8000).entries
    built = build(windowed(2000), None, [], entries)
    assert decided(built)[entries[-1].seq] == "cut"
    assert 1900 <= built.tokens <= 2000


def test_what_cannot_be_cut_is_made_up_for_by_what_can() -> None:
    """A pinned message that cannot be made shorter takes its room; the newest one is cut by so much more."""
    log = Log()
    log.append(Message(role="user", content="hi"))
    log.append(Message(role="user", content="hi", name="x7 " * 200), pinned=True)
    log.append(Message(role="user", content=log.text(900)))
    built = build(windowed(800), None, [], log.entries)
    assert decided(built) == {0: "anchored", 1: "pinned", 2: "cut"}
    assert 760 <= built.tokens <= 800


def test_a_cut_message_keeps_its_media_while_they_fit() -> None:
    """A long text beside an image is cut; the image leaves, and is named, only where that is not enough."""
    entries = log_of([Event("user", 5), Event("user", 900, shape="media")]).entries
    assert build(windowed(600), None, [], entries).messages[-1].media == (IMAGE,)
    large = entries[1].message.evolve(content=(Part("text", "x7 " * 900), LARGE_IMAGE))
    tight = build(windowed(600), None, [], log_with(entries[0].message, large)).messages[-1]
    assert "image_url is left out here; it is in message 1" in tight.text
    assert not tight.media


def test_giant_arguments_of_short_values_are_cut() -> None:
    """Arguments with nothing long in them become an object with their cut text: a session is not stuck behind them."""
    entries = log_of([Event("user", 5), Event("round", 1, (("a", 2000),), (("a", 5),), "many")]).entries
    built = build(windowed(600), None, [], entries)
    assert decided(built) == {0: "anchored", 1: "cut", 2: "kept"}
    assert list(json.loads(built.messages[1].tool_calls[0].arguments)) == ["[cut, see message 1 of the session]"]
    assert 560 <= built.tokens <= 600


def test_a_compaction_stands_between_task_and_current_message() -> None:
    """In a long agent turn: task, digest, current user message, newest rounds."""
    rounds = [Event("round", 3, (("c", 3),), (("c", 60),), "json")] * 40
    entries = log_of([Event("user", 5), Event("assistant", 5), Event("user", 6), *rounds]).entries
    rule = make_strategy(ContextSettings("digest", {"budget": 2000}))
    built = build(Request(strategy=rule, count=STORED, input_budget=UNLIMITED), None, [], entries)
    task, digest, current, *rest = built.messages
    assert (task, current) == (entries[0].message, entries[2].message)
    assert built.window.compaction is not None
    assert digest.text == built.window.compaction.text
    assert rest[-1] == entries[-1].message


def test_the_current_message_is_found_wherever_it_stands() -> None:
    """In the rest, in the head behind a digest, and as the task, before it."""
    rounds = [Event("round", 3, (("c", 3),), (("c", 60),), "json")] * 40
    rule = make_strategy(ContextSettings("digest", {"budget": 2000}))
    request = Request(strategy=rule, count=STORED, input_budget=UNLIMITED)
    for talk in ([], [Event("user", 5), Event("assistant", 5)], [Event("user", 5), Event("assistant", 5)] * 40):
        for more in ([], rounds):
            entries = log_of([*talk, Event("user", 6), *more]).entries
            built = build(request, None, [], entries)
            at = built.window.find_current()
            assert at is not None
            assert built.window.list_messages()[at] == entries[len(talk)].message
    nobody = build(request, None, [], log_of([Event("assistant", 5)]).entries)
    assert nobody.window.find_current() is None


def test_a_working_set_of_nothing_goes_through_nothing() -> None:
    rule = make_strategy(ContextSettings("digest"))
    request = Request(strategy=rule, count=STORED, input_budget=UNLIMITED)
    assert build(request, None, [], []).through == -1
    assert build(request, None, [], words_log(3, 3, 3).entries).through == 2


def test_long_strings_in_arguments_are_cut_where_they_stand() -> None:
    """At any depth; keys, numbers and short strings stay, below a first key that says so."""
    short = "s" * 200
    arguments = {"id": "A1", "n": 3, "rows": [{"note": "long " * 300, "short": short}, "also " * 300], "none": None}
    message = called("a").evolve(tool_calls=(ToolCall("a", "save", json.dumps(arguments)),))
    made = cut(message, 400, seq=7, count=STORED)
    found = json.loads(made.tool_calls[0].arguments)
    assert {**found, "rows": None} == {"[cut, see message 7 of the session]": "", **arguments, "rows": None}
    assert found["rows"][0]["short"] == short
    for text, whole in ((found["rows"][0]["note"], "long "), (found["rows"][1], "also ")):
        assert text.startswith(whole)
        assert "of 1500 characters cut, message 7 of the session" in text
    assert STORED.message(made) <= 400


def test_everything_or_nothing_is_sent_by_none() -> None:
    """`none` sends a log that fits to the token, and refuses it with one token less, naming what it takes."""
    entries = words_log(20, 20, 20).entries
    request = Request(strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=entries[-1].total + 3)
    assert build(request, None, [], entries).messages == tuple(entry.message for entry in entries)
    with pytest.raises(BudgetTooSmall) as caught:
        build(msgspec.structs.replace(request, input_budget=entries[-1].total + 2), None, [], entries)
    assert (caught.value.needed, caught.value.budget) == (entries[-1].total, entries[-1].total - 1)


@settings(max_examples=settings().max_examples // 2)
@given(rule=policies(), room=st.integers(1, 1500), history=events)
def test_a_policy_is_pure(rule: Strategy, room: int, history: list[Event]) -> None:
    """A strategy leaves the window that it is given as it was, and gives the same one for it again."""
    window = Window(Room(room, STORED), anchored=rule.anchored)
    for unit in group_units(log_of(history).entries):
        window.grow(unit)
    assume(window.units)
    before = (window.list_messages(), window.tokens, list(window.units), window.head, window.cuts, window.compaction)
    made, again = rule(window), rule(window)
    assert before == (window.list_messages(), window.tokens, window.units, window.head, window.cuts, window.compaction)
    assert (made.list_messages(), made.tokens) == (again.list_messages(), again.tokens)


def test_a_question_answered_leaves_a_count_window() -> None:
    """The current user message stays beside the last messages; once there is a newer one, it is one of them or gone."""
    round_of_three = Event("round", 1, (("a", 3), ("b", 3)), (("a", 5), ("b", 5)), "json")
    entries = log_of([Event("user", 5), round_of_three, Event("user", 5)]).entries
    rule = make_strategy(ContextSettings("buffer_window", {"window_size": 3}))
    request = Request(strategy=rule, count=STORED, input_budget=UNLIMITED)
    assert decided(build(request, None, [], entries[:-1]))[0] == "kept"
    assert decided(build(request, None, [], entries)) == {0: "evicted", 1: "kept", 2: "kept", 3: "kept", 4: "kept"}


def test_what_stored_counts_do_not_bound_is_made_to_fit() -> None:
    """Text that takes three times its stored count in the model's own: less is sent, but not the least."""
    log = Log()
    for at in range(40):
        log.append(Message(role="user" if at % 2 == 0 else "assistant", content=f"यह संदेश क्रमांक {at} है, समुद्र के बारे में"))
    entries = log.entries[:-1]
    request = msgspec.structs.replace(windowed(1000, preserve_recent=1), count=COUNTERS["cl100k"])
    whole = sum(COUNTERS["cl100k"].message(entry.message) for entry in entries)
    assert whole > 1000 > entries[-1].total * 1.1, "the stored counts alone would send everything"
    built = build(request, None, [], entries)
    check_rules(request, built, entries)
    assert built.tokens > 250


# -- a strategy that chooses ---------------------------------------------------------------


def every_third(window: Window, _: Strategy) -> frozenset[int]:
    """A chooser, as one would write one: every third message of the log stays."""
    return frozenset(unit.first for unit in (*window.head, *window.units) if unit.first % 3 == 0)


def choosing(budget: int) -> Request:
    """A request whose strategy chooses, in place of keeping the newest."""
    rule = make_strategy(ContextSettings("token_window", {"budget": budget, "target": 0.5}))
    return Request(strategy=msgspec.structs.replace(rule, choose=every_third), count=STORED, input_budget=UNLIMITED)


def test_what_is_chosen_stays() -> None:
    """And is told with all that did not; the call says which strategy it was, without its function."""
    entries = words_log(*[9] * 60).entries[:-1]
    built = build(choosing(600), None, [], entries)
    kept = {seq for seq, what in decided(built).items() if what in ("kept", "anchored")}
    newest = max(seq for seq in range(len(entries)) if seq not in kept)
    assert kept >= {seq for seq in range(newest) if seq % 3 == 0}
    assert not any(seq % 3 for seq in kept if seq < newest)
    assert built.explain()["policy"] == {
        "strategy": "token_window",
        "budget": 600,
        "preserve_recent": 5,
        "target": 0.5,
        "facts": False,
        "recall": False,
    }


def test_what_must_stay_is_cut_for_what_is_chosen_and_no_further() -> None:
    """A long newest message gets its part of the room, whatever else a function would like to keep."""
    entries = words_log(*[9] * 10, 900).entries
    built = build(choosing(400), None, [], entries)
    assert decided(built)[10] == "cut"
    assert built.tokens > 250


@given(history=events, budget=st.integers(300, 3000))
def test_whatever_is_chosen_the_rules_hold(history: list[Event], budget: int) -> None:
    entries, request = log_of(history).entries, choosing(budget)
    assume(entries)
    try:
        built = build(request, None, [], entries)
    except BudgetTooSmall:
        assume(False)
    check_rules(request, built, entries)


# -- logs that no provider takes ------------------------------------------------------------


def log_with(*messages: Message) -> list[Entry]:
    """A log of these messages."""
    log = Log()
    for message in messages:
        log.append(message)
    return log.entries


def called(*ids: str) -> Message:
    """An assistant message with calls of these ids."""
    return log_of([Event("round", 1, tuple((call_id, 1) for call_id in ids), shape="json")]).entries[0].message


def answer(call_id: str, text: str) -> Message:
    """A tool result."""
    return Message(role="tool", tool_call_id=call_id, content=text)


def all_of(*messages: Message, dialect: Dialect = "openai") -> list[Message]:
    """Everything, as it is sent."""
    rule = make_strategy(ContextSettings("none"))
    request = Request(strategy=rule, count=STORED, input_budget=UNLIMITED, dialect=dialect)
    return list(build(request, None, [], log_with(*messages)).messages)


def test_ids_given_twice_in_a_unit_do_not_meet_a_third() -> None:
    """Renaming the second `a` must not make it the `a-2` that is there already."""
    sent = all_of(called("a", "a", "a-2"), answer("a", "1"), answer("a", "2"), answer("a-2", "3"))
    ids = [call.id for call in sent[0].tool_calls]
    assert len(set(ids)) == 3
    assert [(message.tool_call_id, message.text) for message in sent[1:]] == list(zip(ids, "123", strict=True))


@pytest.mark.parametrize("dialect", ["anthropic", "gemini"])
def test_ids_used_again_are_numbered_past_those_in_use(dialect: Dialect) -> None:
    """A second `a` is numbered where ids must differ over the prompt, even beside an `a-2` of the log's own."""
    sent = all_of(
        Message(role="user", content="hi"), called("a"), answer("a", "1"), called("a-2"), answer("a-2", "2"),
        called("a"), answer("a", "3"), dialect=dialect,
    )  # fmt: skip
    ids = [call.id for message in sent for call in message.tool_calls]
    assert len(set(ids)) == 3
    assert [message.tool_call_id for message in sent if message.role == "tool"] == ids


def test_an_orphan_among_results_leaves_them_together() -> None:
    """A result that answers nothing, between two that do, is told as text behind them; a folded unit stays one."""
    messages = [called("a", "b"), answer("a", "1"), answer("z", "lost"), answer("b", "2")]
    sent = all_of(Message(role="user", content="hi"), *messages)
    assert [message.role for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert sent[-1].text.endswith("lost")


def test_units_that_do_not_follow_each_other_stay_apart() -> None:
    """A result is no part of open calls that only stand before it because what was between them left."""
    calls, question, orphan = log_with(called("a"), Message(role="user", content="hi"), answer("z", "lost"))
    assert [unit.entries for unit in group_units([calls, question, orphan])] == [(calls,), (question,), (orphan,)]
    assert [unit.entries for unit in group_units([calls, orphan])] == [(calls,), (orphan,)]


def test_late_results_and_notes_keep_their_media() -> None:
    """What is said in another role for a dialect keeps parts and unknown fields."""
    result = Message(role="tool", tool_call_id="x", content=(IMAGE,), extra={"artifact": {"n": 1}})
    sent = all_of(Message(role="user", content="hi"), result)
    assert (sent[1].media, sent[1].extra) == ((IMAGE,), result.extra)
    note = Message(role="system", content=(IMAGE,), extra={"cache_control": {"type": "ephemeral"}})
    sent = all_of(Message(role="user", content="hi"), note, Message(role="user", content="go"), dialect="anthropic")
    assert (sent[1].role, sent[1].media, sent[1].extra) == ("user", (IMAGE,), note.extra)


def test_calls_that_a_crash_left_open_are_answered() -> None:
    """A call without a result gets a marked one; when the real one arrives later in the unit, it takes its place."""
    open_unit = [Message(role="user", content="hi"), called("a", "b"), answer("b", "2")]
    assert [message.text for message in all_of(*open_unit)][2:] == ["2", "[no result was recorded for this call]"]
    assert [message.text for message in all_of(*open_unit, answer("a", "1"))][2:] == ["2", "1"]


@example(number=3)
@given(number=st.integers(1, 30))
def test_system_notes_count(number: int) -> None:
    """What a dialect adds to messages is counted: many system messages among the others stay within the budget."""
    messages = [Message(role="user", content="hi"), *[Message(role="system", content="note")] * number]
    entries = log_with(*messages, Message(role="user", content="go"))
    rule = make_strategy(ContextSettings("token_window", {"budget": entries[-1].total + 48}))
    request = Request(strategy=rule, count=STORED, input_budget=UNLIMITED, dialect="anthropic")
    check_rules(request, build(request, None, [], entries), entries)


def test_a_state_of_another_version_is_made_anew() -> None:
    """Bytes that are no state of this version say so, instead of being half understood."""
    assert decode_state(encode_state(ViewState(version=0))) is None
    assert decode_state(b"not json") is None


def test_groups_and_anchor_of_the_checks_themselves() -> None:
    """The checks group a log as the rules say: what waits takes tool messages in, what is answered does not."""
    entries = log_with(called("a"), answer("z", "?"), answer("a", "1"), answer("a", "again"))
    assert [[entry.seq for entry in group] for group in groups_of(entries)] == [[0, 1, 2], [3]]
    assert anchor_of(entries) is None


# -- the reply that is answered, and the message that is served ------------------------


@pytest.mark.parametrize("budget", [800, 1024, 2048, 4096])
def test_the_reply_that_the_user_answers_stays_at_least_in_part(budget: int) -> None:
    """Without it nobody knows what "the second one" is."""
    talk = [
        Message(role=("user", "assistant")[at % 2], content=f"Remark {at} on the harbour. " * 30) for at in range(40)
    ]
    question = Message(
        role="assistant", content="Shall I take the Almudena, or the Fennel? " + "Both are fine boats. " * 90
    )
    made = make_strategy(ContextSettings("digest", {"budget": budget}))
    log = log_with(*talk, question, Message(role="user", content="The second one."))
    built = build(Request(strategy=made, count=STORED, input_budget=UNLIMITED), None, [], log)
    assert built.messages[-2].role == "assistant"
    assert "Shall I take the Almudena" in built.messages[-2].text
    assert built.tokens <= budget


def test_the_digest_gives_way_before_the_current_message_is_cut() -> None:
    talk = [
        Message(role=("user", "assistant")[at % 2], content=f"Remark {at} on berth {at}. " * 30) for at in range(40)
    ]
    asked = Message(role="user", content=" ".join(f"What about berth {at} of the harbour?" for at in range(50)))
    made = make_strategy(ContextSettings("digest", {"budget": 1024}))
    built = build(Request(strategy=made, count=STORED, input_budget=UNLIMITED), None, [], log_with(*talk, asked))
    assert STORED.message(asked) > 400
    assert built.messages[-1] == asked
