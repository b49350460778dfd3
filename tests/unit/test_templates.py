"""Templates: what is a place and what is left alone, and that values never open one, whatever they hold."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from holdfast.domain.templates import ARTIFACT, parse_template
from holdfast.errors import InvalidRequest, MissingState

PARTS = st.sampled_from(
    ["{", "}", "{{", "}}", "{a}", "{a?}", "{user:a}", "{artifact.a}", "a", "?", ":", " ", '"', "user:", "artifact."]
)
JAGGED = st.lists(
    PARTS | st.text(alphabet=st.characters(exclude_categories=("Co", "Cs")), max_size=3), max_size=12
).map("".join)
"""Texts full of what means something in a template."""
VALUES: dict[str, Any] = {"a": "A", "user:a": "U", "app:a": "P", "temp:a": "T", "artifact.a": "F"}


def rendered(text: str, values: dict[str, Any] | None = None) -> str:
    return parse_template(text).render(VALUES if values is None else values, agent="x")


# -- places ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{a}", "A"),
        ("{user:a} {app:a} {temp:a}", "U P T"),
        ("{artifact.a}{artifact.a?}", "FF"),
        ("[{b?}{user:b?}{artifact.b?}]", "[]"),
        ("{a}{a}", "AA"),
        ('{"name": {a}}', '{"name": A}'),
    ],
)
def test_a_place_is_what_stands_under_its_name(text: str, told: str) -> None:
    assert rendered(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "{}",
        "{ a }",
        "{ x y }",
        "{a.b}",
        "{a ?}",
        "{a??}",
        "{1a}",
        "{a-b}",
        "{user:}",
        "{user:1}",
        "{foo:bar}",
        "{user:app:a}",
        "{artifact.}",
        "{artifact./etc/passwd}",
        "{artifact..a}",
        "{artifact.a\nb}",
        '{"a": 1}',
        '{"a": {"b": {"c": {}}}}',
        "[{\n  'a': {'b': [{'c': 1}]}\n}]",
        "if (x) { return {y: 1} }",
        "\\frac{1}{2}",
        "{",
        "}",
        "a } b { c",
    ],
)
def test_what_is_no_name_is_left_as_it_is(text: str) -> None:
    assert rendered(text) == text
    assert not parse_template(text).places


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{{a}}", "{a}"),
        ("{{{a}}}", "{A}"),
        ("{{{{a}}}}", "{{a}}"),
        ("{{user:b}} {a}", "{user:b} A"),
        ('{{"a": {"b": {a}}}}', '{"a": {"b": A}}'),
        ("{{", "{"),
        ("}}", "}"),
        ('{{ {"a": {"b": 1}}', '{ {"a": {"b": 1}}'),
    ],
)
def test_doubled_braces_stand_for_themselves(text: str, told: str) -> None:
    assert rendered(text) == told


def test_a_value_is_its_text_or_its_json() -> None:
    values = {"t": "é {a}", "n": 2.5, "b": True, "l": [1, "x"], "o": {"k": None}, "z": 0, "e": ""}
    assert rendered("{t}|{n}|{b}|{l}|{o}|{z}|{e}", values) == 'é {a}|2.5|true|[1,"x"]|{"k":null}|0|'


def test_names_of_any_script_and_of_artifacts_with_odd_names() -> None:
    values = {"größe": "L", "user:名前": "Ada", "artifact.user:my plan (2).md": "walk", "artifact.é": "E"}
    assert rendered("{größe} {user:名前} {artifact.user:my plan (2).md}", values) == "L Ada walk"
    assert rendered("{artifact.e\u0301}", values) == "E", "a name means the same in both of its Unicode forms"


def test_what_it_names_is_told_once_each_and_in_order() -> None:
    found = parse_template("{b} {user:a?} {artifact.p.md} {b?} {{c}} {artifact.p.md?}")
    assert found.keys == ("b", "user:a")
    assert found.artifacts == ("p.md",)


# -- what is missing ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["b", "user:b", "app:b", "temp:b", "artifact.b.md"])
@pytest.mark.parametrize("values", [{}, {"b": None, "user:b": None}])
def test_a_missing_one_is_named_with_its_agent(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(MissingState) as error:
        parse_template(f"so {{{name}}}").render(values, agent="helpful", what="global_instruction")
    assert (error.value.name, error.value.agent, error.value.code) == (name, "helpful", "missing_state")
    for told in (name.removeprefix(ARTIFACT), "'helpful'", "global_instruction", f"{{{name}?}}"):
        assert told in str(error.value)
    assert isinstance(error.value, InvalidRequest)


def test_where_everything_may_be_missing_nothing_stands_there() -> None:
    assert parse_template("Hi {user:name}!{a}").render({"a": 1}, agent="x", strict=False) == "Hi !1"


# -- rules -----------------------------------------------------------------------------


@given(st.lists(JAGGED, min_size=5, max_size=5), JAGGED)
@example(["{b}", "{{", "}", "{a", "user:a}"], "{a}{user:a}{{app:a}")
def test_values_are_data_in_any_combination(values: list[str], text: str) -> None:
    """Whatever they hold, and whatever they come to stand beside, it is as if something harmless had been put there."""
    marks = {name: f"\ue000{at}\ue001" for at, name in enumerate(VALUES)}
    given_values = dict(zip(VALUES, values, strict=True))
    with_marks = parse_template(text).render(marks, agent="x", strict=False)
    expected = re.sub("\ue000(.)\ue001", lambda found: values[int(found[1])], with_marks)
    assert parse_template(text).render(given_values, agent="x", strict=False) == expected


@given(JAGGED)
def test_a_text_with_all_braces_doubled_says_itself(text: str) -> None:
    assert rendered(text.replace("{", "{{").replace("}", "}}")) == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="ab{}: é", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet="abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from([None, 1]))
def test_json_is_left_as_it_is_byte_for_byte(value: Any, indent: int | None) -> None:
    """Texts in it without braces, that is: where they have some, it is as for any text."""
    text = json.dumps(_without_braces(value), indent=indent)
    assert rendered(text) == text


def _without_braces(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("{", "").replace("}", "")
    if isinstance(value, dict):
        return {key: _without_braces(one) for key, one in value.items()}
    return [_without_braces(one) for one in value] if isinstance(value, list) else value


@given(JAGGED)
def test_without_names_and_doubled_braces_every_byte_stays(text: str) -> None:
    assume("{{" not in text and "}}" not in text and not parse_template(text).places)
    assert rendered(text) == text
