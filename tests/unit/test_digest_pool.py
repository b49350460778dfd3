"""Contents of a pool: answers with their questions, the newest of repeated values, and mentions."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from holdfast.context.digest.pool import (
    ANSWER_FACTOR,
    CHANGE_WEIGHT,
    EMPTY,
    HOLDERS,
    POOL_LEAST,
    SAID,
    Pool,
    decode_pool,
    fold,
    render,
)
from holdfast.context.digest.texts import Fact, Line
from holdfast.context.values import weigh_sentence
from holdfast.domain.messages import Message
from tests.unit.rounds import call, reply, user
from tests.unit.test_digest import lines, render_units, units
from tests.unit.test_summary_prompts import Characters


def pool(*rounds: list[Message], room: int = 10**4) -> Pool:
    return decode_pool(fold(EMPTY, units(*rounds), room=room))


def find_fact(kept: Iterable[Line], value: str) -> Fact:
    """Return the only fact with this value."""
    [fact] = [fact for line in kept for fact in line.facts if fact.value == value]
    return fact


def list_values(kept: Pool) -> list[tuple[str, list[str]]]:
    return [(line.handle, [fact.value for fact in line.facts]) for line in kept.lines]


# -- answers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "bare"),
    [
        ("y" * 24, True),
        ("y" * 25, False),
        ("yes, do it now", True),
        ("yes, do all of it", False),
        ("yes, 2", False),
        ("Yes. Now.", True),
    ],
)
def test_a_short_answer_is_attached_to_its_question(answer: str, bare: bool) -> None:
    """A longer answer, or one with a number, stays a fact of its own."""
    asked = "Shall I cancel the whole order for you now?"
    kept = list_values(pool(reply(asked), user(answer)))
    assert kept[0] == ("assistant said", [f"{asked} \x1f→ user said\x1f: {answer}" if bare else asked])
    assert len(kept) == 2 - bare


def test_a_short_question_includes_the_sentence_before_it() -> None:
    """It gets the higher weight of the two, and the whole answered message counts as mentioned once more."""
    about, short = "The order K-113 goes to Oslo.", "Is that right?"
    kept = pool(reply(f"Good. {about} {short} I wait."), user("Yes."))
    question = f"{about} {short} \x1f→ user said\x1f: Yes."
    assert list_values(kept) == [("assistant said", ["Good.", question, "I wait."])]
    decided = find_fact(kept.lines, question)
    assert decided.weight == round(ANSWER_FACTOR * weigh_sentence(about), 2)
    assert (decided.firm, decided.used, decided.last) == (True, 1, 1)
    assert [
        (find_fact(kept.lines, value).used, find_fact(kept.lines, value).last) for value in ("Good.", "I wait.")
    ] == [(1, 1)] * 2
    long = "Shall I go on with that and send it to you?"
    assert list_values(pool(reply(f"{about} {long}"), user("Yes.")))[0][1] == [
        about,
        f"{long} \x1f→ user said\x1f: Yes.",
    ]
    assert list_values(pool(reply(f"To: Oslo\n{short}"), user("Yes.")))[0][1] == [
        "Oslo",
        f"{short} \x1f→ user said\x1f: Yes.",
    ]


def test_an_answer_belongs_to_the_last_question() -> None:
    """Without a question, to the last sentence. Only a question takes the first sentences of a longer reply."""
    first, last = "Shall I cancel the order K-113 for you?", "Or shall I rather change it to Friday?"
    assert (
        list_values(pool(reply(f"{first} {last} I can do both of it."), user("No.")))[0][1][1]
        == f"{last} \x1f→ user said\x1f: No."
    )
    statement = "I shall cancel the order K-113 for you."
    assert list_values(pool(reply(statement), user("No.")))[0][1] == [f"{statement} \x1f→ user said\x1f: No."]
    wish = "Send it to Kelp Street 12 in Oslo."
    assert list_values(pool(reply(statement), user(f"No. {wish}"))) == [
        ("assistant said", [statement]), ("user said", ["No.", wish])
    ]  # fmt: skip
    kept = pool(reply(f"Fine. {last}"), user(f"No. {wish}"))
    assert list_values(kept) == [("assistant said", ["Fine.", f"{last} \x1f→ user said\x1f: No. {wish}"])]
    assert find_fact(kept.lines, "Fine.").used == 0, "only the question was answered"
    long = f"Where this ends is {'very ' * 30}far away."
    kept = pool(reply(last), user(f"No. {wish} {long}"))
    assert list_values(kept) == [
        ("assistant said", [f"{last} \x1f→ user said\x1f: No. {wish}"]),
        ("user said", [long]),
    ]
    kept = pool(reply(last), user(f"No. {long} {wish}"))
    assert list_values(kept) == [("assistant said", [last]), ("user said", ["No.", long, wish])], "an answer is whole"


# -- repeated objects ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "shared", "stays"),
    [(3, 3, False), (6, 3, False), (7, 3, True), (2, 2, True), (4, 4, False)],
)
def test_a_repeated_object_is_kept_from_the_newer_answer(before: int, shared: int, stays: bool) -> None:
    """If three keys, and half of the older ones, repeat. Values only in the older answer stay there."""
    old = {f"key{at}": f"old{'abcdefg'[at]}" for at in range(before)}
    new = {f"key{at}": f"new{'abcdefg'[at]}" for at in range(shared)}
    kept = pool(call("get", {"id": "A1"}, old), call("look", {"id": "A1"}, new))
    first = dict(list_values(kept)).get("get(A1)", [])
    assert first == ([*old.values()] if stays else [*old.values()][shared:])
    assert [find_fact(kept.lines, value).was for value in new.values()] == [
        None if stays else one for one in old.values()
    ][:shared]


def test_a_changed_value_is_marked_and_weighs_more() -> None:
    """Only for a key with one value on both sides: several values cannot be matched."""
    old = {"state": "open", "at": "noon", "codes": ["alpha", "beta"], "by": "kelp"}
    new = {"state": "late", "at": "noon", "codes": ["gamma", "beta"], "by": ["kelp", "weed"]}
    kept = pool(call("get", {"id": "A1"}, old), call("get", {"id": "A1"}, new)).lines
    plain = pool(call("get", {"id": "A1"}, new)).lines
    assert len(kept) == 1
    for fact in (fact for line in plain for fact in line.facts):
        same = find_fact(kept, fact.value)
        changed = fact.value == "late"
        assert (same.was, same.weight) == ("open" if changed else None, fact.weight + CHANGE_WEIGHT * changed)


def test_arguments_are_not_former_values_of_an_answer() -> None:
    """Arguments are requested values; only earlier answers give former values."""
    row, now = {"order": "KX-71", "state": "open"}, {"order": "KX-71", "state": "late"}
    kept = pool(call("change", {"id": "A1", "row": row}, "It is done now."), call("get", {"id": "B1"}, now)).lines
    assert find_fact(kept, "open").group == 1
    assert find_fact(kept, "late").was is None
    kept = pool(call("list", {"id": "A1"}, {"rows": [row]}), call("get", {"id": "B1"}, now)).lines
    assert "open" not in [fact.value for line in kept for fact in line.facts]
    assert find_fact(kept, "late").was == "open"


# -- mentions ----------------------------------------------------------------


def test_a_mention_counts_for_the_newest_sources_with_the_word() -> None:
    """Case does not matter; two-letter words do not count."""
    rounds = [call("get", {"id": f"A{at}"}, {"to": "ab", "code": "KX77"}) for at in range(HOLDERS + 2)]
    kept = pool(*rounds, user("Take kx77 and ab."))
    said = 2 * len(rounds)
    assert [(line.facts[1].used, line.facts[1].last) for line in kept.lines[:-1]] == [(0, -1)] * 2 + [
        (1, said)
    ] * HOLDERS
    assert {line.facts[0].used for line in kept.lines[:-1]} == {0}


def test_mentions_before_an_answer_count_for_it() -> None:
    """The position of the last mention is kept; naming a source mentions the source itself."""
    kept = pool(
        user("KX77 of A1 it is."), user("KX77, I mean."), call("get", {"id": "A1"}, {"code": "kx77", "by": "kelp"})
    )
    line = kept.lines[-1]
    assert (find_fact([line], "kx77").used, find_fact([line], "kx77").last) == (1, 1)
    assert (find_fact([line], "kelp").used, find_fact([line], "kelp").last) == (0, -1)
    assert line.last == -1, "two letters are no name"
    kept = pool(user("Take KX77."), call("get", {"id": "kx77"}, {"by": "kelp"}), user("And KX77 again."))
    assert kept.lines[1].last == 3
    assert pool(user("Take KX77."), call("get", {"id": "kx77"}, {"by": "kelp"})).lines[1].last == 0


def test_the_number_of_remembered_words_and_keys_is_bounded() -> None:
    """The newest are kept, so a pool stays bounded in long sessions."""
    kept = pool(*(user(f"word{at} it is.") for at in range(SAID + 9)))
    assert len(kept.said) == SAID
    assert "word8" not in kept.said
    assert f"word{SAID + 8}" in kept.said
    assert len(pool(user(" ".join(f"word{at}" for at in range(SAID)))).said) == SAID
    keys = pool(*(call("get", {f"key{at}": 1, "id": 2}, "ok") for at in range(SAID + 9)))
    assert len(keys.asked) == SAID
    assert f"key{SAID + 8}" in keys.asked
    assert "key8" not in keys.asked


def test_a_pool_is_trimmed_when_it_is_half_over_its_limit() -> None:
    """It is then trimmed to its limit, instead of a little at each step."""
    rounds = [call("get", {"id": f"K-{at}"}, {f"key{n}": f"QW{at}ER{n}" for n in range(10)}) for at in range(80)]
    whole, cut = list[float](), list[float]()
    for number in range(20, 80):
        kept = pool(*rounds[:number], room=100).lines
        cost = sum(line.cost + sum(fact.cost for fact in line.facts) for line in kept)
        (whole if sum(len(line.facts) for line in kept) == 10 * number else cut).append(cost)
    assert 1.4 * POOL_LEAST < max(whole) <= 1.5 * POOL_LEAST
    assert max(cut) < 1.1 * POOL_LEAST


# -- on the page -------------------------------------------------------------------------


def test_a_call_without_a_result_is_only_a_handle() -> None:
    history = units(call("book", {"id": "A1", "rows": [{"sku": "P-77"}]}, ""))
    assert lines(render_units(history)) == ["book(A1; rows: sku P-77)"]


def test_a_late_result_is_labelled() -> None:
    """Its call is no longer available."""
    [_, result] = call("get", {"id": "A1"}, {"code": "KX77"})
    assert lines(render_units(units(user("Go to Oslo."), [result]))) == [
        "user said: Go to Oslo.",
        "late result: code: KX77",
    ]


def test_the_stated_range_covers_all_folded_units() -> None:
    """From the first folded unit or the requested start, in any eviction order."""
    history = units(*(user(f"Order KX-{at} is due.") for at in range(9)))
    for parts, first in (
        (((4, 6),), 4),
        (((4, 6), (6, 9)), 4),
        (((4, 6), (2, 4)), 2),
        (((0, 3),), 0),
        (((3, 3), (5, 9)), 5),
    ):
        saved = EMPTY
        for start, end in parts:
            saved = fold(saved, history[start:end], room=1000)
        assert decode_pool(saved).first == first
        for begin in (1, 8):
            text = render(saved, 9999, first=begin, last=8, count=Characters())
            assert text.startswith(f"[Condensed from messages {min(begin, first)} to 8: ")
    assert render(EMPTY, 9999, first=1, last=8, count=Characters()) == ""
