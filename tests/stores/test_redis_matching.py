"""Digest lookup in Redis: scores, numbers of sessions, and positions written by an older release."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.messages import GENESIS, chain
from holdfast.domain.session import Ending, SessionRef
from holdfast.stores.log import Append
from holdfast.stores.redis.matching import compute_score
from holdfast.stores.redis.store import RedisStore
from tests.contract.kit import REF, assistant, session, user
from tests.contract.media import make_contents
from tests.stores.redis_openings import Opening

_bits = st.integers(-(2**63), 2**63 - 1)


@given(_bits, _bits, st.booleans(), st.booleans())
def test_scores_are_exact(one: int, two: int, alias: bool, other: bool) -> None:  # given
    """Scores are floats that must stay exact; a digest never has the score of an alias."""
    first, second = compute_score(one, alias=alias), compute_score(two, alias=other)
    assert int(float(first)) == first
    assert (first == second) == (one >> 12 == two >> 12 and alias == other)


def _says(text: str) -> Append:
    return Append(entries=[user(text)], timestamp=2)


async def _keys(opening: Opening, store: RedisStore) -> set[str]:
    """The kinds of keys that the tests' user has."""
    tag = store.database.keys.user("acme", REF.user_id).tag
    found = [key async for key in opening.client(store).scan_iter(match=f"{tag}:*", count=1000)]
    return {key.decode().removeprefix(f"{tag}:").partition(":")[0] for key in found}


async def test_deleted_sessions_leave_no_lookup_keys(opening: Opening, redis_url: str) -> None:
    """Neither digests nor numbers remain after any kind of deletion, except expiring keys."""
    store = await opening(redis_url)
    gone: dict[str, Any] = {"withdrawn": True, "reason": "delete", "ended_at": 9, "due_at": 9}
    clock = "u"
    for _ in range(2):
        for at in range(4):
            await store.create(session(SessionRef("ann", f"s{at}")))
        said = [user("a", media=tuple(make_contents(0))), assistant("b"), user("c")]
        await store.append(REF, Append(entries=said * 500, media=make_contents(0), timestamp=2))
        await store.append(REF, Append(entries=[assistant("d")], retire_from=1, timestamp=2))
        await store.append(SessionRef("ann", "s0"), _says("a"))
        assert {"d", "n", "f", "e"} < await _keys(opening, store)
        await store.replace(session(), [user("z")])
        await store.end(Ending(id="e", user_id="ann", session_id="s2", hooks=("h",), **gone))
        await store.append(SessionRef("ann", "s2", "e"), _says("late"))
        for ref in (REF, SessionRef("ann", "s0"), SessionRef("ann", "s3")):
            await store.remove(ref)
        assert not {"d", "n"} & await _keys(opening, store)
        await store.remove(SessionRef("ann", "s2", "e"))
        assert await _keys(opening, store) == {clock}


async def test_positions_of_one_session_are_found_among_many(opening: Opening, redis_url: str) -> None:
    """They are found newest first even if many sessions have the same messages."""
    store = await opening(redis_url)
    refs = [SessionRef("ann", f"s{at}") for at in range(21)]
    for at, ref in enumerate(refs):
        await store.create(session(ref))
        for _ in range(at % 4):
            await store.append(ref, Append(entries=[user("a")], retire_from=0, timestamp=2))
    mark = chain(GENESIS, user("a").message)
    for at, ref in enumerate(refs):
        for limit in (1, 2, 64):
            found = await store.sightings("ann", [mark], session=ref, limit=limit)
            assert [(one.ref, one.seq) for one in found] == [(ref, seq) for seq in reversed(range(at % 4))][:limit]


async def test_digests_with_colliding_keys_are_distinguished(
    opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries under a shared key are distinguished by their full digests."""
    monkeypatch.setattr("holdfast.stores.redis.matching._DROPPED_BITS", 64)
    store = await opening(redis_url)
    for ref in (REF, SessionRef("ann", "s2")):
        await store.create(session(ref))
    log = (await store.append(REF, Append(entries=[user("a"), assistant("b"), user("c")], timestamp=2))).entries
    await store.append(SessionRef("ann", "s2"), _says("x"))
    for entry in log:
        (found,) = await store.sightings("ann", [entry.digest, b"nowhere"], limit=1)
        assert (found.ref, found.seq, found.mark) == (REF, entry.seq, 0)
    assert await store.sightings("ann", [b"nowhere"]) == ()
