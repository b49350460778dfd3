"""State in the library: handles for all scopes and for one, the mapping of a turn, and the cache of a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.domain.state import Increment
from holdfast.engine.scoped_state import Scopes
from holdfast.errors import InvalidRequest, SessionNotFound, StaleSession, StaleState, StoreUnavailable, TooLarge
from holdfast.limits import STATE_REMEMBERED, STATE_VALUE_BYTES
from holdfast.overlays.session_cache import SessionCache
from holdfast.stores.state import ScopedState
from holdfast.turns.library_turn import OpenTurn

USER = "ada"


@asynccontextmanager
async def open_with(url: str = "sqlite://:memory:", **settings: Any) -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(url, **settings) as hf:
        yield hf


async def session_of(hf: holdfast.Holdfast, name: str = "s", user_id: str = USER) -> Any:
    return await hf.session(name, user_id=user_id)


# -- handles -----------------------------------------------------------------


async def test_session_has_the_state_of_all_scopes() -> None:
    """Key prefixes select the scope; sessions share the user and app scopes."""
    async with open_with() as hf:
        one, two, other = await session_of(hf), await session_of(hf, "t"), await session_of(hf, user_id="bob")
        await one.state.update({"topic": "x", "user:theme": "dark", "app:version": "2"})
        assert await one.state.all() == {"topic": "x", "user:theme": "dark", "app:version": "2"}
        assert await two.state.all() == {"user:theme": "dark", "app:version": "2"}
        assert await other.state.all() == {"app:version": "2"}
        assert (await one.info()).state == {"topic": "x"}
        assert await one.state["user:theme"] == await hf.user_state(USER)["user:theme"] == "dark"
        assert await hf.app_state().all() == {"app:version": "2"}
        await one.state.delete("user:theme")
        assert await two.state.get("user:theme", "light") == "light"
        with pytest.raises(KeyError):
            await one.state["user:theme"]
        assert await hf.app_state().clear() == 1
        assert await other.state.all() == {}


@pytest.mark.parametrize("prefix", ["", "user:", "app:"])
async def test_concurrent_updates_add_up(prefix: str) -> None:
    """Increments, appends and compare-and-set, in each scope."""
    async with open_with() as hf:
        sessions = [await session_of(hf, name) for name in "ab"] if prefix else [await session_of(hf)] * 2
        numbers: list[Any] = []
        lengths: list[int] = []
        winners: list[str] = []

        async def work(at: int) -> None:
            state = sessions[at % 2].state
            numbers.append(await state.increment(f"{prefix}n", 2))
            lengths.append(await state.append(f"{prefix}l", at))
            if await state.compare_and_set(f"{prefix}first", None, at):
                winners.append(f"{at}")

        async with anyio.create_task_group() as group:
            for at in range(10):
                group.start_soon(work, at)
        assert sorted(numbers) == list(range(2, 22, 2))
        assert sorted(lengths) == list(range(1, 11))
        found = await sessions[0].state.all()
        assert sorted(found[f"{prefix}l"]) == list(range(10))
        assert [str(found[f"{prefix}first"])] == winners
        assert not await sessions[1].state.compare_and_set(f"{prefix}n", 19, 0)
        assert await sessions[1].state.compare_and_set(f"{prefix}n", 20.0, None)
        assert await sessions[0].state.get(f"{prefix}n") is None


async def test_rejected_change_writes_nothing() -> None:
    """In any scope; the error names the wrong key."""
    async with open_with() as hf:
        session = await session_of(hf)
        await session.state.update({"a": 1, "user:word": "w"})
        before, version = await session.state.all(), (await session.info()).version
        with pytest.raises(InvalidRequest, match="user:word"):
            await session.state.increment("user:word")
        with pytest.raises(TooLarge):
            await session.state.update({"a": 2, "app:b": "x" * STATE_VALUE_BYTES})
        for wrong in ("", "user:", "nul\0"):
            with pytest.raises(InvalidRequest):
                await session.state.update({"a": 2, wrong: 1})
        with pytest.raises(InvalidRequest):
            await session.state.update({"a": 2, "user:odd": object()})
        for handle, key in ((hf.user_state(USER), "word"), (hf.user_state(USER), "app:b"), (hf.app_state(), "user:b")):
            with pytest.raises(InvalidRequest, match="begin with"):
                await handle.set(key, 1)
            with pytest.raises(InvalidRequest):
                await handle.get(key)
        assert (await session.state.all(), (await session.info()).version) == (before, version)
        found = await session.state.all()
        found["user:new"] = 1
        assert await session.state.all() == before, "what is read is a copy"


async def test_expectations_apply_to_one_scope() -> None:
    """On the session's own keys together with any change; on shared keys only with changes of that scope."""
    async with open_with() as hf:
        session, scopes = await session_of(hf), hf.engine.scopes
        await session.state.update({"a": 1, "user:n": 1})
        done = await scopes.change(session.ref, {"a": 2, "user:n": Increment(1)}, expect={"a": 1})
        assert (done.values, done.version) == ({"a": 2, "user:n": 2}, (await session.info()).version)
        for delta in ({"user:n": 9}, {"temp:n": 9}, {"a": 9}):
            with pytest.raises(StaleState):
                await scopes.change(session.ref, delta, expect={"a": 1})
        mixed: list[tuple[Any, Any, Any]] = [
            ({"a": 1}, {"user:n": 2}, None),
            ({"user:n": 1, "app:n": 1}, {"user:n": 2}, None),
            ({"user:n": 1}, {"user:n": 2}, done.version),
            ({"a": 1}, {"user:n": 2, "a": 2}, None),
            ({"a": 1}, {"temp:x": 2}, None),
        ]
        for delta, expect, version in mixed:
            with pytest.raises(InvalidRequest):
                await scopes.change(session.ref, delta, expect=expect, version=version)
        for delta in ({"user:n": 9}, {"a": 9}, {"app:n": 9}, {"temp:n": 9}, {}):
            with pytest.raises(StaleSession):
                await scopes.change(session.ref, delta, version=done.version - 1)
        assert await session.state.all() == {"a": 2, "user:n": 2}


