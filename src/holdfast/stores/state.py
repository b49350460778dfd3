"""The part of the store contract that is about state which sessions share: a user's (`user:`), and a tenant's (`app:`).

A session's own state is part of its row (`Session.state`) and changes with `append` and `update`. What is shared lies by key in
a scope of its own. `Append.state_delta`, `NewSession.state` and `SessionPatch.state` may name keys of all three scopes, with
their prefixes; then all of them change in that one transaction, or none. `temp:` keys never come to a store: they are refused.

**Versions.** A scope's `version` is 0 before its first write and grows by one with each write that changes it: one that leaves
every key as it is, byte for byte as JSON, is none. It never comes again: a user's scope that is dropped may be of version 0, as one that
was never written to, until the next write, which goes on above what it was.

**Races.** Writers of a scope come one after the other, each for the short time of its transaction; none is lost, whatever
session or process it comes from. Different keys, and increments and extensions of one key, all add up.

**Limits** are those of `holdfast.limits`: a key, a value, keys of a scope, and a scope as JSON; past them a write is
`TooLarge`, and nothing of it is written. They hold for a session's own state too; what `replace` installs, which another store may
have taken before there were any for keys and values, only has to be small enough as a whole.

**Redis** keeps a user's sessions and `user:` state in one slot, and a tenant's `app:` state in another: what an `append` changes
of `app:` is noted with the entries, and done exactly once right behind them, by whoever comes first. What it could be refused
for is told before: only the limits of a scope that others fill in that very moment can be passed by a write that was accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import msgspec

from holdfast.domain.state import Change


class ScopedState(msgspec.Struct, frozen=True):
    """What a scope holds."""

    version: int
    """Of the scope; 0: nothing was ever written."""
    values: Mapping[str, Any] | None
    """By key, without the prefix of the scope; None: the reader knows this version."""
    damaged: tuple[str, ...] = ()
    """Keys whose values cannot be decoded; setting or deleting them repairs the scope."""


class StateStore(Protocol):
    """State that sessions share. `user_id` of None is the tenant's own scope, `app:`."""

    async def state(
        self, user_id: str | None, *, names: Collection[str] | None = None, known: int | None = None
    ) -> ScopedState:
        """What a scope holds, all of it seen at one moment.

        Args:
            user_id: whose; None: the tenant's.
            names: only these keys, at most `STATE_KEYS`; None: all.
            known: the version that the reader has already: while it stands, no values are given.
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
        """Change a scope in one transaction; its version after that, and what stands under the keys of `delta`.

        Args:
            user_id: whose; None: the tenant's.
            delta: by key, without prefix, in order; see `holdfast.domain.state.Change`.
            timestamp: milliseconds since the epoch.
            expect: the version that the scope must be at; None: any.
            values: what must stand under some keys (None: nothing), by `holdfast.domain.state.same`: compare-and-set.

        Raises:
            StaleState: the scope is at another version, or something else stands under one of `values`.
            InvalidRequest: an increment of what is no number, an extension of what is no list.
            TooLarge: a limit would be passed.
        """
        ...

    async def drop_state(self, user_id: str | None) -> int:
        """Delete all that a scope holds, off the disk too, and with a user's the user's name; how many keys there were."""
        ...
