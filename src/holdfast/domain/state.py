"""State by scope: what a key's prefix says, what may be written, and what a change makes of a value.

No prefix: the session's own. `user:`: all sessions of a user share it. `app:`: all of a tenant. `temp:`: this turn only, never
stored. Pure: nothing here reads or writes anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from holdfast.domain.messages import UNWRITABLE
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import STATE_BYTES, STATE_DEPTH, STATE_KEY_BYTES, STATE_KEYS, STATE_VALUE_BYTES

Scope = Literal["session", "user", "app", "temp"]
"""Who shares a key."""
PREFIXES: Final[Mapping[str, Scope]] = {"user:": "user", "app:": "app", "temp:": "temp"}
"""What a key of each scope but the session's begins with."""
TEMP: Final = "temp:"
USER: Final = "user:"
APP: Final = "app:"
MOST_NUMBER: Final = 2**53
"""Numbers from here on are not exact in every client: an increment that would get there is refused."""
SCOPE_OWNERS: Final[Mapping[Scope, str]] = {"session": "the session", "user": "the user", "app": "the tenant"}
"""Who has the state of a scope, as errors say it."""
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKET: Final = re.compile(rb"[][{}]")
_encode = msgspec.json.Encoder().encode


class Increment(msgspec.Struct, frozen=True):
    """Add to the number that stands; to 0 where none does."""

    by: int | float = 1


class Extend(msgspec.Struct, frozen=True):
    """Add values to the end of the list that stands; to an empty one where none does."""

    values: tuple[Any, ...]


Change = Any
"""What a key becomes: a JSON value; None: the key is deleted; an `Increment`; an `Extend`."""


def get_scope(key: str) -> Scope:
    """Who shares `key`, by its prefix."""
    return PREFIXES.get(key[: key.find(":") + 1], "session")


def remove_prefix(key: str) -> str:
    """`key` without the prefix of its scope."""
    return key if get_scope(key) == "session" else key[key.find(":") + 1 :]


def check_key(key: object) -> None:
    """Refuse what cannot be a key, prefix included. Raises `InvalidRequest`, `TooLarge`."""
    if not isinstance(key, str) or not key:
        raise InvalidRequest(f"a key of the state is a text that is not empty, not {key!r:.80}", param="state")
    try:
        size = len(remove_prefix(key).encode())
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"the state key {key!r:.80} is not Unicode", param="state") from exc
    if not size:
        raise InvalidRequest(f"the state key {key!r} has nothing behind its prefix", param="state")
    if "\0" in key:
        raise InvalidRequest(f"the state key {key!r:.80} holds a NUL character", param="state")
    if size > STATE_KEY_BYTES:
        message = f"the state key {key[:40]!r}… has {size:,} bytes; at most {STATE_KEY_BYTES} are taken"
        raise TooLarge(message, param="state")


def check_delta(delta: Mapping[str, Change]) -> None:
    """Refuse changes that cannot be: a wrong key, a value that is no JSON, an `Increment` by no number.

    Raises:
        InvalidRequest: says which key.
        TooLarge: a key or a value is, or there are more than `STATE_KEYS`.
    """
    if len(delta) > STATE_KEYS:
        raise TooLarge(f"{len(delta):,} keys change at once; at most {STATE_KEYS:,} may", param="state")
    for key, change in delta.items():
        check_key(key)
        if isinstance(change, Increment):
            _check_number(key, change.by, "by")
        else:
            _check_size(key, list(change.values) if isinstance(change, Extend) else change)


def apply_change(key: str, old: Any, change: Change) -> Any:
    """What stands under `key` after `change`; None: nothing.

    Raises:
        InvalidRequest: what stands is no number that can be added to, or no list.
        TooLarge: the list would be.
    """
    if isinstance(change, Increment):
        _check_number(key, 0 if old is None else old, "its value")
        value = change.by if old is None else old + change.by
        _check_exact(key, value, "its value would be")
        return value
    if isinstance(change, Extend):
        if old is not None and not isinstance(old, list):
            raise InvalidRequest(f"state[{key!r:.80}] is no list that could be added to", param="state")
        extended = [*(old or ()), *change.values]
        _check_size(key, extended)
        return extended
    return change


def apply_delta(state: Mapping[str, Any], delta: Mapping[str, Change]) -> dict[str, Any]:
    """`state` after the changes of `delta`, in its order. Raises as `changed` does."""
    after = dict(state)
    for key, change in delta.items():
        value = apply_change(key, after.get(key), change)
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


def merge_delta(state: dict[str, Any], delta: Mapping[str, Change]) -> dict[str, Any]:
    """A session's own state after those changes of `delta` that are of it, within its limits; the same object if none are.

    Raises:
        InvalidRequest: see `changed`.
        TooLarge: a limit would be passed.
    """
    own = select_own(delta)
    if not own:
        return state
    after = apply_delta(state, own)
    check_room("session", keys=len(after), size=len(_encode(after)), grown=len(after) > len(state))
    return after


def date_keys(
    turns: Mapping[str, int], before: Mapping[str, Any], after: Mapping[str, Any], turn: int
) -> dict[str, int]:
    """Return for each key of a session's own state the turn in which its value was written last.

    Args:
        turns: the same before a write; keys whose turn is not known are not in it.
        before: the state before it.
        after: the state after it.
        turn: the turn of the write.
    """
    changed_keys = {key for key, value in after.items() if key not in before or before[key] != value}
    return {key: turn if key in changed_keys else turns[key] for key in after if key in changed_keys or key in turns}


