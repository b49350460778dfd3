"""From the tree to the typed model: every value checked against its type, every mistake told with its place."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from msgspec import inspect

from holdfast.config.document import Listing, Node, Problems, Scalar, Section, kind_of, plain
from holdfast.config.gateway import Timeouts
from holdfast.config.kinds import Settings
from holdfast.config.values import format_duration, format_size, parse_duration, parse_size
from holdfast.context import settings
from holdfast.context.settings import ContextSettings

FAILED: Final[Any] = object()
"""Stands for a value whose mistake is told; never leaves this file."""

_TEXT_KEYS: Final = {"strategy"} | {
    name for strategy in settings.STRATEGIES.values() for name, key in strategy.keys.items() if key.kind == "text"
}


class Place(NamedTuple):
    """Where a value stands."""

    line: int
    path: str

    def inner(self, line: int, name: str) -> Place:
        return Place(line, f"{self.path}.{name}" if self.path else name)


@cache
def fields_of(cls: type[Settings]) -> dict[str, inspect.Field]:
    """The keys of a mapping, by name."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


def form_of(info: inspect.Type) -> tuple[inspect.Type, str | None]:
    """The type itself, without `| None`, and the form that it is written in, if that is one of ours."""
    if isinstance(info, inspect.UnionType):
        return form_of(next(member for member in info.types if not isinstance(member, inspect.NoneType)))
    if isinstance(info, inspect.Metadata):
        return info.type, (info.extra or {}).get("form")
    return info, None


def nearest(name: str, known: list[str]) -> str | None:
    """The known name that was probably meant, whatever its case and dashes."""
    plainly = {item.replace("_", "").lower(): item for item in known}
    near = difflib.get_close_matches(name.replace("_", "").replace("-", "").lower(), plainly, n=1)
    return plainly[near[0]] if near else None


def unknown(name: str, known: list[str]) -> str:
    """What to say of a key that is none."""
    near = nearest(name, known)
    return f"unknown key; did you mean {near!r}?" if near else f"unknown key; known: {', '.join(known)}"


class Converter:
    """Converts one document; keeps the lines of what was given."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._base = ContextSettings()
        self.lines: dict[str, int] = {}

    def settings(self, cls: type[Settings], node: Node, at: Place) -> Any:
        """An instance of `cls`, or FAILED."""
        if not isinstance(node, Section):
            return self._wrong(node, at, "a mapping")
        fields = fields_of(cls)
        given = self._given(cls, node, at)
        # In the model's order: the top-level `context` before the agents that build on it.
        values = {
            name: self._value(child, fields[name].type, at.inner(line, key))
            for name in fields
            if name in given
            for key, line, child in [given[name]]
        }
        missing = [name for name, field in fields.items() if field.required and name not in values]
        for name in missing:
            self._problems.add(at.line, at.inner(0, name).path, "missing")
        if missing or FAILED in values.values():
            return FAILED
        return self._checked(cls(**values), given, at)

    def _given(self, cls: type[Settings], node: Section, at: Place) -> dict[str, tuple[str, int, Node]]:
        """The values by the model's names, with the key and line they were given at; empty ones are as if not given."""
        fields = fields_of(cls)
        given: dict[str, tuple[str, int, Node]] = {}
        for key, (line, child) in node.entries.items():
            here = at.inner(line, key)
            name = cls.ALIASES.get(key, key)
            if name not in fields:
                self._problems.add(line, here.path, unknown(key, list(fields)))
            elif name in given:
                self._problems.add(line, here.path, f"the same as {given[name][0]!r} in line {given[name][1]}")
            elif not _empty(child, fields[name]):
                given[name] = (key, line, child)
                self.lines[here.path] = line
        return given

    def _checked(self, value: Settings, given: dict[str, tuple[str, int, Node]], at: Place) -> Any:
        mistakes = value.mistakes()
        for key, message in mistakes:
            name, _, rest = key.partition(".")
            written, line, _ = given.get(name, (name, at.line, None))
            here = at.inner(line, f"{written}.{rest}" if rest else written)
            self._problems.add(self.lines.get(here.path, line), here.path, message)
        return FAILED if mistakes else value

    # -- values ------------------------------------------------------------------

    def _value(self, node: Node, info: inspect.Type, at: Place) -> Any:  # noqa: PLR0911 - one return a type
        """Any value of the model."""
        info, form = form_of(info)
        if isinstance(node, Scalar) and node.broken:
            return FAILED
        match info:
            case inspect.StructType(cls=cls) if cls is ContextSettings:
                return self._context(node, at)
            case inspect.StructType(cls=cls) if cls is Timeouts and isinstance(node, Scalar):
                total = self._value(node, fields_of(Timeouts)["total"].type, at)
                return FAILED if total is FAILED else Timeouts(total=total)
            case inspect.StructType(cls=cls) if issubclass(cls, Settings):
                return self.settings(cls, node, at)
            case inspect.DictType():
                return self._mapping(node, info.value_type, at)
            case inspect.VarTupleType():
                alone = form == "names" and isinstance(node, Scalar)
                return self._list(Listing(at.line, (node,)) if alone else node, info.item_type, at)
            case inspect.AnyType():
                return plain(node)
            case _:
                return self._scalar(node, info, form, at)

    def _mapping(self, node: Node, info: inspect.Type, at: Place) -> Any:
        if not isinstance(node, Section):
            return self._wrong(node, at, "a mapping")
        values = {}
        for name, (line, child) in node.entries.items():
            here = at.inner(line, name)
            self.lines[here.path] = line
            if not name or not name.isprintable():
                self._problems.add(line, here.path, "a name must be one or more printable characters")
            empty = isinstance(child, Scalar) and child.kind == "null" and isinstance(info, inspect.StructType)
            # `assistant:` with nothing after it is an agent with nothing but defaults.
            values[name] = self._value(Section(line, {}) if empty and not _broken(child) else child, info, here)
        return FAILED if FAILED in values.values() else values

    def _list(self, node: Node, info: inspect.Type, at: Place) -> Any:
        if not isinstance(node, Listing):
            return self._wrong(node, at, "a list")
        items = [
            self._value(item, info, Place(item.line, f"{at.path}[{index}]")) for index, item in enumerate(node.items)
        ]
        return FAILED if FAILED in items else tuple(items)

    def _context(self, node: Node, at: Place) -> Any:
        if not isinstance(node, Section):
            return self._wrong(node, at, "a mapping with `strategy` and its keys")
        sound = {key: child for key, (_, child) in node.entries.items() if not _broken(child)}
        given = {
            key: child.text if key in _TEXT_KEYS and isinstance(child, Scalar) and child.loose else plain(child)
            for key, child in sound.items()
        }
        found, problems = settings.examine(given, base=self._base)
        for key, (line, _) in node.entries.items():
            self.lines[at.inner(line, key).path] = line
        for key, message in problems:
            line = node.entries[key][0] if key in node.entries else at.line
            self._problems.add(line, at.inner(line, key).path if key else at.path, message)
        if problems or len(sound) < len(node.entries):
            return FAILED
        if at.path == "context":
            self._base = found
        return found

    def _scalar(self, node: Node, info: inspect.Type, form: str | None, at: Place) -> Any:
        expected, read = _reader(info, form)
        if isinstance(node, Scalar):
            value = read(node)
            if value is not FAILED:
                return value
            if isinstance(info, inspect.StrType) and node.kind != "string":
                expected = "a string (put it in quotes)"
        return self._wrong(node, at, expected, secret=form in {"secret", "url"})

    def _wrong(self, node: Node, at: Place, expected: str, *, secret: bool = False) -> Any:
        if not _broken(node):
            self._problems.add(at.line, at.path, f"expected {expected}, got {_shown(node, secret=secret)}")
        return FAILED


