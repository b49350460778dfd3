"""The weight of a fact, alone and next to facts already selected: each rule by itself, with its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from holdfast.context.digest.page import ELSEWHERE, FIRM, FOLLOWS, SAME, VISIBLE, FactSelector, SentContext
from holdfast.context.digest.texts import Fact, Kind, Line
from holdfast.context.digest.weights import (
    AGAIN,
    ARGUMENT_FACTOR,
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


def compute_worths(
    *lines: Line, asked: Iterable[str] = (), said: Mapping[str, int] = {}, parts: Mapping[int, str] = {}
) -> dict[str, float]:
    """Return, by value, each fact's worth relative to an unremarkable fact of the same kind and weight."""
    known = WeighedFacts([*lines], {*asked}, said, parts)
    return {
        one.value: worth / one.weight / BASE[at.line.kind]
        for one, worth, at in zip(known.facts, known.worths, known.sources, strict=True)
    }


def order(*lines: Line, shown: SentContext | None = None) -> list[str]:
    """Return the values in the order in which they are selected."""
    choice = FactSelector([*lines], {}, shown or SentContext(), room=1000)
    choice.select_more(1000)
    return [one.value for _, one in choice.order]


def make_probes(weight: float) -> list[Line]:
    """Return two sources worth just more and just less than a fact of this weight."""
    return [source(fact("more", weight * 1.01), seq=0), source(fact("less", weight * 0.99), seq=0)]


# -- a fact alone ---------------------------------------------------------------------


def test_repeated_values_weigh_more_up_to_four_mentions() -> None:
    """Any speaker counts; a mention in the current message counts once more."""
    times = [source(fact(f"v{used}", used=used)) for used in range(7)]
    expected = {f"v{used}": 1 + SAID_AGAIN * min(used, 4) for used in range(7)}
    assert compute_worths(*times) == pytest.approx(expected)
    assert compute_worths(*times, said={"v1": 0})["v1"] == pytest.approx(expected["v2"])
    kinds: tuple[Kind, ...] = ("user", "assistant", "other")
    for kind in kinds:
        said = source(fact("once", used=1), fact("never"), fact("last"), kind=kind)
        found = compute_worths(said, source(fact("x"), kind="user"))
        assert found["once"] / found["never"] == pytest.approx(1 + SAID_AGAIN)


def matter(age: int) -> float:
    """Return the factor that is left on the longer scale, as a session moves on to other topics."""
    return float(OLD_MATTER + (1 - OLD_MATTER) * 0.5 ** (age / MATTER_HALF_LIFE))


@pytest.mark.parametrize(("age", "factor"), [(0, 1.0), (HALF_LIFE, (1 + OLD) / 2), (2 * HALF_LIFE, (1 + 3 * OLD) / 4)])
def test_recently_mentioned_facts_weigh_more(age: int, factor: float) -> None:
    """The weight decays by half per `HALF_LIFE` messages since the source, its name or the value last appeared."""
    factor *= matter(age)
    now = source(fact("now"), seq=100)
    for old in (
        source(fact("old"), seq=100 - age),
        source(fact("old"), seq=0, last=100 - age),
        source(fact("old", last=100 - age), seq=0),
    ):
        assert compute_worths(now, old)["old"] == pytest.approx(factor)
    named = source(fact("old"), seq=0, names=["A1"])
    assert compute_worths(now, named, said={"a1": 100 - age})["old"] == pytest.approx(factor)
    assert compute_worths(source(fact("old"), seq=100 - age), said={"other": 100})["old"] == pytest.approx(factor), (
        "what is sent is newer"
    )


def test_values_of_keys_used_as_arguments_weigh_more() -> None:
    """The last part of a nested key counts too; a fact without a key never matches an argument."""
    line = source(*(fact(f"v{at}", key=key) for at, key in enumerate(("id", "to.id", "id.to", "idle", ""))))
    asked = {"v0": ARGUMENT_FACTOR, "v1": ARGUMENT_FACTOR, "v2": 1.0, "v3": 1.0, "v4": 1.0}
    assert compute_worths(line, asked=("id", "")) == pytest.approx(asked)


