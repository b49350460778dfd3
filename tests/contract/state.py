"""The contract, state that sessions share: what a write makes of it, what it is refused for, and what readers see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from holdfast import limits
from holdfast.domain.session import Claim, SessionRef
from holdfast.domain.state import Extend, Increment
from holdfast.errors import (
    HoldfastError,
    IdempotencyConflict,
    InvalidRequest,
    SessionBusy,
    SessionExists,
    StaleSession,
    StaleState,
    TooLarge,
)
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch
from holdfast.stores.state import ScopedState

from .kit import REF, live, session, user
from .once import REFUSED, RULE, once

BOTH: tuple[str | None, ...] = ("ann", None)
"""A user's scope, and the tenant's."""
_RAW = {"user:": "ann", "app:": None}
ODD = (
    *("Ü", "ü", "u\u0308", "ä\u0301"),
    *("trailing ", "trailing", " "),
    *("a'b\"c\\d", "%s?1$2", "semi;colon", "line\nbreak\r\t", "\x01\x7f"),
    *("😀", "\U0010ffff", "\u2028", "\ufeff"),
    *("user:nested", "temp:x", "a:b:c", ":", "{key}", "__proto__", "K", "k", "\u212a"),
    *("x" * limits.STATE_KEY_BYTES, "ü" * (limits.STATE_KEY_BYTES // 2)),
)
"""Keys that a database may take for one another, or for something else."""


async def all_of(store: Store, user_id: str | None = "ann") -> dict[str, Any]:
    """What a scope holds."""
    found = await store.state(user_id)
    assert found.values is not None
    return dict(found.values)


async def _append_delta(store: Store, delta: Mapping[str, Any], ref: SessionRef = REF, **fields: Any) -> dict[str, Any]:
    """Append with a change of the state; the session's own behind it."""
    done = await store.append(ref, Append(entries=[user("x")], timestamp=2, state_delta=delta, **fields))
    return done.session.state


async def _update_with(store: Store, delta: Mapping[str, Any]) -> dict[str, Any]:
    return (await store.update(REF, SessionPatch(state=dict(delta)), timestamp=2)).state


# -- what a write makes of it ----------------------------------------------------


async def test_readers_with_the_current_version_get_no_values(store: Store) -> None:
    """Until it changes; some keys can be asked for alone."""
    for scope in BOTH:
        assert await store.state(scope, known=0) == ScopedState(0, None)
        await store.change_state(scope, {"a": 1, "b": [2], "Ü ": 3}, timestamp=1)
        assert await store.state(scope, known=0) == ScopedState(1, {"a": 1, "b": [2], "Ü ": 3})
        assert await store.state(scope, known=1) == ScopedState(1, None)
        assert await store.state(scope, known=7) == ScopedState(1, {"a": 1, "b": [2], "Ü ": 3})
        for names, found in ((["b", "none", "Ü "], {"b": [2], "Ü ": 3}), (["none"], {}), ([], {})):
            assert await store.state(scope, names=names) == ScopedState(1, found)
            assert await store.state(scope, names=names, known=0) == ScopedState(1, found)
            assert await store.state(scope, names=names, known=1) == ScopedState(1, None)


async def test_unusual_keys_are_separate(store: Store) -> None:
    """They compare byte for byte, whatever they look like, in every scope."""
    await store.create(session())
    values = {key: [at, key] for at, key in enumerate(ODD)}
    assert await _append_delta(store, {"own " + key[:40]: at for at, key in enumerate(ODD[:6])})
    for prefix, scope in _RAW.items():
        await _append_delta(store, {prefix + key: value for key, value in values.items()})
        assert await all_of(store, scope) == values
        for key in ODD:
            assert await store.state(scope, names=[key]) == ScopedState(1, {key: values[key]})
        await store.change_state(scope, {"k": None, "Ü": None, "trailing": None}, timestamp=3)
        left = {key: value for key, value in values.items() if key not in {"k", "Ü", "trailing"}}
        assert await all_of(store, scope) == left


