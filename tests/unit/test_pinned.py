"""Working sets of made-up sessions, as they stand in `pinned/`: the same log, strategy and budget give the same bytes, in the next release too.

A prompt that changes makes every provider's cache of it worthless, and what was sent cannot be made again from the log. Where the change is
meant, `python -m tests.unit.test_pinned` writes the files anew; what differs is to be read, and `CHANGELOG.md` says it.
"""

# ruff: noqa: RUF001 (punctuation of other scripts)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.context import salience
from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.dialects import Dialect
from holdfast.context.digest.facts import read_lines
from holdfast.context.explain import encode_record
from holdfast.context.recalled import Recall, RecalledItem, RecalledKind
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.units import Unit, group_units
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import BudgetTooSmall
from holdfast.tokens import STORED
from holdfast.wire.transcripts import Recording
from tests.unit.agent_sessions import call, sessions, user

TOGETHER = "together"
FOLDER = Path(__file__).with_name("pinned")
SETTINGS: dict[str, ContextSettings] = {
    **{f"digest {budget}": ContextSettings("digest", {"budget": budget}) for budget in (200, 400, 800, 4000)},
    "salience": ContextSettings("salience", {"budget": 500}),
    "token_window": ContextSettings("token_window", {"budget": 400}),
    "clear_tool_results": ContextSettings("clear_tool_results", {"trigger": 300, "keep": 1, "clear_at_least": 50}),
    "summary_buffer": ContextSettings("summary_buffer", {"budget": 600}),
    "head_tail": ContextSettings("head_tail", {"window_size": 5}),
}


def together() -> Recording:
    """All sessions as one: more than a digest keeps at hand."""
    return Recording(TOGETHER, tuple(said for one in sessions() for said in one.messages))


def shapes() -> Recording:
    """Results in every shape that is read: tables, pairs, logs, lists, code, objects within objects, and what failed."""
    results: list[object] = [
        "name | qty | price\n--- | --- | ---\nkelp | 4 | 12.50\nsalt | 9 | 3.20\n | | \n",
        "+------+------+\n| id   | state |\n+------+------+\n| A-17 | open |\n| A-18 | done |\n+------+------+",
        "sku,qty,when\nP-77,4,2024-01-02\nP-78,9,2024-01-03\nP-79,1,2024-01-04",
        "id\tcity\n1\tLübeck\n2\tOulu\n3\tBergen",
        "Order: KX-7731\nTotal: 12.50 EUR\nStatus: open\n\nOrder: KX-7732\nTotal: 7 EUR\nStatus: paid",
        "\n".join(f"2026-03-02T04:{n:02}:11Z INFO GET /cart/{n} 200" for n in range(9))
        + "\n2026-03-02T05:00:00Z ERROR disk full",
        "1. first do this\n2. then call +49 170 1234567\n- or write to ada@example.com\n- https://example.com/a?b=1",
        "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nKeyError: 'zone_7'",
        "订单号：AB123已发货，请查收。我要退款！总计：95元",
        {
            "user": {"id": "u_1", "address": {"zip": "19122", "city": "Phila"}},
            "orders": ["#W1", "#W2"],
            "note": "x " * 30,
        },
        {f"10{n}": {"color": "red" if n % 2 else "blue", "price": 10 + n, "stock": True} for n in range(10)},
        [{"id": n, "when": "2024-05-01", "tags": ["a", "b"], "same": "yes"} for n in range(6)],
        {"error": "no such flight HAT-201", "code": 404, "retry": None, "ok": False},
        ["alpha-1", "beta-2", 3.5, True, None, ["deep", {"k": "v-9"}]],
        "",
        "a bare answer",
    ]
    rounds = [said for at, result in enumerate(results) for said in call("look", result, id=f"A{at}", where="here")]
    return Recording("shapes", (*user("Read all of these, and never delete order KX-7731."), *rounds, *user("And?")))


SESSIONS = [*sessions(), shapes(), together()]


DIALECTS: dict[str, Dialect] = {"digest 400": "anthropic", "salience": "gemini"}


def entries_of(session: Recording) -> list[Entry]:
    new = [NewEntry(message=said, tokens=STORED.message(said), timestamp=0) for said in session.messages]
    return list(extend(Tail(), new)[0])