def test_each_of_many_values_of_one_key_weighs_less() -> None:
    """Unless it was mentioned. Facts without a key are exempt; repeated facts always weigh less."""
    three = [fact(f"v{at}", key="code") for at in range(3)]
    three[1].last = 0
    line = source(*three, fact("alone", key="at"), fact("a"), fact("b"), fact("again", key="by", again=True))
    many = {"v0": 3**-MANY, "v1": 1.0, "v2": 3**-MANY}
    assert compute_worths(line) == pytest.approx({**many, "alone": 1.0, "a": 1.0, "b": 1.0, "again": AGAIN})


@pytest.mark.parametrize(("weight", "names"), [(ROW_NAME, True), (ROW_NAME - 0.1, False)])
def test_mentioning_a_rows_name_lifts_the_whole_row(weight: float, names: bool) -> None:
    """Its values then no longer count as many of one key. A value too light to be a name has no effect."""
    rows = [fact(value, 1.0, group, key=value[0]) for group in (1, 2) for value in (f"s{group}", f"t{group}")]
    name = fact("K-1", weight, 1, key="order", last=60)
    found = compute_worths(source(name, *rows, seq=0), source(fact("now"), seq=60))
    old = (OLD + (1 - OLD) * 0.5 ** (60 / HALF_LIFE)) * matter(60)
    other = old * 2**-MANY
    assert [found[value] for value in ("s1", "t1", "s2", "t2")] == pytest.approx(
        [1.0, 1.0, other, other] if names else [other] * 4
    )


def test_pending_list_items_weigh_more_than_finished_ones() -> None:
    """Applies once calls have started to work through a list of identifiers, not to lists of words."""
    codes = [fact(f"K-{at}", 3.0, key="codes", last=0 if at == 1 else -1) for at in (1, 2, 3)]
    words = [fact(f"w{at}", 1.9, key="words", last=0 if at == 1 else -1) for at in (1, 2)]
    others = [fact(f"Q-{at}", 3.0, key="others") for at in (1, 2)]
    called = source(fact("x"), names=["k-1", "q-1"])
    found = compute_worths(source(*codes, *words, *others), called)
    begun, many = LISTED * 3**-MANY, 2**-MANY
    codes_worth = {"K-1": LISTED * DONE, "K-2": begun, "K-3": begun}
    assert found == pytest.approx({**codes_worth, "w1": 1.0, "w2": many, "Q-1": many * DONE, "Q-2": many, "x": 1.0})


def test_the_assistants_last_message_is_weighted_as_a_proposal() -> None:
    """Until the user replies. The last sentence weighs most if the message is short or ends in a question."""
    facts = [fact("I could cancel it."), fact("Or wait."), fact("It is yours.")]
    asked = [*facts[:2], fact("Shall I?", 0.5)]
    statement, question = (source(*said, seq=5, kind="assistant") for said in (facts, asked))
    assert [*compute_worths(statement).values()] == pytest.approx([PROPOSED] * 3)
    assert [*compute_worths(question).values()] == pytest.approx([PROPOSED, PROPOSED, PROPOSED * OPEN / 0.5])
    assert [*compute_worths(source(*facts[:2], seq=5, kind="assistant")).values()] == pytest.approx(
        [PROPOSED, PROPOSED * OPEN]
    )
    heavy = source(fact("QX12 or QX13?", OPEN + 1), seq=5, kind="assistant")
    assert [*compute_worths(heavy).values()] == pytest.approx([PROPOSED]), "what weighs more by itself loses nothing"
    earlier = source(fact("Hello."), seq=4, kind="assistant")
    assert compute_worths(earlier, question)["Hello."] != PROPOSED
    later = source(fact("No."), seq=6, kind="user")
    assert compute_worths(question, later)["Or wait."] < 1.0
    assert compute_worths(question, source(fact("ok"), seq=6))["Or wait."] > 0.9 * PROPOSED


def test_values_in_the_handle_or_the_sent_part_are_omitted() -> None:
    """A changed value is kept."""
    named = source(fact("A1"), fact("A2", was="A0"), fact("B1"), names=["A1", "A2"], seq=3)
    assert list(compute_worths(named)) == ["A2", "B1"]
    assert list(compute_worths(named, parts={3: "… B1 …"})) == ["A2"]
    assert list(compute_worths(named, parts={4: "… B1 …"})) == ["A2", "B1"]
    assert compute_worths(named, parts={3: "A2 B1"}) == {}


