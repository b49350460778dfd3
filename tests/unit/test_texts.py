"""What a text of a source is made of: sentences as they are told, and tables where they are some."""

# ruff: noqa: RUF001 (punctuation of other scripts is what is tested)

from __future__ import annotations

import pytest

from holdfast.context.digest.texts import LONGEST, parse_table, rate_rarity, split_text
from holdfast.context.values import MAX_KEY, MAX_VALUE


def test_emphasis_and_bullets_are_no_part_of_a_sentence() -> None:
    """What they stand around is."""
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


def test_a_sentence_ends_where_its_script_ends_it() -> None:
    """White space follows, but in scripts that need none."""
    assert split_text("See kelp.example now. Ok? Yes! Well… So") == [
        "See kelp.example now.",
        "Ok?",
        "Yes!",
        "Well…",
        "So",
    ]
    assert split_text("好的。走吧！行？是") == ["好的。", "走吧！", "行？", "是"]


def test_a_sentence_of_the_greatest_length_is_not_parted() -> None:
    """Though it could be; a longer one loses nothing."""
    whole = f"{'a' * 100} {'b' * (LONGEST - 101)}"
    assert split_text(whole) == [whole]
    longer = " ".join(f"word{at}" for at in range(200))
    assert " ".join(split_text(longer)) == longer
    assert max(map(len, split_text(longer))) < LONGEST


@pytest.mark.parametrize("mark", ["|", "\t", ";", ","])
def test_every_line_of_a_table_has_as_many_columns(mark: str) -> None:
    """Those that are looked at: the first twelve; what is odd further down makes no text of a long table."""
    rows = [["sku", "qty", "when"], *([f"P-{at}", "4", "noon"] for at in range(12))]
    for odd, table in ((1, False), (2, False), (11, False), (12, True)):
        lines = [mark.join(row) for row in rows]
        lines[odd] += f"{mark}more"
        assert (parse_table("\n".join(lines)) is not None) == table
    assert parse_table("\n".join(mark.join(row) for row in rows[:2])) is None, "two lines are none"
    assert parse_table("\n".join(mark.join(row) for row in rows[:3])) is not None


def test_a_title_over_rows_is_no_header() -> None:
    """It would name their first column."""
    for rows in ("a|b|c\nd|e|f", "a,b,c\nd,e,f", "a\tb\nc\td"):
        assert parse_table(f"Prices\n{rows}") is None


def test_what_parts_no_columns_may_stand_in_a_cell() -> None:
    """As often in each line as what does: a table is one by the mark that gives it a header."""
    assert parse_table("sku,qty;unit,when\nP-77,4;kg,noon\nP-78,9;kg,late") == (
        ["sku", "qty;unit", "when"], [["P-77", "4;kg", "noon"], ["P-78", "9;kg", "late"]]
    )  # fmt: skip
    long = "x" * MAX_KEY
    found = parse_table(f"{long},when,a|b\nP-77,4,a|b\nP-78,9,a|b")
    assert found is not None
    assert found[0] == [long, "when", "a|b"]


def test_cells_lose_quotes_and_nothing_else() -> None:
    """What is about is told as about; a row of rules only is none, and of a table with other marks every row is one."""
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
