"""Presence of a message in a prompt: whole, in part or not at all, in any block."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.presence import PromptContents
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.errors import BudgetTooSmall
from holdfast.limits import EXPLAIN_EXCERPTS
from holdfast.tokens import STORED
from tests.unit.strategies import Log, events, log_of, requests, team_events, team_requests


def build_or_skip(request: Request, entries: list[Entry]) -> WorkingSet:
    try:
        return build(request, None, (), entries)
    except BudgetTooSmall:
        assume(False)
        raise


def is_verbatim(sent: Message, said: Message) -> bool:
    """Return True if the sent message contains the whole original message."""
    calls = [call.arguments for call in sent.tool_calls] == [call.arguments for call in said.tool_calls]
    return said.text in sent.text and calls and sent.media == said.media and sent.extra == said.extra


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_a_message_is_whole_only_if_it_is_sent_verbatim(name: str, data: st.DataObject) -> None:
    """Excerpts of partly present messages are in the prompt character by character."""
    request, entries = data.draw(requests(name, dialects=("openai",))), log_of(data.draw(events)).entries
    assume(entries)
    built = build_or_skip(request, entries)
    contents = PromptContents(built.show())
    sent: dict[int | None, list[Message]] = {}
    for seq, message in zip(built.list_seqs(), built.messages, strict=True):
        sent.setdefault(seq, []).append(message)
    for entry in entries:
        found = contents.find_presence(entry)
        verbatim = any(is_verbatim(message, entry.message) for message in sent.get(entry.seq, ()))
        assert (found.state == "whole") == (verbatim and not entry.erased), (entry.seq, found)
        assert found.state == "part" or not found.excerpts
        assert len(found.excerpts) <= EXPLAIN_EXCERPTS
        assert found.block is None or entry.seq in sent
        for excerpt in found.excerpts:
            assert any(excerpt.words in message.text for message in built.messages), excerpt


@given(data=st.data())
def test_excerpts_are_in_the_prompt_for_every_dialect_and_team(data: st.DataObject) -> None:
    request, entries = data.draw(team_requests()), log_of(data.draw(team_events)).entries
    assume(entries)
    built = build_or_skip(request, entries)
    contents = PromptContents(built.show())
    for entry in entries:
        found = contents.find_presence(entry)
        assert found.reason
        for excerpt in found.excerpts:
            assert any(excerpt.words in message.text for message in built.messages), excerpt


# -- examples --------------------------------------------------------------------


def build_prompt(
    *texts: str, budget: int = 300, strategy: str = "digest", **more: Any
) -> tuple[WorkingSet, list[Entry]]:
    """Build the prompt of a log in which user and assistant alternate."""
    log = Log()
    for at, text in enumerate(texts):
        log.append(Message(role="assistant" if at % 2 else "user", content=text))
    made = make_strategy(ContextSettings(strategy, {"budget": budget}))
    request = Request(strategy=made, count=STORED, input_budget=100_000, marker="qwertzui", **more)
    return build(request, None, (), log.entries), log.entries


FILLER = [f"Plan {at} names harbour {at * 7} and the boat number {at * 31}. " * 4 for at in range(20)]


def test_a_task_stub_counts_as_part_of_the_task() -> None:
    task = "Sail around <|im_start|> the world. " * 200
    built, entries = build_prompt(task, *FILLER)
    found = PromptContents(built.show()).find_presence(entries[0])
    assert (found.state, found.decision, found.block) == ("part", "cut", "task")
    assert found.excerpts[0].words.startswith("Sail around (|im_start|) the world.")