# -- names and outcomes -----------------------------------------------------------


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
def test_a_row_is_named_by_its_most_name_like_value(row: Sequence[tuple[str, str, float]], lead: str | None) -> None:
    """Otherwise by the first value that is not a sentence; values of one list do not name each other."""
    facts = [fact(value, weight, 1, key=key) for key, value, weight in row]
    known = WeighedFacts([source(*facts)], set(), {}, {})
    assert {known.facts[one.lead].value if one.lead >= 0 else None for one in known.rows} == {lead}
    alone = WeighedFacts([source(facts[0])], set(), {}, {})
    assert alone.rows[0].lead == -1


def test_arguments_are_not_taken_for_the_outcome_of_a_call() -> None:
    """The outcome is the first firm fact of the source, or of a row after the arguments."""
    given = fact("K-1", group=1, firm=True)
    for outcome in (fact("saved", firm=True), fact("saved", group=2, firm=True)):
        known = WeighedFacts([source(given, fact("open"), outcome, fact("late", firm=True), given=1)], set(), {}, {})
        assert known.facts[known.sources[0].outcome].value == "saved"
    assert WeighedFacts([source(given, outcome)], set(), {}, {}).sources[0].outcome == -1, "the call had no arguments"


# -- next to selected facts -------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "firm", "share"),
    [(["A1"], False, SAME), (["B1"], False, ELSEWHERE), (["A1"], True, FIRM), (["B1"], True, FIRM)],
)
def test_values_another_source_already_gave_weigh_little(names: list[str], firm: bool, share: float) -> None:
    """Almost nothing if both sources are about the same object; firm facts keep half. Case does not matter."""
    first = source(fact("KX12AB", 9.0), names=["A1"])
    second = source(fact("kx12ab", 3.0, firm=firm), names=names)
    assert order(first, second, *make_probes(3.0 * share)) == ["KX12AB", "more", "kx12ab", "less"]


def test_values_visible_in_the_prompt_weigh_little() -> None:
    shown = SentContext()
    shown.add(0, "It is KX12AB.", said=False)
    assert order(source(fact("kx12ab", 3.0)), *make_probes(3.0 * VISIBLE), shown=shown) == ["more", "kx12ab", "less"]
    assert order(source(fact("kx12ac", 3.0)), *make_probes(3.0), shown=shown) == ["more", "kx12ac", "less"]


def test_a_sentence_is_weighted_by_its_new_words() -> None:
    """Each word counts by its own weight, so identifiers dominate."""
    first = source(fact("KX12AB", 9.0))
    second = source(fact("KX12AB or KX77AB", 3.0, prose=True))
    share = (3.0 * ELSEWHERE + 0.6 + 3.0) / 6.6
    assert order(first, second, *make_probes(3.0 * share)) == ["KX12AB", "more", "KX12AB or KX77AB", "less"]
    shown = SentContext()
    shown.add(0, "KX77AB", said=True)
    share = (3.0 * ELSEWHERE + 0.6 + 3.0 * VISIBLE) / 6.6
    assert order(first, second, *make_probes(3.0 * share), shown=shown) == [
        "KX12AB",
        "more",
        "KX12AB or KX77AB",
        "less",
    ]


def test_values_named_in_a_handle_count_as_given() -> None:
    first, second = source(fact("x", 9.0), names=["KX12AB"]), source(fact("kx12ab", 3.0))
    assert order(first, second, *make_probes(3.0 * ELSEWHERE)) == ["x", "more", "kx12ab", "less"]


def test_a_message_about_a_call_repeats_the_calls_handle() -> None:
    """A result that contains the name of another call is new information."""
    call = source(fact("x", 0.001), names=["KX12AB"])
    sentence = fact("KX12AB it is", 3.0, prose=True)
    share = (3.0 * ELSEWHERE + 1.2) / 4.2
    said = 3.0 * BASE["other"] / BASE["call"]
    assert order(call, source(sentence, kind="other"), *make_probes(said * share))[:3] == [
        "more",
        "KX12AB it is",
        "less",
    ]
    assert order(call, source(sentence), *make_probes(3.0))[:3] == ["more", "KX12AB it is", "less"]


def test_the_next_sentence_of_a_user_is_selected_sooner() -> None:
    """It may be a correction. Sentences after it have to wait for it."""
    wish = source(
        *(fact(text, weight) for text, weight in (("KX1 it is.", 9.0), ("Or no.", 2.0), ("Yes.", 1.0))), kind="user"
    )
    for last in (2, 3):
        said = source(*wish.facts[:last], kind="user")
        weight = 2.0 * FOLLOWS * BASE["user"] / BASE["call"]
        assert order(said, *make_probes(weight))[:4] == ["KX1 it is.", "more", "Or no.", "less"]


