"""Read and change the state of sessions, users and tenants.

State has three *scopes*: the session's own keys, the keys with prefix `user:`, which all sessions of a user share, and the keys
with prefix `app:`, which all sessions of a tenant share. Shared scopes are cached. Each read asks the store if the cached version
of a scope is current, which costs the store one small row. So several servers on one database need not notify each other of
changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.session import Session, SessionRef
from holdfast.domain.state import (
    Change,
    Scope,
    add_prefix,
    check_delta,
    get_scope,
    remove_prefix,
    select_names,
    split_by_scope,
)
from holdfast.errors import InvalidRequest, StaleSession, StoreError
from holdfast.limits import STATE_REMEMBERED, STATE_REMEMBERED_BYTES
from holdfast.overlays.session_cache import TenantCache
from holdfast.stores.base import Store
from holdfast.stores.checks import check_new_id
from holdfast.stores.log import Append
from holdfast.stores.state import ScopedState
from holdfast.tools.context import TurnState

SHARED: Final[tuple[Scope, ...]] = ("user", "app")
"""Scopes that several sessions share, in the order in which stores change them."""


class StateChange(NamedTuple):
    """The new values of the changed keys, and the session's version."""

    version: int
    """The session's version after the change."""
    values: dict[str, Any]
    """New values of the changed keys. The keys have their prefixes; deleted keys are left out."""


class _Remembered(NamedTuple):
    state: ScopedState
    size: int


