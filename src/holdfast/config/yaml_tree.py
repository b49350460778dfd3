"""Parse YAML into a tree with line numbers, fill in `${VAR}`, and collect every mistake with its place.

Scalars stay text until their type is known. The rules of YAML 1.2 apply: only `true` and `false` are booleans, and `012` is twelve.
Variables are filled in after parsing, so that a value from the environment can never become a key or a list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import yaml

from holdfast.limits import CONFIG_BYTES, CONFIG_DEPTH, CONFIG_VALUES

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
_READERS: Final[dict[Kind, Callable[[str], Any]]] = {
    "null": lambda _: None,
    "boolean": lambda text: text.lower() == "true",
    "integer": int,
    "number": float,
    "string": str,
}
# Matches `$${`, which is a literal `${`; or `${…}` up to the first `}`; or `${` without a `}`.
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_REFERENCE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::([-?])(.*))?", re.ASCII | re.DOTALL)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


# -- the tree ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value of the file or of the environment."""

    line: int
    """Line of the key that has this value, or of the item of a list. 0: the value is not in the file."""
    kind: Kind
    text: str
    """Text of the value, with variables filled in."""
    written: str
    """Text of the value as written in the file. Messages show this text, so that they never reveal the value of a variable."""
    is_loose: bool = False
    """True if the value is a single `${VAR}` or comes from the environment. Such a value may have any type."""
    is_broken: bool = False
    """True if a mistake in the value was reported already."""
    variables: tuple[str, ...] = ()
    """Names of the variables that were filled in."""

    @property
    def is_empty(self) -> bool:
        """True if the key has no value, or the value `null`."""
        return self.kind == "null" and not self.is_broken


@dataclass(frozen=True, slots=True)
class Listing:
    """A list in the parsed file."""

    line: int
    items: list[Node]


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping in the parsed file."""

    line: int
    entries: dict[str, Node]

    def get_section(self, key: str) -> Section | None:
        """Return the value of a key if it is a mapping, or else None."""
        found = self.entries.get(key)
        return found if isinstance(found, Section) else None


Node = Scalar | Listing | Section


def is_broken(node: Node) -> bool:
    """Return True if the node is a scalar whose mistake was reported already."""
    return isinstance(node, Scalar) and node.is_broken


def find_kind(text: str) -> Kind:
    """Return the kind of value that a text without quotes has in YAML."""
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.fullmatch(text)), "string")


def check_text(text: str) -> str | None:
    """Return the reason why a string can be neither sent nor stored, or None if the string is valid.

    A string with lone surrogates is invalid. Python uses them for bytes of an environment variable that are not UTF-8.
    """
    broken = "contains bytes that are not UTF-8, or half of a surrogate pair"
    return broken if _SURROGATE.search(text) else None


def to_plain(node: Node) -> Any:
    """Return a node as ordinary Python data. This function is used for keys whose values have no defined type."""
    match node:
        case Section(entries=entries):
            return {name: to_plain(child) for name, child in entries.items()}
        case Listing(items=items):
            return [to_plain(item) for item in items]
        case Scalar(text=text):
            kind = find_kind(text) if node.is_loose else node.kind
            # A tag such as `!!int x` may not fit the text. The mistake is reported when the value is converted to its type.
            fits = kind not in _PATTERNS or _PATTERNS[kind].fullmatch(text)
            return _READERS[kind](text) if fits else text


@dataclass(slots=True)
class Problems:
    """Collects the mistakes in a configuration, and the sources of values and spellings of keys that their messages name."""

    source: str
    written: dict[str, str] = field(default_factory=dict)
    """Path in the file of each key that the file spells differently, by its path in the model."""
    origins: dict[str, str] = field(default_factory=dict)
    """Name of the variable that sets a value outside the file, by path."""
    paths: set[str] = field(default_factory=set)
    """Paths in the model of keys with mistakes."""
    _found: list[tuple[float, str]] = field(default_factory=list)

    def add(self, line: int, path: str, message: str) -> None:
        """Record a mistake, for example as `holdfast.yaml:12: agents.a.llm: message`.

        Args:
            line: line in the file. 0: the value is not in the file.
            path: path of the key in the model; empty for the whole file.
            message: what is wrong.
        """
        origin = None if line else self.find_origin(path)
        place = origin or (f"{self.source}:{line}" if line else self.source)
        order = math.inf if origin else line
        self._found.append((order, ": ".join(filter(None, (place, self.spell(path), message)))))
        self.paths.add(path)

    def add_variable(self, place: str, message: str) -> None:
        """Record a mistake in an environment variable, for example as `HOLDFAST_X: message`."""
        self._found.append((math.inf, f"{place}: {message}"))

    def find_origin(self, path: str) -> str | None:
        """Return the name of the variable that sets a value or a section around it, or None if no variable does."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = _get_parent(path)
        return None

    def spell(self, path: str) -> str:
        """Return the path in the file that corresponds to a path in the model."""
        above = path
        while above:
            if above in self.written:
                return self.written[above] + path[len(above) :]
            above = _get_parent(above)
        return path

    def __len__(self) -> int:
        return len(self._found)

    def list_lines(self) -> list[str]:
        """Return the messages in the order of the file, followed by the messages about variables."""
        return [text for _, text in sorted(self._found, key=lambda found: found[0])]


