"""Templates: placeholders, other text, and values that never create placeholders."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.domain.templates import parse_template

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


# -- missing values ---------------------------------------------------------------------


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
