"""Named statements of the SQL stores. They are compiled for a dialect when the first store of the dialect is opened.

`common.sql` declares every statement with its named parameters, and contains the text of statements that at least two dialects
share. A dialect's `overrides.sql` contains the text of its other statements. Compiling replaces each `:name` with the driver's
placeholder. Callers pass the values as a tuple in the order of the declared parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

_HEADER: Final = re.compile(r"^-- (\w+)(?:\((.*)\))? --$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
_FRAGMENT: Final = re.compile(r"\{(\w+)\}")
_PARAMETER: Final = re.compile(r"(?P<listed>\bIN\s+|\bARRAY)?(?<!:):(?P<name>[a-z_][a-z_0-9]*)\b")
_UPSERT: Final = re.compile(r"ON CONFLICT \((\w+)[^)]*\) DO (?:NOTHING|UPDATE\s+SET (.*))$", re.DOTALL)
_EXCLUDED: Final = re.compile(r"\bexcluded\.(\w+)")
LISTS: Final = frozenset({"ints", "texts", "names", "hashes", "places"})
"""Types of parameters that are passed as JSON arrays."""


class Dialect(msgspec.Struct, frozen=True):
    """The syntax of a dialect, where it differs between dialects. In the texts, `{}` is a parameter's placeholder."""

    placeholder: str
    """Format of a placeholder. Here `{}` is the number of the parameter."""
    types: Mapping[str, str] = {}
    """Casts by declared type of the parameter. Types that are missing here need no cast."""
    lists: Mapping[str, str] = {}
    """The expression after IN or ARRAY, by declared type of the parameter."""
    on_duplicate_key: bool = False
    """True if upserts use the MySQL syntax, `ON DUPLICATE KEY UPDATE`."""


def _format_json_table(column: str, value: str = "one") -> str:
    columns = f"COLUMNS (one {column} PATH '$')"
    return f"(SELECT {value} FROM JSON_TABLE(CONVERT({{}} USING utf8mb4), '$[*]' {columns}) AS found)"  # noqa: S608  # ours


_ELEMENTS: Final = "FROM json_array_elements_text(convert_from({}, 'UTF8')::json) AS value)"
DIALECTS: Final[Mapping[str, Dialect]] = {
    "sqlite": Dialect(
        placeholder="?{}",
        lists={
            "ints": "(SELECT value FROM json_each({}))",
            "texts": "(SELECT value FROM json_each({}))",
            "names": "(SELECT CAST(unhex(value) AS TEXT) FROM json_each({}))",
            "hashes": "(SELECT unhex(value) FROM json_each({}))",
            "places": "(SELECT unhex(value) FROM json_each({}))",
        },
    ),
    "postgres": Dialect(
        placeholder="${}",
        types={
            "int": "{}::bigint",
            "float": "{}::float8",
            "bytes": "{}::bytea",
            "text": "convert_from({}::bytea, 'UTF8')",
            **dict.fromkeys(LISTS, "{}::bytea"),
        },
        lists={
            "ints": f"(SELECT value::bigint {_ELEMENTS}",
            "texts": f"(SELECT convert_to(value, 'UTF8') {_ELEMENTS}",
            "names": f"(SELECT decode(value, 'hex') {_ELEMENTS}",
            "hashes": f"(SELECT decode(value, 'hex') {_ELEMENTS}",
            "places": f"(SELECT decode(value, 'hex') {_ELEMENTS}",
        },
    ),
    "mysql": Dialect(
        placeholder="?{}",
        lists={
            "ints": _format_json_table("BIGINT"),
            "texts": _format_json_table("VARCHAR(1024)", "CAST(one AS BINARY)"),
            "names": _format_json_table("VARCHAR(2048)", "UNHEX(one)"),
            "hashes": _format_json_table("VARCHAR(64)", "UNHEX(one)"),
            "places": _format_json_table("VARCHAR(2200)", "UNHEX(one)"),
        },
        on_duplicate_key=True,
    ),
}


class Declaration(msgspec.Struct, frozen=True):
    """A statement as declared in a file, before it is compiled."""

    parameters: Mapping[str, str]
    """Type of each parameter by name, in order; empty if no type is declared."""
    text: str
    """The SQL text; empty if each dialect has its own text."""


@cache
def read_declarations(file: str) -> Mapping[str, Declaration]:
    """Return the statements that a file in this folder declares, by name."""
    parts = _HEADER.split((Path(__file__).parent / file).read_text("utf-8"))[1:]
    return {
        name: Declaration(_parse_parameters(signature or ""), _COMMENT.sub("", body).strip())
        for name, signature, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def _parse_parameters(signature: str) -> dict[str, str]:
    pairs = (part.split() for part in signature.split(",") if part.strip())
    return {name: kind[0] if kind else "" for name, *kind in pairs}


@cache
def load_statements(dialect: str) -> Mapping[str, str]:
    """Return the compiled statements of a dialect, by name."""
    common, own = read_declarations("common.sql"), read_declarations(f"{dialect}/overrides.sql")
    texts = {name: one.text for name, one in (*common.items(), *own.items()) if one.text}
    parameters = {name: one.parameters for name, one in (*own.items(), *common.items())}
    parts = {part for text in texts.values() for part in _FRAGMENT.findall(text)}
    return {
        name: _compile(DIALECTS[dialect], _expand(text, texts), parameters[name])
        for name, text in texts.items()
        if name not in parts
    }


def _expand(text: str, texts: Mapping[str, str]) -> str:
    """Replace each `{name}` in a text with the text of the statement with that name, which may contain others."""
    return _FRAGMENT.sub(lambda found: _expand(texts[found[1]], texts), text)


def _compile(dialect: Dialect, text: str, parameters: Mapping[str, str]) -> str:
    names: Sequence[str] = list(parameters)

    def fill(found: re.Match[str]) -> str:
        kind = parameters[found["name"]]
        placeholder = dialect.placeholder.format(names.index(found["name"]) + 1)
        if found["listed"] and kind in LISTS:
            return found["listed"] + dialect.lists[kind].format(placeholder)
        return (found["listed"] or "") + dialect.types.get(kind, "{}").format(placeholder)

    compiled = _PARAMETER.sub(fill, text)
    return _UPSERT.sub(_rewrite_upsert, compiled) if dialect.on_duplicate_key else compiled


def _rewrite_upsert(found: re.Match[str]) -> str:
    changes = _EXCLUDED.sub(r"VALUES(\1)", found[2]) if found[2] else f"{found[1]} = {found[1]}"
    return f"ON DUPLICATE KEY UPDATE {changes}"
