"""Session state by scope: the prefixes of keys, the limits, and the effect of changes on values. No I/O.

A scope determines who shares a key:

- Keys without a prefix belong to one session.
- `user:` keys are shared by all sessions of a user.
- `app:` keys are shared by all sessions of a tenant.
- `temp:` keys exist only during the turn, and are never stored.
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
"""The set of sessions that share a key."""
PREFIXES: Final[Mapping[str, Scope]] = {"user:": "user", "app:": "app", "temp:": "temp"}
"""The scope for each prefix. Keys of the session's own scope have no prefix."""
TEMP: Final = "temp:"
USER: Final = "user:"
APP: Final = "app:"
MOST_NUMBER: Final = 2**53
"""Numbers of at least this size are not exact in every client, so an increment that results in such a number is refused."""
SCOPE_OWNERS: Final[Mapping[Scope, str]] = {"session": "the session", "user": "the user", "app": "the tenant"}
"""The owner of each stored scope, for error messages."""
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKET: Final = re.compile(rb"[][{}]")
_encode = msgspec.json.Encoder().encode


class Increment(msgspec.Struct, frozen=True):
    """A change that adds a number to the current number, or to 0 if there is none."""

    by: int | float = 1


class Extend(msgspec.Struct, frozen=True):
    """A change that appends values to the current list, or to an empty list if there is none."""

    values: tuple[Any, ...]


Change = Any
"""A change to the value of a key: a new JSON value, None to delete the key, an `Increment` or an `Extend`."""


def get_scope(key: str) -> Scope:
    """Return the scope of a key according to its prefix."""
    return PREFIXES.get(key[: key.find(":") + 1], "session")


def remove_prefix(key: str) -> str:
    """Return the key without the prefix of its scope."""
    return key if get_scope(key) == "session" else key[key.find(":") + 1 :]


def check_key(key: object) -> None:
    """Check a key, including its prefix.

    Raises:
        InvalidRequest: the key is not a valid text, or there is nothing after its prefix.
        TooLarge: the key is too long.
    """
    if not isinstance(key, str) or not key:
        raise InvalidRequest(f"a key of the state must be a text that is not empty, not {key!r:.80}", param="state")
    try:
        size = len(remove_prefix(key).encode())
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"the state key {key!r:.80} is not Unicode", param="state") from exc
    if not size:
        raise InvalidRequest(f"the state key {key!r} has nothing after its prefix", param="state")
    if "\0" in key:
        raise InvalidRequest(f"the state key {key!r:.80} holds a NUL character", param="state")
    if size > STATE_KEY_BYTES:
        message = f"the state key {key[:40]!r}… has {size:,} bytes; at most {STATE_KEY_BYTES} are allowed"
        raise TooLarge(message, param="state")


def check_delta(delta: Mapping[str, Change]) -> None:
    """Check the keys and values of changes.

    Values must be JSON; the number of an increment must be exact in JSON.

    Raises:
        InvalidRequest: a key or a value is invalid. The message names the key.
        TooLarge: a key or a value is too large, or there are more than `STATE_KEYS` changes.
    """
    if len(delta) > STATE_KEYS:
        raise TooLarge(f"{len(delta):,} keys would change at once; at most {STATE_KEYS:,} may", param="state")
    for key, change in delta.items():
        check_key(key)
        if isinstance(change, Increment):
            _check_number(key, change.by, "by")
        else:
            _check_size(key, list(change.values) if isinstance(change, Extend) else change)


def apply_change(key: str, old: Any, change: Change) -> Any:
    """Return the value of `key` after `change`; None if the key is deleted.

    Raises:
        InvalidRequest: `change` is an `Increment` and `old` is not a number, or `change` is an `Extend` and `old` is not a list.
        TooLarge: the new list is too large.
    """
    if isinstance(change, Increment):
        _check_number(key, 0 if old is None else old, "its value")
        value = change.by if old is None else old + change.by
        _check_exact(key, value, "its value would be")
        return value
    if isinstance(change, Extend):
        if old is not None and not isinstance(old, list):
            raise InvalidRequest(f"state[{key!r:.80}] is not a list, so nothing can be appended to it", param="state")
        extended = [*(old or ()), *change.values]
        _check_size(key, extended)
        return extended
    return change


def apply_delta(state: Mapping[str, Any], delta: Mapping[str, Change]) -> dict[str, Any]:
    """Return the state after the changes of `delta`, applied in order.

    Raises:
        InvalidRequest: a change does not fit the old value, as in `apply_change`.
        TooLarge: a new list is too large.
    """
    after = dict(state)
    for key, change in delta.items():
        value = apply_change(key, after.get(key), change)
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


def merge_delta(state: dict[str, Any], delta: Mapping[str, Change]) -> dict[str, Any]:
    """Return a session's own state after the changes of `delta`; the same object if nothing changes.

    Changes to keys of other scopes are ignored.

    Raises:
        InvalidRequest: a change does not fit the old value, as in `apply_change`.
        TooLarge: a limit of the state would be exceeded.
    """
    own = select_own(delta)
    if not own:
        return state
    after = apply_delta(state, own)
    check_room("session", keys=len(after), size=len(_encode(after)), grown=len(after) > len(state))
    return after


def list_key_turns(
    turns: Mapping[str, int], before: Mapping[str, Any], after: Mapping[str, Any], turn: int
) -> dict[str, int]:
    """Return, for each key of a session's own state, the turn that last wrote its value.

    Args:
        turns: the turns before the write. Keys whose turn is unknown are missing.
        before: the state before the write.
        after: the state after the write.
        turn: the turn of the write.
    """
    changed_keys = {key for key, value in after.items() if key not in before or before[key] != value}
    return {key: turn if key in changed_keys else turns[key] for key in after if key in changed_keys or key in turns}


