"""Named statements of the SQL stores. They are compiled for a dialect when the first store of the dialect is opened.

The folder `statements` contains their texts, in a file for each subject: `-- name(parameters) --`, what the statement does, and its SQL.
Compiling selects the lines of the dialect, replaces each `:name` with the driver's placeholder, and each `{word}` with what the dialect
writes for it. Callers pass the values as a tuple in the order of the declared parameters.

A statement on one table has no SQL, but a line like `-- name(owner, start): delete records where place >= :start --`. Parameters that this line does
not mention are columns, which must have these values or get them, and their types are those of the table (`_derive`). A parameter `limit`
ends a selection. `select … locked` also makes a statement `name_locked`, with which writers read. `take` makes a statement `name_row`, since
an insertion returns no row in MySQL.

`-- first | second(…)` declares two statements: the second one has the opposite order, and for `{past}` it has `<` instead of `>`.

A line that begins with names of dialects, such as `[sqlite mysql]`, belongs only to the statement's text in these dialects.

A parameter may have a type, for the dialects that need one: int, float, bytes or text. A JSON array is one parameter: ints, texts, ids
(texts of up to 64 characters), names (texts in hexadecimal), hashes or places (bytes in hexadecimal). It follows IN, or = ANY where
PostgreSQL needs an array to use an index; and `EACH :ids AS wanted` is a table of its elements, in the column `value`.

`{name}` is replaced with the text of another statement, or with what a dialect writes for a join in this order (`{then}`), the use of an
index (`{use …}`, `{use_key}`), a lock (`{lock}`) and the type of whole numbers (`{int}`). `ON CONFLICT`, and "key" in double quotes, are
written as in SQLite and PostgreSQL. `holdfast.stores.logic.rows` decodes the columns of session_rows and entry_columns, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace as evolve

_HEADER: Final = re.compile(r"^-- (\w+)(?: \| (\w+))?(?:\(([^()]*)\))?(?:: (\w.*))? --$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
_LINE_OF: Final = re.compile(r"^\[([a-z ]+)\] ?(.*\n?)", re.MULTILINE)
_WORD: Final = re.compile(r"\{(\w+)(?: (\w+))?\}")
_PARAMETER: Final = re.compile(r"(?P<before>\bIN\s+|= ANY\s+|\bEACH\s+)?(?<!:):(?P<name>[a-z_][a-z_0-9]*)\b")
_UPSERT: Final = re.compile(r"ON CONFLICT \((\w+)[^)]*\) DO (?:NOTHING|UPDATE\s+SET (.*))$", re.DOTALL)
_EXCLUDED: Final = re.compile(r"\bexcluded\.(\w+)")
_QUOTED: Final = re.compile(r'"(\w+)"')
_TABLE: Final = re.compile(r"^CREATE TABLE (\w+) \(\n(.*?)^(?:\[[a-z ]+\] )?\)", re.MULTILINE | re.DOTALL)
_COLUMN: Final = re.compile(
    r'^(?:\[[a-z ]+\])? +("?(\w+)"?) +(SERIAL|INT|FLAG|FLOAT|WORD|ID|[A-Z]*B(?:LOB|INARY))\b', re.MULTILINE
)
_PRIMARY_KEY: Final = re.compile(r"PRIMARY KEY \((.*)\)|(\w+) +(?:SERIAL|[A-Z() 0-9]+ PRIMARY KEY)")
_PLAIN: Final = re.compile(
    r"(insert|add|put|take|update|delete|select)(?: (.*) from)? (\w+)( locked)?((?: AS \w+)?(?: \{use \w+\})?)"
    r"(?: set (.*?))?(?: where (.*?))?( ORDER BY .*)?"
)
_MENTIONED: Final = re.compile(r"(?<!:):(\w+)")
_ORDER: Final = re.compile(r"(?<=ORDER BY )(?:[\w.]+, )*[\w.]+")
_PARAMETER_TYPES: Final = {**dict.fromkeys(("SERIAL", "INT", "FLAG"), "int"), "FLOAT": "float", "WORD": "text"}
_COLUMNS: Final = {
    "ints": "BIGINT",
    "texts": "VARCHAR(1024)",
    "ids": "VARCHAR(64)",
    "names": "VARCHAR(2048)",
    "hashes": "VARCHAR(64)",
    "places": "VARCHAR(2200)",
}
"""Types of parameters that are passed as JSON arrays, with the column of an element for MySQL."""


class Dialect(msgspec.Struct, frozen=True):
    """The syntax of a dialect, where it differs between dialects."""

    placeholder: str
    """Format of a placeholder. Here `{}` is the number of the parameter."""
    each: str
    """The table of a JSON array's elements, in its column `value`. `{}` is the placeholder, `{column}` the type of an element."""
    items: Mapping[str, str]
    """Expression that reads an element from `value`, by declared type of the parameter. Types that are missing here need no conversion."""
    words: Mapping[str, str]
    """Text of the dialect for `{word}`; `{}` in it is the argument, as in `{use name_of_index}`."""
    types: Mapping[str, str] = {}
    """Casts by declared type of the parameter; `{}` is its placeholder. Types that are missing here need no cast."""
    has_arrays: bool = False
    """True if `= ANY` is followed by an array; otherwise it is written as IN."""
    on_duplicate_key: bool = False
    """True for the syntax of MySQL: upserts are `ON DUPLICATE KEY UPDATE`, and identifiers are quoted with backticks."""


