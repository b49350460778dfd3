"""Session state for users of the library: keys with JSON values, of one session, of a user, or of the tenant."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from holdfast.domain.session import SessionRef
from holdfast.domain.state import Change, Extend, Increment, Scope, add_prefix, check_key, get_scope, remove_prefix
from holdfast.engine.engine import Engine
from holdfast.engine.scoped_state import check_scope
from holdfast.errors import InvalidRequest, StaleState


class StateHandle(ABC):
    """Reads and writes state, one operation at a time. It caches nothing: every method reads or writes the store.

    A key begins with the prefix of its scope: `user:`, `app:`, or none for a session's own state. Values are JSON, and reads
    return copies. Setting None deletes a key.
    """

    async def __getitem__(self, key: str) -> Any:
        """Return the value of a key: `await session.state["user:theme"]`. Raises `KeyError` if there is no such key."""
        value = await self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        check_key(key)
        value = await self._read(key)
        return default if value is None else copy.deepcopy(value)

    async def all(self) -> dict[str, Any]:
        """Return all keys of the state with their values."""
        return copy.deepcopy(await self._read_all())

    async def set(self, key: str, value: Any) -> None:
        """Set the value of one key; other keys stay unchanged. Raises the errors of `update`."""
        check_key(key)
        await self._change({key: value})

    async def update(self, values: Mapping[str, Any]) -> None:
        """Set several keys in one atomic change. The value None deletes a key.

        Raises:
            InvalidRequest: a key or a value is invalid.
            TooLarge: a limit would be exceeded.
            SessionNotFound: there is no such session.
        """
        if not isinstance(values, Mapping):
            raise InvalidRequest(
                f"state must be a mapping of keys to values, not {type(values).__name__}", param="state"
            )
        await self._change(values)

    async def delete(self, key: str) -> None:
        """Delete a key."""
        check_key(key)
        await self._change({key: None})

    async def increment(self, key: str, by: float = 1) -> int | float:
        """Add `by` to the number under a key, and return the result. A missing key counts as 0. Concurrent increments are never lost.

        Raises:
            InvalidRequest: the value of the key, or `by`, is not a number.
        """
        check_key(key)
        number: int | float = _get_new_value(await self._change({key: Increment(by)}), key, by)
        return number

    async def append(self, key: str, *values: Any) -> int:
        """Append values to the list under a key, and return its new length. A missing key counts as an empty list.

        Raises:
            InvalidRequest: the value of the key is not a list.
            TooLarge: the list would be too large.
        """
        check_key(key)
        return len(_get_new_value(await self._change({key: Extend(values)}), key, values))

    async def compare_and_set(self, key: str, expected: Any, value: Any) -> bool:
        """Set the value of a key only if its current value equals `expected`. Return True if it was set.

        An `expected` of None means that the key must not exist. Of several concurrent calls, only one succeeds.
        """
        check_key(key)
        try:
            await self._change({key: value}, expect={key: expected})
        except StaleState:
            return False
        return True

    @abstractmethod
    async def _read(self, key: str) -> Any:
        """Return the value of a key, or None if there is no such key."""

    @abstractmethod
    async def _read_all(self) -> dict[str, Any]:
        """Return the whole state; callers must not modify it."""

    @abstractmethod
    async def _change(self, delta: Mapping[str, Change], *, expect: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Apply `delta`, and return the new values of its keys."""


class SessionState(StateHandle):
    """The state that a session sees: its own keys, and the shared keys of its user (`user:`) and of the tenant (`app:`).

    `temp:` keys exist only during a turn. This class ignores writes to them.
    """

    def __init__(self, engine: Engine, ref: SessionRef) -> None:
        self._engine = engine
        self._ref = ref

    def __repr__(self) -> str:
        return f"<state of session {self._ref.id!r}>"

    async def _read(self, key: str) -> Any:
        if get_scope(key) == "session":
            return (await self._engine.store.get(self._ref)).require_intact().state.get(key)
        return (await self._engine.scopes.read_keys(self._ref.user_id, [key])).get(key)

    async def _read_all(self) -> dict[str, Any]:
        return await self._engine.scopes.read_all((await self._engine.store.get(self._ref)).require_intact())

    async def _change(self, delta: Mapping[str, Change], *, expect: Mapping[str, Any] | None = None) -> dict[str, Any]:
        await self._engine.ensure_present(self._ref)
        return (await self._engine.scopes.change(self._ref, delta, expect=expect)).values


class SharedState(StateHandle):
    """State that several sessions share: all sessions of a user (`user:` keys), or all sessions of the tenant (`app:` keys)."""

    def __init__(self, engine: Engine, user_id: str | None) -> None:
        self._engine = engine
        self._user_id = user_id
        self._scope: Scope = "app" if user_id is None else "user"

    def __repr__(self) -> str:
        return "<state of all sessions>" if self._user_id is None else f"<state of user {self._user_id!r}>"

    async def version(self) -> int:
        """Return the state's version: the number of changes so far."""
        return (await self._engine.scopes.read(self._user_id)).version

    async def clear(self) -> int:
        """Delete all keys, and return the number of deleted keys."""
        return await self._engine.scopes.drop(self._user_id)

    async def _read(self, key: str) -> Any:
        check_scope([key], self._scope)
        return (await self._engine.scopes.read_names(self._user_id, [remove_prefix(key)])).get(remove_prefix(key))

    async def _read_all(self) -> dict[str, Any]:
        return add_prefix((await self._engine.scopes.read(self._user_id)).values or {}, self._scope)

    async def _change(self, delta: Mapping[str, Change], *, expect: Mapping[str, Any] | None = None) -> dict[str, Any]:
        changed = await self._engine.scopes.change_scope(self._user_id, delta, expect=expect)
        return dict(changed.values or {})


def _get_new_value(values: Mapping[str, Any], key: str, alone: Any) -> Any:
    """Return the new value of a changed key, or `alone` if `values` does not have the key.

    The key is missing if its name contained a secret, because the value was then stored under a masked name.
    """
    return values.get(key, alone)
