"""Edge cases of working sets: messages that are cut, dropped or rejected, and repairs before sending."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.settings import CLEARING, STRATEGIES, ContextSettings
from holdfast.context.strategies import Strategy, make_strategy
from holdfast.context.units import group_units
from holdfast.context.window import Room, Window
from holdfast.domain.messages import Message
from holdfast.domain.provider_items import DETAILS, FORMAT, HOSTED, has_compaction, with_compactions
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from tests.unit.context_rules import check_rules
from tests.unit.strategies import (
    COUNTERS,
    UNLIMITED,
    Event,
    Log,
    events,
    log_of,
    policies,
)

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


# -- logs that no provider accepts ------------------------------------------------------------


def log_messages(*messages: Message) -> list[Entry]:
    """Make a log of these messages."""
    log = Log()
    for message in messages:
        log.append(message)
    return log.entries


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
