"""Memories are found, merged, superseded, reviewed and deleted, on every store, with and without an index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.domain.memory import Memory, MemorySource, Owner
from holdfast.errors import InvalidRequest, MemoryNotFound, SecretBlocked, StaleMemories, StoreUnavailable
from holdfast.memory.checks import choose_owner
from holdfast.memory.lookup import RecalledMemories
from holdfast.memory.memories import Memories
from holdfast.memory.ranking import DAY
from holdfast.secrets import Guard, make_redactor
from tests.clocks import Clock
from tests.fake_secrets import KEY
from tests.service.memories_kit import open_holdfasts

ANN, BOB, APP = Owner("user", "ann"), Owner("user", "bob"), Owner("app")
PLACES = ("memory", "memory without index", "postgres", "mysql")


@pytest.fixture(params=PLACES)
async def memories(request: pytest.FixtureRequest) -> AsyncIterator[Memories]:
    clock = Clock()
    async with open_holdfasts(request.param, clock=clock) as (hf,):
        yield hf.memories


def contents(found: RecalledMemories) -> list[str]:
    return [one.memory.content for one in found.found]


def source(session: str, *seqs: int, user: str = "ann") -> MemorySource:
    return MemorySource(session_id=session, user_id=user, seqs=seqs)


def advance_clock(memories: Memories, milliseconds: int = 1) -> None:
    memories.clock.now += milliseconds  # type: ignore[attr-defined]  # the tests' own


async def remember_all(memories: Memories, *texts: str, **fields: Any) -> list[Memory]:
    return [(await memories.remember(text, **{"user_id": "ann", **fields})).memory for text in texts]


# -- remembering and recalling -------------------------------------------------------


async def test_memory_is_found_at_once_by_any_form_of_its_words(memories: Memories) -> None:
    await remember_all(memories, "Ann is allergic to peanuts", "Ann lives in Lisbon", "Order ORD-12345 was paid")
    assert contents(await memories.recall("any allergies?", user_id="ann")) == ["Ann is allergic to peanuts"]
    assert contents(await memories.recall("was ord-12345 paid", user_id="ann"))[0] == "Order ORD-12345 was paid"
    assert contents(await memories.recall("swimming", user_id="ann")) == []
    assert contents(await memories.recall("peanuts", user_id="bob")) == []


async def test_memory_without_words_is_recognised_as_a_duplicate(memories: Memories) -> None:
    assert (await memories.remember("\U0001f600", user_id="ann")).outcome == "new"
    assert (await memories.remember("\U0001f600", user_id="ann")).outcome == "merged"
    assert (await memories.remember("\U0001f622", user_id="ann")).outcome == "new"


async def test_old_memories_score_less_by_the_half_life_of_their_type(memories: Memories) -> None:
    await remember_all(memories, "Ann met the dentist", type="episodic")
    await remember_all(memories, "Ann dislikes the dentist", type="semantic")
    advance_clock(memories, 90 * DAY)
    found = (await memories.recall("dentist", user_id="ann")).found
    assert [one.memory.type for one in found] == ["semantic", "episodic"]
    assert found[1].parts["recency"] == 0.5
    assert found[0].age == 90 * DAY


async def test_query_text_is_never_parsed_as_syntax(memories: Memories) -> None:
    await remember_all(memories, "Tea for Ann")
    for query in (
        'tea" OR "x',
        "tea NOT ann",
        "te*",
        "NEAR(tea ann)",
        "') --",
        "content:tea",
        "%",
        "\x00tea",
        "a" * 20_000,
    ):
        await memories.recall(query, user_id="ann")
    assert contents(await memories.recall("NOT tea", user_id="ann")) == ["Tea for Ann"]


async def test_query_without_searchable_words_returns_the_newest_and_records_no_signal(memories: Memories) -> None:
    await remember_all(memories, "Ann lives in Lisbon", "Ann likes tea")
    await remember_all(memories, "Bob likes rum", user_id="bob")
    found = await memories.recall("what do you have about me?", user_id="ann", limit=1)
    assert contents(found) == ["Ann likes tea"]
    assert found.found[0].score <= 0.1
    await memories.settled()
    assert await memories.store.signals(ANN) == ()


# -- signals -------------------------------------------------------------------------


async def test_every_hit_records_a_signal_keyed_by_the_query_terms(memories: Memories) -> None:
    (one,) = await remember_all(memories, "Ann is allergic to peanuts")
    await memories.recall("peanut allergy", user_id="ann", session="s1")
    await memories.recall("the peanut?  any allergy", user_id="ann", session="s2")
    await memories.recall("peanuts", user_id="ann", session="s2")
    await memories.recall("peanuts", user_id="ann", signal=False)
    await memories.recall("swimming", user_id="ann")
    await memories.settled()
    found = await memories.store.signals(ANN)
    assert [(signal.memory_id, signal.session) for signal in found] == [(one.id, "s1"), (one.id, "s2"), (one.id, "s2")]
    assert found[0].query == found[1].query != found[2].query
    assert all(0 < signal.score <= 1 for signal in found)


async def test_comparing_a_new_memory_records_no_signal(memories: Memories) -> None:
    await remember_all(memories, "Ann likes tea", "Ann likes tea.", "Ann likes coffee")
    await memories.settled()
    assert await memories.store.signals(ANN) == ()


async def test_signals_that_cannot_be_written_are_retried_later() -> None:
    async with open_holdfasts("memory") as (hf,):
        memories = hf.memories
        await remember_all(memories, "Tea for Ann")
        write, memories.store.change_memories = memories.store.change_memories, _unavailable  # type: ignore[method-assign]
        await memories.recall("tea", user_id="ann")
        await memories.settled()
        memories.store.change_memories = write  # type: ignore[method-assign]
        assert await memories.store.signals(ANN) == ()
        await memories.recall("tea", user_id="ann")
        await memories.settled()
        assert len(await memories.store.signals(ANN)) == 2


async def _unavailable(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("not now")


# -- changing ------------------------------------------------------------------------


async def test_update_with_an_outdated_version_is_rejected(memories: Memories) -> None:
    (one,) = await remember_all(memories, "Ann lives in Lisbon")
    await memories.update(one.id, importance=0.1, expect=one.version)
    with pytest.raises(StaleMemories):
        await memories.update(one.id, importance=0.2, expect=one.version)


async def test_update_from_a_tool_is_quarantined_and_keeps_the_original(memories: Memories) -> None:
    (one,) = await remember_all(memories, "Ann pays to account 1")
    made = await memories.update(one.id, content="Ann pays to account 2", origin="tool")
    assert (made.memory.status, made.memory.trust) == ("quarantined", 0.2)
    assert (made.outcome, made.memory.supersedes) == ("new", ())
    assert await memories.get(one.id) == one


async def test_quarantined_memory_does_not_supersede_the_one_it_names(memories: Memories) -> None:
    (one,) = await remember_all(memories, "Ann pays to account 1")
    made = await memories.remember("the other account", user_id="ann", origin="web", supersedes=[one.id])
    assert (made.outcome, made.memory.status, made.memory.supersedes) == ("new", "quarantined", ())
    assert await memories.get(one.id) == one


async def test_caller_can_quarantine_a_memory(memories: Memories) -> None:
    one = (await memories.remember("Ann likes rum", user_id="ann", origin="assistant", held=True)).memory
    assert (one.status, one.trust) == ("quarantined", 0.7)
    assert (await memories.recall("rum", user_id="ann", include_quarantined=False)).found == ()
    (again,) = await remember_all(memories, "Ann likes rum!", origin="assistant")
    assert (again.id, again.status) == (one.id, "quarantined")
    (mine,) = await remember_all(memories, "Ann likes rum")
    assert (mine.status, mine.supersedes) == ("active", (one.id,))


# -- forgetting ----------------------------------------------------------------------


async def test_removing_a_source_keeps_concurrent_changes_of_others(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server accepts one memory and forgets one between the read and the write."""
    sources = [source("s", 1), source("t", 4)]
    (held,) = await remember_all(memories, "Ann likes gin", sources=sources, origin="tool")
    (gone,) = await remember_all(memories, "Ann likes ale", sources=sources)
    (alone,) = await remember_all(memories, "Ann likes rum", sources=[source("s", 1)])
    (again,) = await remember_all(memories, "Ann likes tea", sources=[source("s", 1)])
    other, read, meanwhile = Memories(memories.store, memories.clock), memories.store.memories, [1]

    async def slow(*args: Any, **asked: Any) -> Any:
        page = await read(*args, **asked)
        if meanwhile and args[0] == ANN:
            meanwhile.clear()
            await other.review(held.id, "accept")
            await other.forget(gone.id)
            await other.remember("Ann likes tea", user_id="ann", sources=[source("u", 1)])
        return page

    monkeypatch.setattr(memories.store, "memories", slow)
    assert await memories.forget_source("ann", "s") == (alone.id,)
    left = {one.id: one for one in (await memories.page(ANN)).memories}
    assert left.keys() == {held.id, again.id}
    assert left[held.id].status == "active"
    assert [one.session_id for one in left[held.id].sources] == ["t"]
    assert [one.session_id for one in left[again.id].sources] == ["u"]