def _get_parent(path: str) -> str:
    """Return the path of the section or list around a key: `hooks.webhooks` for `hooks.webhooks[0]`, empty for a top-level key."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]


# -- reading -------------------------------------------------------------------


def parse_yaml(text: str, *, env: Mapping[str, str], problems: Problems) -> Section | None:
    """Return the tree of a YAML document, or None if the document is not a mapping, not valid YAML, or too large.

    Args:
        text: the document.
        env: the environment variables that fill in `${VAR}`.
        problems: collects the mistakes.
    """
    try:
        tree = _build_tree(text, _Builder(env, problems))
    except _TooLarge as error:
        problems.add(error.line, "", str(error))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.add(mark.line + 1 if mark else 0, "", f"not valid YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        problems.add(0, "", f"not valid YAML: {' '.join(str(error).split())}")
    else:
        if isinstance(tree, Section):
            return tree
        if not is_broken(tree):
            problems.add(tree.line, "", "expected a mapping of keys at the top of the file")
    return None


def _build_tree(text: str, builder: _Builder) -> Node:
    if len(text) > CONFIG_BYTES or len(text.encode(errors="replace")) > CONFIG_BYTES:
        raise _TooLarge(0, f"larger than {CONFIG_BYTES >> 20} MiB")
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
    finally:
        loader.dispose()
    return Section(1, {}) if root is None or root.tag == f"{_TAG}null" else builder.build(root, "", 0)


class _TooLarge(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalar types of YAML 1.2 and a limit on nesting. Only its tree of nodes is used."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # Checked on the way down, before Python's stack overflows.
        self._depth += 1
        if self._depth > CONFIG_DEPTH:
            raise _TooLarge(self.line + 1, f"nested more than {CONFIG_DEPTH} deep")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


# `None` as the first character makes PyYAML try every pattern, in the same order as `find_kind`.
for _tag, _kind in _KINDS.items():
    if _kind in _PATTERNS:
        _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_PATTERNS[_kind].pattern})\Z", re.ASCII), None)


class _Builder:
    def __init__(self, env: Mapping[str, str], problems: Problems) -> None:
        self._env = env
        self._problems = problems
        self._nodes = 0

    def build(self, node: yaml.Node, path: str, depth: int, line: int = 0) -> Node:
        own_line = node.start_mark.line + 1
        line = line or own_line
        self._nodes += 1
        if self._nodes > CONFIG_VALUES:
            raise _TooLarge(own_line, f"more than {CONFIG_VALUES:,} values, aliases resolved")
        if depth > CONFIG_DEPTH:  # an alias inside its own anchor
            raise _TooLarge(own_line, f"nested more than {CONFIG_DEPTH} deep")
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._build_section(node, path, depth, line)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return Listing(
                line, [self.build(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.value)]
            )
        kind = _KINDS.get(node.tag)
        if kind is None or not isinstance(node, yaml.ScalarNode):
            self._problems.add(own_line, path, f"the tag {node.tag.replace(_TAG, '!!')!r} is not supported; remove it")
            return Scalar(line, "null", "", "", is_broken=True)
        if kind != "string":
            return Scalar(line, kind, node.value, node.value)
        return self._build_string(line, own_line, path, node.value)

    def _build_section(self, node: yaml.MappingNode, path: str, depth: int, own_line: int) -> Section:
        entries: dict[str, Node] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(line, path, "a key must be a string")
                continue
            if mistake := check_text(key.value):
                self._problems.add(line, path, f"a key {mistake}")
                continue
            inner = f"{path}.{key.value}" if path else key.value
            if key.value in entries:
                self._problems.add(line, inner, f"given twice; first in line {entries[key.value].line}")
            elif key.value == "<<":
                self._problems.add(line, inner, "merge keys are not supported; write the keys out")
            else:
                entries[key.value] = self.build(value, inner, depth + 1, line)
        return Section(own_line, entries)

    def _build_string(self, line: int, own_line: int, path: str, written: str) -> Scalar:
        mistakes: list[str] = []
        names: list[str] = []
        text = _VARIABLE.sub(lambda found: self._expand(found, mistakes, names), written)
        mistakes += filter(None, [check_text(text)])
        for mistake in dict.fromkeys(mistakes):
            self._problems.add(own_line, path, mistake)
        only = _VARIABLE.fullmatch(written)
        is_loose = only is not None and only[0] != "$${"
        used = tuple(dict.fromkeys(names))
        return Scalar(line, "string", text, written, is_loose, is_broken=bool(mistakes), variables=used)

    def _expand(self, found: re.Match[str], mistakes: list[str], names: list[str]) -> str:
        """Return the text that replaces one `${…}`.

        Args:
            found: the match of `_VARIABLE`.
            mistakes: list to which messages about mistakes are added.
            names: list to which the name of the variable is added if its value is used.
        """
        if found[0] == "$${":
            return "${"
        if found[1] is None:
            mistakes.append("`${` without `}`; write `$${` for a literal `${`")
            return ""
        reference = _REFERENCE.fullmatch(found[1])
        if reference is None or "${" in (reference[3] or ""):
            mistakes.append(
                f"`{found[0]}` is not one of ${{VAR}}, ${{VAR:-default}} and ${{VAR:?message}}; "
                "write `$${` for a literal `${`"
            )
            return ""
        name, kind, rest = reference[1], reference[2], reference[3]
        value = self._env.get(name)
        if value:
            names.append(name)
        elif kind == "?":
            mistakes.append(f"the environment variable {name} is not set: {rest or 'it is required'}")
        elif kind == "-":
            return rest
        elif value is None:
            mistakes.append(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
        return value or ""
