"""Convert a parsed file to the classes of `config.model`: check every value against its type, and report every mistake with its place."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from msgspec import inspect

from holdfast.config.yaml_tree import (
    Listing,
    Node,
    Place,
    Problems,
    Scalar,
    Section,
    find_kind,
    is_broken,
    join_path,
    to_plain,
)
from holdfast.context import settings as strategies
from holdfast.context.settings import ContextSettings
from holdfast.durations import format_duration, parse_duration
from holdfast.sections import Settings, format_size, get_fields, parse_size, unwrap_type

FAILED: Final[Any] = object()
"""Result of converting a value whose mistake was reported. It is only used inside this module."""
_TEXT_KEYS: Final = {"strategy"} | {
    name for strategy in strategies.STRATEGIES.values() for name, key in strategy.keys.items() if key.kind == "text"
}

CONTEXT_KEYS: Final = ("strategy", *dict.fromkeys(key for one in strategies.STRATEGIES.values() for key in one.keys))
"""Keys of the section `context`, whatever its strategy."""
_COMMON_SECTIONS: Final = ("context", "gateway", "sessions", "auth")
"""Names of sections whose keys users often write one level too high."""


def find_section_of(key: str, fields: Mapping[str, inspect.Field]) -> str | None:
    """Return the section to which a misplaced key probably belongs: the one in `_COMMON_SECTIONS` that has this key, or None."""
    for section in _COMMON_SECTIONS:
        info = unwrap_type(fields[section].type)[0] if section in fields else None
        if isinstance(info, inspect.StructType):
            keys = CONTEXT_KEYS if info.cls is ContextSettings else get_fields(info.cls)
            if key in keys:
                return section
    return None


def find_nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that is most similar to `name`, ignoring case and dashes, or None if no known name is similar."""
    plain = {item.replace("_", "").lower(): item for item in known}
    near = difflib.get_close_matches(name.replace("_", "").replace("-", "").lower(), plain, n=1)
    return plain[near[0]] if near else None


def suggest(name: str, known: Collection[str]) -> str:
    """Return `; did you mean 'x'?` with the most similar known name, or an empty string if no known name is similar."""
    near = find_nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def describe_unknown(key: str, known: Collection[str]) -> str:
    """Return the message for an unknown key, with a suggestion or the list of known keys."""
    return "unknown key" + (suggest(key, known) or f"; known: {', '.join(known)}")