async def test_state_of_a_deleted_session_is_not_found() -> None:
    """It is neither read nor written, including shared keys."""
    async with open_with() as hf:
        session = await session_of(hf)
        await session.delete()
        for doing in (
            session.state.all(),
            session.state.get("a"),
            session.state.set("a", 1),
            session.state.set("user:a", 1),
            session.state.set("temp:a", 1),
            session.state.update({"user:a": 1, "app:a": 1}),
        ):
            with pytest.raises(SessionNotFound):
                await doing
        assert await hf.user_state(USER).all() == {}


async def test_user_state_survives_its_sessions(tmp_path: Path) -> None:
    """Another process sees it; another tenant does not."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with open_with(url) as hf:
        session = await session_of(hf)
        await session.state.update({"own": 1, "user:a": 1})
        await session.delete()
        assert await (await session_of(hf)).state.all() == {"user:a": 1}
    async with open_with(url) as hf:
        assert await hf.user_state(USER).all() == {"user:a": 1}
    async with open_with(url, tenant="other") as hf:
        assert await hf.user_state(USER).all() == {}


# -- turns -------------------------------------------------------------------


async def test_turn_commits_its_state_with_its_entries() -> None:
    """Visible in the turn at once, elsewhere after the write; one write for both."""
    async with open_with() as hf:
        session = await session_of(hf)
        await hf.user_state(USER).set("user:theme", "dark")
        async with session.turn("hi") as turn:
            state = await turn.load_state()
            assert state is turn.state
            assert dict(turn.state) == {"user:theme": "dark"}
            turn.state["user:theme"] = "light"
            turn.state["topic"] = "x"
            turn.state["temp:x"] = [1]
            turn.state.increment("app:turns")
            assert dict(turn.state) == {"user:theme": "light", "topic": "x", "temp:x": [1], "app:turns": 1}
            assert await session.state.all() == {"user:theme": "dark"}
            before = (await session.info()).version
            turn.add("hello")
            await turn.next()
            assert (await session.info()).version == before + 1
            assert await session.state.all() == {"user:theme": "light", "topic": "x", "app:turns": 1}
            await hf.app_state().increment("app:turns")
            await turn.next()
            assert turn.state["app:turns"] == 2, "the next prompt sees what others have done"
            turn.state["late"] = True
        assert (await session.state.all())["late"] is True
        with pytest.raises(InvalidRequest, match="ended"):
            turn.state["later"] = True
        with pytest.raises(KeyError):
            turn.state["temp:x"]


async def test_turn_that_does_not_use_shared_state_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can still write it; reading without loading is an error that says how to load."""
    async with open_with() as hf:
        session = await session_of(hf)

        async def fail_if_called(*_: Any, **__: Any) -> None:
            raise AssertionError("nobody asked for it")

        with monkeypatch.context() as patched:
            patched.setattr(hf.store, "state", fail_if_called, raising=False)
            async with session.turn("hi") as turn:
                turn.state.increment("user:turns")
                turn.state["topic"] = "x"
                assert turn.state["topic"] == "x"
                for look in (lambda: turn.state["user:turns"], lambda: dict(turn.state)):
                    with pytest.raises(InvalidRequest, match="load_state"):
                        look()
                turn.add("hello")
        assert await session.state.all() == {"topic": "x", "user:turns": 1}


