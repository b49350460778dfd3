"""Statements in prompts: finding and counting them, in the prompts of real turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.evaluation.prompt_sessions import Run
from benchmarks.evaluation.statements.conversations import Conversation, read_conversations
from benchmarks.evaluation.statements.figures import Figures, Tally, find_asked, make_prompt
from benchmarks.evaluation.statements.matching import Matcher, normalize
from benchmarks.evaluation.statements.prompts import measure_statements
from holdfast.domain.messages import Message
from holdfast.replay.specs import parse_spec

LABELLED = Path(__file__).parents[2] / "benchmarks" / "statements"

# -- finding a statement -----------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "topic", "text"),
    [
        ("metric", "units", "Always METRIC\tunits"),
        ("34,600", "pays", "it pays 34600"),
        ("34600", "pays", "it pays 34.600,00 €"),
        ("34,600", "pays", "it pays 34\u202f600 a year"),
        ("1,250,000", "price", "the price: 1250000"),
        ("£540", "party", "£540.00 for the party"),
        ("250 ms", "p95", "p95 is 250ms"),
        ("3.11", "Python", "Python 3.11, please"),
        ("Ines", "review", "Ines is reviewing it"),
        ("don't", "tell", "don\u2019t tell her"),
        ("twenty-one", "guests", "twenty\u2013one guests"),
        ("Müller", "Straße", "STRASSE: MU\u0308LLER"),
        ("tariff_engine", "touch", "Don't touch app/tariff_engine."),
        ("refunds", "script", "the script qs812_refunds.py"),
        ("十一号", "面谈", "面谈改到十一号下午了"),
        ("Python", "喜欢", "我喜欢用Python写"),
        ("12月9号", "面谈", "面谈在 12月9号下午"),
        ("Nell", "name", r'{"text":"my name\nNell"}'),
        ("[draft]", "title", r'{"title":"\u005bdraft]"}'),
        ('"Rose"', "boat", r'{"boat":"the \"Rose\""}'),
    ],
)
def test_a_statement_is_found(value: str, topic: str, text: str) -> None:
    assert Matcher([value], [topic]).is_with_topic(normalize(text))


@given(st.integers(1000, 10**9), st.sampled_from([",", ".", "'", " ", "\u202f", "\u2019", "_"]))
def test_numbers_are_found_with_any_thousands_separator(number: int, mark: str) -> None:
    separated = f"{number:,}".replace(",", mark) if mark != "_" else str(number)
    for value in (f"{number:,}", str(number)):
        assert Matcher([value], ["price"]).is_with_topic(normalize(f"the price is {separated}."))
        assert not Matcher([value], ["price"]).is_present(normalize(f"the price is {number}7."))


@pytest.mark.parametrize("path", sorted(LABELLED.rglob("*.json")), ids=lambda path: path.stem)
def test_every_labelled_statement_is_found_in_its_message(path: Path) -> None:
    (conversation,) = read_conversations([path])
    for statement in conversation.statements:
        said = normalize(conversation.messages[conversation.places[statement.id]].text)
        assert statement.matcher.is_with_topic(said)
        assert 1 <= conversation.quarter(statement) <= 4


# -- files -------------------------------------------------------------------------


def make_statement(number: int, message: str, text: str, value: str, topic: str, **more: Any) -> dict[str, Any]:
    labels = {"value": [value], "topic": [topic], "cue": False, "kind": "number", "question": f"What of {topic}?"}
    return {"id": f"s{number}", "message": message, "text": text, **labels, **more}


FILLER = "Let us talk about the weather, which was fine all day long, and about nothing else at all. " * 4
SAID = [
    ("user", "The rent may be 790. And please use metric units."),
    ("assistant", "Noted."),
    *[("user", FILLER), ("assistant", FILLER)] * 3,
    ("user", "The rent may be 760 now."),
    ("assistant", "The flat by the river costs 745, so it is the one."),
    ("user", "Thanks, and bye."),
    ("assistant", "Bye."),
]


def make_labelled(**changes: Any) -> dict[str, Any]:
    messages = [{"id": f"m{at}", "role": role, "content": text} for at, (role, text) in enumerate(SAID)]
    statements = [
        make_statement(1, "m0", "The rent may be 790.", "790", "rent"),
        make_statement(2, "m0", "please use metric units", "metric", "units", kind="instruction", cue=True),
        make_statement(3, "m8", "The rent may be 760 now.", "760", "rent", kind="correction", supersedes="s1"),
        make_statement(4, "m9", "The flat by the river costs 745", "745", "river", kind="conclusion"),
        make_statement(5, "m11", "Bye.", "bye", "bye", kind="promise"),
    ]
    return {"id": "talk", "kind": "chat", "messages": messages, "statements": statements, **changes}


def write_file(folder: Path, value: Any, name: str = "talk.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def read_conversation(folder: Path, **changes: Any) -> Conversation:
    (found,) = read_conversations([write_file(folder, make_labelled(**changes))])
    return found


# -- counting ----------------------------------------------------------------------


def make_tally_figures(conversation: Conversation, *lines: str, blocks: tuple[int, ...] = ()) -> Figures:
    tally = Tally()
    messages = [Message(role="user", content=text) for text in (*lines, "What now?")]
    prompt = make_prompt(messages, len(lines), blocks)
    tally.count_prompt(prompt)
    asked = {one.id: find_asked(conversation, one, prompt) for one in conversation.statements}
    tally.add(conversation, prompt, asked)
    return tally.make_figures("made up", 100)


def test_present_needs_a_value_and_with_topic_also_a_topic_in_the_line(tmp_path: Path) -> None:
    told = make_tally_figures(read_conversation(tmp_path), "metric", "units", "the river\n745", "rent: 760")
    assert (told.kinds["instruction"].present, told.kinds["instruction"].with_topic) == (1.0, 0.0)
    assert (told.kinds["conclusion"].present, told.kinds["conclusion"].with_topic) == (1.0, 0.0)
    assert (told.kinds["correction"].present, told.kinds["correction"].with_topic) == (1.0, 1.0)
    assert told.all.statements == 4
    assert told.all.with_topic == pytest.approx(1 / 3, abs=1e-4)  # the promise is said after the current message


def test_a_rejected_prompt_has_no_statements(tmp_path: Path) -> None:
    tally = Tally()
    tally.count_prompt(None)
    tally.add(read_conversation(tmp_path), None, {})
    told = tally.make_figures("none", 10)
    assert (told.prompts, told.refused, told.all.with_topic, told.all.asked, told.prompt_tokens) == (
        1,
        1,
        0,
        None,
        None,
    )


# -- the prompts of turns ----------------------------------------------------------


def runs(*labels: str, budget: int) -> list[Run]:
    return [Run(label, budget, parse_spec(label).make_settings(budget)) for label in labels]


async def test_all_statements_are_present_if_everything_is_sent(tmp_path: Path) -> None:
    (told,) = await measure_statements([read_conversation(tmp_path)], runs("none", budget=1), asked=True)
    assert (told.all.with_topic, told.all.present, told.all.asked) == (1.0, 1.0, 1.0)
    assert (told.stale, told.asked_stale, told.per_100_tokens, told.refused) == (0.0, 0.0, None, 0)
    assert told.prompts == 1 + 5
    assert {one.statement: one.with_topic for one in told.findings}["s5"] is None