class Converter:
    """Converts the tree of one document to an instance of the model, and records the place of each key.

    Wrong values are left out and all other values are converted, so that every mistake is found at once.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._base: ContextSettings | None = ContextSettings()
        self.places: dict[str, Place] = {}
        """Place of each key that is set, by its path in the model."""

    def convert_section(self, cls: type[Settings], node: Node, path: str) -> Any:
        """Return an instance of `cls` without the wrong values of the mapping `node`, or FAILED if `node` is not a mapping."""
        if not isinstance(node, Section):
            return self._report_wrong(node, path, "a mapping")
        fields = get_fields(cls)
        given = self._collect_given(cls, node, path)
        values: dict[str, Any] = {}
        wrong: set[str] = set()
        # in the model's order, because agents inherit from the top-level `context`
        for name in (name for name in fields if name in given):
            before = len(self._problems)
            value = self._convert(given[name], fields[name].type, join_path(path, name))
            if value is not FAILED:
                values[name] = value
            if value is FAILED or len(self._problems) > before:
                wrong.add(name)
        for name in (name for name, field in fields.items() if field.required and name not in given):
            self._problems.add(node.place.inside(name), "missing", join_path(path, name))
            wrong.add(name)
        made = _make_section(cls, values)
        for key, message in made.find_mistakes():
            name = key.partition(".")[0]
            # Next to a wrong value, a mistake of a key that is not given may be a consequence of the wrong value.
            if not wrong or (name in given and name not in wrong):
                self._problems.add(self._find_place(node, path, key), message, join_path(path, key))
        return made

    def _collect_given(self, cls: type[Settings], node: Section, path: str) -> dict[str, Node]:
        """Return the values that a mapping sets. Report unknown keys."""
        fields = get_fields(cls)
        given: dict[str, Node] = {}
        for key, child in node.entries.items():
            if key not in fields:
                outer = find_section_of(key, fields)
                message = f"unknown key; did you mean '{outer}.{key}'?" if outer else describe_unknown(key, fields)
                self._problems.add(child.place, message, join_path(path, key))
            elif not _is_unset(child, fields[key]):
                given[key] = child
                self.places[join_path(path, key)] = child.place
        return given

    def _find_place(self, node: Section, path: str, key: str) -> Place:
        """Return the place of a key of a section, such as `port` or `headers.Accept`, or the place where it would be."""
        name, _, rest = key.partition(".")
        outer = self.places.get(join_path(path, name))
        near = outer.inside(rest) if outer is not None and rest else node.place.inside(key)
        return self.places.get(join_path(path, key), near)

    # -- values ------------------------------------------------------------------

    def _convert(self, node: Node, info: inspect.Type, path: str) -> Any:  # noqa: PLR0911 - one return a type
        info, form = unwrap_type(info)
        if is_broken(node):
            return FAILED
        match info:
            case inspect.StructType(cls=cls) if cls is ContextSettings:
                return self._convert_context(node, path)
            case inspect.StructType(cls=cls) if issubclass(cls, Settings):
                if cls.SHORT and isinstance(node, Scalar):
                    node = Section(node.place, {cls.SHORT: node})
                return self.convert_section(cls, node, path)
            case inspect.DictType():
                return self._convert_mapping(node, info.value_type, path)
            case inspect.VarTupleType():
                is_alone = form == "names" and isinstance(node, Scalar)
                return self._convert_list(Listing(node.place, [node]) if is_alone else node, info.item_type, path)
            case inspect.AnyType():
                return to_plain(node)
            case _:
                return self._convert_scalar(node, info, form, path)

    def _convert_mapping(self, node: Node, info: inspect.Type, path: str) -> Any:
        if not isinstance(node, Section):
            return self._report_wrong(node, path, "a mapping")
        holds_sections = isinstance(info, inspect.StructType)
        values = {}
        for name, child in node.entries.items():
            here = join_path(path, name)
            self.places[here] = child.place
            if not name or not name.isprintable():
                self._problems.add(child.place, "a name must be one or more printable characters", here)
            # `assistant:` without a value is an agent with all defaults.
            is_default = holds_sections and isinstance(child, Scalar) and child.is_empty
            value = self._convert(Section(child.place, {}) if is_default else child, info, here)
            if value is FAILED and isinstance(info, inspect.StructType):
                value = _make_section(info.cls, {})  # its name is known, so references to it are valid
            if value is not FAILED:
                values[name] = value
        return values

    def _convert_list(self, node: Node, info: inspect.Type, path: str) -> Any:
        if not isinstance(node, Listing):
            return self._report_wrong(node, path, "a list")
        items = [self._convert(item, info, f"{path}[{index}]") for index, item in enumerate(node.items)]
        return tuple(item for item in items if item is not FAILED)

    def _convert_context(self, node: Node, path: str) -> Any:
        if not isinstance(node, Section):
            return self._report_wrong(node, path, "a mapping with `strategy` and its keys")
        sound = {key: child for key, child in node.entries.items() if not is_broken(child)}
        given = {key: _read_option(child, key) for key, child in sound.items()}
        for key, child in node.entries.items():
            self.places[join_path(path, key)] = child.place
        if self._base is None and "strategy" not in given:
            return FAILED  # the top-level strategy is unknown, which was reported
        found, problems = strategies.examine(given, base=self._base)
        broken = node.entries.keys() - sound.keys()
        for key, message in problems:
            if key == "target" and "threshold" in broken:
                continue  # the value would be compared with a default that does not apply
            inner = node.place.inside(key) if key else node.place
            place = node.entries[key].place if key in node.entries else inner
            self._problems.add(place, message, join_path(path, key) if key else path)
        if path == "context":
            self._base = None if "strategy" in {*broken, *(problem.key for problem in problems)} else found
        return found

    def _convert_scalar(self, node: Node, info: inspect.Type, form: str | None, path: str) -> Any:
        expected, read = _make_reader(info, form)
        if isinstance(node, Scalar):
            value = read(node)
            if value is not FAILED:
                return value
            if isinstance(info, inspect.StrType) and node.kind != "string":
                expected = "a string (put it in quotes)"
        return self._report_wrong(node, path, expected, is_secret=form in {"secret", "url"})

    def _report_wrong(self, node: Node, path: str, expected: str, *, is_secret: bool = False) -> Any:
        if not is_broken(node):
            self._problems.add(node.place, f"expected {expected}, got {_show(node, is_secret=is_secret)}", path)
        return FAILED


def _make_section(cls: Any, values: dict[str, Any]) -> Any:
    """Return a section with these values. Required values that are missing are empty; this was reported."""
    return cls(**{name: "" for name, field in get_fields(cls).items() if field.required} | values)


def _read_option(node: Node, key: str) -> Any:
    """Return the value of a strategy's key as plain data.

    If a value contains variables and cannot be valid, it is returned as written in the file. Error messages show this value, and must not
    reveal the value of a variable.
    """
    if isinstance(node, Section):
        return {name: _read_option(child, name) for name, child in node.entries.items()}
    if not isinstance(node, Scalar) or not node.place.variables:
        return to_plain(node)
    if key in _TEXT_KEYS and (key != "strategy" or node.text in strategies.STRATEGIES):
        return node.text
    return node.written if not node.is_loose or find_kind(node.text) == "string" else to_plain(node)


def _is_unset(node: Node, field: inspect.Field) -> bool:
    """Return True if a key has no value, or if the key is optional and its value is a single variable that is empty."""
    if not isinstance(node, Scalar) or node.is_broken:
        return False
    return node.is_empty or (node.is_loose and node.text == "" and not field.required and field.default is None)


def _show(node: Node, *, is_secret: bool) -> str:
    match node:
        case Section():
            return "a mapping"
        case Listing():
            return "a list"
        case Scalar(kind="null"):
            return "nothing"
        case Scalar(kind=kind) if is_secret:
            return f"{'an' if kind == 'integer' else 'a'} {kind}"
        case Scalar(kind="string", written=written):
            return repr(written if len(written) <= 60 else written[:57] + "…")
        case Scalar(written=written):
            return written[:60]


# -- scalars -----------------------------------------------------------------------


def _make_reader(info: inspect.Type, form: str | None) -> tuple[str, Callable[[Scalar], Any]]:  # noqa: PLR0911 - one return a type
    """Return a description of the expected value, and a function that reads a scalar and returns its value or FAILED."""
    match info:
        case inspect.LiteralType(values=values):
            # as text: `off` and `none` are names here, not booleans
            names = [str(value) for value in values]
            return f"one of {', '.join(names)}", lambda node: node.text if node.text in names else FAILED
        case inspect.BoolType():
            return "true or false", lambda node: node.text.lower() == "true" if _is(node, "boolean") else FAILED
        case inspect.FloatType() if form == "duration":
            low, high = format_duration(info.ge or 0), format_duration(info.le or 0)
            words = f"a duration from {low} to {high}, like 24h, 1h30m, 90s or a number of seconds"
            return words, lambda node: _check_range(parse_duration(node.text), info)
        case inspect.IntType() if form == "size":
            low, high = format_size(info.ge or 0), format_size(info.le or 0)
            words = f"a size from {low} to {high}, like 32MiB or a number of bytes"
            return words, lambda node: _check_range(parse_size(node.text), info)
        case inspect.IntType():
            words = f"an integer from {info.ge} to {info.le}"
            return words, lambda node: _check_range(int(node.text), info) if _is(node, "integer") else FAILED
        case inspect.FloatType():
            words = f"a number from {info.ge:g} to {info.le:g}"
            return (
                words,
                lambda node: _check_range(float(node.text), info) if _is(node, "integer", "number") else FAILED,
            )
        case inspect.StrType():
            least = info.min_length or 0
            words = "a string that is not empty" if least else "a string"
            return words, lambda node: node.text if node.kind == "string" and len(node.text) >= least else FAILED
    raise TypeError(f"the model has a type that cannot be read: {info}")


def _is(node: Scalar, *kinds: str) -> bool:
    """Return True if the text of a scalar is of one of the kinds. A text in quotes is a string, unless it is a single variable."""
    return (node.is_loose or node.kind in kinds) and find_kind(node.text) in kinds


def _check_range(value: float | None, info: inspect.FloatType | inspect.IntType) -> Any:
    if value is None or not -math.inf < value < math.inf:  # an integer may be too large for a float
        return FAILED
    low, high = info.ge, info.le
    return value if (low is None or value >= low) and (high is None or value <= high) else FAILED