# -- whose it is -------------------------------------------------------------------


async def test_users_and_tenants_are_separate(store: Store) -> None:
    """And so is what has the same key in another scope of one user."""
    other = store.for_tenant("other")
    for handle, whose in ((store, "mine"), (other, "theirs")):
        for user_id in ("ann", "Ann", "ann "):
            ref = SessionRef(user_id, "s")
            told = {"k": f"{whose} session", "user:k": f"{whose} {user_id}!", "app:k": whose}
            await handle.create(session(ref, state=told))
    for handle, whose in ((store, "mine"), (other, "theirs")):
        for user_id in ("ann", "Ann", "ann "):
            assert await all_of(handle, user_id) == {"k": f"{whose} {user_id}!"}
        assert await all_of(handle, None) == {"k": whose}
    assert await store.drop_state("ann") == 1
    assert [await all_of(store, one) for one in ("ann", "Ann")] == [{}, {"k": "mine Ann!"}]
    assert (await all_of(other), await all_of(store, None)) == ({"k": "theirs ann!"}, {"k": "mine"})
    assert await store.state("nobody") == ScopedState(0, {})


@once(REFUSED)
async def test_installing_a_session_does_not_change_shared_state(store: Store) -> None:
    """`replace` refuses it by name, and so does it a turn's own; nothing of it is written."""
    for key in ("user:theme", "app:x", "temp:x"):
        with pytest.raises(InvalidRequest, match=key):
            await store.replace(session(state={"k": 1, key: 2}), [user("a")])
    assert (await store.list()).sessions == ()
    assert [(await store.state(scope)).version for scope in BOTH] == [0, 0]


# -- what is refused -----------------------------------------------------------------


Refused = Mapping[str, tuple[type[HoldfastError], dict[str, Any]]]
IMPOSSIBLE: Refused = {
    "a text is no number": (InvalidRequest, {"app:text": Increment()}),
    "true is no number": (InvalidRequest, {"app:flag": Increment()}),
    "what is added is no number": (InvalidRequest, {"app:n": Increment(True)}),
    "it is not finite": (InvalidRequest, {"app:n": Increment(float("inf"))}),
    "it is not exact": (InvalidRequest, {"app:n": Increment(2**53)}),
    "it is far too large": (InvalidRequest, {"app:n": Increment(10**400)}),
    "a text is no list": (InvalidRequest, {"app:text": Extend((1,))}),
    "a number is no list": (InvalidRequest, {"app:n": Extend((1,))}),
    "no JSON": (InvalidRequest, {"app:k": object()}),
    "no JSON form": (InvalidRequest, {"app:k": float("nan")}),
    "no Unicode": (InvalidRequest, {"app:k": "\ud800"}),
    "no JSON in a list": (InvalidRequest, {"app:k": Extend((object(),))}),
    "a key is too long": (TooLarge, {"app:" + "k" * (limits.STATE_KEY_BYTES + 1): 1}),
    "a value is too large": (TooLarge, {"app:k": "x" * (limits.STATE_VALUE_BYTES - 1)}),
    "a list is too large": (TooLarge, {"app:l": Extend(("x" * (limits.STATE_VALUE_BYTES - 5),))}),
    "the session's own is none": (InvalidRequest, {"text": Increment(), "app:k": 1}),
}
STANDS = {"text": "x", "flag": True, "n": 1, "l": [1]}


@once(RULE)
async def test_a_refused_write_changes_nothing(store: Store) -> None:
    """Neither entries nor any key of any scope, however late in it the wrong one comes."""
    await store.create(session(state=STANDS))
    for scope in BOTH:
        await store.change_state(scope, STANDS, timestamp=1)
    for why, (error, wrong) in IMPOSSIBLE.items():
        delta = {"own": 1, "user:fine": Increment(), "app:fine": 2, **wrong}
        plain = {key.removeprefix("app:"): change for key, change in wrong.items() if key.startswith("app:")}
        writes: list[Awaitable[object]] = [_append_delta(store, delta), _update_with(store, delta)]
        if why != "the session's own is none":
            writes += [store.change_state(scope, {"fine": 1, **plain}, timestamp=2) for scope in BOTH]
        for write in writes:
            with pytest.raises(error):
                await write
        assert ((await store.get(REF)).state, await live(store)) == (STANDS, []), why
        assert [await store.state(scope) for scope in BOTH] == [ScopedState(1, STANDS)] * 2, why


