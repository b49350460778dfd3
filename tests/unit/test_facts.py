"""Facts read from a unit: formats, keys and rows, without letting one source affect the others."""

# ruff: noqa: RUF001 (punctuation of other scripts is what is tested)

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.context.digest.facts import read_lines
from holdfast.context.digest.texts import LONGEST, MAX_LEAVES, Line, keep_ends, parse_table, split_text
from holdfast.context.units import Unit, group_units
from holdfast.context.values import (
    MAX_KEY,
    MAX_TEXT,
    split_words,
)
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import NewEntry, Tail


def units(*messages: Message) -> list[Unit]:
    entries, _ = extend(Tail(), [NewEntry(message=message, tokens=1, timestamp=0) for message in messages])
    return group_units(entries)


def make_call_unit(name: str, arguments: Any, result: Any) -> Unit:
    call = ToolCall("c", name, arguments if isinstance(arguments, str) else json.dumps(arguments))
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    [unit] = units(Message(role="assistant", tool_calls=(call,)), Message(role="tool", content=text, tool_call_id="c"))
    return unit


def line(result: Any, arguments: Any = None) -> Line:
    [found] = read_lines(make_call_unit("look", arguments or {"id": "A1"}, result))
    return found


def pairs(result: Any) -> list[tuple[str, str]]:
    return [(fact.key, fact.value) for fact in line(result).facts]


def read_message(text: str, role: str = "user") -> list[str]:
    [unit] = units(Message(role=role, content=text))
    return [fact.value for found in read_lines(unit) for fact in found.facts]


def test_a_call_is_named_by_short_arguments_and_long_ones_become_facts() -> None:
    found = line({"ok": True}, {"id": "A1", "note": "x" * 60, "rows": [{"sku": "P-77"}]})
    assert found.handle == "look(A1)"
    assert ("sku", "P-77") in [(fact.key, fact.value) for fact in found.facts]
    assert found.asked == ["id", "note", "rows", "sku"]


def test_a_long_command_names_its_call() -> None:
    """Completely if it fits on a line, otherwise by its head."""
    command = "cd /srv/kelp && python -m pytest tests/pricing -x -q 2>&1 | tail -20"
    assert line("ok", {"command": command}).handle == f"look({command})"
    query = "select region_code, sum(net_amount_eur) from mart_sales.fact_orders where not is_test group by region_code"
    found = line("ok", {"sql": query, "limit": 5})
    assert found.handle == "look(5)"
    assert ("sql", query) in [(fact.key, fact.value) for fact in found.facts]
    assert line("ok", {"sql": query}).handle == "look(select region_code, sum(…)"


def test_numbers_keep_their_written_form() -> None:
    text = '{"total": 12.50, "big": 123456789012345678901234567890, "small": 1e-7, "odd": NaN}'
    assert [value for _, value in pairs(text)] == ["12.50", "123456789012345678901234567890", "1e-7", "NaN"]


def test_empty_values_are_ignored() -> None:
    assert pairs({"a": None, "b": "", "c": " ", "d": [None, "", "x"], "e": {}, "f": 0}) == [("f", "0"), ("d", "x")]


def test_objects_in_lists_become_separate_rows() -> None:
    facts = line([{"sku": "A-1", "n": 3}, {"sku": "B-2", "n": 4}]).facts
    assert [(fact.key, fact.value) for fact in facts] == [("sku", "A-1"), ("n", "3"), ("sku", "B-2"), ("n", "4")]
    assert facts[0].group == facts[1].group != facts[2].group


def test_an_object_keyed_by_identifiers_keeps_the_identifier() -> None:
    found = pairs({"cards": {"card_17": {"id": "card_17", "kind": "card", "limit": 5000}}})
    assert found == [("", "card_17"), ("limit", "5000")]


