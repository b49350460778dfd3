"""Read settings from the environment and from `.env` files.

`HOLDFAST_GATEWAY__PORT=9000` sets `port` in `gateway`, overriding the file. Two underscores separate levels. Items of a list are separated
by commas. `HOLDFAST_HOOKS__WEBHOOKS__0__URL` belongs to the first item of a list. The type of the key decides how a value is read. A value
is not parsed as YAML, and variables in it are not filled in. Variables of `.env` files are only visible to the configuration.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import inspect

from holdfast.config.convert import find_nearest, join_path
from holdfast.config.model import Document
from holdfast.config.yaml_tree import Listing, Node, Problems, Scalar, Section, check_text
from holdfast.context.settings import CLEARING, STRATEGIES, ContextSettings
from holdfast.limits import CONFIG_DEPTH, DOTENV_BYTES
from holdfast.sections import Settings, get_fields, is_secret_name, mask_url, unwrap_type

# -- .env files --------------------------------------------------------------------

# Each part matches in one way only: otherwise a long line of spaces would take minutes.
_NAME: Final = re.compile(r"[^\S\n]*(?:export[^\S\n]+)?([A-Za-z_][A-Za-z0-9_]*)[^\S\n]*=[^\S\n]*", re.ASCII)
_QUOTED: Final = re.compile(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")""", re.DOTALL)
_COMMENT: Final = re.compile(r"(?:(?<=\s)|^)#.*", re.DOTALL)
_END: Final = re.compile(r"[^\S\n]*(?:\#[^\n]*)?(?:\n|\Z)")
_LINE: Final = re.compile(r"[^\n]*(?:\n|\Z)")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return True if the path is a file. If the user of this process may not search its folder, the result is False.

    A command that runs as another user with `sudo -u` often starts in such a folder.
    """
    return os.path.isfile(path)  # noqa: PTH113  # Path.is_file raises PermissionError


class Variables(dict[str, str]):
    """The environment variables, extended by variables from `.env` files.

    Attributes:
        places: for each variable from a file, by name: file and line, for example `.env:3`.
        mistakes: one message for each invalid line of the files, beginning with file and line.
        exposed: one message for each file with secrets that every user of the machine can read, by the resolved path of the file.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(env)
        self.places: dict[str, str] = {}
        self.mistakes: list[str] = []
        self.exposed: dict[Path, str] = {}

    def add_file(self, path: Path) -> None:
        """Add the variables of a `.env` file that are not set yet. A missing file is not a mistake."""
        if not is_file(path):
            return
        try:
            with path.open("rb") as file:
                data = file.read(DOTENV_BYTES + 1)
            text = data[:DOTENV_BYTES].decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            self.mistakes.append(f"{path}: cannot be read: {error.strerror or error}")
            return
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            self.mistakes.append(f"{path}:{line}: not UTF-8")
            return
        if len(data) > DOTENV_BYTES:
            self.mistakes.append(f"{path}: larger than {DOTENV_BYTES >> 10} KiB")
        found, mistakes = parse_dotenv(text)
        self.mistakes += [f"{path}:{line}: {message}" for line, message in mistakes]
        for name, (line, value) in found.items():
            if name not in self:
                self[name] = value
                self.places[name] = f"{path}:{line}"
        if secrets := [name for name, (_, value) in found.items() if value and _is_secret(name, value)]:
            self._check_mode(path, secrets)

    def _check_mode(self, path: Path, secrets: list[str]) -> None:
        """Record a file with secrets if every user of the machine can read it.

        Read access of the file's group is accepted, because it may be the group of the server.
        """
        if os.name == "posix" and path.stat().st_mode & stat.S_IROTH:
            message = f"every user of this machine can read it, and it contains {secrets[0]}: chmod 600 {path}"
            self.exposed.setdefault(path.resolve(), f"{path}: {message}")


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or mask_url(value) != value


