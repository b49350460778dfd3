"""Values from the environment: `HOLDFAST_GATEWAY__PORT=9000` is `port` under `gateway`, over what the file says.

Two underscores are a step down. A list is written with commas; `HOLDFAST_HOOKS__WEBHOOKS__0__URL` is of the first of a list.
A value is what its key's type makes of it; it is no YAML, and no variable in it is filled in.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import inspect

from holdfast.config.convert import fields_of, form_of, nearest
from holdfast.config.document import Listing, Node, Problems, Scalar, Section, no_text
from holdfast.config.dotenv import Variables
from holdfast.config.gateway import Timeouts
from holdfast.config.kinds import Settings
from holdfast.config.model import Document
from holdfast.context.settings import CLEARING, STRATEGIES, ContextSettings
from holdfast.limits import CONFIG_DEPTH

PREFIX: Final = "HOLDFAST_"
STEP: Final = "__"
_INDEX: Final = re.compile(r"[0-9]{1,6}")
_NOT_A_WORD: Final = re.compile(r"[^a-z0-9]")
_CONTEXT_KEYS: Final = ("strategy", *dict.fromkeys(key for one in STRATEGIES.values() for key in one.keys))
_LISTS_OF_CONTEXT: Final = {
    key for one in STRATEGIES.values() for key, what in one.keys.items() if what.kind == "texts"
}


class _Wrong(Exception):
    """Why a variable is no key."""


class _Step(NamedTuple):
    """A place on the way down."""

    node: Section | Listing
    info: inspect.Type
    path: str
    parts: tuple[str, ...]
    """Of the variable's name, as far as they have been gone."""
    problems: Problems

    def path_of(self, key: str) -> str:
        """The path of what is under a key."""
        return f"{self.path}[{key}]" if isinstance(self.node, Listing) else f"{self.path}.{key}".lstrip(".")


def overridden(tree: Section, env: Mapping[str, str], problems: Problems) -> None:
    """Put what the environment says into the tree."""
    taken: dict[str, str] = {}
    for name in sorted(env):
        if not name.startswith(PREFIX) or not env[name]:
            continue
        where = env.places.get(name) if isinstance(env, Variables) else None
        told = f"{where}: {name}" if where else name
        parts = tuple(name.removeprefix(PREFIX).split(STEP))
        try:
            if len(parts) == 1 and parts[0].lower() not in _alone():
                _refuse_slip(parts[0])
                continue
            path = _set(tree, parts, env[name], problems, told)
        except _Wrong as error:
            problems.add_told(told, str(error))
            continue
        if path in taken:
            problems.add_told(told, f"the same as {taken[path]}; remove one of the two")
        taken[path] = name


def _alone() -> list[str]:
    """Keys of the top level that are no mapping: one underscore is enough."""
    alone = (inspect.LiteralType, inspect.StrType, inspect.IntType, inspect.BoolType, inspect.FloatType)
    return [name for name, field in fields_of(Document).items() if isinstance(form_of(field.type)[0], alone)]


def _refuse_slip(rest: str) -> None:
    """Refuse one underscore where two belong. What else begins with the prefix is somebody else's."""
    for section in sorted(fields_of(Document), key=len, reverse=True):
        if rest.lower() == section:
            raise _Wrong(f"is a mapping: name a key in it, like {PREFIX}{section.upper()}{STEP}…")
        if rest.lower().startswith(f"{section}_"):
            raise _Wrong(f"unknown; did you mean {PREFIX}{section.upper()}{STEP}{rest[len(section) + 1 :]}?")


def _set(tree: Section, parts: tuple[str, ...], text: str, problems: Problems, told: str) -> str:
    """Put a value where its name leads; the path."""
    if len(parts) > CONFIG_DEPTH:
        raise _Wrong(f"nested more than {CONFIG_DEPTH} deep")
    step = _Step(tree, inspect.type_info(Document), "", (), problems)
    for part in parts[:-1]:
        key, info = _key(step, part)
        path = step.path_of(key)
        problems.origins.setdefault(path, told)
        step = _Step(_inner(step.node, key, info, path), info, path, (*step.parts, part), problems)
    key, info = _key(step, parts[-1])
    _write(step.node, key, _value(text, info, key, parts))
    problems.origins[step.path_of(key)] = told
    return step.path_of(key)


def _key(step: _Step, part: str) -> tuple[str, inspect.Type]:
    """The key that a part of a name stands for, and its type."""
    info, _ = form_of(step.info)
    if isinstance(step.node, Listing):
        assert isinstance(info, inspect.VarTupleType)
        if not _INDEX.fullmatch(part) or int(part) > len(step.node.items):
            raise _Wrong(f"expected a number from 0 to {len(step.node.items)} after {_name(step.parts)}, got {part!r}")
        return str(int(part)), info.item_type
    if isinstance(info, inspect.StructType) and issubclass(info.cls, Settings):
        return _field(step, info.cls, part)
    if isinstance(info, inspect.StructType) or step.path.endswith(f".{CLEARING}"):
        known = list(_CONTEXT_KEYS)
        if part.lower() not in known:
            raise _Wrong(_unknown(step.parts, part, known))
        return part.lower(), inspect.AnyType()
    value = info.value_type if isinstance(info, inspect.DictType) else inspect.AnyType()
    return _entry(step, part, strict=isinstance(form_of(value)[0], inspect.StructType)), value