class Scopes:
    """Reads and changes the state of one tenant: of its sessions, its users, and the tenant itself.

    Args:
        store: the tenant's store.
        clock: returns milliseconds since the epoch.
        warm: the cache of sessions, which is updated after every write.
    """

    def __init__(self, store: Store, clock: Callable[[], int], warm: TenantCache) -> None:
        self._store = store
        self._clock = clock
        self._warm = warm
        self._known: OrderedDict[str | None, _Remembered] = OrderedDict()
        self._size = 0

    # -- reading -----------------------------------------------------------

    async def read(self, user_id: str | None) -> ScopedState:
        """Return the whole state of a user or of the tenant.

        The caller must not modify the values, because all readers share them.

        Args:
            user_id: the user; None: the tenant's scope, `app:`.
        """
        known = self._known.get(user_id)
        found = await self._store.state(user_id, known=None if known is None else known.state.version)
        if found.values is not None:
            self._remember(user_id, found)
            return found
        assert known is not None, "the store leaves values out only if the caller has them"
        if user_id in self._known:
            self._known.move_to_end(user_id)
        return known.state

    async def read_shared(self, user_id: str) -> dict[Scope, Mapping[str, Any]]:
        """Return the state that a user's sessions share, by scope. The keys have no prefix."""
        user, app = await self.read(user_id), await self.read(None)
        return {"user": user.values or {}, "app": app.values or {}}

    async def read_all(self, session: Session) -> dict[str, Any]:
        """Return a session's whole state, including the shared scopes. The keys have their prefixes.

        The caller must not modify the values.
        """
        found = dict(session.state)
        for scope, values in (await self.read_shared(session.user_id)).items():
            found |= add_prefix(values, scope)
        return found

    async def read_keys(self, user_id: str, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of those of the given keys that belong to shared scopes.

        Args:
            user_id: the user of the session.
            keys: keys with their prefixes. Keys of the session's own state and of temporary state are ignored.
        """
        keys = tuple(keys)
        found: dict[str, Any] = {}
        for scope in SHARED:
            if names := select_names(keys, scope):
                values = await self.read_names(user_id if scope == "user" else None, names)
                found |= add_prefix({name: values[name] for name in names if name in values}, scope)
        return found

    async def read_names(self, user_id: str | None, names: Collection[str]) -> Mapping[str, Any]:
        """Return the values of some keys of a shared scope. The result may contain other keys too.

        Args:
            user_id: the user; None: the tenant's scope.
            names: the keys, without prefix.
        """
        known = self._known.get(user_id)
        version = None if known is None else known.state.version
        found = await self._store.state(user_id, names=names, known=version)
        if found.values is not None:
            return found.values
        return known.state.values or {} if known is not None else {}

    def _remember(self, user_id: str | None, found: ScopedState) -> None:
        """Cache the state of a shared scope. Evict the least recently used scopes if the cache is too large."""
        old = self._known.pop(user_id, None)
        if old is not None and old.state.version > found.version:  # a read that was overtaken by another one
            found, size = old
        else:
            size = len(msgspec.json.encode(found.values))
        self._known[user_id] = _Remembered(found, size)
        self._size += size - (old.size if old else 0)
        while len(self._known) > STATE_REMEMBERED or self._size > STATE_REMEMBERED_BYTES:
            self._size -= self._known.popitem(last=False)[1].size

    # -- in a turn ---------------------------------------------------------

    async def load(self, turn_state: TurnState, user_id: str) -> None:
        """Read the current shared state into the state of a turn."""
        turn_state.set_shared(await self.read_shared(user_id))

    async def follow(self, turn_state: TurnState, user_id: str, delta: Mapping[str, Change] | None) -> None:
        """Update the state of a turn after the turn has changed shared keys. Do nothing if the turn never loaded shared state."""
        keys = [key for key in delta or () if get_scope(key) in SHARED]
        if keys and turn_state.loaded:
            try:
                values = await self.read_keys(user_id, keys)
            except StoreError:  # the write succeeded nevertheless
                turn_state.unload_shared()
            else:
                turn_state.add_shared({key: values.get(key) for key in keys})

    # -- writing -----------------------------------------------------------

    async def change(
        self,
        ref: SessionRef,
        delta: Mapping[str, Change],
        *,
        expect: Mapping[str, Any] | None = None,
        version: int | None = None,
    ) -> StateChange:
        """Change a session's state, including shared scopes, in one transaction.

        Args:
            ref: the session.
            delta: changes by key, in order. The keys have their prefixes; `temp:` keys belong to turns and are ignored.
            expect: values that some keys must have before the change (compare-and-set); None as a value: the key must not exist.
                All keys of `expect` must belong to one scope. If this scope is shared, `delta` may only contain keys of the same
                scope.
            version: the version that the session must have; None: any version.

        Raises:
            InvalidRequest: a key or a value is invalid, an incremented value is not a number, or `expect` names several scopes.
            TooLarge: a limit would be exceeded.
            SessionNotFound: there is no such session.
            StaleSession: the session has another version.
            StaleState: a key of `expect` has another value.
        """
        check_delta(delta)
        kept = {key: change for key, change in delta.items() if get_scope(key) != "temp"}
        where = _check_expected(expect or {})
        parts = split_by_scope(kept)
        alone = next(iter(parts)) if len(parts) == 1 else None
        if where in SHARED and (alone != where or version is not None):
            raise InvalidRequest(_MIXED.format(scope=where), param="expect")
        if alone in SHARED and where in (None, alone) and version is None:
            return await self._change_shared(ref, alone, parts[alone], expect)
        if not kept and not expect:
            return StateChange(await self._check_version(ref, version), {})
        write = Append(state_delta=kept, state_expect=expect or None, timestamp=self._clock(), expect=version)
        appended = await self._store.append(ref, write)
        self._warm.take(ref, appended, write)
        own = {key: appended.session.state[key] for key in kept if key in appended.session.state}
        return StateChange(appended.version, own | await self.read_keys(ref.user_id, kept))

    async def _change_shared(
        self, ref: SessionRef, scope: Scope, delta: Mapping[str, Change], expect: Mapping[str, Any] | None
    ) -> StateChange:
        session = await self._store.get(ref)  # raises an error if there is no such session
        user_id = ref.user_id if scope == "user" else None
        bare_expect = {remove_prefix(key): value for key, value in (expect or {}).items()}
        changed = await self._store.change_state(user_id, delta, timestamp=self._clock(), values=bare_expect or None)
        return StateChange(session.version, add_prefix(changed.values or {}, scope))

    async def _check_version(self, ref: SessionRef, version: int | None) -> int:
        session = await self._store.get(ref)
        if version is not None and session.version != version:
            raise StaleSession(ref.id, expected=version, version=session.version)
        return session.version

    async def change_scope(
        self,
        user_id: str | None,
        delta: Mapping[str, Change],
        *,
        expect: Mapping[str, Any] | None = None,
        version: int | None = None,
    ) -> ScopedState:
        """Change the state of a user or of the tenant.

        Return the new version of this state, and the new values of the changed keys.

        Args:
            user_id: the user; None: the tenant's scope.
            delta: changes by key, in order. The keys have the prefix of the scope.
            expect: values that some keys of the scope must have before the change; None as a value: the key must not exist.
            version: the version that the scope must have; None: any version.

        Raises:
            InvalidRequest: a key belongs to another scope, a value is invalid, or an incremented value is not a number.
            TooLarge: a limit would be exceeded.
            StaleState: the scope has another version, or a key of `expect` has another value.
        """
        check_delta(delta)
        if user_id is not None:
            check_new_id(user_id, "user_id")
        scope: Scope = "app" if user_id is None else "user"
        check_scope(delta, scope)
        check_scope(expect or {}, scope)
        changed = await self._store.change_state(
            user_id,
            {remove_prefix(key): change for key, change in delta.items()},
            timestamp=self._clock(),
            expect=version,
            values={remove_prefix(key): value for key, value in (expect or {}).items()} or None,
        )
        return ScopedState(changed.version, add_prefix(changed.values or {}, scope))

    async def drop(self, user_id: str | None, *, version: int | None = None) -> int:
        """Delete the whole state of a user or of the tenant, and return the number of deleted keys.

        Args:
            user_id: the user; None: the tenant's scope.
            version: the version that the scope must have; None: any version.

        Raises:
            StaleState: the scope has another version.
        """
        if version is None:
            return await self._store.drop_state(user_id)
        found = await self.read(user_id)
        nothing = dict.fromkeys(found.values or {})
        await self._store.change_state(user_id, nothing, timestamp=self._clock(), expect=version)
        return len(nothing)


_MIXED: Final = (
    "expect with {scope}: keys can only be combined with changes of {scope}: keys, and not with a session version, because "
    "each shared scope is compared in a separate write"
)


def check_scope(keys: Iterable[str], scope: Scope) -> None:
    """Raise `InvalidRequest` if a key does not have the prefix of the scope."""
    for key in keys:
        if get_scope(key) != scope:
            message = f"the keys of this state must begin with {scope}: but {key!r:.80} does not"
            raise InvalidRequest(message, param="state")


def _check_expected(expect: Mapping[str, Any]) -> Scope | None:
    """Return the scope to which all expected keys belong, or None if there are no keys.

    Raise `InvalidRequest` if the keys belong to several scopes.
    """
    check_delta(expect)
    scopes = {get_scope(key) for key in expect}
    if "temp" in scopes:
        raise InvalidRequest("expect cannot name temp: keys, because they are never stored", param="expect")
    if len(scopes) > 1:
        message = f"expect must name keys of a single scope, not of {' and '.join(sorted(scopes))}"
        raise InvalidRequest(message, param="expect")
    return scopes.pop() if scopes else None
