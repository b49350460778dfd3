"""Order and authority in prompts: system messages of the log stay, and a digest comes after the task that it belongs to."""

from __future__ import annotations

import pytest

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.dialects import Dialect
from holdfast.context.settings import STRATEGIES, ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.domain.messages import Message
from holdfast.models.codecs.messages.blocks import encode_messages
from holdfast.tokens import STORED
from tests.unit.strategies import Log

RULE = "From now on answer in French, and never name prices."
NEWER = "Answer in German again."
KEYS = {"buffer_window": {"window_size": 8}, "head_tail": {"window_size": 8}, "none": {}}


def talk(log: Log, turns: int) -> None:
    for _ in range(turns):
        log.append(Message(role="user", content=log.text(25)))
        log.append(Message(role="assistant", content=log.text(25)))


def build_working_set(log: Log, name: str = "digest", *, dialect: Dialect = "openai", budget: int = 900) -> WorkingSet:
    keys = KEYS.get(name, {"budget": budget})
    made = make_strategy(ContextSettings(name, dict(keys)))
    return build(Request(strategy=made, count=STORED, input_budget=10**6, dialect=dialect), None, [], log.entries)


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_system_message_of_the_log_stays_with_its_role(name: str, role: str) -> None:
    log = Log()
    talk(log, 2)
    log.append(Message(role=role, content=RULE))
    talk(log, 20)
    working_set = build_working_set(log, name)
    said = [(message.role, message.text) for message in working_set.messages]
    assert said.count((role, RULE)) == 1
    assert not any(RULE[:20] in text for kind, text in said if kind != role), "it is never told as data"
    if name != "none":
        assert said[0] == (role, RULE), "after it left the verbatim messages it belongs to the system prompt"
        assert any("still in force" in run.reason for run in working_set.list_decisions())


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "none"])
def test_a_later_system_message_replaces_it(name: str) -> None:
    log = Log()
    talk(log, 2)
    log.append(Message(role="system", content=RULE))
    talk(log, 10)
    log.append(Message(role="system", content=NEWER))
    talk(log, 20)
    said = [(message.role, message.text) for message in build_working_set(log, name).messages]
    assert ("system", NEWER) in said
    assert not any(RULE[:20] in text for _, text in said)


def test_several_system_messages_in_a_row_are_one_statement() -> None:
    log = Log()
    talk(log, 2)
    log.append(Message(role="system", content=RULE))
    log.append(Message(role="developer", content="Be brief."))
    talk(log, 20)
    assert [message.text for message in build_working_set(log).messages[:2]] == [RULE, "Be brief."]


def test_for_anthropic_it_is_part_of_the_system_prompt_once_the_frontier_moved() -> None:
    log = Log()
    talk(log, 2)
    log.append(Message(role="system", content=RULE))
    log.append(Message(role="user", content="Hello?"))
    tail = encode_messages(build_working_set(log, dialect="anthropic", budget=5000).messages)
    assert "system" not in tail, "while its place is in the prompt it stays there, so that the prefix stays stable"
    assert RULE in str(tail["messages"])
    talk(log, 20)
    moved = encode_messages(build_working_set(log, dialect="anthropic").messages)
    assert RULE in str(moved["system"])
    assert RULE not in str(moved["messages"])


@pytest.mark.parametrize("later", [False, True], ids=["first turn", "next call"])
def test_a_digest_of_an_over_long_first_message_comes_after_it(later: bool) -> None:
    log = Log()
    boxes = "".join(f"Box B-{n} has {n * 3} letters, the longest is from captain number {n}.\n" for n in range(150))
    log.append(Message(role="user", content=f"Move the archive.\n{boxes}"))
    if later:
        log.append(Message(role="assistant", content="Which part first?"))
        log.append(Message(role="user", content="The letters."))
    working_set = build_working_set(log)
    texts = [message.text for message in working_set.messages]
    assert working_set.window.compaction is not None
    assert texts[0].startswith("[original task: Move the archive.")
    assert texts[1].startswith("[Condensed from")
    assert texts[2:] == (["Which part first?", "The letters."] if later else [])
    sources = [entry.seq if entry else None for entry in working_set.list_sources()]
    assert sources == [None, None, *([1, 2] if later else [])]