def load_variables(env: Mapping[str, str], folders: Iterable[Path]) -> Variables:
    """Return the environment variables, extended by the `.env` file of each folder.

    If a variable is set several times, the environment takes precedence, then the first folder. If `env` was extended by this function
    before, it is returned unchanged.
    """
    if isinstance(env, Variables):
        return env
    found = Variables(env)
    for path in dict.fromkeys(folder / ".env" for folder in folders):
        found.add_file(path)
    return found


def parse_dotenv(text: str) -> tuple[dict[str, tuple[int, str]], list[tuple[int, str]]]:
    """Return the variables of a `.env` file, and its mistakes.

        >>> parse_dotenv("export A=1  # one")[0]
        {'A': (1, '1')}

    A line is `NAME=value`. In double quotes, a backslash escapes as in Python, and a value may have several lines. In single quotes, every
    character is literal. `#` after a space starts a comment. Variables in values are not filled in.

    Returns:
        Line and value of each variable, by name, and the line and message of each mistake. If a name is set twice, the last value counts.
    """
    found: dict[str, tuple[int, str]] = {}
    mistakes = []
    at = 0
    while at < len(text):
        line = text.count("\n", 0, at) + 1
        if empty := _END.match(text, at):
            at = empty.end()
        elif variable := _parse_variable(text, at):
            name, value, at = variable
            found.pop(name, None)
            found[name] = line, value
        else:
            at = _find_line_end(text, at)
            mistakes.append((line, "expected NAME=value, NAME='value' or NAME=\"value\""))
    return found, mistakes


def _parse_variable(text: str, at: int) -> tuple[str, str, int] | None:
    """Parse the variable that starts at position `at`. Return its name, its value and the position of the next line, or None if invalid."""
    name = _NAME.match(text, at)
    if name is None:
        return None
    begin = name.end()
    if not text.startswith(("'", '"'), begin):
        end = _find_line_end(text, begin)
        return name[1], _COMMENT.sub("", text[begin:end].removesuffix("\n")).strip(), end
    quoted = _QUOTED.match(text, begin)
    rest = _END.match(text, quoted.end()) if quoted else None
    if quoted is None or rest is None:
        return None
    literal, escaped = quoted.groups()
    value = _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), escaped) if literal is None else literal
    return name[1], value, rest.end()


def _find_line_end(text: str, at: int) -> int:
    found = _LINE.match(text, at)
    assert found is not None
    return found.end()


# -- HOLDFAST_… --------------------------------------------------------------------

PREFIX: Final = "HOLDFAST_"
STEP: Final = "__"
_INDEX: Final = re.compile(r"[0-9]{1,6}")
_NOT_A_WORD: Final = re.compile(r"[^a-z0-9]")
_CONTEXT_KEYS: Final = ("strategy", *dict.fromkeys(key for one in STRATEGIES.values() for key in one.keys))
_CONTEXT_LISTS: Final = {key for one in STRATEGIES.values() for key, what in one.keys.items() if what.kind == "texts"}


class _NoKeyError(Exception):
    """An environment variable cannot be used as a key of the configuration. The message says why."""


class _Step(NamedTuple):
    """The mapping or list of the configuration to which the first parts of a variable's name lead."""

    node: Section | Listing
    info: inspect.Type
    path: str
    parts: tuple[str, ...]
    """The parts of the variable's name that lead to this node."""
    problems: Problems

    def join(self, key: str) -> str:
        """Return the path of a key in this mapping, or of an item of this list."""
        return f"{self.path}[{key}]" if isinstance(self.node, Listing) else join_path(self.path, key)