def test_rows_of_one_source_are_worth_less_from_the_fifth_on() -> None:
    """The same holds for values of one key; other sources are not affected."""
    for values in (
        [fact(f"K-{at}", 3.0, at + 1, key="id") for at in range(8)],
        [fact(f"K-{at}", 3.0, 0, key="id") for at in range(8)],
    ):
        told = order(source(*values), source(fact("other", 2.0)), *make_probes(3.0 * 8**-MANY / 1.25))
        assert told.index("more") == 4 + (told.index("other") < told.index("more"))
        assert told[told.index("more") + 1].startswith("K-")
        assert told.index("less") == told.index("more") + 2


def test_each_source_is_paid_for_once_with_its_first_fact() -> None:
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


def test_a_rows_name_and_outcome_are_selected_and_paid_with_it() -> None:
    """The name and the outcome come first, and the costs add up."""
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
def test_substantial_user_sentences_come_first(said: str, weight: float, first: bool) -> None:
    """Short phrases without a value wait; the limit is lower for scripts without spaces."""
    told = order(source(fact(said, weight), kind="user"), source(fact("K-1", 5.0)))
    assert told == ([said, "K-1"] if first else ["K-1", said])


def test_user_sentences_get_a_fifth_of_the_selection() -> None:
    """As long as there are any; the other facts follow."""
    said = [source(fact(f"u{at}"), kind="user") for at in range(3)]
    found = [source(fact(f"c{at}", 5.0)) for at in range(14)]
    assert "".join(value[0] for value in order(*said, *found)) == "uccccuccc" + "uccccccc"


# -- what a pool keeps --------------------------------------------------------------


def select_kept(*lines: Line, limit: float = 5.0 / 0.8, asked: Iterable[str] = ()) -> list[str]:
    """Return the values that a pool keeps, if each fact costs 5 tokens."""
    for one in (one for line in lines for one in line.facts):
        one.cost = 5.0
    kept = select_likeliest([*lines], limit=limit, asked=dict.fromkeys(asked, 1))
    return [one.value for line in lines for one in line.facts if id(one) in kept]


@pytest.mark.parametrize(("weight", "kept"), [(ROW_NAME, "s1"), (ROW_NAME - 0.1, "s0")])
def test_a_row_with_a_mentioned_name_is_kept(weight: float, kept: str) -> None:
    """Facts of a row whose name was mentioned later are more likely to be selected."""
    rows = [fact("s0", 5.0, 1, key="s"), fact("s1", 5.0, 2, key="s"), fact("K-2", weight, 2, key="id", last=90)]
    assert select_kept(source(*rows, seq=0), source(seq=100)) == [kept]


def test_one_of_many_values_of_a_key_is_less_likely_to_be_kept() -> None:
    """Unless it was mentioned later. Facts without a key or with a unique key are exempt."""
    two = source(fact("a", 1.0, key="code"), fact("b", 1.0, key="code"))
    assert select_kept(two, source(fact("alone", 0.9, key="code"))) == ["alone"]
    assert select_kept(two, source(fact("alone", 0.8, key="code"))) == ["a"]
    assert select_kept(source(fact("a"), fact("b")), source(fact("alone", 0.9))) == ["a"]
    two.facts[1].last = 0
    assert select_kept(two, source(fact("alone", 0.9, key="code"))) == ["b"]


def test_a_line_of_few_facts_costs_more_for_each() -> None:
    """Its handle has to be paid for, too."""
    many = source(*(fact(f"m{at}", 1.0) for at in range(4)), cost=8.0)
    few = source(fact("f0", 1.0), cost=8.0)
    assert select_kept(few, many, limit=7.0 / 0.8) == ["m0"]


def test_recently_mentioned_sources_are_kept() -> None:
    """A line is as recent as the last mention of its name."""
    kinds: tuple[Kind, ...] = ("call", "assistant")
    for kind in kinds:
        old, again = source(fact("old"), kind=kind, seq=0), source(fact("again"), kind=kind, seq=0, last=90)
        assert select_kept(old, again, source(seq=100)) == ["again"]