# -- pages ---------------------------------------------------------------------------


async def test_pages_are_filled_after_filtering(memories: Memories) -> None:
    for number in range(9):
        await remember_all(memories, f"fact number {number}", tags=("even",) if number % 2 == 0 else ())
    first = await memories.page(ANN, tags=["even"], limit=2)
    assert [one.number for one in first.memories] == [1, 3]
    assert first.has_more
    rest = await memories.page(ANN, tags=["even"], limit=9, after=first.memories[-1].id)
    assert [one.number for one in rest.memories] == [5, 7, 9]
    assert not rest.has_more
    newest = await memories.page(ANN, limit=1, descending=True)
    assert newest.memories[0].number == 9
    with pytest.raises(MemoryNotFound):
        await memories.page(BOB, after=first.memories[0].id)


# -- concurrency ---------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "postgres", "mysql"])
async def test_concurrent_equal_memories_become_one(place: str) -> None:
    async with open_holdfasts(place, times=1 if place == "memory" else 3) as openings:
        said = [
            hf.memories.remember("Ann likes tea", user_id="ann", tags=[f"t{n}"]) for n in range(4) for hf in openings
        ]
        made = await asyncio.gather(*said)
        assert [one.outcome for one in made].count("new") == 1
        (one,) = (await openings[0].memories.page(ANN)).memories
        assert set(one.tags) == {f"t{n}" for n in range(4)}


# -- invalid input -------------------------------------------------------------------


async def test_secrets_are_rejected_or_masked_before_any_lookup() -> None:
    guard = Guard(watch=make_redactor(rules=["aws_access_key"]), action="block")
    async with open_holdfasts("memory", guard=guard) as (hf,):
        with pytest.raises(SecretBlocked) as caught:
            await hf.memories.remember(f"the key is {KEY}", user_id="ann")
        assert KEY not in str(caught.value)
        held = await hf.memories.remember(f"the key is {KEY}", user_id="ann", origin="tool")
        assert KEY not in held.memory.content


@pytest.mark.parametrize("query", ["", "  ", 5])
async def test_empty_query_is_rejected(query: Any) -> None:
    async with open_holdfasts("memory") as (hf,):
        with pytest.raises(InvalidRequest, match="query"):
            await hf.memories.recall(query, user_id="ann")


def test_owner_is_chosen_from_the_arguments() -> None:
    assert choose_owner("ann", "desk") == ANN
    assert choose_owner(None, "desk") == Owner("agent", "desk")
    assert choose_owner(None, None) == Owner("user", "default")
    assert choose_owner(None, None, app=True) == APP