async def _fails(store: Store, error: type[HoldfastError], **fields: Any) -> None:
    given: dict[str, Any] = {"timestamp": 20, "entries": [user("lost")], "state_delta": {"user:n": 9, "app:n": 9}}
    with pytest.raises(error):
        await store.append(REF, Append(**{**given, **fields}))


@once(RULE)
async def test_a_refused_append_changes_no_state(store: Store) -> None:
    """Whatever it is refused for; and making a session that is there does not either."""
    await store.create(session(state={"user:n": 1, "app:n": 1, "k": 1}))
    done = await store.append(
        REF, Append(entries=[user("a")], timestamp=2, idempotency_key="key", claim=Claim("one", 99))
    )
    await _fails(store, StaleSession, expect=done.version - 1)
    await _fails(store, SessionBusy, claim=Claim("two", 99))
    await _fails(store, IdempotencyConflict, idempotency_key="key", fingerprint=b"another")
    await _fails(store, StaleState, state_expect={"k": 2})
    await _fails(store, InvalidRequest, entries=[user("x", media=(b"h" * 32,))])
    with pytest.raises(SessionExists):
        await store.create(session(state={"user:n": 9, "app:n": 9}))
    with pytest.raises(StaleSession):
        await store.update(REF, SessionPatch(state={"user:n": 9}), timestamp=3, expect=0)
    assert [await store.state(scope) for scope in BOTH] == [ScopedState(1, {"n": 1})] * 2
    assert await live(store) == ["a"]


@once(RULE)
async def test_a_replay_changes_nothing(store: Store) -> None:
    """What an append with a key made of the state, it made once."""
    await store.create(session())
    write = Append(
        entries=[user("a")],
        timestamp=2,
        state_delta={"n": Increment(), "user:n": Increment(), "app:l": Extend((1,))},
        idempotency_key="key",
    )
    first = await store.append(REF, write)
    for _ in range(3):
        again = await store.append(REF, write)
        assert (again.replayed, again.version) == (True, first.version)
    assert (await store.get(REF)).state == {"n": 1}
    assert [await store.state(scope) for scope in BOTH] == [ScopedState(1, {"n": 1}), ScopedState(1, {"l": [1]})]


# -- compare and set -------------------------------------------------------------------


@once(RULE)
async def test_a_scope_is_changed_at_the_expected_version(store: Store) -> None:
    """Another one is told, and nothing changes; 0 is a scope that nobody has written to."""
    for scope in BOTH:
        with pytest.raises(StaleState) as stale:
            await store.change_state(scope, {"k": 1}, timestamp=1, expect=1)
        assert (stale.value.version, stale.value.key) == (0, None)
        assert (await store.change_state(scope, {"k": 1}, timestamp=1, expect=0)).version == 1
        with pytest.raises(StaleState) as stale:
            await store.change_state(scope, {"k": 2}, timestamp=1, expect=0)
        assert (stale.value.version, await all_of(store, scope)) == (1, {"k": 1})


@once(RULE)
async def test_expected_values_may_be_of_other_keys(store: Store) -> None:
    """All of it has to stand; of a session's write only what is the session's own."""
    await store.create(session(state={"a": 1}))
    await store.change_state(None, {"a": 1, "b": 2}, timestamp=1)
    changed = await store.change_state(None, {"c": 3}, timestamp=1, values={"a": 1, "b": 2, "none": None}, expect=1)
    assert changed == ScopedState(2, {"c": 3})
    with pytest.raises(StaleState):
        await store.change_state(None, {"c": 4}, timestamp=1, values={"a": 1, "b": 3})
    await _append_delta(store, {"b": 2, "user:n": 1}, state_expect={"a": 1, "b": None})
    for expected in ({"user:n": 1}, {"temp:n": 1}, {"": 1}, {"a": object()}):
        with pytest.raises(InvalidRequest):
            await _append_delta(store, {"b": 3}, state_expect=expected)
    with pytest.raises(InvalidRequest):
        await store.change_state(None, {}, timestamp=1, values={"a": object()})
    assert ((await store.get(REF)).state, await all_of(store, None)) == ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3})


