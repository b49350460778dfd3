"""Override the configuration by environment variables.

`HOLDFAST_GATEWAY__PORT=9000` sets `port` in `gateway`, overriding the file. Two underscores separate levels. Items of a list are separated
by commas. `HOLDFAST_HOOKS__WEBHOOKS__0__URL` belongs to the first item of a list. The type of the key decides how a value is read. A value
is not parsed as YAML, and variables in it are not filled in.
"""

from __future__ import annotations

import difflib
import re
from typing import Final, NamedTuple

from msgspec import inspect

from holdfast.config.convert import CONTEXT_KEYS, find_nearest
from holdfast.config.dotenv import Variables
from holdfast.config.model import Document
from holdfast.config.yaml_tree import Listing, Node, Place, Problems, Scalar, Section, check_text, join_path
from holdfast.context.settings import CLEARING, STRATEGIES, ContextSettings
from holdfast.limits import CONFIG_DEPTH
from holdfast.sections import Settings, get_fields, unwrap_type

PREFIX: Final = "HOLDFAST_"
STEP: Final = "__"
_INDEX: Final = re.compile(r"[0-9]{1,6}")
_NOT_A_WORD: Final = re.compile(r"[^a-z0-9]")
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


def apply_overrides(tree: Section, env: Variables, problems: Problems) -> None:
    """Set the values of `HOLDFAST_…` variables in the tree. Mistakes are added to `problems`."""
    taken: dict[str, str] = {}
    for name in sorted(env):
        if not name.startswith(PREFIX) or not env[name]:
            continue
        origin = f"{env.places[name]}: {name}" if name in env.places else name
        parts = tuple(name.removeprefix(PREFIX).split(STEP))
        try:
            if len(parts) == 1:  # the top level has only sections
                _reject_slip(parts[0])
                continue
            path = _set_value(tree, parts, env[name], origin)
        except _NoKeyError as error:
            problems.add(Place(origin=origin), str(error))
            continue
        if path in taken:
            problems.add(Place(origin=origin), f"the same as {taken[path]}; remove one of the two")
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


def _set_value(tree: Section, parts: tuple[str, ...], text: str, origin: str) -> str:
    """Set the value of a variable in the tree, and return the path of its key.

    Args:
        tree: the top level of the configuration.
        parts: parts of the variable's name, without the prefix.
        text: value of the variable.
        origin: name of the variable, and its place if a `.env` file sets it.
    """
    if len(parts) > CONFIG_DEPTH:
        raise _NoKeyError(f"nested more than {CONFIG_DEPTH} deep")
    step = _Step(tree, inspect.type_info(Document), "", ())
    for at, part in enumerate(parts, start=1):
        key, info = _find_key(step, part)
        inner = f"[{key}]" if isinstance(step.node, Listing) else key
        place = Place(join_path(step.path, inner), origin=origin)
        old = _get(step.node, key)
        node = _open_section(old, info, place) if at < len(parts) else _read_value(text, info, key, parts, place)
        if node is not old:
            _put(step.node, key, node)
        if isinstance(node, Section | Listing):
            step = _Step(node, info, place.path, parts[:at])
    return place.path


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
        if part.lower() not in CONTEXT_KEYS:
            raise _NoKeyError(_describe_unknown(step.parts, part, CONTEXT_KEYS))
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


def _open_section(found: Node | None, info: inspect.Type, place: Place) -> Section | Listing:
    """Return the mapping or list that a value is, or a new one in its place."""
    info, _ = unwrap_type(info)
    if isinstance(found, Section | Listing):
        return found
    if isinstance(info, inspect.VarTupleType):
        return Listing(place, [])
    if not isinstance(info, inspect.StructType | inspect.DictType | inspect.AnyType):
        raise _NoKeyError(f"{place.path} has no keys below it")
    short = _find_short(info)
    if short and isinstance(found, Scalar) and found.text:
        return Section(found.place, {short: found})
    return Section(place, {})


def _get(node: Section | Listing, key: str) -> Node | None:
    if isinstance(node, Section):
        return node.entries.get(key)
    return node.items[int(key)] if int(key) < len(node.items) else None


def _put(node: Section | Listing, key: str, value: Node) -> None:
    if isinstance(node, Section):
        node.entries[key] = value
    else:
        node.items[int(key) : int(key) + 1] = [value]


def _read_value(text: str, info: inspect.Type, key: str, parts: tuple[str, ...], place: Place) -> Node:
    """Return the value of a variable as a list or scalar, depending on the type of its key."""
    if mistake := check_text(text):
        raise _NoKeyError(mistake)
    info, _ = unwrap_type(info)
    name = _format_name(parts)
    is_context_list = isinstance(info, inspect.AnyType) and key in _CONTEXT_LISTS
    if isinstance(info, inspect.VarTupleType) and isinstance(unwrap_type(info.item_type)[0], inspect.StructType):
        raise _NoKeyError(f"has several values: name one of them, like {name}{STEP}0{STEP}…")
    if isinstance(info, inspect.VarTupleType) or is_context_list:
        items = [item for item in map(str.strip, text.split(",")) if item]
        return Listing(place, [_make_scalar(item, place.inside(f"[{at}]")) for at, item in enumerate(items)])
    if isinstance(info, inspect.DictType):
        raise _NoKeyError(f"is a mapping: name a key in it, like {name}{STEP}NAME")
    if isinstance(info, inspect.StructType) and not _find_short(info):
        keys = CONTEXT_KEYS if info.cls is ContextSettings else tuple(get_fields(info.cls))
        raise _NoKeyError(f"is a mapping: name a key in it, like {_format_name((*parts, keys[0].upper()))}")
    return _make_scalar(text, place)


def _find_short(info: inspect.Type) -> str:
    """Return the key of a section that a plain value in place of the section sets; empty if there is none."""
    return info.cls.SHORT if isinstance(info, inspect.StructType) and issubclass(info.cls, Settings) else ""


def _make_scalar(text: str, place: Place) -> Scalar:
    return Scalar(place, "string", text, text, is_loose=True)


def _describe_unknown(parts: tuple[str, ...], part: str, known: tuple[str, ...]) -> str:
    near = find_nearest(part, known)
    if near:
        return f"unknown key; did you mean {_format_name((*parts, near.upper()))}?"
    return f"unknown key {part.lower()!r}; known: {', '.join(known)}"


def _format_name(parts: tuple[str, ...]) -> str:
    return PREFIX + STEP.join(part.upper() for part in parts)
