"""State in the library: handles for all scopes and for one, the mapping of a turn, and the cache of a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.engine.scoped_state import Scopes
from holdfast.errors import InvalidRequest, StoreUnavailable
from holdfast.overlays.session_cache import SessionCache
from holdfast.stores.state import ScopedState

USER = "ada"


@asynccontextmanager
async def open_with(url: str = "sqlite://:memory:", **settings: Any) -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(url, **settings) as hf:
        yield hf


async def session_of(hf: holdfast.Holdfast, name: str = "s", user_id: str = USER) -> Any:
    return await hf.session(name, user_id=user_id)


# -- handles -----------------------------------------------------------------


# -- turns -------------------------------------------------------------------


async def test_failed_read_after_a_write_does_not_repeat_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared state is read again later."""
    async with open_with() as hf:
        session = await session_of(hf)

        async def away(*_: Any, **__: Any) -> None:
            raise StoreUnavailable("away")

        async with session.turn("hi") as turn:
            await turn.load_state()
            turn.add("hello")
            turn.state.increment("user:n")
            with monkeypatch.context() as patched:
                patched.setattr(hf.store, "state", away, raising=False)
                await turn.next()
            with pytest.raises(InvalidRequest, match="load_state"):
                turn.state["user:n"]
            assert (await turn.load_state())["user:n"] == 1
        assert await session.state.all() == {"user:n": 1}
        assert len(await session.messages()) == 2


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


OWNERS = st.sampled_from([None, "ada", "bob"])
NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(st.tuples(st.just("write"), OWNERS, NAMES), st.tuples(st.sampled_from(["all", "some"]), OWNERS, NAMES))
)


@given(STEPS)
def test_cached_state_equals_the_stored_state(steps: list[tuple[str, str | None, str]]) -> None:
    """With writes by others in between."""

    async def run() -> None:
        kept = Kept()
        scopes = make_scopes(kept)
        for at, (what, owner, name) in enumerate(steps):
            stands = kept.scopes.get(owner, (0, {}))
            if what == "write":
                kept.write(owner, {name: at})
            elif what == "all":
                assert await scopes.read(owner) == ScopedState(*stands)
            else:
                assert (await scopes.read_names(owner, [name])).get(name) == stands[1].get(name)

    anyio.run(run)


async def test_slow_read_does_not_replace_a_newer_one() -> None:
    kept = Kept()
    scopes = make_scopes(kept)
    scopes._remember("ada", ScopedState(2, {"a": 2}))
    scopes._remember("ada", ScopedState(1, {"a": 1}))
    kept.scopes["ada"] = (2, {"a": 2})
    assert (await scopes.read("ada")).values == {"a": 2}
    assert kept.given == 0
