"""The part of the store contract about state that sessions share: a user's (`user:`) and a tenant's (`app:`).

A session's own state is part of its row (`Session.state`) and changes with `append` and `update`. Shared state is stored by key in
a scope of its own. `Append.state_delta`, `NewSession.state` and `SessionPatch.state` may name keys of all three scopes, with
their prefixes. All of them change in that one transaction, or none. `temp:` keys are refused.

**Versions.** A scope's `version` is 0 before its first write and grows by one with each write that changes it. A write that changes
no key, compared byte for byte as JSON, does not count. A version is never reused: after a user's scope was dropped it may be at
version 0, like one that was never written to, but its next write continues above the versions that it had.

**Races.** Writers of a scope come one after the other, each for the short time of its transaction. None is lost, whatever
session or process it comes from: changes of different keys, and increments and extensions of one key, all add up.

**Limits** are those of `holdfast.limits`: for a key, a value, the keys of a scope, and a scope as JSON. A write beyond them raises
`TooLarge` and writes nothing. They apply to a session's own state too. A state that `replace` installs only has to be small enough as a
whole, since another store may have accepted it before there were limits for keys and values.

**Redis** keeps a user's sessions and `user:` state in one slot, and a tenant's `app:` state in another. What an `append` changes
of `app:` is recorded with the entries, and applied exactly once right after them, by whichever client
is first. It is checked before the write, so an accepted write can pass only those limits of a scope that other writers reach at that very moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import msgspec

from holdfast.domain.state import Change


class ScopedState(msgspec.Struct, frozen=True):
    """The contents of a scope."""

    version: int
    """The scope's version; 0: nothing was ever written."""
    values: Mapping[str, Any] | None
    """By key, without the prefix of the scope; None: unchanged since the version that the caller knows."""
    damaged: tuple[str, ...] = ()
    """Keys whose values cannot be decoded; setting or deleting them repairs the scope."""


class StateStore(Protocol):
    """State that sessions share. A `user_id` of None means the tenant's own scope, `app:`."""

    async def state(
        self, user_id: str | None, *, names: Collection[str] | None = None, known: int | None = None
    ) -> ScopedState:
        """Return the contents of a scope, all from one moment.

        Args:
            user_id: the user whose scope is read; None: the tenant's scope.
            names: only these keys, at most `STATE_KEYS`; None: all.
            known: the version that the caller already has: if it is the present one, no values are returned.
        """
        ...

    async def change_state(
        self,
        user_id: str | None,
        delta: Mapping[str, Change],
        *,
        timestamp: int,
        expect: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> ScopedState:
        """Change a scope in one transaction; return its new version and the values of the keys in `delta`.

        Args:
            user_id: whose scope; None: the tenant's.
            delta: by key, without prefix, in order; see `holdfast.domain.state.Change`.
            timestamp: milliseconds since the epoch.
            expect: the version that the scope must be at; None: any.
            values: compare-and-set: the values that some keys must have (None: no value), compared by `holdfast.domain.state.is_same_json`.

        Raises:
            StaleState: the scope is at another version, or a key has another value than `values` says.
            InvalidRequest: an increment of a value that is not a number, an extension of one that is not a list.
            TooLarge: a limit would be passed.
        """
        ...

    async def drop_state(self, user_id: str | None) -> int:
        """Delete all keys of a scope, and for a user's scope the user's name, from the disk too; return how many keys there were."""
        ...
