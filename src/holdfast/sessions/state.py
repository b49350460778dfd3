"""What a user of the library holds of the state: a session's over all scopes, or one scope that sessions share."""

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
    """Reads and writes of some state, each by itself and at once. Cheap: it holds nothing, every method asks the store.

    Keys are spelt with the prefix of their scope: none for a session's own, `user:`, `app:`. Values are JSON, and what is read
    is a copy. None deletes a key.
    """

    async def __getitem__(self, key: str) -> Any:
        """What stands under a key: `await session.state["user:theme"]`. Raises `KeyError` where nothing does."""
        value = await self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    async def get(self, key: str, default: Any = None) -> Any:
        """The same, or `default`."""
        check_key(key)
        value = await self._read(key)
        return default if value is None else copy.deepcopy(value)

    async def all(self) -> dict[str, Any]:
        """All of it, by key."""
        return copy.deepcopy(await self._read_all())

    async def set(self, key: str, value: Any) -> None:
        """Have `value` stand under a key; of others nothing changes. Raises as `update` does."""
        check_key(key)
        await self._change({key: value})

    async def update(self, values: Mapping[str, Any]) -> None:
        """Change several keys, all of them or none; None deletes one.

        Raises:
            InvalidRequest: a key or a value cannot be one.
            TooLarge: a limit would be passed.
            SessionNotFound: no such session.
        """
        if not isinstance(values, Mapping):
            raise InvalidRequest(
                f"state must be a mapping of keys to values, not {type(values).__name__}", param="state"
            )
        await self._change(values)

    async def delete(self, key: str) -> None:
        """Have nothing stand under a key."""
        check_key(key)
        await self._change({key: None})

    async def increment(self, key: str, by: float = 1) -> int | float:
        """Add to the number under a key, to 0 where there is none; what it is then. None is lost, whoever else adds to it.

        Raises:
            InvalidRequest: something else stands there, or `by` is no number.
        """
        check_key(key)
        number: int | float = _get_new_value(await self._change({key: Increment(by)}), key, by)
        return number

    async def append(self, key: str, *values: Any) -> int:
        """Add values to the end of the list under a key, of an empty one where there is none; how long it is then.

        Raises:
            InvalidRequest: something else stands there.
            TooLarge: the list would be.
        """
        check_key(key)
        return len(_get_new_value(await self._change({key: Extend(values)}), key, values))

    async def compare_and_set(self, key: str, expected: Any, value: Any) -> bool:
        """Have `value` stand under a key if `expected` does (None: nothing); whether it did. Of several at once one does."""
        check_key(key)
        try:
            await self._change({key: value}, expect={key: expected})
        except StaleState:
            return False
        return True

    @abstractmethod
    async def _read(self, key: str) -> Any:
        """What stands under a key, or None."""

    @abstractmethod
    async def _read_all(self) -> dict[str, Any]:
        """All of it; it may be somebody else's."""

    @abstractmethod
    async def _change(self, delta: Mapping[str, Change], *, expect: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Change it; what stands under the keys of `delta` then."""


class SessionState(StateHandle):
    """The state of a session, with what its user's sessions (`user:`) and all of the tenant (`app:`) share.

    Outside of a turn there are no `temp:` keys: those that are written are dropped.
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
    """State that sessions share: a user's (its keys begin with `user:`), or the tenant's (`app:`)."""

    def __init__(self, engine: Engine, user_id: str | None) -> None:
        self._engine = engine
        self._user_id = user_id
        self._scope: Scope = "app" if user_id is None else "user"

    def __repr__(self) -> str:
        return "<state of all sessions>" if self._user_id is None else f"<state of user {self._user_id!r}>"

    async def version(self) -> int:
        """How often it was changed so far."""
        return (await self._engine.scopes.read(self._user_id)).version

    async def clear(self) -> int:
        """Delete all of it; how many keys there were."""
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
    """What stands under a key that was changed; of one that holds a secret, and is kept under another name, what it was given."""
    return values.get(key, alone)
