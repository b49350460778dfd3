"""Parse YAML into a tree with line numbers, fill in `${VAR}`, and collect every mistake with its place.

Scalars stay text until their type is known. The rules of YAML 1.2 apply: only `true` and `false` are booleans, and `012` is twelve.
Variables are filled in after parsing, so that a value from the environment can never become a key or a list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import yaml

from holdfast.config.dotenv import Variables
from holdfast.limits import CONFIG_BYTES, CONFIG_DEPTH, CONFIG_VALUES

Kind = Literal["string", "integer", "number", "boolean", "null"]

_TAG: Final = "tag:yaml.org,2002:"
_TAGS: Final[dict[str, Kind]] = {
    f"{_TAG}null": "null",
    f"{_TAG}bool": "boolean",
    f"{_TAG}int": "integer",
    f"{_TAG}float": "number",
    f"{_TAG}str": "string",
}
"""The kind of value that each tag of YAML means, such as `!!int`."""
_PATTERNS: Final[dict[Kind, tuple[re.Pattern[str], Callable[[str], Any]]]] = {
    "null": (re.compile(r"~|null|Null|NULL|", re.ASCII), lambda _: None),
    "boolean": (re.compile(r"true|True|TRUE|false|False|FALSE", re.ASCII), lambda text: text.lower() == "true"),
    "integer": (re.compile(r"[-+]?[0-9]{1,400}", re.ASCII), int),
    "number": (re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII), float),
}
"""For each kind of value except strings: the texts that are such a value, and the function that reads them."""
# Matches `$${`, which is a literal `${`; or `${…}` up to the first `}`; or `${` without a `}`.
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_REFERENCE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::([-?])(.*))?", re.ASCII | re.DOTALL)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


# -- the tree ------------------------------------------------------------------


class Place(NamedTuple):
    """Where a value is set, and how its key is called there. Neither line nor origin: it is set nowhere."""

    path: str = ""
    """Path of the key as the file spells it, for example `llms.fast.model` or `hooks.webhooks[0]`; empty for the whole file."""
    line: int = 0
    """Line of the key, or of the item of a list. 0: the value is not in the file."""
    origin: str = ""
    """Variable or flag that sets the value outside the file; empty: none."""
    variables: str = ""
    """Variables that were filled in, and where they are set, for example `DB_USER from environment`."""

    def inside(self, key: str) -> Place:
        """Return the place of a key, or of an item such as `[0]`, of this section or list."""
        return self._replace(path=join_path(self.path, key))

    def format(self, source: str) -> str:
        """Format the place for messages: file and line, or the variable that sets the key, and the key.

        Args:
            source: name of the file.
        """
        where = self.origin or (f"{source}:{self.line}" if self.line else source)
        return f"{where}: {self.path}" if self.path else where


def join_path(path: str, key: str) -> str:
    """Return the path of the key `key`, or of an item such as `[0]`, of the section or list at `path`. The path of the top level is empty."""
    return f"{path}.{key}" if path and not key.startswith("[") else f"{path}{key}"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value of the file or of the environment."""

    place: Place
    kind: Kind
    text: str
    """Text of the value, with variables filled in."""
    written: str
    """Text of the value as written in the file. Messages show this text, so that they never reveal the value of a variable."""
    is_loose: bool = False
    """True if the value is a single `${VAR}` or comes from the environment. Such a value may have any type."""
    is_broken: bool = False
    """True if a mistake in the value was reported already."""

    @property
    def is_empty(self) -> bool:
        """True if the key has no value, or the value `null`."""
        return self.kind == "null" and not self.is_broken


@dataclass(frozen=True, slots=True)
class Listing:
    """A list in the parsed file."""

    place: Place
    items: list[Node]


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping in the parsed file."""

    place: Place
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
    return next((kind for kind, (pattern, _) in _PATTERNS.items() if pattern.fullmatch(text)), "string")


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
            if kind == "string":
                return text
            pattern, read = _PATTERNS[kind]
            # A tag such as `!!int x` may not fit the text. The mistake is reported when the value is converted to its type.
            return read(text) if pattern.fullmatch(text) else text


class Problems:
    """Collects the mistakes in a configuration.

    Args:
        source: name of the file.

    Attributes:
        paths: paths in the model of the keys with mistakes.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.paths: set[str] = set()
        self._found: list[tuple[float, str]] = []

    def add(self, place: Place, message: str, path: str = "") -> None:
        """Record a mistake, for example as `holdfast.yaml:12: agents.a.llm: message`.

        Args:
            place: the place of the value.
            message: what is wrong.
            path: path of the key in the model; empty: the path in the file.
        """
        order = math.inf if place.origin else place.line
        self._found.append((order, f"{place.format(self.source)}: {message}"))
        if path or place.path or not place.origin:  # a variable that sets no key makes no key wrong
            self.paths.add(path or place.path)

    def __len__(self) -> int:
        return len(self._found)

    def list_lines(self) -> list[str]:
        """Return the messages in the order of the file, followed by the messages about variables."""
        return [text for _, text in sorted(self._found, key=lambda found: found[0])]