# -- limits ------------------------------------------------------------------------------


def _filling(count: int) -> dict[str, str]:
    """Keys whose values are as large as one may be."""
    return {f"k{at}": "x" * (limits.STATE_VALUE_BYTES - 2) for at in range(count)}


async def _room(write: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> None:
    """A scope takes its bytes as JSON, and not one more; what makes room comes in."""
    # `{"k0":"x…",…,"k":"…"}`: seven bytes beside each value but the last one's eight, two quotes of that, and a brace.
    rest = limits.STATE_BYTES - 3 * (limits.STATE_VALUE_BYTES + 6) - 8
    await write(_filling(3) | {"k": "x" * rest})
    for more in ({"k": "x" * (rest + 1)}, {"m": 1}, {"k0": None, "k3": "x" * (limits.STATE_VALUE_BYTES - 2), "m": 1}):
        with pytest.raises(TooLarge):
            await write(more)
    await write({"k0": None, "k3": "x" * (limits.STATE_VALUE_BYTES - 2)})
    await write({"k1": None, "m": 1})


@once(RULE)
async def test_the_bytes_of_a_scope_are_limited(store: Store) -> None:
    """Of JSON, a session's own state too."""
    await store.create(session())
    for prefix, scope in _RAW.items():
        await _room(lambda delta, prefix=prefix: _append_delta(store, {prefix + k: v for k, v in delta.items()}))  # type: ignore[misc]
        assert sorted(await all_of(store, scope)) == ["k", "k2", "k3", "m"]
    await _room(lambda delta: _update_with(store, delta))
    assert sorted((await store.get(REF)).state) == ["k", "k2", "k3", "m"]


@once(RULE)
async def test_the_keys_of_a_scope_are_limited(store: Store) -> None:
    """A session's own state too; one that is deleted makes room for another one."""
    await store.create(session())
    most = {f"{at:x}": at % 7 for at in range(limits.STATE_KEYS)}

    async def change(delta: Mapping[str, Any]) -> None:
        await store.change_state("ann", delta, timestamp=2)

    async def own(delta: Mapping[str, Any]) -> None:
        await _update_with(store, delta)

    for write in (change, own):
        await write(most)
        for more in ({"more": 1}, {**most, "more": 1}, {"0": None, "1": 2, "more": 1, "again": 2}):
            with pytest.raises(TooLarge):
                await write(more)
        await write({"0": None, "more": 1})
    after = {key: value for key, value in most.items() if key != "0"} | {"more": 1}
    assert (await store.get(REF)).state == await all_of(store) == after
    assert await store.drop_state("ann") == limits.STATE_KEYS


async def test_a_read_sees_one_version_of_the_state(openings: list[Store]) -> None:
    """Two keys that are always written together are never seen apart, wherever they are read."""
    writing = True
    await openings[0].create(NewSession(id="s1", user_id="ann", timestamp=1))
    await openings[0].change_state("ann", {"a": 0, "b": 0}, timestamp=1)

    async def write() -> None:
        nonlocal writing
        for at in range(60):
            await _append_delta(openings[0], {"user:a": at, "user:b": at})
        writing = False

    async def read(store: Store) -> None:
        last = 0
        while writing:
            for names in (None, ["b", "a"]):
                found = await store.state("ann", names=names)
                assert found.values is not None
                assert found.values["a"] == found.values["b"]
                assert found.version >= last
                last = found.version

    await asyncio.gather(write(), *(read(store) for store in openings))