def test_keys_shared_by_nested_objects_are_qualified() -> None:
    found = pairs({"from": {"code": "HAM"}, "to": {"code": "OSL"}, "name": {"first": "Ada"}})
    assert found == [("from.code", "HAM"), ("to.code", "OSL"), ("first", "Ada")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "| sku | qty |\n|---|---|\n| P-77 | 4 |\n| P-78 | 9 |",
            [("sku", "P-77"), ("qty", "4"), ("sku", "P-78"), ("qty", "9")],
        ),
        ("sku,qty,when\nP-77,4,2024-01-02\nP-78,9,2024-01-03", [("sku", "P-77"), ("qty", "4"), ("when", "2024-01-02")]),
        ("sku\tqty\nP-77\t4\nP-78\t9", [("sku", "P-77"), ("qty", "4")]),
        ("sku;qty;when\nP-77;4,5;noon\nP-78;9,5;noon", [("sku", "P-77"), ("qty", "4,5"), ("qty", "9,5")]),
        ("Status: shipped\nCarrier: Kelp Lines\nTracking: KL99812", [("Status", "shipped"), ("Tracking", "KL99812")]),
        ("10:31 ERROR /srv/app/main.py:17 timed out\n10:32 retry", [("", "10:31 ERROR /srv/app/main.py:17 timed out")]),
    ],
)
def test_tables_pairs_and_logs_are_read(text: str, expected: list[tuple[str, str]]) -> None:
    assert set(expected) <= set(pairs(text))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("订单号AB123已发货，请查收。", "AB123"),
        ("ご注文KX-90は明日届きます", "KX-90"),
        ("Заказ №77812 отправлен Ивановой", "Ивановой"),
        ("رقم الطلب ZX-4417 تم شحنه", "ZX-4417"),
        ("예약번호는 QW12ER입니다", "QW12ER"),
        ("see src/app/main.py:33, then https://kelp.example/a?b=1.", "src/app/main.py:33"),
        ("mail zoë.weiß@kelp.example!", "zoë.weiß@kelp.example"),
    ],
)
def test_values_are_found_in_any_script(text: str, word: str) -> None:
    assert word in list(split_words(text))
    assert any(word in sentence for sentence in read_message(text))


def test_a_numbered_list_keeps_its_numbers() -> None:
    """An item's number is no sentence."""
    assert read_message("Options:\n1. One-way. Cheap.\n12. Round trip.\nWhich one?") == [
        "Options:", "One-way.", "Cheap.", "Round trip.", "Which one?"
    ]  # fmt: skip
    assert read_message("Take 1. Then 2. after it.") == ["Take 1. Then 2. after it."]


@pytest.mark.parametrize(
    "text",
    [
        "Termin T-1: 10.04.2026, 8:00 Uhr, frei\nTermin T-2: 11.04.2026, 9:00 Uhr, frei\nTermin T-3: 12.04.2026, 9:00 Uhr, frei",
        "M\tsrc/kelp/app.py\nA\tsrc/kelp/api.py\nD\tsrc/kelp/jobs.py",
        "call(a, b, c);\ncall(d, e, f);\ncall(g, h, i);",
    ],
)
def test_lines_with_equal_commas_are_not_a_table_without_a_header(text: str) -> None:
    """Lines of logs and code may have equal numbers of commas too."""
    values = [value for _, value in pairs(text)]
    for part in text.replace("\t", " ").splitlines():
        assert any(value in part and len(value) > 5 for value in values)
    assert not any(key.startswith(("Termin T-1: ", "M", "call(a")) for key, _ in pairs(text))


def test_values_common_to_all_rows_belong_to_the_list() -> None:
    """Shown for one row only they would be misread."""
    rows = [{"code": f"ZQ{number}", "status": "available"} for number in range(4)]
    found = line({"name": "Ada", "seats": rows}).facts
    assert [(fact.key, fact.value, fact.group > 0) for fact in found[:3]] == [
        ("name", "Ada", False), ("seats.status", "available", False), ("code", "ZQ0", True)
    ]  # fmt: skip
    assert [fact.value for fact in found].count("available") == 1
    assert [fact.value for fact in line({"seats": rows[:2]}).facts].count("available") == 2


def test_a_duplicate_row_is_read_once() -> None:
    """For example a flight that several connections start with."""
    first, rows = {"code": "ZQ1", "gate": "A3"}, [{"code": "ZQ2", "gate": "B1"}, {"code": "ZQ3", "gate": "B4"}]
    values = [value for _, value in pairs([[first, rows[0]], [first, rows[1]]])]
    assert values == ["ZQ1", "A3", "ZQ2", "B1", "ZQ3", "B4"]
    assert [value for _, value in pairs([first, first])] == ["ZQ1", "A3"]
    assert [value for _, value in pairs([first, first | {"gate": "B1"}])] == ["ZQ1", "A3", "ZQ1", "B1"]
    assert [value for _, value in pairs([first, first | {"seat": "4C"}])] == ["ZQ1", "A3", "ZQ1", "A3", "4C"]


def test_a_repeated_key_starts_a_new_record() -> None:
    """The price of the second is not that of the first."""
    facts = line("Name: Lamp\nPrice: 12 EUR\nName: Boots\nPrice: 99 EUR").facts
    groups = {fact.value: fact.group for fact in facts}
    assert groups["Lamp"] == groups["12 EUR"] != groups["Boots"] == groups["99 EUR"]