def _field(step: _Step, cls: type[Settings], part: str) -> tuple[str, inspect.Type]:
    fields = fields_of(cls)
    name = cls.ALIASES.get(part.lower(), part.lower())
    if name not in fields:
        raise _Wrong(_unknown(step.parts, part, list(fields)))
    assert isinstance(step.node, Section)
    entries = step.node.entries
    for alias in (alias for alias, real in cls.ALIASES.items() if real == name and alias in entries):
        if name not in entries:  # what is given by two names is told
            entries[name] = entries.pop(alias)
            step.problems.written[step.path_of(name)] = step.path_of(alias)
    return name, fields[name].type


def _entry(step: _Step, part: str, *, strict: bool) -> str:
    """The name of an entry, whatever its case and signs; one that is not there is made, unless it is a slip of the pen."""
    assert isinstance(step.node, Section)
    known = {_NOT_A_WORD.sub("_", name.lower()): name for name in step.node.entries}
    wanted = _NOT_A_WORD.sub("_", part.lower())
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.75) if strict else []
    if near:
        right = known[near[0]]
        meant = _name((*step.parts, near[0].upper()))
        raise _Wrong(
            f"no entry {part.lower()!r} in {step.path}; did you mean {right!r} ({meant}…)? A new one goes in the file"
        )
    if not wanted.strip("_"):
        raise _Wrong(f"expected the name of an entry after {_name(step.parts)}")
    return part.lower()


def _inner(node: Section | Listing, key: str, info: inspect.Type, path: str) -> Section | Listing:
    """What stands under a key that something is put into; made where there is nothing."""
    info, _ = form_of(info)
    found = node.items[int(key)] if isinstance(node, Listing) and int(key) < len(node.items) else None
    if isinstance(node, Section):
        _, found = node.entries.get(key, (0, None))
    if isinstance(found, Section | Listing):
        return found
    structured = isinstance(info, inspect.StructType | inspect.DictType | inspect.AnyType)
    if not structured and not isinstance(info, inspect.VarTupleType):
        raise _Wrong(f"{path} has no keys below it")
    made: Section | Listing = Listing(0, ()) if isinstance(info, inspect.VarTupleType) else Section(0, {})
    if isinstance(info, inspect.StructType) and info.cls is Timeouts and isinstance(found, Scalar) and found.text:
        made = Section(found.line, {"total": (found.line, found)})  # a plain duration is the whole of it
    _write(node, key, made)
    return made


def _write(node: Section | Listing, key: str, value: Node) -> None:
    if isinstance(node, Section):
        node.entries[key] = 0, value
        return
    items = list(node.items)
    items[int(key) : int(key) + 1] = [value]
    object.__setattr__(node, "items", tuple(items))


def _value(text: str, info: inspect.Type, key: str, parts: tuple[str, ...]) -> Node:
    """A value as its key's type wants it."""
    if mistake := no_text(text):
        raise _Wrong(mistake)
    info, _ = form_of(info)
    of_context = isinstance(info, inspect.AnyType) and key in _LISTS_OF_CONTEXT
    if isinstance(info, inspect.VarTupleType) and isinstance(form_of(info.item_type)[0], inspect.StructType):
        raise _Wrong(f"has several values: name one of them, like {_name(parts)}{STEP}0{STEP}…")
    if isinstance(info, inspect.VarTupleType) or of_context:
        return Listing(0, tuple(_scalar(item) for item in (part.strip() for part in text.split(",")) if item))
    if isinstance(info, inspect.DictType):
        raise _Wrong(f"is a mapping: name a key in it, like {_name(parts)}{STEP}NAME")
    if isinstance(info, inspect.StructType) and info.cls is not Timeouts:
        keys = list(_CONTEXT_KEYS) if info.cls is ContextSettings else list(fields_of(info.cls))
        raise _Wrong(f"is a mapping: name a key in it, like {_name((*parts, keys[0].upper()))}")
    return _scalar(text)


def _scalar(text: str) -> Scalar:
    return Scalar(0, "string", text, text, loose=True)


def _unknown(parts: tuple[str, ...], part: str, known: list[str]) -> str:
    near = nearest(part, known)
    if near:
        return f"unknown key; did you mean {_name((*parts, near.upper()))}?"
    return f"unknown key {part.lower()!r}; known: {', '.join(known)}"


def _name(parts: tuple[str, ...]) -> str:
    return PREFIX + STEP.join(part.upper() for part in parts)