def check_room(scope: Scope, *, keys: int, size: int, grown: bool, larger: bool = True) -> None:
    """Check that a scope is within its limits after a change.

    Args:
        scope: the scope.
        keys: number of keys after the change.
        size: bytes of all keys and values as JSON.
        grown: True if there are more keys than before.
        larger: True if there are more bytes than before. A scope that is already too large may shrink step by step.

    Raises:
        TooLarge: a limit would be exceeded. The message says which one.
    """
    if grown and keys > STATE_KEYS:
        message = f"the state of {SCOPE_OWNERS[scope]} would have {keys:,} keys; at most {STATE_KEYS:,} are allowed"
        raise TooLarge(message, param="state")
    if larger and size > STATE_BYTES:
        message = (
            f"the state of {SCOPE_OWNERS[scope]} would have {size:,} bytes as JSON; at most {STATE_BYTES:,} are allowed"
        )
        raise TooLarge(message, param="state")


def compute_weight(name: str, value: bytes) -> int:
    """Return the bytes that a key and its JSON value add to the size of their scope.

    The size of a scope is the sum over all its keys, plus 1.
    """
    return len(_encode(name)) + len(value) + 2


def combine_changes(key: str, first: Change, second: Change) -> Change:
    """Return one change that has the effect of two successive changes of the same key.

    Raises:
        InvalidRequest: the second change does not fit the first.
        TooLarge: the new list is too large.
    """
    if isinstance(first, Increment) and isinstance(second, Increment):
        for one in (first, second):
            _check_number(key, one.by, "by")
        return Increment(first.by + second.by)
    if isinstance(first, Extend) and isinstance(second, Extend):
        return Extend((*first.values, *second.values))
    if not isinstance(second, Increment | Extend):
        return second
    if isinstance(first, Increment | Extend):
        message = f"state[{key!r:.80}] cannot be incremented and appended to at once"
        raise InvalidRequest(message, param="state")
    return apply_change(key, first, second)


def join_deltas(deltas: Iterable[Mapping[str, Change]]) -> dict[str, Change]:
    """Return one delta that has the effect of several successive deltas. Raises the errors of `combine_changes`."""
    whole: dict[str, Change] = {}
    for delta in deltas:
        for key, change in delta.items():
            whole[key] = combine_changes(key, whole[key], change) if key in whole else change
    return whole


def split_by_scope(delta: Mapping[str, Change]) -> dict[Scope, dict[str, Change]]:
    """Return the changes of each scope, by key without prefix. Scopes without changes are missing."""
    parts: dict[Scope, dict[str, Change]] = {}
    for key, change in delta.items():
        parts.setdefault(get_scope(key), {})[remove_prefix(key)] = change
    return parts


def add_prefix(values: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """Return the values of a scope, by key with the scope's prefix."""
    prefix = "" if scope == "session" else f"{scope}:"
    return {prefix + key: value for key, value in values.items()}


def is_same_json(one: Any, other: Any) -> bool:
    """Return True if two values are the same JSON, for compare-and-set. `1` equals `1.0`, but not `true`."""
    try:
        one, other = _normalize_numbers(one), _normalize_numbers(other)
    except RecursionError:  # nested very deeply: compare the values without normalizing numbers
        pass
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def encode_value(key: str, value: Any) -> bytes:
    """Return the value of a key as JSON.

    Raises:
        InvalidRequest: the value has no JSON form.
    """
    try:
        written = _encode(value)
    except UNWRITABLE as exc:
        message = f"state[{key!r:.80}] cannot be written as JSON: it is {type(value).__name__}"
        raise InvalidRequest(message, param="state") from exc
    if written == b"null" and value is not None:
        raise InvalidRequest(f"state[{key!r:.80}]: {value!r:.80} has no JSON form", param="state")
    return written


def select_own(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a stored state that belongs to the session alone.

    Releases that had no scopes also stored keys with prefixes in it. These keys must not be copied.
    """
    if ":" not in "".join(state):
        return dict(state)
    return {key: value for key, value in state.items() if get_scope(key) == "session"}


def select_names(keys: Iterable[str], scope: Scope) -> list[str]:
    """Return those of `keys` that belong to the scope, without prefix, in order and without duplicates."""
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
        message = f"state[{key[:80]!r}] has {len(written):,} bytes as JSON; at most {STATE_VALUE_BYTES:,} are allowed"
        raise TooLarge(message, param="state")
    if _is_too_deep(written):
        message = f"state[{key!r:.80}] has more than {STATE_DEPTH} nested objects and lists"
        raise TooLarge(message, param="state")


def _is_too_deep(written: bytes) -> bool:
    """Return True if objects and lists in a JSON text are nested more than `STATE_DEPTH` deep.

    Such a text could be written here, but perhaps not read where the call stack is deeper.
    """
    if written.count(b"[") + written.count(b"{") <= STATE_DEPTH:
        return False
    depth = 0
    for mark in _BRACKET.findall(_TEXT.sub(b"", written)):
        depth += 1 if mark in b"[{" else -1
        if depth > STATE_DEPTH:
            return True
    return False


# The value is not quoted, because errors are logged, and the value may be secret or temporary.
def _check_number(key: str, value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"state[{key!r:.80}]: {what} must be a number, not of type {type(value).__name__}"
        raise InvalidRequest(message, param="state")
    _check_exact(key, value, f"{what} is")


def _check_exact(key: str, value: float, what: str) -> None:
    # This comparison is false for NaN, and also works for integers beyond the range of floats.
    if not -MOST_NUMBER < value < MOST_NUMBER:
        message = f"state[{key!r:.80}]: {what} not within 2**53, beyond which numbers are not exact in JSON"
        raise InvalidRequest(message, param="state")
