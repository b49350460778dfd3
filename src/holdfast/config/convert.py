"""From the tree to the typed model: every value checked against its type, every mistake told with its place."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
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
    """Converts one document; keeps the lines of what was given.

    What is wrong is left out: the rest is converted all the same, so that every mistake is found at once.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._base: ContextSettings | None = ContextSettings()
        self.lines: dict[str, int] = {}
        """Of the keys that were given, by their paths in the model and as they are spelt; 0: not in the file."""

    def settings(self, cls: type[Settings], node: Node, at: Place) -> Any:
        """An instance of `cls`, as far as it is right; FAILED where it is no mapping at all."""
        if not isinstance(node, Section):
            return self._wrong(node, at, "a mapping")
        fields = fields_of(cls)
        given = self._given(cls, node, at)
        values: dict[str, Any] = {}
        wrong: set[str] = set()
        # In the model's order: the top-level `context` before the agents that build on it.
        for name in (name for name in fields if name in given):
            before = len(self._problems)
            line, child = given[name]
            value = self._value(child, fields[name].type, at.inner(line, name))
            if value is not FAILED:
                values[name] = value
            if value is FAILED or len(self._problems) > before:
                wrong.add(name)
        for name in (name for name, field in fields.items() if field.required and name not in given):
            self._problems.add(at.line, at.inner(0, name).path, "missing")
            wrong.add(name)
        return self._made(cls, values, wrong, given, at)

    def _given(self, cls: type[Settings], node: Section, at: Place) -> dict[str, tuple[int, Node]]:
        """The values by the model's names, with the line they were given at; empty ones are as if not given."""
        fields = fields_of(cls)
        given: dict[str, tuple[int, Node]] = {}
        spelt: dict[str, str] = {}
        for key, (line, child) in node.entries.items():
            name = cls.ALIASES.get(key, key)
            here = at.inner(line, name)
            if key in cls.IGNORED:
                self._problems.ignored.append((line, at.inner(line, key).path, cls.IGNORED[key]))
            elif name not in fields:
                self._problems.add(line, here.path, unknown(key, list(fields)))
            elif name in given:
                message = f"the same as {spelt[name]!r} in line {given[name][0]}"
                self._problems.add(line, at.inner(line, key).path, message)
            elif not _empty(child, fields[name]):
                given[name], spelt[name] = (line, child), key
                if key != name:
                    self._problems.written[here.path] = self._problems.spelt(at.inner(line, key).path)
                self.lines[self._problems.spelt(here.path)] = self.lines[here.path] = line
        return given

    def _made(
        self, cls: type[Settings], values: dict[str, Any], wrong: set[str], given: Mapping[str, Any], at: Place
    ) -> Any:
        """An instance, and what is wrong with values that are right one by one."""
        info = fields_of(cls)
        needed = {name: _samples(info[name].type)[0] for name in info if info[name].required and name not in values}
        made = cls(**values, **needed)
        mistakes = [(key, message) for key, message in made.mistakes() if key.partition(".")[0] not in wrong]
        if mistakes:
            # What is told of a value that was wrong itself may be its want only: it has to hold whatever it had been.
            others = [cls(**{**values, **needed, name: one}) for name in wrong for one in _samples(info[name].type)]
            known = [set(other.mistakes()) for other in others]
            mistakes = [mistake for mistake in mistakes if all(mistake in told for told in known)]
        for key, message in mistakes:
            path = at.inner(0, key).path
            line = self.lines.get(path, given.get(key.partition(".")[0], (at.line,))[0])
            self._problems.add(line, path, message)
        return made

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
            self.lines[here.path] = self.lines[self._problems.spelt(here.path)] = line
            if not name or not name.isprintable():
                self._problems.add(line, here.path, "a name must be one or more printable characters")
            empty = isinstance(child, Scalar) and child.kind == "null" and isinstance(info, inspect.StructType)
            # `assistant:` with nothing after it is an agent with nothing but defaults.
            value = self._value(Section(line, {}) if empty and not _broken(child) else child, info, here)
            if value is FAILED and isinstance(info, inspect.StructType):
                # Its name is known, so whoever refers to it is not wrong.
                value = next(iter(_samples(info)), FAILED)
            if value is not FAILED:
                values[name] = value
        return values

    def _list(self, node: Node, info: inspect.Type, at: Place) -> Any:
        if not isinstance(node, Listing):
            return self._wrong(node, at, "a list")
        items = [
            self._value(item, info, Place(item.line, f"{at.path}[{index}]")) for index, item in enumerate(node.items)
        ]
        return tuple(item for item in items if item is not FAILED)

    def _context(self, node: Node, at: Place) -> Any:
        if not isinstance(node, Section):
            return self._wrong(node, at, "a mapping with `strategy` and its keys")
        sound = {key: child for key, (_, child) in node.entries.items() if not _broken(child)}
        given = {key: _option(child, key) for key, child in sound.items()}
        for key, (line, _) in node.entries.items():
            here = at.inner(line, key)
            self.lines[here.path] = self.lines[self._problems.spelt(here.path)] = line
        if self._base is None and "strategy" not in given:
            return FAILED  # what the keys belong to is not known, and that is told
        found, problems = settings.examine(given, base=self._base)
        broken = node.entries.keys() - sound.keys()
        for key, message in problems:
            if key == "target" and "threshold" in broken:
                continue  # compared with what it was not meant to be compared with
            line = node.entries[key][0] if key in node.entries else at.line
            self._problems.add(line, at.inner(line, key).path if key else at.path, message)
        if at.path == "context":
            self._base = None if "strategy" in {*broken, *(problem.key for problem in problems)} else found
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


def _option(node: Node, key: str) -> Any:
    """A key of a strategy as plain data. What a variable holds and cannot be right is as written: it is going to be told."""
    if isinstance(node, Section):
        return {name: _option(child, name) for name, (_, child) in node.entries.items()}
    if not isinstance(node, Scalar) or not node.variables:
        return plain(node)
    if key in _TEXT_KEYS and (key != "strategy" or node.text in settings.STRATEGIES):
        return node.text
    return node.written if not node.loose or kind_of(node.text) == "string" else plain(node)


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
    if value is None or not -math.inf < value < math.inf:  # an integer may be too large for a float
        return FAILED
    low, high = info.ge, info.le
    return value if (low is None or value >= low) and (high is None or value <= high) else FAILED


def _samples(info: inspect.Type) -> list[Any]:  # noqa: PLR0911 - one return a type
    """Values that a key of that type may have: all, where they are few, else one."""
    info, form = form_of(info)
    match info:
        case inspect.LiteralType(values=values):
            return list(values)
        case inspect.BoolType():
            return [False, True]
        case inspect.IntType() | inspect.FloatType():
            return [info.ge or 0]
        case inspect.StrType():
            return ["https://x" if form == "url" else "x"]
        case inspect.VarTupleType():
            return [(), *((one,) for one in _samples(info.item_type)[:1])]
        case inspect.StructType(cls=cls):
            return [cls()] if not any(field.required for field in fields_of(cls).values()) else []
        case _:
            return [{}]


def validated(document: Section, cls: type[Settings], problems: Problems) -> tuple[Any, dict[str, int]]:
    """An instance of `cls` (what is right of it, if there are problems) and the lines of the keys that were given."""
    converter = Converter(problems)
    value = converter.settings(cls, document, Place(document.line, ""))
    return value, converter.lines
