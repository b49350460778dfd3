"""YAML text as a tree that remembers its lines, with `${VAR}` filled in; every mistake is kept with its place.

The tree holds scalars as they are written: what `off` or `012` means is decided where the type is known, and by the
rules of YAML 1.2: only `true` and `false` are booleans, and `012` is twelve. Variables are filled in after parsing, so a
value from the environment can never become a key, a list or a second line of YAML.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import yaml

from holdfast.limits import CONFIG_BYTES, CONFIG_DEPTH, CONFIG_VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["string", "integer", "number", "boolean", "null"]

_TAG: Final = "tag:yaml.org,2002:"
_KINDS: Final[dict[str, Kind]] = {
    f"{_TAG}null": "null",
    f"{_TAG}bool": "boolean",
    f"{_TAG}int": "integer",
    f"{_TAG}float": "number",
    f"{_TAG}str": "string",
}
_PATTERNS: Final[dict[Kind, re.Pattern[str]]] = {
    "null": re.compile(r"~|null|Null|NULL|", re.ASCII),
    "boolean": re.compile(r"true|True|TRUE|false|False|FALSE", re.ASCII),
    "integer": re.compile(r"[-+]?[0-9]{1,400}", re.ASCII),
    "number": re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII),
}

# `$${` is a literal `${`; otherwise up to the first `}`, or unfinished.
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_NO_TEXT: Final = "has bytes that are not UTF-8, or half of a surrogate pair, and is no text"
_REFERENCE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::([-?])(.*))?", re.ASCII | re.DOTALL)


# -- the tree ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value."""

    line: int
    kind: Kind
    text: str
    """As written, variables filled in."""
    written: str
    """As written: what messages show, so that they never show what a variable holds."""
    loose: bool = False
    """It is wholly one `${VAR}`, so it may be whatever the type asks for."""
    broken: bool = False
    """Its mistake is told already."""
    variables: tuple[str, ...] = ()
    """Those that were filled in."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A list."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping: name to (line of the name, value)."""

    line: int
    entries: dict[str, tuple[int, Node]]


Node = Scalar | Listing | Section


def kind_of(text: str) -> Kind:
    """What a plain scalar of that text is."""
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.fullmatch(text)), "string")


def no_text(text: str) -> str | None:
    """Why a string is none that could be sent or stored. Bytes of a variable that are not UTF-8 come as half pairs, too."""
    return _NO_TEXT if _SURROGATE.search(text) else None


def plain(node: Node) -> Any:
    """The tree as ordinary Python data, for what has no type of its own."""
    match node:
        case Section(entries=entries):
            return {name: plain(child) for name, (_, child) in entries.items()}
        case Listing(items=items):
            return [plain(item) for item in items]
        case Scalar(text=text):
            return _value(kind_of(text) if node.loose else node.kind, text)


def _value(kind: Kind, text: str) -> str | float | bool | None:
    if kind in _PATTERNS and not _PATTERNS[kind].fullmatch(text):
        return text  # `!!int x`: the type that it is read into will say so
    match kind:
        case "null":
            return None
        case "boolean":
            return text.lower() == "true"
        case "integer":
            return int(text)
        case "number":
            return float(text)
        case "string":
            return text


@dataclass(slots=True)
class Problems:
    """Every mistake found so far, each with its place; and where values come from that do not stand in the file as they are."""

    source: str
    written: dict[str, str] = field(default_factory=dict)
    """How a key is spelt in the file, by its path in the model, where that is another."""
    origins: dict[str, str] = field(default_factory=dict)
    """Where a value comes from that is not in the file, by its path: the name of a variable."""
    ignored: list[tuple[int, str, str]] = field(default_factory=list)
    """Keys of other systems that mean nothing here: line, path, why."""
    paths: set[str] = field(default_factory=set)
    """Where mistakes are, by the model's paths."""
    _found: list[tuple[float, str]] = field(default_factory=list)

    def add(self, line: int, path: str, message: str) -> None:
        """Note one: `holdfast.yaml:12: agents.a.llm: message`. Line 0 is for what stands in no line."""
        origin = None if line else self.origin(path)
        place = origin or (f"{self.source}:{line}" if line else self.source)
        order = math.inf if origin else line
        self._found.append((order, ": ".join(filter(None, (place, self.spelt(path), message)))))
        self.paths.add(path)

    def add_told(self, place: str, message: str) -> None:
        """Note a mistake that is in no file of its own: `HOLDFAST_X: message`."""
        self._found.append((math.inf, f"{place}: {message}"))

    def origin(self, path: str) -> str | None:
        """The variable that a value comes from, or what is above it; None: the file."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = _above(path)
        return None

    def spelt(self, path: str) -> str:
        """A path of the model as the file has it."""
        above = path
        while above:
            if above in self.written:
                return self.written[above] + path[len(above) :]
            above = _above(above)
        return path

    def __len__(self) -> int:
        return len(self._found)

    def lines(self) -> list[str]:
        """The mistakes in the order of their lines; those of variables come last."""
        return [text for _, text in sorted(self._found, key=lambda found: found[0])]


def _above(path: str) -> str:
    """The path of what holds a value: `hooks.webhooks` for `hooks.webhooks[0]`; empty at the top."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]


