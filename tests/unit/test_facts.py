"""Facts read from a unit: formats, keys and rows, without letting one source affect the others."""

# ruff: noqa: RUF001 (punctuation of other scripts is what is tested)

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.context.digest.facts import read_unit
from holdfast.context.digest.texts import LONGEST, MAX_LEAVES, Line, keep_ends
from holdfast.context.units import Unit, group_units
from holdfast.context.values import (
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
    [found] = read_unit(make_call_unit("look", arguments or {"id": "A1"}, result)).lines
    return found


def pairs(result: Any) -> list[tuple[str, str]]:
    return [(fact.key, fact.value) for fact in line(result).facts]


def read_message(text: str, role: str = "user") -> list[str]:
    [unit] = units(Message(role=role, content=text))
    return [fact.value for found in read_unit(unit).lines for fact in found.facts]


def test_a_call_is_named_by_short_arguments_and_long_ones_become_facts() -> None:
    found = line({"ok": True}, {"id": "A1", "note": "x" * 60, "rows": [{"sku": "P-77"}]})
    assert found.handle == "look(A1)"
    assert ("sku", "P-77") in [(fact.key, fact.value) for fact in found.facts]
    assert found.asked == ["id", "note", "rows", "sku"]


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
    for found in (line(text), *(read_unit(units(Message(role="user", content=text))[0]).lines)):
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
    for found in (*read_unit(unit).lines, *read_unit(plain).lines):
        assert len(f"{found.handle} ".splitlines()) == 1
        for fact in found.facts:
            assert len(f"{fact.key} {fact.value}".splitlines()) == 1
            assert fact.value


@given(st.text(alphabet="ab1 .,:-\n", max_size=400))
def test_sentences_are_verbatim_parts_of_the_text(text: str) -> None:
    whole = " ".join(text.split())
    for sentence in read_message(text):
        assert sentence in whole
