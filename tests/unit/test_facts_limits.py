"""Limits of reading facts: how much of a source is read, call handles, and the boundaries between kinds of values."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.context.digest.facts import FAILURE, OUTCOME, read_lines
from holdfast.context.digest.texts import MAX_LEAVES
from holdfast.context.values import DIGITS, IDENTIFIER, MAX_KEY, NAME, WORD, weigh_sentence
from holdfast.domain.messages import Message
from tests.unit.test_facts import line, make_call_unit, pairs, read_message, units


def test_the_number_of_values_of_a_key_is_counted() -> None:
    """Only for the source itself, not for its rows."""
    result = {"codes": ["ZQ1", "ZQ2"], "gates": ["G1", "G2", "G3"], "state": "open", "rows": [{"n": "N1"}, {"n": "N2"}]}
    assert line(result).counts == {"codes": 2, "gates": 3}
    assert line({"codes": ["ZQ1"], "state": "open"}).counts == {}
    assert line({"id": ["A1", "A2", "A3"]}).counts == {"id": 2}, "the handle has the first"


def test_invalid_json_is_kept_as_text() -> None:
    """This includes truncated arguments: the call is named by their beginning."""
    broken = '{"order_id": "K-113", "items": ["P-77"'
    found = line("ok", broken)
    assert found.handle == 'look({"order_id": "K-113", "i…)'
    assert [(fact.key, fact.value) for fact in found.facts] == [("input", broken), ("", "ok")]
    assert found.asked == []
    assert line("ok", "x" * 24).handle == f"look({'x' * 24})"
    assert line("ok", "x" * 25).handle == f"look({'x' * 24}…)"
    assert pairs('{"state": "open"') == [("", '{"state": "open"')]


def test_a_handle_takes_the_first_arguments_up_to_its_limit() -> None:
    """In order, while they are short. A single argument may be as long as a command; longer ones are truncated."""
    assert line("ok", {"a": "x" * 20, "b": "y" * 24, "c": "z"}).handle == f"look({'x' * 20}, {'y' * 24})"
    assert line("ok", {"a": "x" * 20, "b": "y" * 26, "c": "z"}).handle == f"look({'x' * 20}, {'y' * 26})"
    assert line("ok", {"a": "x" * 20, "b": "y" * 27, "c": "z"}).handle == f"look({'x' * 20}, z)"
    assert line("ok", {"a": "x", "b": "y" * (MAX_KEY + 1)}).handle == "look(x)"
    assert line("ok", {"a": "x" * 100}).handle == f"look({'x' * 100})"
    assert line("ok", {"a": "x" * 101}).handle == f"look({'x' * 24}…)"
    assert line("ok", {"a": 5, "b": None, "c": "", "d": [], "e": {}}).handle == "look(5)"


def test_names_of_nested_arguments_count_as_asked() -> None:
    """The first four items of a list are inspected."""
    arguments = {"rows": [{f"n{at}": at} for at in range(6)], "to": {"city": "Oslo"}}
    assert sorted(line("ok", arguments).asked) == ["city", "n0", "n1", "n2", "n3", "rows", "to"]


def test_at_most_twelve_levels_are_read() -> None:
    """For results and arguments, lists and objects."""
    for depth, found in ((12, ["QW12ER"]), (13, [])):
        for text in (
            "[" * depth + '"QW12ER"' + "]" * depth,
            '{"a":' * (depth + 1) + '"QW12ER"' + "}" * (depth + 1),
            '{"a":' * (depth - 1) + '["QW12ER"]' + "}" * (depth - 1),
        ):
            assert [value for _, value in pairs(text) if value == "QW12ER"] == found
            asked = line("ok", f'{{"rows":{text}}}').facts
            assert [fact.value for fact in asked if fact.value == "QW12ER"] == found


def test_the_number_of_facts_per_source_is_limited() -> None:
    """The first facts are kept, for any format."""
    values = [f"QW12{at}" for at in range(MAX_LEAVES + 9)]
    for result in (values, {value: value for value in values}, {"rows": [{"code": value} for value in values]}):
        assert [value for _, value in pairs(result)] == values[:MAX_LEAVES]
    assert read_message("\n".join(f"{value}." for value in values)) == [f"{value}." for value in values[:MAX_LEAVES]]


def test_messages_and_calls_of_another_agent_name_the_agent() -> None:
    """Brackets are removed from its name, because they would end the name of the tool."""
    other = replace(make_call_unit("look", {"id": "A1"}, "ok"), by="bob (the 2nd")
    [found] = read_lines(other)
    assert found.handle == "agent bob the 2nd's look(A1)"
    words = replace(units(Message(role="assistant", content="Kelp is due."))[0], by="bob (the 2nd")
    [spoken] = read_lines(words)
    assert spoken.handle == "agent bob (the 2nd said"


@pytest.mark.parametrize(("length", "firm"), [(60, True), (61, False)])
def test_a_short_result_is_an_outcome(length: int, firm: bool) -> None:
    """It is firm and weighs one more."""
    text = "x" * (length - 7) + " QW12ER"
    [fact] = line(text).facts
    assert (fact.firm, fact.weight) == (firm, weigh_sentence(text) + firm)


@pytest.mark.parametrize(("length", "tried"), [(400, True), (401, False)])
def test_a_short_error_raises_the_weight_of_its_arguments(length: int, tried: bool) -> None:
    """By a factor of four. A long result is more than an error, and sentences in arguments are not raised."""
    arguments = {"id": "A1", "rows": [{"sku": "P-77"}], "why": "because the customer has asked for it again"}
    text = f"Error: P-77 is gone. {'and so on ' * 50}"[:length]
    facts, fine = (line(result, arguments).facts for result in (text, "fine " * 20))
    factors = {fact.value: round(fact.weight / was.weight, 2) for fact, was in zip(facts[:2], fine[:2], strict=True)}
    assert factors == {"P-77": 4.0 if tried else 1.0, arguments["why"]: 1.0}


def test_numbers_and_yes_or_no_weigh_little() -> None:
    """An amount is not an identifier, even with many digits; three digits weigh even less."""
    result = {"n": 123, "sum": 1234, "big": 12345678, "ok": True, "path": "x" * FAILURE, "state": "open"}
    weights = {fact.key: fact.weight for fact in line(result).facts if fact.key != "path"}
    assert weights == {"n": 0.4, "sum": DIGITS, "big": DIGITS, "ok": 0.3, "state": WORD}
    weights = {fact.key: fact.weight for fact in line(result | {"state": "failed"}).facts}
    assert weights["state"] == WORD + 1.0, "a failure weighs more"
    assert pairs({"yes": True, "no": False}) == [("yes", "true"), ("no", "false")]


def test_a_pair_is_a_short_key_with_a_short_value() -> None:
    """Not a sentence with a colon in it, nor an address, nor an assignment that calls something."""
    for key, value in (("Carrier", "x" * 80), ("a b c d", "x"), ("see", "http://kelp.example"), ("x =", "(4)")):
        text = f"{key}: {value}" if "=" not in key else f"{key} {value}"
        assert (pairs(text)[0][0] != "") == (key in {"Carrier", "a b c d"})
    assert pairs(f"Carrier: {'x' * 81}")[0][0] == ""
    assert pairs("a b c d e: x")[0][0] == ""


def test_half_of_the_words_under_a_key_make_the_others_identifiers() -> None:
    """Of one length, letters and digits only: of fewer they stay words."""
    for codes, weight in (
        (["QW12ER", "GXWCPN"], IDENTIFIER),
        (["QW12ER", "GXWCPN", "HATHAT"], NAME),
        (["QW12ER", "GXWCP"], NAME),
        (["QW12ER", "GX.CPN"], NAME),
    ):
        found = line({"codes": codes, "path": "x" * OUTCOME}).facts
        assert {fact.value: fact.weight for fact in found}[codes[1]] == weight


def test_rows_of_a_result_are_numbered_after_rows_of_the_arguments() -> None:
    """So they cannot be confused; the source itself has number 0."""
    arguments = {"id": "A1", "rows": [{"sku": "P-77"}, {"sku": "P-78"}]}
    found = line({"state": "open", "items": [{"sku": "Q-11"}, {"sku": "Q-12"}]}, arguments)
    groups = {fact.value: fact.group for fact in found.facts}
    assert 0 == groups["open"] < groups["P-77"] < groups["P-78"] <= found.given < groups["Q-11"] < groups["Q-12"]
    assert [found.find_list_name(groups[value]) for value in ("open", "P-77", "P-78", "Q-11")] == [
        "",
        "rows",
        "rows",
        "items",
    ]


@pytest.mark.parametrize(("rows", "told"), [(2, 2), (3, 1)])
def test_a_value_common_to_three_rows_belongs_to_the_list(rows: int, told: int) -> None:
    """With two rows it may be a coincidence, so it is kept twice."""
    found = line([{"sku": f"P-{at}", "state": "open"} for at in range(rows)]).facts
    assert [fact.group > 0 for fact in found if fact.value == "open"] == [rows == 2] * told


def test_the_cost_of_a_key_is_charged_where_it_is_written() -> None:
    """With each value of the source. Keys of rows are written once, so they cost almost nothing."""
    costs = {fact.value: fact.cost for fact in line({"state": "open", "rows": [{"state": "late", "sku": "P-7"}]}).facts}
    assert costs["open"] == pytest.approx(costs["late"] + len("state") / 4, abs=0.1)
    assert costs["late"] == 2.5
    [said_so] = read_lines(units(Message(role="user", content="Call me."))[0])
    assert said_so.facts[0].cost == 3.5


def test_weights_are_rounded_to_a_hundredth() -> None:
    """They are saved with every line of a pool."""
    [found] = read_lines(
        units(Message(role="user", content="Send W-12345 to Kelp Street 12 by 2026-11-20, please. Thanks."))[0]
    )
    for fact in (*found.facts, *line("Order W-12345 is on its way to Kelp Street 12.").facts):
        assert fact.weight == round(fact.weight, 2)