def _broken(node: Node) -> bool:
    return isinstance(node, Scalar) and node.broken


def _empty(node: Node, field: inspect.Field) -> bool:
    """Whether a key counts as not given: nothing after it, or a variable that is empty where the key may be unset."""
    if not isinstance(node, Scalar) or node.broken:
        return False
    return node.kind == "null" or (node.loose and node.text == "" and not field.required and field.default is None)


def _shown(node: Node, *, secret: bool) -> str:
    match node:
        case Section():
            return "a mapping"
        case Listing():
            return "a list"
        case Scalar(kind="null"):
            return "nothing"
        case Scalar(kind=kind) if secret:
            return f"{'an' if kind == 'integer' else 'a'} {kind}"
        case Scalar(kind="string", written=written):
            return repr(written if len(written) <= 60 else written[:57] + "…")
        case Scalar(written=written):
            return written[:60]


# -- scalars -----------------------------------------------------------------------


def _reader(info: inspect.Type, form: str | None) -> tuple[str, Callable[[Scalar], Any]]:  # noqa: PLR0911 - one return a type
    """What is expected, in words, and the function that reads it; that one returns FAILED when it is not there."""
    match info:
        case inspect.LiteralType(values=values):
            # By the text: `off` and `none` are names here, not truth values.
            names = [str(value) for value in values]
            return f"one of {', '.join(names)}", lambda node: node.text if node.text in names else FAILED
        case inspect.BoolType():
            return "true or false", lambda node: node.text.lower() == "true" if _is(node, "boolean") else FAILED
        case inspect.FloatType() if form == "duration":
            low, high = format_duration(info.ge or 0), format_duration(info.le or 0)
            words = f"a duration from {low} to {high}, like 24h, 1h30m, 90s or a number of seconds"
            return words, lambda node: _ranged(parse_duration(node.text), info)
        case inspect.IntType() if form == "size":
            low, high = format_size(info.ge or 0), format_size(info.le or 0)
            words = f"a size from {low} to {high}, like 32MiB or a number of bytes"
            return words, lambda node: _ranged(parse_size(node.text), info)
        case inspect.IntType():
            words = f"an integer from {info.ge} to {info.le}"
            return words, lambda node: _ranged(int(node.text), info) if _is(node, "integer") else FAILED
        case inspect.FloatType():
            words = f"a number from {info.ge:g} to {info.le:g}"
            return words, lambda node: _ranged(float(node.text), info) if _is(node, "integer", "number") else FAILED
        case inspect.StrType():
            least = info.min_length or 0
            words = "a string that is not empty" if least else "a string"
            return words, lambda node: node.text if node.kind == "string" and len(node.text) >= least else FAILED
    raise TypeError(f"the model has a type that cannot be read: {info}")


def _is(node: Scalar, *kinds: str) -> bool:
    """Whether it is of that kind by its text; quotes make it a string, unless it is wholly a variable."""
    return (node.loose or node.kind in kinds) and kind_of(node.text) in kinds


def _ranged(value: float | None, info: inspect.FloatType | inspect.IntType) -> Any:
    if value is None or not math.isfinite(value):
        return FAILED
    low, high = info.ge, info.le
    return value if (low is None or value >= low) and (high is None or value <= high) else FAILED


def validated(document: Section, cls: type[Settings], problems: Problems) -> tuple[Any, dict[str, int]]:
    """An instance of `cls` (anything, if there are problems) and the lines of the keys that were given."""
    converter = Converter(problems)
    value = converter.settings(cls, document, Place(document.line, ""))
    return value, converter.lines
