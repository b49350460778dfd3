"""The contract, claims: of several that would open a turn of a session, on whichever servers, one does."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast.domain.session import Claim, Ending, Session
from holdfast.errors import SessionBusy, SessionNotFound
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended, SavedView
from holdfast.stores.sessions import SessionPatch

from .kit import REF, live, session, user
from .once import RULE, once


async def _wrote(store: Store, *said: str, at: int = 2, **write: Any) -> Appended:
    return await store.append(REF, Append(entries=[user(text) for text in said], timestamp=at, **write))


async def _claim(store: Store) -> Claim | None:
    return (await store.get(REF)).claim


async def _append_with_claim(
    store: Store, *said: str, holder: str = "one", until: int = 100, at: int = 2, **write: Any
) -> Appended:
    return await _wrote(store, *said, at=at, claim=Claim(holder, until), **write)


# -- opening -------------------------------------------------------------------


async def test_a_write_claims_a_turn(openings: list[Store]) -> None:
    """With its entries, or by itself; everybody sees who has it."""
    store = openings[0]
    assert (await store.create(session())).claim is None
    written = await _append_with_claim(store, "a")
    assert written.session.claim == Claim("one", 100)
    for handle in openings:
        assert await _claim(handle) == Claim("one", 100)
        assert (await handle.list()).sessions[0].claim == Claim("one", 100)
        assert (await handle.window(REF, None)).session.claim == Claim("one", 100)


async def test_a_claim_has_one_holder(openings: list[Store]) -> None:
    """Another one is refused, whatever it brings, and told until when at most; nothing of it is written."""
    store, other = openings[0], openings[-1]
    await store.create(session())
    before = (await _append_with_claim(store, "a")).session
    tries: list[tuple[list[str], int | None]] = [(["b"], None), ([], None), (["b"], before.version), (["b"], 0)]
    for said, expect in tries:
        with pytest.raises(SessionBusy) as refused:
            await _append_with_claim(other, *said, holder="two", until=500, at=99, state_delta={"k": 1}, expect=expect)
        assert refused.value.until == 100
    assert await other.get(REF) == before
    assert await live(other) == ["a"]


async def test_an_expired_claim_is_taken_over(openings: list[Store]) -> None:
    """From its end on, by whoever asks first; not a moment before."""
    store, other = openings[0], openings[-1]
    await store.create(session())
    await _append_with_claim(store, "a", until=100)
    with pytest.raises(SessionBusy):
        await _append_with_claim(other, "b", holder="two", until=300, at=99)
    await _append_with_claim(other, "b", holder="two", until=300, at=100)
    assert await _claim(store) == Claim("two", 300)
    with pytest.raises(SessionBusy) as refused:
        await _append_with_claim(store, "c", until=400, at=200)
    assert refused.value.until == 300


@once(RULE)
async def test_writes_without_a_claim_are_not_blocked(openings: list[Store]) -> None:
    """Writes without a claim need none, and change none: of any kind, by anybody, between any others."""
    store, other = openings[0], openings[-1]
    await store.create(session())
    await _wrote(other, "first")
    await _append_with_claim(store)
    assert (await _wrote(other, "b")).session.claim == Claim("one", 100)
    await other.update(REF, SessionPatch(metadata={"k": 1}), timestamp=3)
    await other.append(REF, Append(views={"v": SavedView(0, b"v")}, timestamp=3))
    await other.append(REF, Append(retire_from=1, timestamp=3))
    await other.annotate(REF, 0, pinned=True)
    await other.erase(REF, 0)
    await other.touch(REF, timestamp=9)
    for handle in openings:
        assert await _claim(handle) == Claim("one", 100)
    with pytest.raises(SessionBusy):
        await _append_with_claim(other, "c", holder="two")


async def test_claims_of_others_are_always_seen(openings: list[Store]) -> None:
    """What a store remembers of a session's claim is never believed: two openings, turn by turn."""
    await openings[0].create(session())
    for at in range(8):
        mine, other = openings[at % len(openings)], openings[(at + 1) % len(openings)]
        await _wrote(mine, "a")
        await _wrote(other, "b")
        await _append_with_claim(mine, holder=f"h{at}")
        assert (await _wrote(other, "c")).session.claim == Claim(f"h{at}", 100)
        await other.want(REF, f"h{at}")
        assert (await _wrote(mine, "d")).session.claim == Claim(f"h{at}", 100, wanted=True)
        with pytest.raises(SessionBusy):
            await _append_with_claim(other, "e", holder="x")
        await _wrote(other, release=f"h{at}")
        assert (await _wrote(mine, "f")).session.claim is None


# -- ending --------------------------------------------------------------------


@once(RULE)
async def test_only_its_holder_releases_a_claim(store: Store) -> None:
    """Another's release does nothing to it, and is no error; nor is one of a turn that has ended."""
    await store.create(session())
    assert (await _wrote(store, release="one")).session.claim is None
    await _append_with_claim(store, "a")
    assert (await _wrote(store, "b", release="two")).session.claim == Claim("one", 100)
    assert await _claim(store) == Claim("one", 100)
    await _append_with_claim(store, holder="two", until=300, at=100)
    await _wrote(store, release="one", at=101)
    assert await _claim(store) == Claim("two", 300)
    assert await live(store) == ["a", "b"]