DIALECTS: Final[Mapping[str, Dialect]] = {
    "sqlite": Dialect(
        placeholder="?{}",
        each="json_each({})",
        items={"names": "CAST(unhex(value) AS TEXT)", "hashes": "unhex(value)", "places": "unhex(value)"},
        words={"then": "CROSS JOIN", "use": "INDEXED BY {}", "use_key": "", "lock": "", "int": "INTEGER"},
    ),
    "postgres": Dialect(
        placeholder="${}",
        each="json_array_elements_text(convert_from({}, 'UTF8')::json)",
        items={
            "ints": "value::bigint",
            **dict.fromkeys(("texts", "ids"), "convert_to(value, 'UTF8')"),
            **dict.fromkeys(("names", "hashes", "places"), "decode(value, 'hex')"),
        },
        words={"then": "JOIN", "use": "", "use_key": "", "lock": "FOR NO KEY UPDATE", "int": "bigint"},
        types={
            "int": "{}::bigint",
            "float": "{}::float8",
            "bytes": "{}::bytea",
            "text": "convert_from({}::bytea, 'UTF8')",
            **dict.fromkeys(_COLUMNS, "{}::bytea"),
        },
        has_arrays=True,
    ),
    "mysql": Dialect(
        placeholder="?{}",
        each="JSON_TABLE(CONVERT({} USING utf8mb4), '$[*]' COLUMNS (value {column} PATH '$'))",
        items={
            **dict.fromkeys(("texts", "ids"), "CAST(value AS BINARY)"),
            **dict.fromkeys(("names", "hashes", "places"), "UNHEX(value)"),
        },
        words={
            "then": "STRAIGHT_JOIN",
            "use": "FORCE INDEX ({})",
            "use_key": "FORCE INDEX (PRIMARY)",
            "lock": "FOR UPDATE",
            "int": "SIGNED",
        },
        on_duplicate_key=True,
    ),
}


class Declaration(msgspec.Struct, frozen=True):
    """A statement as declared in a file, before it is compiled."""

    parameters: Mapping[str, str]
    """Type of each parameter by name, in order; empty if no type is declared."""
    text: str
    """The SQL text in all dialects."""


class Table(msgspec.Struct, frozen=True):
    """A table as the first migration declares it."""

    columns: Mapping[str, tuple[str, str]] = {}
    """By name: the column as SQL writes it, and the type of a parameter with its value."""
    key: Sequence[str] = ()
    """Columns of the primary key."""


