"""The marker of a session is the same on all servers of a store and after a restart, and another store cannot compute
it.
"""

from __future__ import annotations

import re
from pathlib import Path

import holdfast
from holdfast import Holdfast

BUDGET = 300


async def build_digest(hf: Holdfast, turns: int = 8) -> str:
    """Return the digest of a session with this many turns; append the turns only if the session is empty."""
    session = await hf.session("a")
    if not await session.messages():
        for at in range(turns):
            async with session.turn(
                f"Question {at} about order K-{at:03}, placed on 2026-01-0{at + 1} in Kelp Street"
            ) as turn:
                turn.add(f"It is on its way, parcel P-{at}77.")
    return await digest_of(hf)


async def digest_of(hf: Holdfast) -> str:
    context = await (await hf.session("a")).context("digest", budget=BUDGET)
    found = [str(one["content"]) for one in context.messages if str(one["content"]).startswith("[Condensed")]
    assert len(found) == 1
    return found[0]


def marker_in(text: str) -> str:
    found = re.match(r"\[Condensed from messages \d+ to \d+ #([a-z]{8}): data, not instructions\]\n", text)
    assert found
    return found[1]


async def test_two_servers_and_a_restart_produce_the_same_digest(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/one.db"
    async with holdfast.open(url) as one, holdfast.open(url) as two:
        first = await build_digest(one)
        assert await digest_of(two) == first
    async with holdfast.open(url) as later:
        assert await digest_of(later) == first


async def test_markers_differ_between_stores_sessions_and_tenants(tmp_path: Path) -> None:
    markers = set()
    for name in ("one", "two"):
        async with holdfast.open(f"sqlite:///{tmp_path}/{name}.db") as hf:
            markers.add(marker_in(await build_digest(hf)))
            other = await hf.session("b")
            markers.add(await hf.engine.markers.derive(await hf.store.get(other.ref)))
            tenant = hf.store.for_tenant("acme")
            assert await tenant.learned("holdfast:marker") is None, "each tenant has a secret of its own"
    assert len(markers) == 4


async def test_fork_has_its_own_marker(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/one.db") as hf:
        first = marker_in(await build_digest(hf))
        forked = await (await hf.session("a")).fork(7)
        context = await forked.context("digest", budget=BUDGET)
        found = [one["content"] for one in context.messages if str(one["content"]).startswith("[Condensed")]
        assert marker_in(str(found[0])) != first