def apply_overrides(tree: Section, env: Mapping[str, str], problems: Problems) -> None:
    """Set the values of `HOLDFAST_…` variables in the tree. Mistakes are added to `problems`."""
    scalars = (inspect.LiteralType, inspect.StrType, inspect.IntType, inspect.BoolType, inspect.FloatType)
    top = [name for name, field in get_fields(Document).items() if isinstance(unwrap_type(field.type)[0], scalars)]
    taken: dict[str, str] = {}
    for name in sorted(env):
        if not name.startswith(PREFIX) or not env[name]:
            continue
        where = env.places.get(name) if isinstance(env, Variables) else None
        place = f"{where}: {name}" if where else name
        parts = tuple(name.removeprefix(PREFIX).split(STEP))
        try:
            if len(parts) == 1 and parts[0].lower() not in top:
                _reject_slip(parts[0])
                continue
            path = _set_value(tree, parts, env[name], problems, place)
        except _NoKeyError as error:
            problems.add_variable(place, str(error))
            continue
        if path in taken:
            problems.add_variable(place, f"the same as {taken[path]}; remove one of the two")
        taken[path] = name


def _reject_slip(rest: str) -> None:
    """Raise `_NoKeyError` if a variable's name probably means a key, but has one underscore instead of two, or names only a section.

    Other variables with the prefix `HOLDFAST_` have a different purpose and are accepted.
    """
    for section in sorted(get_fields(Document), key=len, reverse=True):
        if rest.lower() == section:
            raise _NoKeyError(f"is a mapping: name a key in it, like {PREFIX}{section.upper()}{STEP}…")
        if rest.lower().startswith(f"{section}_"):
            raise _NoKeyError(f"unknown; did you mean {PREFIX}{section.upper()}{STEP}{rest[len(section) + 1 :]}?")


def _set_value(tree: Section, parts: tuple[str, ...], text: str, problems: Problems, place: str) -> str:
    """Set the value of a variable in the tree, and return the path of its key.

    Args:
        tree: the top level of the configuration.
        parts: parts of the variable's name, without the prefix.
        text: value of the variable.
        problems: stores which variable set the key.
        place: name of the variable, and its place if a `.env` file sets it.
    """
    if len(parts) > CONFIG_DEPTH:
        raise _NoKeyError(f"nested more than {CONFIG_DEPTH} deep")
    step = _Step(tree, inspect.type_info(Document), "", (), problems)
    for part in parts[:-1]:
        key, info = _find_key(step, part)
        path = step.join(key)
        problems.origins.setdefault(path, place)
        step = _Step(_open_inner(step.node, key, info, path), info, path, (*step.parts, part), problems)
    key, info = _find_key(step, parts[-1])
    _put(step.node, key, _read_value(text, info, key, parts))
    problems.origins[step.join(key)] = place
    return step.join(key)


def _find_key(step: _Step, part: str) -> tuple[str, inspect.Type]:
    """Return the key that a part of a variable's name means, and the type of this key."""
    info, _ = unwrap_type(step.info)
    if isinstance(step.node, Listing):
        assert isinstance(info, inspect.VarTupleType)
        count = len(step.node.items)
        if not _INDEX.fullmatch(part) or int(part) > count:
            raise _NoKeyError(f"expected a number from 0 to {count} after {_format_name(step.parts)}, got {part!r}")
        return str(int(part)), info.item_type
    if isinstance(info, inspect.StructType) and issubclass(info.cls, Settings):
        fields = get_fields(info.cls)
        if part.lower() not in fields:
            raise _NoKeyError(_describe_unknown(step.parts, part, tuple(fields)))
        return part.lower(), fields[part.lower()].type
    if isinstance(info, inspect.StructType) or step.path.endswith(f".{CLEARING}"):
        if part.lower() not in _CONTEXT_KEYS:
            raise _NoKeyError(_describe_unknown(step.parts, part, _CONTEXT_KEYS))
        return part.lower(), inspect.AnyType()
    value = info.value_type if isinstance(info, inspect.DictType) else inspect.AnyType()
    is_strict = isinstance(unwrap_type(value)[0], inspect.StructType)
    return _find_entry(step, step.node, part, is_strict=is_strict), value


