"""Templates: placeholders, other text, and values that never create placeholders."""

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
"""Texts full of template syntax."""
VALUES: dict[str, Any] = {"a": "A", "user:a": "U", "app:a": "P", "temp:a": "T", "artifact.a": "F"}


def render_text(text: str, values: dict[str, Any] | None = None) -> str:
    return parse_template(text).render(VALUES if values is None else values, agent="x")


# -- placeholders ----------------------------------------------------------------------------


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
def test_placeholders_are_replaced_by_their_values(text: str, told: str) -> None:
    assert render_text(text) == told


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
def test_braces_without_a_valid_name_are_unchanged(text: str) -> None:
    assert render_text(text) == text
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
def test_doubled_braces_are_literal(text: str, told: str) -> None:
    assert render_text(text) == told


def test_values_are_rendered_as_text_or_json() -> None:
    values = {"t": "é {a}", "n": 2.5, "b": True, "l": [1, "x"], "o": {"k": None}, "z": 0, "e": ""}
    assert render_text("{t}|{n}|{b}|{l}|{o}|{z}|{e}", values) == 'é {a}|2.5|true|[1,"x"]|{"k":null}|0|'


def test_names_in_any_script_and_unusual_artifact_names() -> None:
    values = {"größe": "L", "user:名前": "Ada", "artifact.user:my plan (2).md": "walk", "artifact.é": "E"}
    assert render_text("{größe} {user:名前} {artifact.user:my plan (2).md}", values) == "L Ada walk"
    assert render_text("{artifact.e\u0301}", values) == "E", "a name means the same in both of its Unicode forms"


def test_names_are_listed_once_and_in_order() -> None:
    found = parse_template("{b} {user:a?} {artifact.p.md} {b?} {{c}} {artifact.p.md?}")
    assert found.keys == ("b", "user:a")
    assert found.artifacts == ("p.md",)


# -- missing values ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["b", "user:b", "app:b", "temp:b", "artifact.b.md"])
@pytest.mark.parametrize("values", [{}, {"b": None, "user:b": None}])
def test_a_missing_value_is_reported_with_its_agent(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(MissingState) as error:
        parse_template(f"so {{{name}}}").render(values, agent="helpful")
    assert (error.value.name, error.value.agent, error.value.code) == (name, "helpful", "missing_state")
    for told in (name.removeprefix(ARTIFACT), "'helpful'", f"{{{name}?}}"):
        assert told in str(error.value)
    assert isinstance(error.value, InvalidRequest)


def test_missing_values_are_empty_if_not_strict() -> None:
    assert parse_template("Hi {user:name}!{a}").render({"a": 1}, agent="x", strict=False) == "Hi !1"


# -- rules -----------------------------------------------------------------------------


@given(st.lists(JAGGED, min_size=5, max_size=5), JAGGED)
@example(["{b}", "{{", "}", "{a", "user:a}"], "{a}{user:a}{{app:a}")
def test_values_never_create_placeholders(values: list[str], text: str) -> None:
    """Rendering gives the same text as inserting the values after rendering with harmless marks."""
    marks = {name: f"\ue000{at}\ue001" for at, name in enumerate(VALUES)}
    given_values = dict(zip(VALUES, values, strict=True))
    with_marks = parse_template(text).render(marks, agent="x", strict=False)
    expected = re.sub("\ue000(.)\ue001", lambda found: values[int(found[1])], with_marks)
    assert parse_template(text).render(given_values, agent="x", strict=False) == expected


@given(JAGGED)
def test_a_text_with_doubled_braces_renders_to_itself(text: str) -> None:
    assert render_text(text.replace("{", "{{").replace("}", "}}")) == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="ab{}: é", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet="abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from([None, 1]))
def test_json_is_unchanged(value: Any, indent: int | None) -> None:
    """The strings have no braces, since these could be placeholders."""
    text = json.dumps(_remove_braces(value), indent=indent)
    assert render_text(text) == text


def _remove_braces(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("{", "").replace("}", "")
    if isinstance(value, dict):
        return {key: _remove_braces(one) for key, one in value.items()}
    return [_remove_braces(one) for one in value] if isinstance(value, list) else value


@given(JAGGED)
def test_text_without_placeholders_is_unchanged(text: str) -> None:
    assume("{{" not in text and "}}" not in text and not parse_template(text).places)
    assert render_text(text) == text
