"""The part of the store contract about state that sessions share: the state of a user (`user:`) and of a tenant (`app:`).

A session's own state is part of its row (`Session.state`) and changes with `append` and `update`. Shared state is stored by key
in a scope: each user has one, and each tenant. `Append.state_delta`, `NewSession.state` and `SessionPatch.state` may contain
keys of all three scopes, with their prefixes; they change together in one transaction. `temp:` keys are refused.

**Versions.** A scope's `version` is 0 before its first write, and grows by one with each write that changes a value. Values are
compared byte for byte as JSON. Dropping a scope sets the version to 0, but the next write continues above all earlier versions. So a
version is never reused.

**Concurrent writers.** Writes to a scope are executed one after the other, each for the short time of its transaction. No change is
lost, regardless of the session or process that makes it: changes of different keys, and increments and extensions of one key, all
take effect.

**Limits** are defined in `holdfast.limits`: bytes of a key and of a value, number of keys in a scope, and bytes of a scope as
JSON. A write that would exceed one raises `TooLarge` and writes nothing. A session's own state has the same limits. But the
state of a session that `replace` installs is only checked for its total size, since another store may have accepted this state
before keys and values had limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ScopedState(msgspec.Struct, frozen=True):
    """The contents of a scope, or some of them."""

    version: int
    """The scope's version; 0 if nothing was ever written to it."""
    values: Mapping[str, Any] | None
    """Values by key, without the prefix of the scope; None if they are unchanged since the version that the caller knows."""
    damaged: tuple[str, ...] = ()
    """Keys whose values cannot be decoded. Setting or deleting such a key repairs it."""