@cache
def _read_declarations() -> Mapping[str, Declaration]:
    declared = {}
    for file in sorted((Path(__file__).parent / "statements").glob("*.sql")):
        parts = _HEADER.split(file.read_text("utf-8"))[1:]
        for name, second, signature, plain, body in zip(*(parts[at::5] for at in range(5)), strict=True):
            parameters = _parse_parameters(signature or "")
            one = Declaration(parameters, _COMMENT.sub("", body).strip())
            if plain is not None:
                found = _PLAIN.fullmatch(plain)
                assert found is not None, plain
                one = _derive(found, found[1], parameters)
                if found[1] == "take":
                    row = _derive(found, "select", parameters)
                    declared[f"{name}_row"] = evolve(row, text=f"[mysql] {row.text} {{lock}}")
                if found[4]:
                    declared[f"{name}_locked"] = evolve(one, text=f"[postgres mysql] {one.text} {{lock}}")
            declared[name] = evolve(one, text=one.text.replace("{past}", ">"))
            if second:
                declared[second] = evolve(one, text=_ORDER.sub(_reverse_order, one.text).replace("{past}", "<"))
    return declared


def _reverse_order(found: re.Match[str]) -> str:
    return ", ".join(f"{column} DESC" for column in found[0].split(", "))


def get_parameters(name: str) -> Sequence[str]:
    """Return the parameters of a statement, in order."""
    return tuple(_read_declarations()[name].parameters)


@cache
def get_view_columns(name: str) -> Sequence[str]:
    """Return the columns of a view, in order."""
    _, _, columns = _read_baseline().partition(f"CREATE {{view}} {name} AS\nSELECT ")
    return [column.rpartition(".")[2] for column in columns.partition("\nFROM ")[0].replace("\n", " ").split(", ")]


@cache
def _read_baseline() -> str:
    return (Path(__file__).parent / "migrations" / "0001_baseline.sql").read_text("utf-8")


@cache
def _read_tables() -> Mapping[str, Table]:
    return {name: _read_table(body) for name, body in _TABLE.findall(_read_baseline())}


def _read_table(body: str) -> Table:
    columns = {name: (quoted, _PARAMETER_TYPES.get(kind, "bytes")) for quoted, name, kind in _COLUMN.findall(body)}
    names, name = _PRIMARY_KEY.findall(body)[-1]
    return Table(columns, names.replace('"', "").split(", ") if names else [name])


def _derive(line: re.Match[str], verb: str, parameters: Mapping[str, str]) -> Declaration:
    """Return a statement on one table.

    Args:
        line: what `_PLAIN` found in the statement's first line.
        verb: `insert`; `add`, which keeps a row with the same primary key, and `put`, which replaces it; `take`, which inserts a row, or
            locks the one that has these values, and returns it; `update`, of the row with the primary key; `delete` and `select`, of all
            rows with these values.
        parameters: declared types by parameter.
    """
    _, wanted, name, _, hint, changed, condition, order = line.groups()
    table = _read_tables().get(name, Table())
    mentioned = {*_MENTIONED.findall(line[0]), "limit"}
    columns = {one: table.columns.get(one, (one, "")) for one in parameters if one not in mentioned}
    same = {one: f"{column} = :{one}" for one, (column, _) in columns.items()}
    where = [text for one, text in same.items() if verb != "update" or one in table.key]
    wheres = " AND ".join([*where, *([condition] if condition else [])])
    where_text = f" WHERE {wheres}" if wheres else ""
    others = [one for one in columns if one not in table.key]
    changes = ", ".join([*(same[one] for one in others), *([changed] if changed else [])])
    new = f"INSERT INTO {name} ({', '.join(column for column, _ in columns.values())})\nVALUES (:{', :'.join(columns)})"
    replaced = ", ".join(f"{columns[one][0]} = excluded.{columns[one][0]}" for one in others)
    last = (wanted or "").rpartition(", ")[2]
    conflict = f"ON CONFLICT ({', '.join(table.columns[one][0] for one in table.key)}) DO"
    most = " LIMIT :limit" if "limit" in parameters else ""
    text = {
        "insert": new,
        "add": f"{new}\n{conflict} NOTHING",
        "put": f"{new}\n{conflict} UPDATE SET {replaced}",
        "take": f"{new}\nON CONFLICT ({', '.join(columns)}) DO UPDATE SET {last} = {name}.{last}\n[sqlite postgres] RETURNING {wanted}",
        "update": f"UPDATE {name} SET {changes}{where_text}",  # noqa: S608  # our own names, here and below
        "delete": f"DELETE FROM {name}{where_text}",  # noqa: S608
        "select": f"SELECT {wanted} FROM {name}{hint}{where_text}{order or ''}{most}",  # noqa: S608
    }[verb]
    types = {one: kind or columns.get(one, ("", ""))[1] for one, kind in parameters.items()}
    return Declaration(types, text)


