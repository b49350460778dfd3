"""Edge cases of working sets: messages that are cut, dropped or rejected, and repairs before sending."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.dialects import Dialect
from holdfast.context.settings import CLEARING, STRATEGIES, ContextSettings
from holdfast.context.strategies import Strategy, make_strategy
from holdfast.context.units import group_units
from holdfast.context.window import Room, Window
from holdfast.domain.messages import Message, Part
from holdfast.domain.provider_items import DETAILS, FORMAT, HOSTED, has_compaction, with_compactions
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from tests.unit.context_rules import check_rules
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


ITEM = {"type": "compaction", "encrypted_content": "e" * 8000}
"""Takes about 1,600 tokens."""


# -- rule 1: cutting, dropping, rejecting -------------------------------------------


def make_log(*sizes: int, role: str = "user") -> Log:
    """Make a log of plain messages with these numbers of words, alternating user and assistant."""
    roles = ["user", "assistant"] if role == "user" else ["assistant", "user"]
    return log_of([Event(roles[at % 2], size) for at, size in enumerate(sizes)])


def make_request(budget: int, **options: object) -> Request:
    """Make a `token_window` request for o200k and OpenAI."""
    rule = make_strategy(ContextSettings("token_window", {"budget": budget, **options}))
    return Request(strategy=rule, count=STORED, input_budget=UNLIMITED)


def get_decisions(built: WorkingSet) -> dict[int, str]:
    """Return the decisions by `seq`."""
    return {seq: run.decision for run in built.list_decisions() for seq in range(run.first, run.last + 1)}


def test_the_budget_is_exact_to_the_token() -> None:
    """A log that fits exactly is kept; with one token less the frontier moves."""
    entries = make_log(20, 20, 20, 20, 20, 20, 20).entries
    everything = entries[-1].total
    whole = build(make_request(everything), None, [], entries)
    assert set(get_decisions(whole).values()) == {"anchored", "kept"}
    assert whole.tokens == everything
    moved = build(make_request(everything - 1, preserve_recent=1), None, [], entries)
    assert "evicted" in get_decisions(moved).values()


def make_log_with_item(*, details: int = 0) -> Log:
    """Make a log in which a compaction item and `details` items of reasoning precede a long reply, and 20 rounds follow."""
    log = make_log(20)
    reasoning = [{"type": "reasoning.encrypted", "format": FORMAT, "data": "sealed"}] * details
    reply = with_compactions(Message(role="assistant", content=log.text(900)), [ITEM])
    log.append(reply.evolve(extra={DETAILS: [*reply.extra[DETAILS], *reasoning]}))
    for at in range(20):
        log.append(Message(role="user", content=log.text(60)))
        log.append(Message(role="assistant", content=log.text(60), extra={DETAILS: reasoning} if at else {}))
    log.append(Message(role="user", content=log.text(5)))
    return log


def build_with_items(log: Log, budget: int, strategy: str, **options: object) -> WorkingSet:
    """Build for a model whose provider reads its own compaction items."""
    rule = msgspec.structs.replace(make_strategy(ContextSettings(strategy, options)), reads_items=True)
    return build(Request(strategy=rule, count=STORED, input_budget=budget), None, [], log.entries)


@pytest.mark.parametrize("budget", [2200, 3000, 6000])
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "none"])
def test_a_compaction_item_stays_if_its_message_is_cut(strategy: str, budget: int) -> None:
    """Cutting left out long fields, and with them the item, even if it fits."""
    built = build_with_items(make_log_with_item(), budget, strategy)
    assert any(map(has_compaction, built.messages))
    with pytest.raises(BudgetTooSmall):
        build_with_items(make_log_with_item(), 1500, strategy)


@pytest.mark.parametrize("strategy", [CLEARING, "digest"])
def test_a_compaction_item_stays_if_reasoning_is_cleared(strategy: str) -> None:
    """Both are in the same field of a reply, and only reasoning is left out."""
    rule = {"keep_thinking": 1}
    options = rule if strategy == CLEARING else {CLEARING: rule}
    built = build_with_items(make_log_with_item(details=1), UNLIMITED, strategy, **options)
    details = [message.extra[DETAILS] for message in built.messages if DETAILS in message.extra]
    assert [[one["type"] for one in listed] for listed in details] == [[HOSTED], ["reasoning.encrypted"]]


def test_the_newest_messages_are_cut_before_they_are_dropped() -> None:
    """`preserve_recent` messages are kept, and cut if they are long; older ones are evicted."""
    entries = make_log(20, 200, 20, 900, 20, 900, 20).entries
    built = build(make_request(1200, preserve_recent=4, target=0.2), None, [], entries)
    assert get_decisions(built) == {0: "anchored", 1: "evicted", 2: "evicted", 3: "cut", 4: "kept", 5: "cut", 6: "kept"}


def test_the_oldest_are_cut_first_and_no_more_than_needed() -> None:
    """The oldest recent message is cut first; newer ones stay whole as long as that is enough."""
    entries = make_log(5, 900, 300, 300, 20).entries
    room = sum(entry.tokens for entry in entries) - entries[1].tokens + 400
    built = build(make_request(room, preserve_recent=4), None, [], entries)
    assert get_decisions(built) == {0: "anchored", 1: "cut", 2: "kept", 3: "kept", 4: "kept"}
    assert room - 15 <= built.tokens <= room, "the cut takes what is free"


def test_recent_messages_are_dropped_when_cutting_is_not_enough() -> None:
    """If not even 128 tokens per message fit, the oldest recent messages are evicted."""
    entries = make_log(5, 900, 900, 900, 900, 20).entries
    built = build(make_request(420, preserve_recent=5), None, [], entries)
    assert get_decisions(built)[1] == "evicted"
    assert get_decisions(built)[5] == "kept"
    assert "cut" in get_decisions(built).values()


def test_a_long_task_becomes_a_stub_after_the_frontier_passes() -> None:
    """A task over a quarter of the room is sent as a marked stub once the frontier has passed it."""
    entries = make_log(400, 200, 200, 200, 200).entries
    room = entries[-1].total - 1
    built = build(make_request(room, preserve_recent=1), None, [], entries)
    stub = built.messages[0]
    assert stub.text.startswith("[original task: #1 ")
    assert 0.9 * room / 4 <= STORED.message(stub) <= room / 4


def test_the_stub_of_a_long_task_keeps_its_image_or_names_it() -> None:
    """The stub of a task with media keeps them while they fit; otherwise it names them."""
    log = Log()
    log.append(Message(role="user", content=(Part("text", log.text(900)), LARGE_IMAGE)))
    for _ in range(8):
        log.append(Message(role="assistant", content=log.text(200)))
        log.append(Message(role="user", content=log.text(200)))
    image_task = log.entries
    roomy = build(make_request(7000), None, [], image_task).messages[0]
    assert [part.type for part in roomy.media] == ["image_url"]
    tight = build(make_request(700), None, [], image_task).messages[0]
    assert not tight.media
    assert "image_url is left out here; it is in message 0" in tight.text


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_giant_newest_message_is_cut_to_the_free_room(role: str) -> None:
    """A newest message of ten times the budget is cut, not rejected, and fills the available room."""
    entries = make_log(5, 5, 5, *([5] if role == "assistant" else []), 8000).entries
    built = build(make_request(2000), None, [], entries)
    assert get_decisions(built)[entries[-1].seq] == "cut"
    assert 1900 <= built.tokens <= 2000


def test_other_messages_are_cut_more_if_one_cannot_be_cut() -> None:
    """A pinned message that cannot be shortened keeps its room; the newest one is cut further."""
    log = Log()
    log.append(Message(role="user", content="hi"))
    log.append(Message(role="user", content="hi", name="x7 " * 200), pinned=True)
    log.append(Message(role="user", content=log.text(900)))
    built = build(make_request(800), None, [], log.entries)
    assert get_decisions(built) == {0: "anchored", 1: "pinned", 2: "cut"}
    assert 760 <= built.tokens <= 800


def test_a_cut_message_keeps_its_media_while_they_fit() -> None:
    """The text is cut first; the image is removed, and named, only if that is not enough."""
    entries = log_of([Event("user", 5), Event("user", 900, shape="media")]).entries
    assert build(make_request(600), None, [], entries).messages[-1].media == (IMAGE,)
    large = entries[1].message.evolve(content=(Part("text", "x7 " * 900), LARGE_IMAGE))
    tight = build(make_request(600), None, [], log_messages(entries[0].message, large)).messages[-1]
    assert "image_url is left out here; it is in message 1" in tight.text
    assert not tight.media


def test_giant_arguments_of_short_values_are_cut() -> None:
    """Arguments without long strings become an object with their cut text, so the session can go on."""
    entries = log_of([Event("user", 5), Event("round", 1, (("a", 2000),), (("a", 5),), "many")]).entries
    built = build(make_request(600), None, [], entries)
    assert get_decisions(built) == {0: "anchored", 1: "cut", 2: "kept"}
    assert list(json.loads(built.messages[1].tool_calls[0].arguments)) == ["[cut, see message 1 of the session]"]
    assert 560 <= built.tokens <= 600


def test_a_compaction_is_placed_between_task_and_current_message() -> None:
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


def test_the_current_message_is_found_at_any_position() -> None:
    """Among the recent messages, in the head after a digest, and as the task before it."""
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


def test_strategy_none_sends_everything_or_fails() -> None:
    """With one token less than needed it fails and names the needed tokens."""
    entries = make_log(20, 20, 20).entries
    request = Request(strategy=make_strategy(ContextSettings("none")), count=STORED, input_budget=entries[-1].total + 3)
    assert build(request, None, [], entries).messages == tuple(entry.message for entry in entries)
    with pytest.raises(BudgetTooSmall) as caught:
        build(msgspec.structs.replace(request, input_budget=entries[-1].total + 2), None, [], entries)
    assert (caught.value.needed, caught.value.budget) == (entries[-1].total, entries[-1].total - 1)


@settings(max_examples=settings().max_examples // 2)
@given(rule=policies(), room=st.integers(1, 1500), history=events)
def test_strategies_are_pure(rule: Strategy, room: int, history: list[Event]) -> None:
    """A strategy does not change its window and returns equal results for equal windows."""
    window = Window(Room(room, STORED), anchored=rule.anchored)
    for unit in group_units(log_of(history).entries):
        window.grow(unit)
    assume(window.units)
    before = (window.list_messages(), window.tokens, list(window.units), window.head, window.cuts, window.compaction)
    made, again = rule(window), rule(window)
    assert before == (window.list_messages(), window.tokens, window.units, window.head, window.cuts, window.compaction)
    assert (made.list_messages(), made.tokens) == (again.list_messages(), again.tokens)


def test_an_answered_question_can_leave_a_count_window() -> None:
    """The current user message is kept in addition to the last messages, until there is a newer one."""
    round_of_three = Event("round", 1, (("a", 3), ("b", 3)), (("a", 5), ("b", 5)), "json")
    entries = log_of([Event("user", 5), round_of_three, Event("user", 5)]).entries
    rule = make_strategy(ContextSettings("buffer_window", {"window_size": 3}))
    request = Request(strategy=rule, count=STORED, input_budget=UNLIMITED)
    assert get_decisions(build(request, None, [], entries[:-1]))[0] == "kept"
    assert get_decisions(build(request, None, [], entries)) == {
        0: "evicted",
        1: "kept",
        2: "kept",
        3: "kept",
        4: "kept",
    }


def test_messages_that_exceed_their_stored_counts_are_made_to_fit() -> None:
    """Text that takes three times its stored count: less is sent, but not just the minimum."""
    log = Log()
    for at in range(40):
        log.append(Message(role="user" if at % 2 == 0 else "assistant", content=f"यह संदेश क्रमांक {at} है, समुद्र के बारे में"))
    entries = log.entries[:-1]
    request = msgspec.structs.replace(make_request(1000, preserve_recent=1), count=COUNTERS["cl100k"])
    whole = sum(COUNTERS["cl100k"].message(entry.message) for entry in entries)
    assert whole > 1000 > entries[-1].total * 1.1, "the stored counts alone would send everything"
    built = build(request, None, [], entries)
    check_rules(request, built, entries)
    assert built.tokens > 250


# -- strategies with a selection function ---------------------------------------------------------------


def select_every_third(window: Window, _: Strategy) -> frozenset[int]:
    """Select every third message of the log, as a custom function might."""
    return frozenset(unit.first for unit in (*window.head, *window.units) if unit.first % 3 == 0)


def make_selecting_request(budget: int) -> Request:
    """Make a request whose strategy selects messages instead of keeping the newest."""
    rule = make_strategy(ContextSettings("token_window", {"budget": budget, "target": 0.5}))
    return Request(
        strategy=msgspec.structs.replace(rule, choose=select_every_third), count=STORED, input_budget=UNLIMITED
    )


def test_selected_messages_are_kept() -> None:
    """The explanation names the strategy, without its function."""
    entries = make_log(*[9] * 60).entries[:-1]
    built = build(make_selecting_request(600), None, [], entries)
    kept = {seq for seq, what in get_decisions(built).items() if what in ("kept", "anchored")}
    newest = max(seq for seq in range(len(entries)) if seq not in kept)
    assert kept >= {seq for seq in range(newest) if seq % 3 == 0}
    assert not any(seq % 3 for seq in kept if seq < newest)
    assert built.explain()["strategy"] == {
        "strategy": "token_window",
        "budget": 600,
        "preserve_recent": 5,
        "target": 0.5,
        "facts": False,
        "recall": False,
    }


def test_required_messages_are_cut_moderately_for_selected_ones() -> None:
    """A long newest message gets its share of the room, whatever the function selects."""
    entries = make_log(*[9] * 10, 900).entries
    built = build(make_selecting_request(400), None, [], entries)
    assert get_decisions(built)[10] == "cut"
    assert built.tokens > 250


@given(history=events, budget=st.integers(300, 3000))
def test_the_rules_hold_for_any_selection(history: list[Event], budget: int) -> None:
    entries, request = log_of(history).entries, make_selecting_request(budget)
    assume(entries)
    try:
        built = build(request, None, [], entries)
    except BudgetTooSmall:
        assume(False)
    check_rules(request, built, entries)


# -- logs that no provider accepts ------------------------------------------------------------


def log_messages(*messages: Message) -> list[Entry]:
    """Make a log of these messages."""
    log = Log()
    for message in messages:
        log.append(message)
    return log.entries


def make_calls(*ids: str) -> Message:
    """Make an assistant message with calls of these ids."""
    return log_of([Event("round", 1, tuple((call_id, 1) for call_id in ids), shape="json")]).entries[0].message


def answer(call_id: str, text: str) -> Message:
    """Make a tool result."""
    return Message(role="tool", tool_call_id=call_id, content=text)


def send_all(*messages: Message, dialect: Dialect = "openai") -> list[Message]:
    """Return all messages as they are sent."""
    rule = make_strategy(ContextSettings("none"))
    request = Request(strategy=rule, count=STORED, input_budget=UNLIMITED, dialect=dialect)
    return list(build(request, None, [], log_messages(*messages)).messages)


def test_renamed_duplicate_ids_do_not_collide_with_a_third() -> None:
    """Renaming the second `a` must not make it the `a-2` that is there already."""
    sent = send_all(make_calls("a", "a", "a-2"), answer("a", "1"), answer("a", "2"), answer("a-2", "3"))
    ids = [call.id for call in sent[0].tool_calls]
    assert len(set(ids)) == 3
    assert [(message.tool_call_id, message.text) for message in sent[1:]] == list(zip(ids, "123", strict=True))


@pytest.mark.parametrize("dialect", ["anthropic", "gemini"])
def test_reused_ids_get_a_number_that_is_not_in_use(dialect: Dialect) -> None:
    """Where ids must be unique in the prompt, a second `a` is renamed, even if the log already has `a-2`."""
    sent = send_all(
        Message(role="user", content="hi"), make_calls("a"), answer("a", "1"), make_calls("a-2"), answer("a-2", "2"),
        make_calls("a"), answer("a", "3"), dialect=dialect,
    )  # fmt: skip
    ids = [call.id for message in sent for call in message.tool_calls]
    assert len(set(ids)) == 3
    assert [message.tool_call_id for message in sent if message.role == "tool"] == ids


def test_an_orphan_among_results_does_not_split_them() -> None:
    """An orphaned result between two others is sent as text after them; the unit stays together."""
    messages = [make_calls("a", "b"), answer("a", "1"), answer("z", "lost"), answer("b", "2")]
    sent = send_all(Message(role="user", content="hi"), *messages)
    assert [message.role for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert sent[-1].text.endswith("lost")


def test_units_that_are_not_adjacent_stay_separate() -> None:
    """A result does not join open calls that are adjacent only because messages in between were evicted."""
    calls, question, orphan = log_messages(make_calls("a"), Message(role="user", content="hi"), answer("z", "lost"))
    assert [unit.entries for unit in group_units([calls, question, orphan])] == [(calls,), (question,), (orphan,)]
    assert [unit.entries for unit in group_units([calls, orphan])] == [(calls,), (orphan,)]


def test_late_results_and_notes_keep_their_media() -> None:
    """Messages sent in another role for a dialect keep their parts and unknown fields."""
    result = Message(role="tool", tool_call_id="x", content=(IMAGE,), extra={"artifact": {"n": 1}})
    sent = send_all(Message(role="user", content="hi"), result)
    assert (sent[1].media, sent[1].extra) == ((IMAGE,), result.extra)
    note = Message(role="system", content=(IMAGE,), extra={"cache_control": {"type": "ephemeral"}})
    sent = send_all(Message(role="user", content="hi"), note, Message(role="user", content="go"), dialect="anthropic")
    assert (sent[1].role, sent[1].media, sent[1].extra) == ("user", (IMAGE,), note.extra)


def test_calls_left_open_by_a_crash_get_a_placeholder_result() -> None:
    """When the real result arrives later in the unit, it replaces the placeholder."""
    open_unit = [Message(role="user", content="hi"), make_calls("a", "b"), answer("b", "2")]
    assert [message.text for message in send_all(*open_unit)][2:] == ["2", "[no result was recorded for this call]"]
    assert [message.text for message in send_all(*open_unit, answer("a", "1"))][2:] == ["2", "1"]


@example(number=3)
@given(number=st.integers(1, 30))
def test_system_notes_count_towards_the_budget(number: int) -> None:
    """Tokens that a dialect adds are counted: prompts with many system messages stay within the budget."""
    messages = [Message(role="user", content="hi"), *[Message(role="system", content="note")] * number]
    entries = log_messages(*messages, Message(role="user", content="go"))
    rule = make_strategy(ContextSettings("token_window", {"budget": entries[-1].total + 48}))
    request = Request(strategy=rule, count=STORED, input_budget=UNLIMITED, dialect="anthropic")
    check_rules(request, build(request, None, [], entries), entries)


# -- the answered reply and the current message ------------------------


@pytest.mark.parametrize("budget", [800, 1024, 2048, 4096])
def test_the_reply_that_the_user_answers_is_kept_at_least_in_part(budget: int) -> None:
    """Without it "the second one" is meaningless."""
    talk = [
        Message(role=("user", "assistant")[at % 2], content=f"Remark {at} on the harbour. " * 30) for at in range(40)
    ]
    question = Message(
        role="assistant", content="Shall I take the Almudena, or the Fennel? " + "Both are fine boats. " * 90
    )
    made = make_strategy(ContextSettings("digest", {"budget": budget}))
    log = log_messages(*talk, question, Message(role="user", content="The second one."))
    built = build(Request(strategy=made, count=STORED, input_budget=UNLIMITED), None, [], log)
    assert built.messages[-2].role == "assistant"
    assert "Shall I take the Almudena" in built.messages[-2].text
    assert built.tokens <= budget


def test_the_digest_shrinks_before_the_current_message_is_cut() -> None:
    talk = [
        Message(role=("user", "assistant")[at % 2], content=f"Remark {at} on berth {at}. " * 30) for at in range(40)
    ]
    asked = Message(role="user", content=" ".join(f"What about berth {at} of the harbour?" for at in range(50)))
    made = make_strategy(ContextSettings("digest", {"budget": 1024}))
    built = build(Request(strategy=made, count=STORED, input_budget=UNLIMITED), None, [], log_messages(*talk, asked))
    assert STORED.message(asked) > 400
    assert built.messages[-1] == asked
