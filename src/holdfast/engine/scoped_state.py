"""State over all its scopes, as one: read with what this process remembers of shared ones, changed in one transaction.

What is remembered is never trusted by itself: each read asks the store whether it still stands, by the scope's version, and
of one that does the store reads one small row. So several servers on one database need not know of each other.
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
from holdfast.stores.log import Append
from holdfast.stores.state import ScopedState
from holdfast.tools.context import TurnState

SHARED: Final[tuple[Scope, ...]] = ("user", "app")
"""Scopes that are no session's own, in the order in which stores change them."""


class StateChange(NamedTuple):
    """What a change of a session's state has made."""

    version: int
    """The session's."""
    values: dict[str, Any]
    """What stands under the keys that were changed, by key with its prefix; those are missing under which nothing does."""


class _Remembered(NamedTuple):
    state: ScopedState
    size: int


class Scopes:
    """The state of one tenant's sessions, users, and its own.

    Args:
        store: the tenant's.
        clock: milliseconds since the epoch.
        warm: what is remembered of sessions; it takes in what is written here.
    """

    def __init__(self, store: Store, clock: Callable[[], int], warm: TenantCache) -> None:
        self._store = store
        self._clock = clock
        self._warm = warm
        self._known: OrderedDict[str | None, _Remembered] = OrderedDict()
        self._size = 0

    # -- reading -----------------------------------------------------------

    async def read(self, user_id: str | None) -> ScopedState:
        """All that a scope holds. Its values belong to everybody who reads them: they are not to be changed.

        Args:
            user_id: whose; None: the tenant's, `app:`.
        """
        known = self._known.get(user_id)
        found = await self._store.state(user_id, known=None if known is None else known.state.version)
        if found.values is not None:
            self._remember(user_id, found)
            return found
        assert known is not None, "no values are left out that nobody knows"
        if user_id in self._known:
            self._known.move_to_end(user_id)
        return known.state

    async def read_shared(self, user_id: str) -> dict[Scope, Mapping[str, Any]]:
        """What a session of a user shares with others: by scope, then by key without its prefix."""
        user, app = await self.read(user_id), await self.read(None)
        return {"user": user.values or {}, "app": app.values or {}}

    async def read_all(self, session: Session) -> dict[str, Any]:
        """A session's state and what it shares, by key with the prefix of its scope. Not to be changed either."""
        found = dict(session.state)
        for scope, values in (await self.read_shared(session.user_id)).items():
            found |= add_prefix(values, scope)
        return found

    async def read_keys(self, user_id: str, keys: Iterable[str]) -> dict[str, Any]:
        """What stands under those of `keys` that are shared; no others are read. Scopes that none is of are not asked.

        Args:
            user_id: whose session wants to know.
            keys: with their prefixes; those of a session's own and of a turn's state are passed over.
        """
        keys = tuple(keys)
        found: dict[str, Any] = {}
        for scope in SHARED:
            if names := select_names(keys, scope):
                values = await self.read_names(user_id if scope == "user" else None, names)
                found |= add_prefix({name: values[name] for name in names if name in values}, scope)
        return found

    async def read_names(self, user_id: str | None, names: Collection[str]) -> Mapping[str, Any]:
        """What stands under some keys of a scope, both without its prefix; more may be told.

        Args:
            user_id: whose; None: the tenant's.
            names: which.
        """
        known = self._known.get(user_id)
        version = None if known is None else known.state.version
        found = await self._store.state(user_id, names=names, known=version)
        if found.values is not None:
            return found.values
        return known.state.values or {} if known is not None else {}

    def _remember(self, user_id: str | None, found: ScopedState) -> None:
        """Remember what a scope holds, the oldest of others no more, where there is too much of it."""
        old = self._known.pop(user_id, None)
        if old is not None and old.state.version > found.version:  # a slower read than another one
            found, size = old
        else:
            size = len(msgspec.json.encode(found.values))
        self._known[user_id] = _Remembered(found, size)
        self._size += size - (old.size if old else 0)
        while len(self._known) > STATE_REMEMBERED or self._size > STATE_REMEMBERED_BYTES:
            self._size -= self._known.popitem(last=False)[1].size

    # -- in a turn ---------------------------------------------------------

    async def load(self, turn_state: TurnState, user_id: str) -> None:
        """Read what a turn's session shares with others, as it stands now."""
        turn_state.set_shared(await self.read_shared(user_id))

    async def follow(self, turn_state: TurnState, user_id: str, delta: Mapping[str, Change] | None) -> None:
        """Read again what a write of the turn has changed of it, where it was read at all."""
        keys = [key for key in delta or () if get_scope(key) in SHARED]
        if keys and turn_state.loaded:
            try:
                values = await self.read_keys(user_id, keys)
            except StoreError:  # what was written stands all the same
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
        """Change a session's state, and what it shares, all or nothing.

        Args:
            ref: the session.
            delta: by key with the prefix of its scope, in order; `temp:` keys are for turns, and are passed over.
            expect: what must stand under some keys of one scope (None: nothing): compare-and-set. Where that scope is
                shared, `delta` may have keys of it alone.
            version: the session's that it must be at.

        Raises:
            InvalidRequest: a key, a value, an increment of what is no number, or `expect` names several scopes.
            TooLarge: a limit would be passed.
            SessionNotFound: no such session.
            StaleSession: it is at another version.
            StaleState: something else stands under a key of `expect`.
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
        session = await self._store.get(ref)  # what names one that is not there is a mistake
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
        """Change what a user's sessions share, or all of the tenant; its version then, and what stands under these keys.

        Args:
            user_id: whose; None: the tenant's.
            delta: by key with the prefix of the scope, in order.
            expect: what must stand under some of its keys (None: nothing).
            version: the scope's that it must be at.

        Raises:
            InvalidRequest: a key of another scope, a value, an increment of what is no number.
            TooLarge: a limit would be passed.
            StaleState: it is at another version, or something else stands under a key of `expect`.
        """
        check_delta(delta)
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
        """Delete all that a scope holds; how many keys there were.

        Args:
            user_id: whose; None: the tenant's.
            version: the scope's that it must be at.

        Raises:
            StaleState: it is at another version.
        """
        if version is None:
            return await self._store.drop_state(user_id)
        found = await self.read(user_id)
        nothing = dict.fromkeys(found.values or {})
        await self._store.change_state(user_id, nothing, timestamp=self._clock(), expect=version)
        return len(nothing)


_MIXED: Final = (
    "what is expected of {scope}: keys goes with changes of {scope}: keys alone, and without the session's version: "
    "a scope of its own is compared in a write of its own"
)


def check_scope(keys: Iterable[str], scope: Scope) -> None:
    """Refuse keys of another scope: a key is spelt in one way, with its prefix, wherever it is named. Raises `InvalidRequest`."""
    for key in keys:
        if get_scope(key) != scope:
            message = f"the keys of this state begin with {scope}: as everywhere; {key!r:.80} does not"
            raise InvalidRequest(message, param="state")


def _check_expected(expect: Mapping[str, Any]) -> Scope | None:
    """The one scope of what is expected; None where nothing is. Raises `InvalidRequest`."""
    check_delta(expect)
    scopes = {get_scope(key) for key in expect}
    if "temp" in scopes:
        raise InvalidRequest("nothing can be expected of temp: keys, which are never stored", param="expect")
    if len(scopes) > 1:
        message = f"what is expected names keys of one scope a request, not of {' and '.join(sorted(scopes))}"
        raise InvalidRequest(message, param="expect")
    return scopes.pop() if scopes else None
