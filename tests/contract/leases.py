"""The contract, what belongs to a tenant: leases, and what was learned of models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import limits
from holdfast.errors import TooLarge
from holdfast.stores.base import Store

from .properties import SHARED_STORE

# -- leases ------------------------------------------------------------------


async def test_a_lease_has_one_holder(store: Store) -> None:
    """Until it expires, or its holder releases it; renewing goes on from there."""
    assert await store.lease("sweep", "one", now=0, until=10)
    assert not await store.lease("sweep", "two", now=9, until=19)
    assert await store.lease("sweep", "one", now=9, until=19)
    await store.release("sweep", "two")
    assert not await store.lease("sweep", "two", now=10, until=20)
    assert await store.lease("sweep", "two", now=19, until=29)
    await store.release("sweep", "two")
    assert await store.lease("sweep", "one", now=20, until=30)


async def test_the_holder_of_a_lease_is_named_until_it_expires(store: Store) -> None:
    """To whoever asks, in its tenant."""
    assert await store.leased_by("sweep", now=0) is None
    await store.lease("sweep", "one", now=0, until=10)
    assert await store.leased_by("sweep", now=9) == "one"
    assert await store.leased_by("sweep", now=10) is None
    assert await store.leased_by("Sweep", now=9) is None
    assert await store.for_tenant("other").leased_by("sweep", now=9) is None
    await store.lease("sweep", "two", now=10, until=20)
    assert await store.leased_by("sweep", now=10) == "two"
    await store.release("sweep", "two")
    assert await store.leased_by("sweep", now=10) is None


async def test_leases_belong_to_a_tenant_and_names_are_compared_by_bytes(store: Store) -> None:
    """Another tenant, another name, another spelling: another lease."""
    assert await store.lease("sweep", "one", now=0, until=10)
    assert await store.for_tenant("other").lease("sweep", "two", now=0, until=10)
    for name in ("sweeper", "Sweep", "sweep ", "sweep\0"):
        assert await store.lease(name, "two", now=0, until=10)
    assert not await store.lease("sweep", "One", now=0, until=10)


_asked = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 5), st.integers(1, 8), st.booleans())


@given(asked=st.lists(_asked, max_size=25))
@SHARED_STORE
async def test_leases_match_a_model(store: Store, asked: list[Any]) -> None:
    """Any order of taking, renewing and releasing, by a clock that goes on."""
    held: dict[str, tuple[str, int]] = {}
    now = 0
    for name in "ab":
        for holder in "xyz":
            await store.release(name, holder)
    for name, holder, passed, length, gives_back in asked:
        now += passed
        owner, until = held.get(name, (holder, 0))
        free = owner == holder or until <= now
        assert await store.lease(name, holder, now=now, until=now + length) is free
        if free:
            held[name] = (holder, now + length)
        if gives_back:
            await store.release(name, holder)
            if held[name][0] == holder:
                del held[name]


# -- what was learned --------------------------------------------------------


async def test_calibration_is_stored_per_model_and_tenant(store: Store) -> None:
    """Bytes as they were given, none for what nobody learned."""
    assert await store.learned("m") is None
    assert await store.learn("m", b"\0one", timestamp=1, expect=None)
    assert await store.learn("n", b"", timestamp=1, expect=None)
    assert [await store.learned(model) for model in ("m", "n", "M")] == [b"\0one", b"", None]
    other = store.for_tenant("other")
    assert await other.learned("m") is None
    assert await other.learn("m", b"theirs", timestamp=1, expect=None)
    assert await store.learned("m") == b"\0one"


async def test_stale_calibration_writes_are_refused(store: Store) -> None:
    """What stands there stays; the same bytes twice are no exception."""
    assert not await store.learn("m", b"two", timestamp=1, expect=b"one")
    assert await store.learn("m", b"one", timestamp=1, expect=None)
    for expect in (None, b"", b"two"):
        assert not await store.learn("m", b"one", timestamp=2, expect=expect)
    assert await store.learn("m", b"two", timestamp=3, expect=b"one")
    assert await store.learned("m") == b"two"


async def test_calibration_data_is_limited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of one model, and models of a tenant: the one that was written longest ago is forgotten."""
    monkeypatch.setattr("holdfast.stores.logic.tenants.LEARNED_MODELS", 5)
    with pytest.raises(TooLarge):
        await store.learn("m", b"x" * (limits.LEARNED_BYTES + 1), timestamp=1, expect=None)
    assert await store.learn("m", b"x" * limits.LEARNED_BYTES, timestamp=1, expect=None)
    for at in range(4):
        await store.learn(f"m{at}", b"x", timestamp=2 + at, expect=None)
    other = store.for_tenant("other")
    await other.learn("m", b"theirs", timestamp=0, expect=None)
    assert await store.learned("m") is not None
    await store.learn("one more", b"x", timestamp=5000, expect=None)
    assert [await store.learned(model) is None for model in ("m", "m0", "one more")] == [True, False, False]
    assert await other.learned("m") == b"theirs"
