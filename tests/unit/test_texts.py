"""Splitting source texts into sentences and tables."""

# ruff: noqa: RUF001 (punctuation of other scripts is what is tested)

from __future__ import annotations

import pytest

from holdfast.context.digest.texts import LONGEST, parse_table, rate_rarity, split_text
from holdfast.context.values import MAX_KEY, MAX_VALUE


def test_emphasis_and_bullets_are_removed_from_sentences() -> None:
    """The text inside them is kept."""
    assert split_text("**Total**: 12 * 2, run `make all`.\n- one\n* two\n# three\n> four\n• five\n12) six\n7. seven") == [
        "Total: 12 * 2, run make all.", "one", "two", "three", "four", "five", "six", "seven"
    ]  # fmt: skip
    assert split_text("-5 degrees\n1234. It was\n#7 is late\n12.5 kg") == [
        "-5 degrees",
        "1234.",
        "It was",
        "#7 is late",
        "12.5 kg",
    ]


def test_sentence_ends_depend_on_the_script() -> None:
    """White space must follow, except in scripts that do not use it."""
    assert split_text("See kelp.example now. Ok? Yes! Well… So") == [
        "See kelp.example now.",
        "Ok?",
        "Yes!",
        "Well…",
        "So",
    ]
    assert split_text("好的。走吧！行？是") == ["好的。", "走吧！", "行？", "是"]


def test_a_sentence_of_the_maximum_length_is_not_split() -> None:
    """A longer one is split without losing text."""
    whole = f"{'a' * 100} {'b' * (LONGEST - 101)}"
    assert split_text(whole) == [whole]
    longer = " ".join(f"word{at}" for at in range(200))
    assert " ".join(split_text(longer)) == longer
    assert max(map(len, split_text(longer))) < LONGEST


@pytest.mark.parametrize("mark", ["|", "\t", ";", ","])
def test_every_line_of_a_table_has_as_many_columns(mark: str) -> None:
    """Only the first twelve lines are checked, so an odd line further down does not matter."""
    rows = [["sku", "qty", "when"], *([f"P-{at}", "4", "noon"] for at in range(12))]
    for odd, table in ((1, False), (2, False), (11, False), (12, True)):
        lines = [mark.join(row) for row in rows]
        lines[odd] += f"{mark}more"
        assert (parse_table("\n".join(lines)) is not None) == table
    assert parse_table("\n".join(mark.join(row) for row in rows[:2])) is None, "two lines are none"
    assert parse_table("\n".join(mark.join(row) for row in rows[:3])) is not None


def test_a_title_above_rows_is_not_a_header() -> None:
    """It would otherwise name the first column."""
    for rows in ("a|b|c\nd|e|f", "a,b,c\nd,e,f", "a\tb\nc\td"):
        assert parse_table(f"Prices\n{rows}") is None


def test_other_separators_may_appear_in_cells() -> None:
    """Even equally often in each line; the separator that gives a header is used."""
    assert parse_table("sku,qty;unit,when\nP-77,4;kg,noon\nP-78,9;kg,late") == (
        ["sku", "qty;unit", "when"], [["P-77", "4;kg", "noon"], ["P-78", "9;kg", "late"]]
    )  # fmt: skip
    long = "x" * MAX_KEY
    found = parse_table(f"{long},when,a|b\nP-77,4,a|b\nP-78,9,a|b")
    assert found is not None
    assert found[0] == [long, "when", "a|b"]


def test_cells_lose_quotes_and_nothing_else() -> None:
    """A row of dashes only separates the header in tables with that syntax."""
    assert parse_table("sku,~,when\n~5,\"4\",~\n'P-78',9~,~9~") == (
        ["sku", "~", "when"],
        [["~5", "4", "~"], ["P-78", "9~", "~9~"]],
    )
    found = parse_table("|sku|qty|\n|:--|--:|\n|~|~|\n|P-77|4|")
    assert found == (["sku", "qty"], [["~", "~"], ["P-77", "4"]])
    found = parse_table("sku,qty,when\n-,-,-\nP-78,9,late")
    assert found is not None
    assert len(found[1]) == 2
    long = parse_table(f"sku,qty,when\n{'x' * (MAX_VALUE + 9)},4,noon\nP-78,9,late")
    assert long is not None
    assert long[1][0][0] == "x" * MAX_VALUE


def test_sentences_of_one_form_differ_in_numbers_only() -> None:
    assert rate_rarity([]) == []
    assert (
        rate_rarity(["a 1", "a 2", "b 1", "a 33", "a 4", "a 5"])
        == [pytest.approx(0.8**0.5)] * 2 + [1.0] + [pytest.approx(0.8**0.5)] * 3
    )
