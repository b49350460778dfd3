"""State in the library: handles for all scopes and for one, the mapping of a turn, and the cache of a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.engine.scoped_state import Scopes
from holdfast.overlays.session_cache import SessionCache
from holdfast.stores.state import ScopedState

# -- cache --------------------------------------------------------------------


class Kept:
    """A minimal store of shared state."""

    def __init__(self) -> None:
        self.scopes: dict[str | None, tuple[int, dict[str, Any]]] = {}
        self.given = 0
        """Values that it has given."""

    def write(self, user_id: str | None, values: Mapping[str, Any]) -> None:
        version, held = self.scopes.get(user_id, (0, {}))
        self.scopes[user_id] = (version + 1, {**held, **values})

    async def state(self, user_id: str | None, *, names: Any = None, known: int | None = None) -> ScopedState:
        version, held = self.scopes.get(user_id, (0, {}))
        if known == version:
            return ScopedState(version, None)
        found = held if names is None else {name: held[name] for name in names if name in held}
        self.given += len(found)
        return ScopedState(version, dict(found))


def make_scopes(kept: Kept) -> Scopes:
    return Scopes(kept, lambda: 0, SessionCache().open_tenant())  # type: ignore[arg-type]  # only that part of it is used


async def test_slow_read_does_not_replace_a_newer_one() -> None:
    kept = Kept()
    scopes = make_scopes(kept)
    scopes._remember("ada", ScopedState(2, {"a": 2}))
    scopes._remember("ada", ScopedState(1, {"a": 1}))
    kept.scopes["ada"] = (2, {"a": 2})
    assert (await scopes.read("ada")).values == {"a": 2}
    assert kept.given == 0