async def test_rejected_state_change_does_not_lose_the_reply() -> None:
    """The reply is in the log, and the error names the rejected key."""
    async with open_with() as hf:
        session = await session_of(hf)
        await hf.user_state(USER).set("user:word", "w")

        async def answer_hello(turn: OpenTurn) -> None:
            turn.add("hello")
            turn.state.increment("user:word")
            turn.state["topic"] = "x"

        async def alone(turn: OpenTurn) -> None:
            turn.state.increment("user:word")
            with pytest.raises(InvalidRequest, match="user:word"):
                await turn.next()
            turn.state.append("user:word", 1)

        for block in (answer_hello, alone):
            with pytest.raises(InvalidRequest, match="user:word"):
                await in_a_turn(session, block)
            assert [one["content"] for one in await session.messages()][:2] == ["hi", "hello"]
            assert await session.state.all() == {"user:word": "w"}


async def in_a_turn(session: Any, block: Callable[[OpenTurn], Awaitable[None]]) -> None:
    async with session.turn("hi") as turn:
        await block(turn)


async def test_failed_state_write_is_retried_once_at_the_end_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together with later changes."""
    async with open_with() as hf:
        session = await session_of(hf)
        async with session.turn("hi") as turn:
            turn.add("hello")
            turn.state.increment("user:n")
            with monkeypatch.context() as patched:

                async def away(*_: Any, **__: Any) -> None:
                    raise StoreUnavailable("away")

                patched.setattr(type(hf.store), "append", away)
                with pytest.raises(StoreUnavailable):
                    await turn.next()
            turn.state.increment("user:n")
        assert await session.state.all() == {"user:n": 2}
        assert len(await session.messages()) == 2


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


async def test_cached_session_survives_a_state_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next turn need not read the log again."""
    async with open_with() as hf:
        session = await session_of(hf)
        await session.send("hi")
        await session.state.update({"a": 1, "user:a": 1})
        reads: list[Any] = []
        window = hf.store.window

        async def record_read(*args: Any) -> Any:
            reads.append(args)
            return await window(*args)

        monkeypatch.setattr(type(hf.store), "window", lambda _, *args: record_read(*args))
        await session.send("again")
        assert reads == []


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


async def test_state_cache_is_bounded_and_avoids_reads() -> None:
    """By users and bytes; the least recently used entry is evicted."""
    kept = Kept()
    scopes = make_scopes(kept)
    for at in range(STATE_REMEMBERED + 5):
        kept.write(f"u{at}", {"a": at})
        await scopes.read(f"u{at}")
        await scopes.read("u1")
    assert len(scopes._known) == STATE_REMEMBERED
    given = kept.given
    await scopes.read("u1")
    assert kept.given == given
    await scopes.read("u0")
    assert kept.given == given + 1
    for at in range(30):
        kept.write("u1", {f"{at}": "x" * STATE_VALUE_BYTES})
        await scopes.read("u1")
        assert scopes._size == sum(one.size for one in scopes._known.values()) <= 4 << 20


async def test_slow_read_does_not_replace_a_newer_one() -> None:
    kept = Kept()
    scopes = make_scopes(kept)
    scopes._remember("ada", ScopedState(2, {"a": 2}))
    scopes._remember("ada", ScopedState(1, {"a": 1}))
    kept.scopes["ada"] = (2, {"a": 2})
    assert (await scopes.read("ada")).values == {"a": 2}
    assert kept.given == 0
