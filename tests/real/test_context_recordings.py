"""The rules of a working set on recorded sessions: at each call of each, and on all of them as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.dialects import Dialect
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.view import ViewState, decode_state, encode_state
from holdfast.domain.counting import TokenCounter
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import BudgetTooSmall
from holdfast.replay.prompt_checks import has_orphan, has_task
from holdfast.replay.recordings import chain_sessions
from holdfast.tokens import STORED
from holdfast.wire.openai import parse_messages, split_system
from holdfast.wire.transcripts import Recording
from tests.amounts import sampling_step
from tests.unit.context_rules import check_refusal, check_rules
from tests.unit.context_units import callable_behind, conversation_of

UNLIMITED = 10**9


@pytest.fixture(scope="session")
def sessions(recordings: list[dict[str, Any]]) -> list[Recording]:
    """All of them."""
    return [Recording(item["id"], tuple(parse_messages(item["messages"]))) for item in recordings]


@pytest.fixture(scope="session")
def logs(sessions: list[Recording]) -> list[tuple[tuple[Message, ...], list[Entry]]]:
    """The system prompt and the log of each."""
    return [make_log(session) for session in sessions]


def make_log(session: Recording) -> tuple[tuple[Message, ...], list[Entry]]:
    """The system prompt and the log of a recording."""
    system, messages = split_system(session.messages)
    new = [NewEntry(message=message, tokens=STORED.message(message), timestamp=0) for message in messages]
    return system, extend(Tail(), new)[0]


def calls(
    request: Request, entries: Sequence[Entry], *, every: int = 1
) -> Iterator[tuple[Sequence[Entry], WorkingSet | BudgetTooSmall]]:
    """What is built for the calls of a session, each carried on from the one before: the log up to it, and the result."""
    state: ViewState | None = None
    number = 0
    for until in range(1, len(entries) + 1):
        seen = entries[:until]
        # The newest entries are enough to see whether a call is due.
        if not callable_behind(seen[-12:]):
            continue
        number += 1
        if number % every:
            continue
        kept = [entries[seq] for seq in state.keep] if state else []
        try:
            built = build(request, state, kept, seen[state.frontier if state else 0 :])
        except BudgetTooSmall as refused:
            yield seen, refused
            continue
        state = decode_state(encode_state(built.state))
        yield seen, built


def request_for(
    strategy: str, budget: int, system: tuple[Message, ...], count: TokenCounter = STORED, dialect: Dialect = "openai"
) -> Request:
    """A strategy's defaults with a budget for the conversation."""
    options = {} if strategy == "none" else {"budget": budget}
    rule = make_strategy(ContextSettings(strategy, options))
    left = budget + sum(map(count.message, system)) + 3 if strategy == "none" else UNLIMITED
    return Request(strategy=rule, count=count, input_budget=left, system=system, dialect=dialect)


@pytest.mark.parametrize(
    ("strategy", "budget"),
    [
        ("none", 2048),
        ("buffer_window", 1024),
        ("head_tail", 1024),
        ("token_window", 512),
        ("token_window", 2048),
        ("digest", 512),
        ("digest", 2048),
    ],
)
def test_every_call_of_recorded_sessions(
    strategy: str, budget: int, logs: list[tuple[tuple[Message, ...], list[Entry]]]
) -> None:
    """All rules hold at each call of every second session; only `none` refuses, and no session loses its task or a call's result."""
    sent = refused = 0
    chosen = logs[:: sampling_step(2)]
    for system, entries in chosen:
        request = request_for(strategy, budget, system)
        for seen, made in calls(request, entries):
            if isinstance(made, BudgetTooSmall):
                check_refusal(request, made, seen)
                refused += 1
                continue
            sent += 1
            check_rules(request, made, seen)
            conversation = conversation_of(request, made)
            assert not has_orphan(conversation)
            assert strategy == "buffer_window" or has_task(conversation, seen[0].message)
    assert sent > 10 * len(chosen) or strategy == "none"
    assert bool(refused) == (strategy == "none")


@pytest.mark.parametrize(
    ("strategy", "budget", "every", "number"),
    [("token_window", 8000, 25, 100), ("head_tail", 2048, 25, 100), ("digest", 4096, 10, 20)],
)
def test_all_sessions_as_one(strategy: str, budget: int, every: int, number: int, sessions: list[Recording]) -> None:
    """In one session of thousands of messages all rules hold, and what is saved does not grow with it."""
    [chain] = chain_sessions(sessions[:number])
    system, entries = make_log(chain)
    request = request_for(strategy, budget, system)
    largest, last = 0, 0
    for seen, made in calls(request, entries, every=every):
        assert isinstance(made, WorkingSet)
        check_rules(request, made, seen)
        largest = max(largest, len(encode_state(made.state)))
        carried, last = made, len(seen)
    assert len(entries) > 20 * number
    assert largest < 60 * budget
    once = build(request, None, [], entries[:last])
    assert (once.messages, encode_state(once.state)) == (carried.messages, encode_state(carried.state))