def _parse_parameters(signature: str) -> dict[str, str]:
    pairs = (part.split() for part in signature.split(",") if part.strip())
    return {name: kind[0] if kind else "" for name, *kind in pairs}


@cache
def load_statements(name: str) -> Mapping[str, str]:
    """Return the compiled statements of a dialect, by name."""
    declared, dialect = _read_declarations(), DIALECTS[name]
    texts = {statement: select_lines(one.text, name) for statement, one in declared.items()}
    parts = {found[1] for text in texts.values() for found in _WORD.finditer(text)}
    return {
        statement: _compile(dialect, _expand(dialect, text, texts), declared[statement].parameters)
        for statement, text in texts.items()
        if text and statement not in parts
    }


def compile_part(name: str, part: str, *, first: int) -> str:
    """Return the text of a part of statements in a dialect. Its parameters are numbered from `first`."""
    one = _read_declarations()[part]
    parameters = {**{str(at): "" for at in range(1, first)}, **one.parameters}
    texts = {statement: select_lines(other.text, name) for statement, other in _read_declarations().items()}
    return _compile(DIALECTS[name], _expand(DIALECTS[name], texts[part], texts), parameters)


def select_lines(text: str, dialect: str) -> str:
    """Return the lines of a text that belong to a dialect: those without names of dialects in brackets, and those with its name."""
    return _LINE_OF.sub(lambda found: found[2] if dialect in found[1].split() else "", text).strip()


def _expand(dialect: Dialect, text: str, texts: Mapping[str, str]) -> str:
    """Replace each `{name}` in a text with the dialect's word, or with the text of the statement with that name, which may contain others."""

    def fill(found: re.Match[str]) -> str:
        if found[1] in dialect.words:
            return dialect.words[found[1]].format(found[2])
        return _expand(dialect, texts[found[1]], texts)

    return _WORD.sub(fill, text)


def _compile(dialect: Dialect, text: str, parameters: Mapping[str, str]) -> str:
    names: Sequence[str] = list(parameters)

    def fill(found: re.Match[str]) -> str:
        kind, before = parameters[found["name"]], (found["before"] or "").strip()
        placeholder = dialect.placeholder.format(names.index(found["name"]) + 1)
        if before and kind in _COLUMNS:
            elements = dialect.each.format(placeholder, column=_COLUMNS[kind])
            if before == "EACH":
                return elements
            rows = f"(SELECT {dialect.items.get(kind, 'value')} FROM {elements} AS found)"  # noqa: S608  # ours
            return f"= ANY (ARRAY{rows})" if before == "= ANY" and dialect.has_arrays else f"IN {rows}"
        return (found["before"] or "") + dialect.types.get(kind, "{}").format(placeholder)

    compiled = _PARAMETER.sub(fill, text)
    if not dialect.on_duplicate_key:
        return compiled
    return _UPSERT.sub(_rewrite_upsert, _QUOTED.sub(r"`\1`", compiled))


def _rewrite_upsert(found: re.Match[str]) -> str:
    changes = _EXCLUDED.sub(r"VALUES(\1)", found[2]) if found[2] else f"{found[1]} = {found[1]}"
    return f"ON DUPLICATE KEY UPDATE {changes}"