def check_room(scope: Scope, *, keys: int, size: int, grown: bool, larger: bool = True) -> None:
    """Refuse what a scope would hold after a change.

    Args:
        scope: whose.
        keys: how many there would be.
        size: bytes of all as JSON.
        grown: whether there would be more keys than before.
        larger: whether there would be more bytes. What has too much already may become smaller, bit by bit.

    Raises:
        TooLarge: a limit would be passed; says which.
    """
    if grown and keys > STATE_KEYS:
        message = f"the state of {SCOPE_OWNERS[scope]} would have {keys:,} keys; it may have {STATE_KEYS:,}"
        raise TooLarge(message, param="state")
    if larger and size > STATE_BYTES:
        message = f"the state of {SCOPE_OWNERS[scope]} would have {size:,} bytes as JSON; it may have {STATE_BYTES:,}"
        raise TooLarge(message, param="state")


def compute_weight(name: str, value: bytes) -> int:
    """What a key with that JSON under it adds to the JSON of its scope: the sum of all and 1 is its size."""
    return len(_encode(name)) + len(value) + 2


def combine_changes(key: str, first: Change, second: Change) -> Change:
    """The one change that does what two of a key do, one after the other. Raises as `changed` does."""
    if isinstance(first, Increment) and isinstance(second, Increment):
        for one in (first, second):
            _check_number(key, one.by, "by")
        return Increment(first.by + second.by)
    if isinstance(first, Extend) and isinstance(second, Extend):
        return Extend((*first.values, *second.values))
    if not isinstance(second, Increment | Extend):
        return second
    if isinstance(first, Increment | Extend):
        message = f"state[{key!r:.80}] cannot be a number to add to and a list to add to at once"
        raise InvalidRequest(message, param="state")
    return apply_change(key, first, second)


def join_deltas(deltas: Iterable[Mapping[str, Change]]) -> dict[str, Change]:
    """One delta that does what these do, one after the other. Raises as `changed` does."""
    whole: dict[str, Change] = {}
    for delta in deltas:
        for key, change in delta.items():
            whole[key] = combine_changes(key, whole[key], change) if key in whole else change
    return whole


def split_by_scope(delta: Mapping[str, Change]) -> dict[Scope, dict[str, Change]]:
    """The changes of each scope, by keys without its prefix; scopes without any are left out."""
    parts: dict[Scope, dict[str, Change]] = {}
    for key, change in delta.items():
        parts.setdefault(get_scope(key), {})[remove_prefix(key)] = change
    return parts


def add_prefix(values: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """The values of a scope by keys with its prefix."""
    prefix = "" if scope == "session" else f"{scope}:"
    return {prefix + key: value for key, value in values.items()}


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: for compare-and-set. `1` and `1.0` are; `true` and `1` are not."""
    try:
        one, other = _normalize_numbers(one), _normalize_numbers(other)
    except RecursionError:  # deeper than anybody writes by hand: then as they are written
        pass
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def encode_value(key: str, value: Any) -> bytes:
    """`value` as JSON. Raises `InvalidRequest` for what is none."""
    try:
        written = _encode(value)
    except UNWRITABLE as exc:
        message = f"state[{key!r:.80}] cannot be written as JSON: it is {type(value).__name__}"
        raise InvalidRequest(message, param="state") from exc
    if written == b"null" and value is not None:
        raise InvalidRequest(f"state[{key!r:.80}]: {value!r:.80} is nothing as JSON", param="state")
    return written


def select_own(state: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a session's own state alone: releases before scopes took others for its own, and they are nobody's to copy."""
    if ":" not in "".join(state):
        return dict(state)
    return {key: value for key, value in state.items() if get_scope(key) == "session"}


def select_names(keys: Iterable[str], scope: Scope) -> list[str]:
    """Those of `keys` that are of that scope, without its prefix, each once, in order."""
    return list(dict.fromkeys(remove_prefix(key) for key in keys if get_scope(key) == scope))


def _normalize_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < MOST_NUMBER:
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _normalize_numbers(item) for key, item in value.items()}
    return [_normalize_numbers(item) for item in value] if isinstance(value, list | tuple) else value


def _check_size(key: str, value: Any) -> None:
    written = encode_value(key, value)
    if len(written) > STATE_VALUE_BYTES:
        message = f"state[{key[:80]!r}] has {len(written):,} bytes as JSON; at most {STATE_VALUE_BYTES:,} are taken"
        raise TooLarge(message, param="state")
    if _is_too_deep(written):
        message = f"state[{key!r:.80}] has more than {STATE_DEPTH} objects and lists inside each other"
        raise TooLarge(message, param="state")


def _is_too_deep(written: bytes) -> bool:
    """Whether a JSON is nested deeper than it may be: what can just be written here could not be read by a deeper caller."""
    if written.count(b"[") + written.count(b"{") <= STATE_DEPTH:
        return False
    depth = 0
    for mark in _BRACKET.findall(_TEXT.sub(b"", written)):
        depth += 1 if mark in b"[{" else -1
        if depth > STATE_DEPTH:
            return True
    return False


# What is no number is not quoted: errors come into logs, and what stands there may be a secret, or a turn's own.
def _check_number(key: str, value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"state[{key!r:.80}]: {what} must be a number, and is of type {type(value).__name__}"
        raise InvalidRequest(message, param="state")
    _check_exact(key, value, f"{what} is")


def _check_exact(key: str, value: float, what: str) -> None:
    # A comparison that holds for no NaN, and takes integers that no float can be.
    if not -MOST_NUMBER < value < MOST_NUMBER:
        message = f"state[{key!r:.80}]: {what} not within 2**53: beyond it numbers are not exact in JSON"
        raise InvalidRequest(message, param="state")