def _find_entry(step: _Step, node: Section, part: str, *, is_strict: bool) -> str:
    """Return the name of an entry that a part of a variable's name means, ignoring case and punctuation.

    The names of the entries are chosen by the user. If there is no such entry, the result is a new name in lower case. With `is_strict`, a
    name that is similar to an existing entry is rejected as a misspelling instead.
    """
    known = {_NOT_A_WORD.sub("_", name.lower()): name for name in node.entries}
    wanted = _NOT_A_WORD.sub("_", part.lower())
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.75) if is_strict else []
    if near:
        meant = _format_name((*step.parts, near[0].upper()))
        message = f"no entry {part.lower()!r} in {step.path}; did you mean {known[near[0]]!r} ({meant}…)?"
        raise _NoKeyError(f"{message} A new one goes in the file")
    if not wanted.strip("_"):
        raise _NoKeyError(f"expected the name of an entry after {_format_name(step.parts)}")
    return part.lower()


def _open_inner(node: Section | Listing, key: str, info: inspect.Type, path: str) -> Section | Listing:
    info, _ = unwrap_type(info)
    if isinstance(node, Section):
        found = node.entries.get(key)
    else:
        found = node.items[int(key)] if int(key) < len(node.items) else None
    if isinstance(found, Section | Listing):
        return found
    is_list = isinstance(info, inspect.VarTupleType)
    if not is_list and not isinstance(info, inspect.StructType | inspect.DictType | inspect.AnyType):
        raise _NoKeyError(f"{path} has no keys below it")
    made: Section | Listing = Listing(0, []) if is_list else Section(0, {})
    if isinstance(info, inspect.StructType) and isinstance(found, Scalar) and found.text and _find_short(info):
        made = Section(found.line, {_find_short(info): found})
    _put(node, key, made)
    return made


def _put(node: Section | Listing, key: str, value: Node) -> None:
    if isinstance(node, Section):
        node.entries[key] = value
    else:
        node.items[int(key) : int(key) + 1] = [value]


def _read_value(text: str, info: inspect.Type, key: str, parts: tuple[str, ...]) -> Node:
    """Return the value of a variable as a list or scalar, depending on the type of its key."""
    if mistake := check_text(text):
        raise _NoKeyError(mistake)
    info, _ = unwrap_type(info)
    name = _format_name(parts)
    is_context_list = isinstance(info, inspect.AnyType) and key in _CONTEXT_LISTS
    if isinstance(info, inspect.VarTupleType) and isinstance(unwrap_type(info.item_type)[0], inspect.StructType):
        raise _NoKeyError(f"has several values: name one of them, like {name}{STEP}0{STEP}…")
    if isinstance(info, inspect.VarTupleType) or is_context_list:
        return Listing(0, [_make_scalar(item) for item in map(str.strip, text.split(",")) if item])
    if isinstance(info, inspect.DictType):
        raise _NoKeyError(f"is a mapping: name a key in it, like {name}{STEP}NAME")
    if isinstance(info, inspect.StructType) and not _find_short(info):
        keys = _CONTEXT_KEYS if info.cls is ContextSettings else tuple(get_fields(info.cls))
        raise _NoKeyError(f"is a mapping: name a key in it, like {_format_name((*parts, keys[0].upper()))}")
    return _make_scalar(text)


def _find_short(info: inspect.StructType) -> str:
    """Return the key of a section that a plain value in place of the section sets; empty if there is none."""
    return info.cls.SHORT if issubclass(info.cls, Settings) else ""


def _make_scalar(text: str) -> Scalar:
    return Scalar(0, "string", text, text, is_loose=True)


def _describe_unknown(parts: tuple[str, ...], part: str, known: tuple[str, ...]) -> str:
    near = find_nearest(part, known)
    if near:
        return f"unknown key; did you mean {_format_name((*parts, near.upper()))}?"
    return f"unknown key {part.lower()!r}; known: {', '.join(known)}"


def _format_name(parts: tuple[str, ...]) -> str:
    return PREFIX + STEP.join(part.upper() for part in parts)
