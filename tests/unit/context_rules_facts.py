"""Rules of the block of standing facts, checked on what was built, from the log alone."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.context.build import Request, WorkingSet
from holdfast.context.escaping import END, escape_inline
from holdfast.context.standing_facts import HEADER, MOST, SHARE, collect_facts, decode_candidates
from holdfast.context.statements import find_statements
from holdfast.domain.fact_choices import read_choices
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.limits import FACT_PINS
from tests.unit.context_units import SENT

_OPENING = HEADER.partition("{tag}")[0]


def is_facts(built: WorkingSet, message: Message) -> bool:
    """Return True if a message is the block of standing facts."""
    facts = built.window.facts
    return facts is not None and message == Message(role="user", content=facts.text)


def check_facts(request: Request, built: WorkingSet, entries: Sequence[Entry], decided: dict[int, str]) -> None:
    """Check that the block has only user statements of evicted messages, within its limits, and no dropped ones."""
    facts = built.window.facts
    saved = decode_candidates(built.window.candidates)
    listed = collect_facts(built.window)
    said = {entry.seq: entry for entry in entries if entry.message.role == "user"}
    stated = {one.seq for one in saved.statements} | {one.seq for one in listed}
    assert stated <= said.keys(), "only what a user said is a statement"
    assert [one.id for one in listed if one.source == "block"] == (
        [f"{seq}.{place}" for seq, place in sorted(saved.chosen)] if facts else []
    )
    assert sum(one.pinned for one in listed if one.source != "message") <= FACT_PINS
    if facts is None:
        return
    assert request.strategy.facts
    assert facts.tokens == request.count.message(facts.message)
    assert facts.tokens <= min(MOST, SHARE * built.budget)
    first, *lines, last = facts.text.splitlines()
    assert first.startswith(_OPENING)
    assert last == END
    for seq, place in saved.chosen:
        assert decided[seq] not in SENT, "what is sent in its message is not repeated"
        entry = said[seq]
        statement = next(one for one in find_statements(entry.message.text, seq) if one.place == place)
        assert any(escape_inline(statement.text, request.marker) in line for line in lines)
        assert read_choices(entry.metadata).get(place) != "dropped"
    assert len(lines) <= len(saved.chosen)
