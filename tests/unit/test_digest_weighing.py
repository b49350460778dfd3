"""What a fact is worth: by itself, and beside what is told already; each rule alone, and where it ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from holdfast.context.digest.page import ELSEWHERE, FIRM, FOLLOWS, SAME, VISIBLE, FactSelector, SentContext
from holdfast.context.digest.texts import Fact, Kind, Line
from holdfast.context.digest.weights import (
    AGAIN,
    ASKED,
    BASE,
    DONE,
    HALF_LIFE,
    LISTED,
    MANY,
    MATTER_HALF_LIFE,
    OLD,
    OLD_MATTER,
    OPEN,
    PROPOSED,
    ROW_NAME,
    SAID_AGAIN,
    WeighedFacts,
    select_likeliest,
)


def source(*facts: Fact, seq: int = 0, kind: Kind = "call", **fields: Any) -> Line:
    handle = f"{kind}{seq}"
    return Line(handle, handle, seq, kind, [*facts], **{"cost": 0.0, **fields})


def fact(value: str, weight: float = 1.0, group: int = 0, **fields: Any) -> Fact:
    return Fact(**{"key": "", "value": value, "group": group, "weight": weight, **fields})


def worths(
    *lines: Line, asked: Iterable[str] = (), said: Mapping[str, int] = {}, parts: Mapping[int, str] = {}
) -> dict[str, float]:
    """By value, what it is worth more than one of its kind and weight that nothing is known of."""
    known = WeighedFacts([*lines], {*asked}, said, parts)
    return {
        one.value: worth / one.weight / BASE[at.line.kind]
        for one, worth, at in zip(known.facts, known.worths, known.sources, strict=True)
    }


def order(*lines: Line, shown: SentContext | None = None) -> list[str]:
    """The values as they are taken."""
    choice = FactSelector([*lines], {}, shown or SentContext(), room=1000)
    choice.select_more(1000)
    return [one.value for _, one in choice.order]


def probes(weight: float) -> list[Line]:
    """Two sources that are worth just more, and just less, than a fact of that weight."""
    return [source(fact("more", weight * 1.01), seq=0), source(fact("less", weight * 0.99), seq=0)]


# -- by itself ---------------------------------------------------------------------


def test_what_was_said_again_is_worth_more_up_to_four_times() -> None:
    """Whoever said it; and once more, where it is talked about now."""
    times = [source(fact(f"v{used}", used=used)) for used in range(7)]
    expected = {f"v{used}": 1 + SAID_AGAIN * min(used, 4) for used in range(7)}
    assert worths(*times) == pytest.approx(expected)
    assert worths(*times, said={"v1": 0})["v1"] == pytest.approx(expected["v2"])
    kinds: tuple[Kind, ...] = ("user", "assistant", "other")
    for kind in kinds:
        said = source(fact("once", used=1), fact("never"), fact("last"), kind=kind)
        found = worths(said, source(fact("x"), kind="user"))
        assert found["once"] / found["never"] == pytest.approx(1 + SAID_AGAIN)


def matter(age: int) -> float:
    """What is left on the longer scale: a session goes on to other matters."""
    return float(OLD_MATTER + (1 - OLD_MATTER) * 0.5 ** (age / MATTER_HALF_LIFE))


@pytest.mark.parametrize(("age", "factor"), [(0, 1.0), (HALF_LIFE, (1 + OLD) / 2), (2 * HALF_LIFE, (1 + 3 * OLD) / 4)])
def test_what_was_talked_about_lately_is_worth_more(age: int, factor: float) -> None:
    """By half of what it can lose, each `HALF_LIFE` messages, and again by matters: since the source, its name, or the value came last."""
    factor *= matter(age)
    now = source(fact("now"), seq=100)
    for old in (
        source(fact("old"), seq=100 - age),
        source(fact("old"), seq=0, last=100 - age),
        source(fact("old", last=100 - age), seq=0),
    ):
        assert worths(now, old)["old"] == pytest.approx(factor)
    named = source(fact("old"), seq=0, names=["A1"])
    assert worths(now, named, said={"a1": 100 - age})["old"] == pytest.approx(factor)
    assert worths(source(fact("old"), seq=100 - age), said={"other": 100})["old"] == pytest.approx(factor), (
        "what is sent is newer"
    )


def test_what_calls_ask_for_is_worth_more() -> None:
    """At the end of a key of nested objects, too; what has no key is nothing to ask for, whatever arguments are called."""
    line = source(*(fact(f"v{at}", key=key) for at, key in enumerate(("id", "to.id", "id.to", "idle", ""))))
    asked = {"v0": ASKED, "v1": ASKED, "v2": 1.0, "v3": 1.0, "v4": 1.0}
    assert worths(line, asked=("id", "")) == pytest.approx(asked)


def test_of_many_values_of_one_key_each_is_worth_less() -> None:
    """Unless it was talked about; what has no key is not one of many, and what was told before is worth less in any case."""
    three = [fact(f"v{at}", key="code") for at in range(3)]
    three[1].last = 0
    line = source(*three, fact("alone", key="at"), fact("a"), fact("b"), fact("again", key="by", again=True))
    many = {"v0": 3**-MANY, "v1": 1.0, "v2": 3**-MANY}
    assert worths(line) == pytest.approx({**many, "alone": 1.0, "a": 1.0, "b": 1.0, "again": AGAIN})


@pytest.mark.parametrize(("weight", "names"), [(ROW_NAME, True), (ROW_NAME - 0.1, False)])
def test_a_row_is_talked_about_with_its_name(weight: float, names: bool) -> None:
    """All of it, then, and it is no more one of many; not by a value that could not name it."""
    rows = [fact(value, 1.0, group, key=value[0]) for group in (1, 2) for value in (f"s{group}", f"t{group}")]
    name = fact("K-1", weight, 1, key="order", last=60)
    found = worths(source(name, *rows, seq=0), source(fact("now"), seq=60))
    old = (OLD + (1 - OLD) * 0.5 ** (60 / HALF_LIFE)) * matter(60)
    other = old * 2**-MANY
    assert [found[value] for value in ("s1", "t1", "s2", "t2")] == pytest.approx(
        [1.0, 1.0, other, other] if names else [other] * 4
    )


def test_what_is_next_in_a_list_is_worth_more_than_what_was_done() -> None:
    """Where calls have begun to go through a list of identifiers; a list of words is none."""
    codes = [fact(f"K-{at}", 3.0, key="codes", last=0 if at == 1 else -1) for at in (1, 2, 3)]
    words = [fact(f"w{at}", 1.9, key="words", last=0 if at == 1 else -1) for at in (1, 2)]
    others = [fact(f"Q-{at}", 3.0, key="others") for at in (1, 2)]
    called = source(fact("x"), names=["k-1", "q-1"])
    found = worths(source(*codes, *words, *others), called)
    begun, many = LISTED * 3**-MANY, 2**-MANY
    codes_worth = {"K-1": LISTED * DONE, "K-2": begun, "K-3": begun}
    assert found == pytest.approx({**codes_worth, "w1": 1.0, "w2": many, "Q-1": many * DONE, "Q-2": many, "x": 1.0})


def test_what_the_assistant_said_last_is_what_a_yes_agrees_to() -> None:
    """Until the user says something; of a few sentences, or where it ends in a question, the end of it most of all."""
    facts = [fact("I could cancel it."), fact("Or wait."), fact("It is yours.")]
    asked = [*facts[:2], fact("Shall I?", 0.5)]
    statement, question = (source(*said, seq=5, kind="assistant") for said in (facts, asked))
    assert [*worths(statement).values()] == pytest.approx([PROPOSED] * 3)
    assert [*worths(question).values()] == pytest.approx([PROPOSED, PROPOSED, PROPOSED * OPEN / 0.5])
    assert [*worths(source(*facts[:2], seq=5, kind="assistant")).values()] == pytest.approx([PROPOSED, PROPOSED * OPEN])
    heavy = source(fact("QX12 or QX13?", OPEN + 1), seq=5, kind="assistant")
    assert [*worths(heavy).values()] == pytest.approx([PROPOSED]), "what weighs more by itself loses nothing"
    earlier = source(fact("Hello."), seq=4, kind="assistant")
    assert worths(earlier, question)["Hello."] != PROPOSED
    later = source(fact("No."), seq=6, kind="user")
    assert worths(question, later)["Or wait."] < 1.0
    assert worths(question, source(fact("ok"), seq=6))["Or wait."] > 0.9 * PROPOSED


def test_what_the_handle_or_what_is_sent_says_is_not_told() -> None:
    """But that it changed is."""
    named = source(fact("A1"), fact("A2", was="A0"), fact("B1"), names=["A1", "A2"], seq=3)
    assert list(worths(named)) == ["A2", "B1"]
    assert list(worths(named, parts={3: "… B1 …"})) == ["A2"]
    assert list(worths(named, parts={4: "… B1 …"})) == ["A2", "B1"]
    assert worths(named, parts={3: "A2 B1"}) == {}


# -- what stands with it -----------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "lead"),
    [
        ([("a", "open", 1.0), ("b", "K-1", 3.0), ("c", "K-2", 3.0)], "K-1"),
        ([("a", "open", 1.0), ("b", "K-1", ROW_NAME), ("c", "late", 1.9)], "K-1"),
        ([("a", "x" * 41, 1.9), ("b", "open", 0.3), ("c", "late", 1.9)], "open"),
        ([("a", "x" * 40, 0.3), ("b", "open", 1.9)], "x" * 40),
        ([("a", "x" * 41, 1.0), ("b", "y" * 41, 1.0)], "x" * 41),
        ([("a", "K-1", 3.0), ("b", "K-2", 3.0), ("a", "K-3", 3.0)], None),
    ],
)
def test_a_row_is_named_by_what_looks_most_like_a_name(row: Sequence[tuple[str, str, float]], lead: str | None) -> None:
    """Else by what stands first and is no sentence; values of one list do not name each other."""
    facts = [fact(value, weight, 1, key=key) for key, value, weight in row]
    known = WeighedFacts([source(*facts)], set(), {}, {})
    assert {known.facts[one.lead].value if one.lead >= 0 else None for one in known.rows} == {lead}
    alone = WeighedFacts([source(facts[0])], set(), {}, {})
    assert alone.rows[0].lead == -1


def test_the_outcome_of_a_call_is_not_what_it_was_asked_with() -> None:
    """The first thing that says what came of it: of the source, or of a row behind the arguments."""
    given = fact("K-1", group=1, firm=True)
    for outcome in (fact("saved", firm=True), fact("saved", group=2, firm=True)):
        known = WeighedFacts([source(given, fact("open"), outcome, fact("late", firm=True), given=1)], set(), {}, {})
        assert known.facts[known.sources[0].outcome].value == "saved"
    assert WeighedFacts([source(given, outcome)], set(), {}, {}).sources[0].outcome == -1, "nothing was asked with"


# -- beside what is told -------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "firm", "share"),
    [(["A1"], False, SAME), (["B1"], False, ELSEWHERE), (["A1"], True, FIRM), (["B1"], True, FIRM)],
)
def test_what_another_source_told_is_worth_little(names: list[str], firm: bool, share: float) -> None:
    """And of one about the same thing next to nothing; what is told for what it says keeps half. Letters may be large or small."""
    first = source(fact("KX12AB", 9.0), names=["A1"])
    second = source(fact("kx12ab", 3.0, firm=firm), names=names)
    assert order(first, second, *probes(3.0 * share)) == ["KX12AB", "more", "kx12ab", "less"]


def test_what_is_sent_anyway_is_worth_little() -> None:
    shown = SentContext()
    shown.add(0, "It is KX12AB.", said=False)
    assert order(source(fact("kx12ab", 3.0)), *probes(3.0 * VISIBLE), shown=shown) == ["more", "kx12ab", "less"]
    assert order(source(fact("kx12ac", 3.0)), *probes(3.0), shown=shown) == ["more", "kx12ac", "less"]


def test_a_sentence_is_worth_what_is_new_in_it() -> None:
    """By the weight of its words: the identifiers in it are most of it."""
    first = source(fact("KX12AB", 9.0))
    second = source(fact("KX12AB or KX77AB", 3.0, prose=True))
    share = (3.0 * ELSEWHERE + 0.6 + 3.0) / 6.6
    assert order(first, second, *probes(3.0 * share)) == ["KX12AB", "more", "KX12AB or KX77AB", "less"]
    shown = SentContext()
    shown.add(0, "KX77AB", said=True)
    share = (3.0 * ELSEWHERE + 0.6 + 3.0 * VISIBLE) / 6.6
    assert order(first, second, *probes(3.0 * share), shown=shown) == ["KX12AB", "more", "KX12AB or KX77AB", "less"]


def test_what_a_handle_tells_is_told() -> None:
    """The names in it stand there for whoever looks for them."""
    first, second = source(fact("x", 9.0), names=["KX12AB"]), source(fact("kx12ab", 3.0))
    assert order(first, second, *probes(3.0 * ELSEWHERE)) == ["x", "more", "kx12ab", "less"]


def test_what_people_say_of_a_call_is_told_by_the_call() -> None:
    """Its handle names it; a result that says the name of another call tells something new."""
    call = source(fact("x", 0.001), names=["KX12AB"])
    sentence = fact("KX12AB it is", 3.0, prose=True)
    share = (3.0 * ELSEWHERE + 1.2) / 4.2
    said = 3.0 * BASE["other"] / BASE["call"]
    assert order(call, source(sentence, kind="other"), *probes(said * share))[:3] == ["more", "KX12AB it is", "less"]
    assert order(call, source(sentence), *probes(3.0))[:3] == ["more", "KX12AB it is", "less"]


def test_what_a_user_says_next_comes_sooner() -> None:
    """It may take back what is told; what comes behind that has to wait for it."""
    wish = source(
        *(fact(text, weight) for text, weight in (("KX1 it is.", 9.0), ("Or no.", 2.0), ("Yes.", 1.0))), kind="user"
    )
    for last in (2, 3):
        said = source(*wish.facts[:last], kind="user")
        weight = 2.0 * FOLLOWS * BASE["user"] / BASE["call"]
        assert order(said, *probes(weight))[:4] == ["KX1 it is.", "more", "Or no.", "less"]


def test_rows_of_one_source_are_worth_less_from_the_fifth_on() -> None:
    """As values of one key are: with each four further ones by what the first is worth; other sources are not touched."""
    for values in (
        [fact(f"K-{at}", 3.0, at + 1, key="id") for at in range(8)],
        [fact(f"K-{at}", 3.0, 0, key="id") for at in range(8)],
    ):
        told = order(source(*values), source(fact("other", 2.0)), *probes(3.0 * 8**-MANY / 1.25))
        assert told.index("more") == 4 + (told.index("other") < told.index("more"))
        assert told[told.index("more") + 1].startswith("K-")
        assert told.index("less") == told.index("more") + 2


def test_what_the_beginnings_of_an_order_cost() -> None:
    """Each fact, and each source once, where its first is told; as much is taken as was asked for."""
    pool = [
        source(fact("a", 9.0, cost=5.0), fact("b", 1.0, cost=2.0), cost=4.0),
        source(fact("c", 5.0, cost=3.0), cost=7.0, seq=0, kind="user"),
    ]
    choice = FactSelector(pool, {}, SentContext(), room=1000)
    choice.select_up_to(0.0)
    assert choice.order == []
    choice.select_up_to(19.0)
    assert sorted(one.value for _, one in choice.order) == ["a", "c"]
    assert choice.costs[-1] == 19.0
    choice.select_more(0)
    assert len(choice.order) == 2
    choice.select_more(1)
    assert choice.costs[-1] == 21.0
    choice.select_up_to(1000.0)
    choice.select_more(5)
    assert len(choice.order) == 3


def test_what_names_a_row_and_what_came_of_it_are_paid_for_with_it() -> None:
    """They are told together, the name and the outcome first, and cost together what they cost."""
    row = [fact("K-1", 3.0, 2, key="id", cost=5.0), fact("open", 1.9, 2, key="state", cost=2.0, used=4)]
    outcome = fact("saved", 0.1, key="said", firm=True, cost=3.0)
    choice = FactSelector(
        [source(*row, outcome, fact("asked", 0.1, 1), given=1, cost=1.0)], {}, SentContext(), room=1000
    )
    choice.select_more(1)
    assert [one.value for _, one in choice.order] == ["saved", "K-1", "open"]
    assert choice.costs == [4.0, 9.0, 11.0]
    for long in (fact("saved", 0.1, firm=True, cost=60.0), fact("saved", 0.1, firm=True)):
        facts = [long, fact("asked", 3.0, 1)]
        for called in (facts, facts[::-1]):
            told = order(source(*called, given=1), source(fact("other", 1.0)))
            assert told.index("other") == (0 if long.cost > 4.0 else 2)
    facts = [fact("saved", 20.0, firm=True, cost=60.0), fact("asked", 3.0, 1)]
    for called in (facts, facts[::-1]):
        told = order(source(*called, given=1), source(fact("other", 3.17)))
        assert told == ["saved", "asked", "other"], "together they are worth more for their cost than each alone"


@pytest.mark.parametrize(
    ("said", "weight", "first"),
    [
        ("y" * 19, 0.7, False),
        ("y" * 20, 0.7, True),
        ("y" * 19, 0.8, True),
        ("好" * 5, 0.7, False),
        ("好" * 6, 0.7, True),
    ],
)
def test_what_a_user_says_comes_first_if_it_says_anything(said: str, weight: float, first: bool) -> None:
    """A phrase without a value in it waits for its turn; in a script without spaces it is shorter."""
    told = order(source(fact(said, weight), kind="user"), source(fact("K-1", 5.0)))
    assert told == ([said, "K-1"] if first else ["K-1", said])


def test_a_users_words_are_a_fifth_of_any_beginning() -> None:
    """While there are some; then the rest follows."""
    said = [source(fact(f"u{at}"), kind="user") for at in range(3)]
    found = [source(fact(f"c{at}", 5.0)) for at in range(14)]
    assert "".join(value[0] for value in order(*said, *found)) == "uccccuccc" + "uccccccc"


# -- what stays in a pool --------------------------------------------------------------


def stays(*lines: Line, limit: float = 5.0 / 0.8, asked: Iterable[str] = ()) -> list[str]:
    """Of facts that cost 5 each."""
    for one in (one for line in lines for one in line.facts):
        one.cost = 5.0
    kept = select_likeliest([*lines], limit=limit, asked=dict.fromkeys(asked, 1))
    return [one.value for line in lines for one in line.facts if id(one) in kept]


@pytest.mark.parametrize(("weight", "kept"), [(ROW_NAME, "s1"), (ROW_NAME - 0.1, "s0")])
def test_a_row_stays_with_its_name(weight: float, kept: str) -> None:
    """What is in a row whose name was talked about since is likelier to be told than what is in others."""
    rows = [fact("s0", 5.0, 1, key="s"), fact("s1", 5.0, 2, key="s"), fact("K-2", weight, 2, key="id", last=90)]
    assert stays(source(*rows, seq=0), source(seq=100)) == [kept]


def test_one_of_many_values_of_a_key_is_less_likely_to_stay() -> None:
    """Unless it was said since; what has no key, and what has one of its own, is none of them."""
    two = source(fact("a", 1.0, key="code"), fact("b", 1.0, key="code"))
    assert stays(two, source(fact("alone", 0.9, key="code"))) == ["alone"]
    assert stays(two, source(fact("alone", 0.8, key="code"))) == ["a"]
    assert stays(source(fact("a"), fact("b")), source(fact("alone", 0.9))) == ["a"]
    two.facts[1].last = 0
    assert stays(two, source(fact("alone", 0.9, key="code"))) == ["b"]


def test_a_line_of_few_facts_costs_more_for_each() -> None:
    """Its handle has to be told, too."""
    many = source(*(fact(f"m{at}", 1.0) for at in range(4)), cost=8.0)
    few = source(fact("f0", 1.0), cost=8.0)
    assert stays(few, many, limit=7.0 / 0.8) == ["m0"]


def test_what_was_said_of_late_stays() -> None:
    """A line whose name came again is as new as that."""
    kinds: tuple[Kind, ...] = ("call", "assistant")
    for kind in kinds:
        old, again = source(fact("old"), kind=kind, seq=0), source(fact("again"), kind=kind, seq=0, last=90)
        assert stays(old, again, source(seq=100)) == ["again"]
