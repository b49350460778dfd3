"""Each key of the configuration file refuses what the published schema forbids: `holdfast config show --schema`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.errors import ConfigError
from tests.behaviour.kit import read_schema
from tests.behaviour.kit.wrong_values import Schema, WrongValues

Part = str | int


HINTS = ("did you mean '", "known: ", "keys of ")
"""What an error about an unknown key ends with: the nearest key, or all keys of the section."""


class Key(NamedTuple):
    """A key of the file. Parts of its path are names, and 0 for the entry of a list."""

    path: tuple[Part, ...]
    schema: Schema

    @property
    def name(self) -> str:
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)[1:]

    @property
    def line(self) -> int:
        return sum(isinstance(part, str) for part in self.path)

    def write(self, value: object) -> str:
        """Return a file that has only this key. Each name has a line of its own."""
        text, indent = "", ""
        for part in self.path[:-1]:
            text += f"{indent}- " if part == 0 else f"{'' if text.endswith('- ') else indent}{part}:\n"
            indent += "  "
        return f"{text}{'' if text.endswith('- ') else indent}{self.path[-1]}: {json.dumps(value)}\n"


def list_keys(schema: Schema, document: Schema, path: tuple[Part, ...] = ()) -> Iterator[Key]:
    """Yield the keys below a schema. Entries with names of their own are called `x`."""
    if "$ref" in schema:
        schema = document["$defs"][schema["$ref"].rpartition("/")[2]]
    if len(path) > 6 or "variable" in str(schema.get("title")):
        return
    for name, inner in schema.get("properties", {}).items():
        yield Key((*path, name), inner)
        yield from list_keys(inner, document, (*path, name))
    if isinstance(entry := schema.get("additionalProperties"), dict) and entry:
        yield from list_keys(entry, document, (*path, "x"))
    if isinstance(item := schema.get("items"), dict) and "$ref" in item:
        yield from list_keys(item, document, (*path, 0))


@cache
def read_keys() -> tuple[WrongValues, list[Key]]:
    document = read_schema()
    return WrongValues(document), list(list_keys(document, document))


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a function that loads a text as a file, and returns its problems, without the name of the file."""
    file = tmp_path / "holdfast.yaml"

    def load(text: str) -> list[str]:
        file.write_text(text)
        try:
            holdfast.from_config(file, env={})
        except ConfigError as exc:
            return [line.removeprefix(f"{file}:") for line in str(exc).splitlines()]
        return []

    return load


def test_a_wrong_value_is_reported_with_its_line_and_key(load: Callable[[str], list[str]]) -> None:
    wrong, keys = read_keys()
    missed = []
    for key in keys:
        for value in wrong.list(key.schema):
            if key.path[-1] == "clear_tool_results" and value == {"no": 1}:
                continue  # see the next test
            problems = load(key.write(value))
            if not any(one.startswith(f"{key.line}: {key.name}") and len(one) > len(key.name) + 10 for one in problems):
                missed.append((key.name, value, problems))
    assert missed == []
    assert len(keys) > 150


@pytest.mark.xfail(strict=True, reason="the line is that of `context`")
def test_an_unknown_key_of_clear_tool_results_has_its_own_line(load: Callable[[str], list[str]]) -> None:
    (problem,) = load("context:\n  clear_tool_results:\n    keeep: 1\n")
    assert problem.startswith("3: context.clear_tool_results.keeep: unknown key")


def test_an_unknown_key_is_reported_with_its_nearest_neighbour(load: Callable[[str], list[str]]) -> None:
    missed = []
    for key in read_keys()[1]:
        wrong = Key((*key.path[:-1], f"{key.path[-1]}x"), {})
        problems = load(wrong.write(1))
        said = f"{wrong.line}: {wrong.name}: unknown key; "
        if not any(one.startswith(said) and any(word in one for word in HINTS) for one in problems):
            missed.append((wrong.name, problems))
    assert missed == []


def test_a_wrong_choice_is_answered_with_all_choices(load: Callable[[str], list[str]]) -> None:
    missed: list[Any] = []
    for key in read_keys()[1]:
        choices = [
            one
            for part in (key.schema, *key.schema.get("anyOf", ()))
            for one in part.get("enum", ())
            if isinstance(one, str)
        ]
        problems = load(key.write("no such value")) if choices else []
        missed += [(key.name, problems)] if any(one not in "\n".join(problems) for one in choices) else []
    assert missed == []