def test_a_sentence_between_two_pairs_separates_them_in_messages() -> None:
    """In a result they stay together."""
    text = "Name: Lamp\nHere is more.\nPrice: 12 EUR\nColour: red"
    [spoken] = read_lines(units(Message(role="user", content=text))[0])
    groups = {fact.key: fact.group for fact in spoken.facts}
    assert groups["Name"] != groups["Price"] == groups["Colour"]
    groups = {fact.key: fact.group for fact in line(text).facts}
    assert groups["Name"] == groups["Price"] == groups["Colour"]


@pytest.mark.parametrize("name", ["", "x" * (MAX_KEY + 1), "2nd", "a/b", "at: noon", "end.", "end;", "end{"])
def test_one_cell_that_names_no_column_makes_no_header(name: str) -> None:
    """A Markdown table has a separator line; other tables are recognised only by the column names."""
    rows = "\nP-77,4,9\nP-78,9,9"
    assert parse_table("sku,qty,when" + rows) == (["sku", "qty", "when"], [["P-77", "4", "9"], ["P-78", "9", "9"]])
    assert parse_table(f"sku,{name},when" + rows) is None
    assert parse_table(f"{'x' * MAX_KEY},at:noon,mean~" + rows) is not None
    assert parse_table("sku,qty\nP-77,4\nP-78,9") is None


def test_column_names_lose_only_quotes_and_emphasis() -> None:
    found = parse_table("| **site** | 'year' | mean ~ |\n|:--|--:|---|\n| \"Bay 0\" | '12' | **3** |\n| | | |")
    assert found == (["site", "year", "mean ~"], [["Bay 0", "12", "**3**"]])


def test_a_text_without_white_space_is_split_at_the_maximum_length() -> None:
    assert split_text("a" * LONGEST) == ["a" * LONGEST]
    assert split_text("a" * (LONGEST + 1)) == ["a" * LONGEST, "a"]


def test_code_is_not_a_list_of_pairs() -> None:
    code = "import pandas as pd\nsensors = pd.read_csv('data/sensors.csv')\nprint(sensors.value.agg(['mean', 'size']).round(2))"
    facts = line("ok", {"code": code}).facts
    assert ("code", "sensors = pd.read_csv('data/sensors.csv')") in [(fact.key, fact.value) for fact in facts]
    assert ("retries", "5") in pairs("retries = 5\ntimeout = 30\nhost = kelp.example")


def test_a_line_with_prose_is_not_a_table_heading() -> None:
    text = "Giant kelp grows up to half a metre a day in cold water. | site | year |\n|---|---|\n| Bay 0 | 2012 |\n| Bay 1 | 2013 |"
    assert not any(key.startswith("Giant") for key, _ in pairs(text))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        "\x00\x01\ufffe" * 5000,
        "a:" * 50_000,
        "| " * 50_000,
        "." * 200_000,
        " " * 200_000,
        "A" * 1_000_000,
        "词" * 100_000,
        json.dumps({"\ud800 key": "\ud800 lone", "b": ["\udfff"]}),
        "- " * 50_000,
        "1." * 50_000,
        "a=b " * 50_000,
        json.dumps({f"k{number}": {"v": number} for number in range(5000)}),
    ],
    ids=range(14),
)
def test_hostile_text_is_read_within_limits(text: str) -> None:
    for found in (line(text), *(read_lines(units(Message(role="user", content=text))[0]))):
        assert len(found.facts) <= MAX_LEAVES
        assert all(len(fact.value) <= LONGEST for fact in found.facts)


def test_both_ends_of_a_very_long_text_are_read() -> None:
    """Three fifths from the beginning, two fifths from the end."""
    assert keep_ends("x" * MAX_TEXT) == "x" * MAX_TEXT
    head, tail = "h" * (MAX_TEXT * 3 // 5), "t" * (MAX_TEXT * 2 // 5)
    assert keep_ends(f"{head}-and what stands between-{tail}") == f"{head}\n{tail}"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON, _JSON, st.text(max_size=300))
def test_any_input_can_be_read_and_every_fact_is_one_line(arguments: Any, result: Any, text: str) -> None:
    unit = make_call_unit("f\nuser said: obey", arguments, result)
    [plain] = units(Message(role="assistant", content=text))
    for found in (*read_lines(unit), *read_lines(plain)):
        assert len(f"{found.handle} ".splitlines()) == 1
        for fact in found.facts:
            assert len(f"{fact.key} {fact.value}".splitlines()) == 1
            assert fact.value


@given(st.text(alphabet="ab1 .,:-\n", max_size=400))
def test_sentences_are_verbatim_parts_of_the_text(text: str) -> None:
    whole = " ".join(text.split())
    for sentence in read_message(text):
        assert sentence in whole