# -- reading -------------------------------------------------------------------


def parse(text: str, *, env: Mapping[str, str], problems: Problems) -> Section | None:
    """The tree of a YAML document; None when it is not YAML at all or too large. Mistakes go to `problems`."""
    try:
        tree = _tree(text, _Builder(env, problems))
    except _TooMuch as error:
        problems.add(error.line, "", str(error))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.add(mark.line + 1 if mark else 0, "", f"not valid YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        problems.add(0, "", f"not valid YAML: {' '.join(str(error).split())}")
    else:
        if isinstance(tree, Section):
            return tree
        if not (isinstance(tree, Scalar) and tree.broken):
            problems.add(tree.line, "", "expected a mapping of keys at the top of the file")
    return None


def _tree(text: str, builder: _Builder) -> Node:
    if len(text) > CONFIG_BYTES or len(text.encode(errors="replace")) > CONFIG_BYTES:
        raise _TooMuch(0, f"larger than {CONFIG_BYTES >> 20} MiB")
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
    finally:
        loader.dispose()
    return Section(1, {}) if root is None or root.tag == f"{_TAG}null" else builder.build(root, "", 0)


class _TooMuch(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, used up to its node tree, with YAML 1.2's plain scalars and a bound on nesting."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own protocol

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # Checked on the way down: Python's own stack would end first.
        self._depth += 1
        if self._depth > CONFIG_DEPTH:
            raise _TooMuch(self.line + 1, f"nested more than {CONFIG_DEPTH} deep")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


# Without a first character: tried for all. In this order, as in `kind_of`.
for _tag, _kind in _KINDS.items():
    if _kind in _PATTERNS:
        _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_PATTERNS[_kind].pattern})\Z", re.ASCII), None)


class _Builder:
    """Makes the tree out of PyYAML's nodes."""

    def __init__(self, env: Mapping[str, str], problems: Problems) -> None:
        self._env = env
        self._problems = problems
        self._nodes = 0

    def build(self, node: yaml.Node, path: str, depth: int) -> Node:
        line = node.start_mark.line + 1
        self._nodes += 1
        if self._nodes > CONFIG_VALUES:
            raise _TooMuch(line, f"more than {CONFIG_VALUES:,} values, aliases resolved")
        if depth > CONFIG_DEPTH:  # an alias inside of what it stands for
            raise _TooMuch(line, f"nested more than {CONFIG_DEPTH} deep")
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._section(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            items = (self.build(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.value))
            return Listing(line, tuple(items))
        kind = _KINDS.get(node.tag)
        if kind is None or not isinstance(node, yaml.ScalarNode):
            self._problems.add(line, path, f"the tag {node.tag.replace(_TAG, '!!')!r} is not supported; remove it")
            return Scalar(line, "null", "", "", broken=True)
        if kind != "string":
            return Scalar(line, kind, node.value, node.value)
        return self._string(line, path, node.value)

    def _section(self, node: yaml.MappingNode, path: str, depth: int) -> Section:
        entries: dict[str, tuple[int, Node]] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(line, path, "a key must be a string")
                continue
            if mistake := no_text(key.value):
                self._problems.add(line, path, f"a key {mistake}")
                continue
            inner = f"{path}.{key.value}" if path else key.value
            if key.value in entries:
                self._problems.add(line, inner, f"given twice; first in line {entries[key.value][0]}")
            elif key.value == "<<":
                self._problems.add(line, inner, "merge keys are not supported; write the keys out")
            else:
                entries[key.value] = (line, self.build(value, inner, depth + 1))
        return Section(node.start_mark.line + 1, entries)

    def _string(self, line: int, path: str, written: str) -> Scalar:
        mistakes: list[str] = []
        names: list[str] = []
        text = _VARIABLE.sub(lambda found: self._expand(found, mistakes, names), written)
        mistakes += filter(None, [no_text(text)])
        for mistake in dict.fromkeys(mistakes):
            self._problems.add(line, path, mistake)
        only = _VARIABLE.fullmatch(written)
        loose = only is not None and only[0] != "$${"
        used = tuple(dict.fromkeys(names))
        return Scalar(line, "string", text, written, loose=loose, broken=bool(mistakes), variables=used)

    def _expand(self, found: re.Match[str], mistakes: list[str], names: list[str]) -> str:
        if found[0] == "$${":
            return "${"
        if found[1] is None:
            mistakes.append("`${` without its `}`; write `$${` for a literal `${`")
            return ""
        reference = _REFERENCE.fullmatch(found[1])
        if reference is None or "${" in (reference[3] or ""):
            mistakes.append(
                f"`{found[0]}` is none of ${{VAR}}, ${{VAR:-default}} and ${{VAR:?message}}; "
                "write `$${` for a literal `${`"
            )
            return ""
        name, kind, rest = reference[1], reference[2], reference[3]
        value = self._env.get(name)
        if value:
            names.append(name)
        elif kind == "?":
            mistakes.append(f"the environment variable {name} is not set: {rest or 'it has to be'}")
        elif kind == "-":
            return rest
        elif value is None:
            mistakes.append(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
        return value or ""