# -- reading -------------------------------------------------------------------


def parse_yaml(text: str, *, env: Variables, problems: Problems) -> Section | None:
    """Return the tree of a YAML document, or None if the document is not a mapping, not valid YAML, or too large.

    Args:
        text: the document.
        env: the environment variables that fill in `${VAR}`.
        problems: collects the mistakes.
    """
    if len(text) > CONFIG_BYTES or len(text.encode(errors="replace")) > CONFIG_BYTES:
        problems.add(Place(), f"larger than {CONFIG_BYTES >> 20} MiB")
        return None
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        if root is None or root.tag == f"{_TAG}null":
            return Section(Place(line=1), {})
        tree = _Builder(env, problems).build(root, "", 0)
    except _TooLarge as error:
        problems.add(Place(line=error.line), str(error))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.add(Place(line=mark.line + 1 if mark else 0), f"not valid YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        problems.add(Place(), f"not valid YAML: {' '.join(str(error).split())}")
    else:
        if isinstance(tree, Section):
            return tree
        if not is_broken(tree):
            problems.add(tree.place, "expected a mapping of keys at the top of the file")
    return None


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
for _tag, _kind in _TAGS.items():
    if _kind in _PATTERNS:
        _known = re.compile(rf"(?:{_PATTERNS[_kind][0].pattern})\Z", re.ASCII)
        _Loader.add_implicit_resolver(_tag, _known, None)


class _Builder:
    def __init__(self, env: Variables, problems: Problems) -> None:
        self._env = env
        self._problems = problems
        self._nodes = 0

    def build(self, node: yaml.Node, path: str, depth: int, line: int = 0) -> Node:
        own_line = node.start_mark.line + 1
        place = Place(path, line or own_line)
        self._nodes += 1
        if self._nodes > CONFIG_VALUES:
            raise _TooLarge(own_line, f"more than {CONFIG_VALUES:,} values, aliases resolved")
        if depth > CONFIG_DEPTH:  # an alias inside its own anchor
            raise _TooLarge(own_line, f"nested more than {CONFIG_DEPTH} deep")
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._build_section(node, place, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return Listing(place, [self.build(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(node.value)])
        kind = _TAGS.get(node.tag)
        here = Place(path, own_line)  # the value may begin below its key
        if kind is None or not isinstance(node, yaml.ScalarNode):
            self._problems.add(here, f"the tag {node.tag.replace(_TAG, '!!')!r} is not supported; remove it")
            return Scalar(place, "null", "", "", is_broken=True)
        if kind != "string":
            return Scalar(place, kind, node.value, node.value)
        return self._build_string(place, here, node.value)

    def _build_section(self, node: yaml.MappingNode, place: Place, depth: int) -> Section:
        entries: dict[str, Node] = {}
        for key, value in node.value:
            here = Place(place.path, key.start_mark.line + 1)
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(here, "a key must be a string")
            elif mistake := check_text(key.value):
                self._problems.add(here, f"a key {mistake}")
            elif key.value in entries:
                first = entries[key.value].place.line
                self._problems.add(here.inside(key.value), f"given twice; first in line {first}")
            elif key.value == "<<":
                self._problems.add(here.inside("<<"), "merge keys are not supported; write the keys out")
            else:
                entries[key.value] = self.build(value, join_path(place.path, key.value), depth + 1, here.line)
        return Section(place, entries)

    def _build_string(self, place: Place, here: Place, written: str) -> Scalar:
        mistakes: list[str] = []
        names: list[str] = []
        text = _VARIABLE.sub(lambda found: self._expand(found, mistakes, names), written)
        mistakes += filter(None, [check_text(text)])
        for mistake in dict.fromkeys(mistakes):
            self._problems.add(here, mistake)
        only = _VARIABLE.fullmatch(written)
        is_loose = only is not None and only[0] != "$${"
        used = place._replace(variables=", ".join(map(self._env.describe, dict.fromkeys(names))))
        return Scalar(used, "string", text, written, is_loose, is_broken=bool(mistakes))

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