@once(RULE)
async def test_a_last_write_claims_and_releases(openings: list[Store]) -> None:
    """A claim and its release in one write: refused when another one took the session over, else the session is free."""
    store, other = openings[0], openings[-1]
    await store.create(session())
    await _append_with_claim(store, "a")
    assert (await _append_with_claim(store, "reply", until=200, release="one")).session.claim is None
    assert await _claim(other) is None
    await _append_with_claim(store, "b")
    await _append_with_claim(other, "c", holder="two", until=300, at=100)
    with pytest.raises(SessionBusy):
        await _append_with_claim(store, "late", until=400, at=101, release="one")
    assert await live(store) == ["a", "reply", "b", "c"]
    assert await _claim(store) == Claim("two", 300)


# -- what is no change ---------------------------------------------------------


@once(RULE)
async def test_a_claim_alone_does_not_change_the_session(store: Store) -> None:
    """Nor is a release: neither version nor times; a closed one stays closed, and views stay."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a")], views={"v": SavedView(0, b"v")}, timestamp=2))
    end = Ending(id="e", user_id="ann", session_id="s1", withdrawn=False, reason="close", ended_at=9, due_at=9)
    await store.end(end)
    before = await store.get(REF)

    def drop_claim(one: Session) -> Session:
        assert one.claim is not None
        return Session(**{name: getattr(one, name) for name in one.__struct_fields__ if name != "claim"})

    written = await _append_with_claim(store, until=9_000, at=5_000)
    assert written.version == before.version
    assert drop_claim(written.session) == drop_claim(await store.get(REF)) == before
    renewed = await _append_with_claim(store, until=9_900, at=6_000)
    assert drop_claim(renewed.session) == before
    assert (await store.window(REF, "v")).view is not None
    released = await _wrote(store, release="one", at=7_000)
    assert released.session == await store.get(REF) == before


# -- wanting -------------------------------------------------------------------


@once(RULE)
async def test_a_holder_is_told_that_others_wait(openings: list[Store]) -> None:
    """With its next write of any kind, or look; renewing does not make it forget, a turn of another's does."""
    store, other = openings[0], openings[-1]
    await store.create(session())
    await _append_with_claim(store, "a")
    before = await other.get(REF)
    await other.want(REF, "one")
    assert (await _wrote(store, "b")).session.claim == Claim("one", 100, wanted=True)
    assert (await _append_with_claim(store, until=200)).session.claim == Claim("one", 200, wanted=True)
    assert (await _append_with_claim(store, "c", until=250)).session.claim == Claim("one", 250, wanted=True)
    assert await _claim(other) == Claim("one", 250, wanted=True)
    assert (await store.get(REF)).version == before.version + 2
    await _append_with_claim(store, holder="two", until=900, at=300)
    assert await _claim(store) == Claim("two", 900)


@once(RULE)
async def test_only_the_current_holder_is_told_that_others_wait(store: Store) -> None:
    """Wanting one that has not, or where there is none, does nothing; where no session is, it says so."""
    with pytest.raises(SessionNotFound):
        await store.want(REF, "one")
    before = await store.create(session())
    await store.want(REF, "one")
    assert await store.get(REF) == before
    await _append_with_claim(store)
    await store.want(REF, "two")
    assert await _claim(store) == Claim("one", 100)
    await store.want(REF, "one")
    await store.want(REF, "one")
    assert await store.get(REF) == Session(
        **{name: getattr(before, name) for name in before.__struct_fields__ if name != "claim"},
        claim=Claim("one", 100, wanted=True),
    )
    await _wrote(store, release="one")
    await _append_with_claim(store)
    assert await _claim(store) == Claim("one", 100)


# -- races ---------------------------------------------------------------------


@pytest.mark.parametrize("said", [["a"], []])
async def test_one_of_several_claimants_wins(openings: list[Store], said: list[str]) -> None:
    """The others are told that it is busy, in two openings; round after round, with entries and without."""
    await openings[0].create(session())
    for round_ in range(6):
        tries = [
            _append_with_claim(openings[at % len(openings)], *said, holder=f"h{at}", until=1000) for at in range(8)
        ]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        assert Counter(type(outcome) for outcome in outcomes) == {Appended: 1, SessionBusy: 7}
        (won,) = (outcome for outcome in outcomes if isinstance(outcome, Appended))
        holder = won.session.claim and won.session.claim.holder
        assert await _claim(openings[-1]) == Claim(str(holder), 1000)
        assert len(await live(openings[-1])) == (round_ + 1) * len(said)
        await _wrote(openings[round_ % len(openings)], release=str(holder))


async def test_claims_and_simultaneous_appends(openings: list[Store]) -> None:
    """Appends that know nothing of turns lose nobody's claim, and no claim loses an append."""
    await openings[0].create(session())
    for round_ in range(6):
        writes = [_wrote(openings[at % len(openings)], "x") for at in range(6)]
        claims = [_append_with_claim(openings[at % len(openings)], holder=f"h{at}", until=1000) for at in range(4)]
        outcomes = await asyncio.gather(*writes, *claims, return_exceptions=True)
        assert Counter(type(outcome) for outcome in outcomes) == {Appended: 7, SessionBusy: 3}
        found = await _claim(openings[-1])
        assert found is not None
        assert len(await live(openings[0])) == 6 * (round_ + 1)
        await _wrote(openings[0], release=found.holder)


# -- going ---------------------------------------------------------------------


@once(RULE)
async def test_a_replay_claims_nothing(store: Store) -> None:
    """What was done is done, whoever has the turn now; the answer says who."""
    await store.create(session())
    await _append_with_claim(store, "a", idempotency_key="k")
    await _wrote(store, release="one")
    await _append_with_claim(store, holder="two")
    again = await _append_with_claim(store, "a", idempotency_key="k")
    assert (again.replayed, again.session.claim) == (True, Claim("two", 100))
    assert await live(store) == ["a"]