def page(session: Recording) -> str:
    """What each strategy does with a session, for people."""
    entries = entries_of(session)
    rated = " ".join(f"{importance:.4f}" for importance in salience.rate_units(group_units(entries)))
    lines = [f"importance: {rated}", *(line for name in SETTINGS for line in describe(name, entries))]
    if session.id != TOGETHER:  # it has those of all others
        lines += ["\n==== facts ====", *(fact for unit in group_units(entries) for fact in facts_of(unit))]
    return "\n".join(lines) + "\n"


def facts_of(unit: Unit) -> Iterator[str]:
    """What a digest may tell of a unit, with its weights."""
    for line in read_lines(unit):
        yield f"{line.seq} {line.kind} {line.handle}"
        for fact in line.facts:
            prose = " (prose)" if fact.prose else " (firm)" if fact.firm else ""
            yield f"  {fact.group} {fact.key} = {fact.value}: {fact.weight:.2f}, {fact.cost:.1f}{prose}"


FOUND: list[tuple[RecalledKind, int, str, float]] = [
    ("conversation", 1, "We spoke of kelp and of salt. " * 12, 0.4),
    ("memory", 2, "Ada likes tea, and never coffee.", 0.9),
    ("conversation", 3, "The refund goes to PayPal.", 0.8),
    ("memory", 4, "Ada likes tea, and never coffee.", 0.2),
    ("memory", 5, "Her orders are shipped to Lübeck. " * 6, 0.5),
    ("conversation", 6, "  ", 0.99),
]
RECALL = Recall(
    budgets={"conversation": 120, "memory": 80},
    items=tuple(
        RecalledItem(kind=kind, id=f"{kind}-{at}", at=1_700_000_000_000 + at, author="user", text=text, score=score)
        for kind, at, text, score in FOUND
    ),
    missed=("memory: late",),
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SYSTEM = Message(role="system", content="You help.")


def describe(name: str, entries: list[Entry]) -> Iterator[str]:
    """The decisions, how they came about, and each message that stands nowhere in the log; then how the prompt grew."""
    yield f"\n==== {name} ===="
    request = Request(
        strategy=make_strategy(SETTINGS[name]),
        count=STORED,
        input_budget=6000,
        system=(SYSTEM,),
        tools=[TOOL],
        recall=RECALL if name == "token_window" else Recall(),
        dialect=DIALECTS.get(name, "openai"),
    ).with_marker("qwertzui")
    try:
        made: WorkingSet = build(request, None, [], entries)
    except BudgetTooSmall as refused:
        yield str(refused)
        return
    for run in made.list_decisions():
        yield f"{run.first}-{run.last} {run.decision}: {run.reason} ({run.tokens})"
    yield str(made.sum_decisions())
    yield str({key: value for key, value in made.explain().items() if key not in ("hash", "strategy")})
    yield str(encode_record(made.to_record()), "utf-8")
    texts = {entry.message.text for entry in entries}
    yield from (f"\n{message.role}: {message.text}" for message in made.messages if message.text not in texts)
    if len(entries) < 100:
        yield from list_breaks(request, entries)


def list_breaks(request: Request, entries: list[Entry]) -> Iterator[str]:
    """Where each prompt broke the one before it, as the log grew."""
    before: tuple[Message, ...] = ()
    for at, entry in enumerate(entries):
        if entry.kind not in {"user", "result"} or at % 3:
            continue
        try:
            made = build(request, None, [], entries[: at + 1])
        except BudgetTooSmall as refused:
            yield f"{entry.seq}: {refused}"
            continue
        same = sum(one == other for one, other in zip(before, made.messages, strict=False))
        yield f"{entry.seq}: {made.tokens} of {made.total_tokens} tokens, {same} of {len(made.messages)} messages as before"
        before = made.messages


@pytest.mark.parametrize(
    "session",
    [pytest.param(one, id=one.id, marks=pytest.mark.slow if one.id == TOGETHER else ()) for one in SESSIONS],
)
def test_working_sets_are_those_of_the_last_release(session: Recording) -> None:
    assert page(session) == (FOLDER / f"{session.id}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in SESSIONS:
        (FOLDER / f"{one.id}.txt").write_text(page(one), encoding="utf-8")
