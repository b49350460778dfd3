"""Exports and imports between stores are lossless."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.holdfast import Holdfast
from holdfast.stores.base import Store
from holdfast.stores.verify import verify
from tests.clocks import TickingClock
from tests.given_store import HoldfastOn
from tests.stores.histories import grow_session

pytestmark = pytest.mark.parametrize(
    "url", ["sqlite-memory"], indirect=True
)  # what a store reads back, its contract checks
HERE = {"version"}
"""What an export says of its place, not of its session."""


@pytest.fixture
async def source() -> AsyncIterator[Holdfast]:
    """Where sessions come from."""
    async with Holdfast("sqlite://:memory:", clock=TickingClock(7), index=None) as hf:
        yield hf


@pytest.fixture
async def target(store: Store) -> AsyncIterator[Holdfast]:
    """Where they go: a store of their own."""
    async with HoldfastOn(store, clock=TickingClock(7), index=None) as hf:
        yield hf


def whole(exported: dict[str, Any]) -> dict[str, Any]:
    """An export without what its place made of it."""
    return {name: value for name, value in exported.items() if name not in HERE}


@pytest.mark.parametrize("seed", range(6))
async def test_a_full_export_round_trips(source: Holdfast, target: Holdfast, seed: int) -> None:
    """Retired and erased messages, calls, times: equal JSON, and the copy holds and is matched as the original was."""
    ref = await grow_session(source, seed)
    exported = await source.export(ref, retired=True, calls=True, digests=True)
    arrival = await target.import_(exported)
    assert (arrival.session.ref, arrival.changed, arrival.replaced) == (ref, True, False)
    assert whole(await target.export(ref, retired=True, calls=True, digests=True)) == whole(exported)
    assert whole(await target.export(ref)) == whole(await source.export(ref))
    assert await verify(target.store, ref) == len(exported["messages"])
    first, second = await source.store.get(ref), await target.store.get(ref)
    assert (second.tail, second.messages, second.bytes, second.usage) == (
        first.tail,
        first.messages,
        first.bytes,
        first.usage,
    )


@pytest.mark.parametrize("seed", range(3))
async def test_an_export_of_the_live_path_round_trips(source: Holdfast, target: Holdfast, seed: int) -> None:
    """Its places are counted anew; all else is equal, what was erased too."""
    ref = await grow_session(source, seed)
    exported = whole(await source.export(ref, digests=True))
    await target.import_(exported)
    again = whole(await target.export(ref, digests=True))
    for one in (exported, again):
        for at, message in enumerate(one["messages"]):
            message["seq"] = at
        one["images"], one["videos"] = len(one["images"]), len(one["videos"])
        del one["bytes"]  # of retired messages too
    assert again == exported
    assert [one.digest for one in await target.store.entries(ref)] == [
        one.digest for one in await source.store.entries(ref)
    ]
    await verify(target.store, ref)


@pytest.mark.parametrize("seed", range(6))
async def test_an_export_reveals_nothing_about_erased_messages(source: Holdfast, target: Holdfast, seed: int) -> None:
    """No digest that a guess could be held against; the copy holds all the same, and is the same session to an import."""
    ref = await grow_session(source, seed)
    session = await source.store.get(ref)
    erased = [one for one in await source.store.entries(ref, retired=True) if one.erased]
    exported = await source.export(ref, retired=True, calls=True)
    text = json.dumps(exported)
    assert not any(one.digest.hex() in text for one in erased)
    assert [one["seq"] for one in exported["messages"] if one.get("erased")] == [one.seq for one in erased]
    await target.import_(exported)
    assert await verify(target.store, ref) == len(exported["messages"])
    assert whole(await target.export(ref, retired=True, calls=True)) == whole(exported)
    assert not (await target.import_(exported)).changed
    assert not (await source.import_(exported)).changed
    assert await source.store.get(ref) == session
