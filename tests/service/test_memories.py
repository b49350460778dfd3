"""Memories are found, merged, superseded, reviewed and deleted, on every store, with and without an index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.domain.memory import Memory, MemorySource, Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, MemoryNotFound, SecretBlocked, StaleMemories, StoreUnavailable, TooLarge
from holdfast.limits import MEMORY_CHARS
from holdfast.memory import memories as memories_module
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
Opened = Callable[..., Any]


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


async def test_recall_returns_memories_of_the_user_agent_and_app_only(memories: Memories) -> None:
    await remember_all(memories, "Tea for Ann")
    await remember_all(memories, "Tea for Bob", user_id="bob")
    await memories.remember("Tea of the agent", agent="desk")
    await memories.remember("Tea of another agent", agent="other")
    await memories.remember("Tea for all", app=True)
    assert sorted(contents(await memories.recall("tea", user_id="ann", agent="desk"))) == [
        "Tea for Ann",
        "Tea for all",
        "Tea of the agent",
    ]
    assert sorted(contents(await memories.recall("tea", user_id="ann"))) == ["Tea for Ann", "Tea for all"]
    assert contents(await memories.recall("tea", owners=[BOB])) == ["Tea for Bob"]


async def test_equal_memory_is_merged_and_a_new_value_supersedes_the_old(memories: Memories) -> None:
    first = await memories.remember("My favourite colour is blue", user_id="ann", tags=["taste"])
    again = await memories.remember("my favourite colour is blue.", user_id="ann", tags=["colour"])
    assert (again.outcome, again.memory.id, again.memory.tags) == ("merged", first.memory.id, ("taste", "colour"))
    newer = await memories.remember("My favourite colour is green", user_id="ann")
    assert (newer.outcome, newer.memory.supersedes) == ("superseded", (first.memory.id,))
    old = await memories.get(first.memory.id)
    assert (old.status, old.superseded_by) == ("superseded", newer.memory.id)
    assert contents(await memories.recall("favourite colour", user_id="ann")) == ["My favourite colour is green"]
    both = await memories.remember("Ann likes green tea and green hats", user_id="ann")
    assert (both.outcome, both.others) == ("new", ())
    alike = await memories.remember("Ann likes green tea and black hats", user_id="ann")
    assert (alike.outcome, [one.id for one in alike.others]) == ("new", [both.memory.id])


async def test_memories_of_different_owners_are_not_merged(memories: Memories) -> None:
    for fields in ({"user_id": "ann"}, {"user_id": "bob"}, {"agent": "ann"}, {"app": True}):
        assert (await memories.remember("Tea is at five", **fields)).outcome == "new"


async def test_memory_without_words_is_recognised_as_a_duplicate(memories: Memories) -> None:
    assert (await memories.remember("\U0001f600", user_id="ann")).outcome == "new"
    assert (await memories.remember("\U0001f600", user_id="ann")).outcome == "merged"
    assert (await memories.remember("\U0001f622", user_id="ann")).outcome == "new"


async def test_only_currently_valid_memories_are_recalled(memories: Memories) -> None:
    now = memories.clock()
    await remember_all(memories, "Ann is on holiday", valid_from=now + 10, valid_until=now + 20)
    for at, there in ((9, 0), (10, 1), (19, 1), (20, 0)):
        assert len((await memories.recall("holiday", user_id="ann", now=now + at)).found) == there


async def test_old_memories_score_less_by_the_half_life_of_their_type(memories: Memories) -> None:
    await remember_all(memories, "Ann met the dentist", type="episodic")
    await remember_all(memories, "Ann dislikes the dentist", type="semantic")
    advance_clock(memories, 90 * DAY)
    found = (await memories.recall("dentist", user_id="ann")).found
    assert [one.memory.type for one in found] == ["semantic", "episodic"]
    assert found[1].parts["recency"] == 0.5
    assert found[0].age == 90 * DAY


async def test_filters_only_narrow_the_result(memories: Memories) -> None:
    await remember_all(memories, "Tea at home", tags=("home", "drink"))
    await remember_all(memories, "Tea at work", tags=("work", "drink"), type="project")
    await remember_all(memories, "Tea from a page", origin="web")
    recall = memories.recall
    assert contents(await recall("tea", user_id="ann", tags=["drink", "work"])) == ["Tea at work"]
    assert contents(await recall("tea", user_id="ann", types=["project"])) == ["Tea at work"]
    assert contents(await recall("tea", user_id="ann", types=["feedback"])) == []
    assert "Tea from a page" in contents(await recall("tea", user_id="ann"))
    assert "Tea from a page" not in contents(await recall("tea", user_id="ann", include_quarantined=False))
    assert contents(await recall("tea", user_id="ann", min_score=1)) == []
    assert len((await recall("tea", user_id="ann", limit=2)).found) == 2


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


async def test_new_content_supersedes_and_other_fields_change_in_place(memories: Memories) -> None:
    (one,) = await remember_all(memories, "Ann lives in Lisbon", tags=("home",))
    same = await memories.update(one.id, importance=0.9, tags=["city"], metadata={"a": 1})
    assert (same.memory.id, same.memory.importance, same.memory.tags) == (one.id, 0.9, ("city",))
    made = await memories.update(one.id, content="Ann lives in Porto")
    assert (made.outcome, made.memory.supersedes, made.memory.tags) == ("superseded", (one.id,), ("city",))
    assert contents(await memories.recall("where does Ann live: Lisbon or Porto", user_id="ann")) == [
        "Ann lives in Porto"
    ]
    with pytest.raises(InvalidRequest, match=made.memory.id):
        await memories.update(one.id, content="Ann lives in Faro")


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


async def test_rejected_memory_stays_rejected_for_other_origins(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memories_module, "AT_ONCE", 2)
    held = await remember_all(memories, *(f"Ann pays to account {n}" for n in range(7)), origin="tool")
    for one in held:
        await memories.review(one.id, "reject")
    (mine,) = await remember_all(memories, "Ann likes tea", origin="assistant")
    for origin in ("tool", "assistant", "summary"):
        again = await memories.remember("Ann pays to account 0", user_id="ann", origin=origin)
        changed = await memories.update(mine.id, content="Ann pays to account 1", origin=origin)
        assert [again.memory.id, changed.memory.id] == [held[0].id, held[1].id]
    changed = await memories.update(held[2].id, content="Ann pays to account 2, as she said")
    assert (changed.outcome, changed.memory.status) == ("new", "active")
    there = (await memories.page(ANN, status="rejected")).memories
    assert [one.id for one in there] == [one.id for one in held]


async def test_review_ends_quarantine_and_keeps_the_trust(memories: Memories) -> None:
    held, other = await remember_all(memories, "Ann likes rum", "Ann likes gin", origin="tool")
    accepted = await memories.review(held.id, "accept")
    assert (accepted.status, accepted.trust, accepted.reviewed_at) == ("active", 0.2, memories.clock())
    await memories.review(other.id, "reject")
    assert contents(await memories.recall("Ann likes", user_id="ann")) == ["Ann likes rum"]
    again = await memories.remember("Ann likes gin!", user_id="ann", origin="web")
    assert (again.memory.id, again.memory.status) == (other.id, "rejected")
    (mine,) = await remember_all(memories, "Ann likes tea")
    with pytest.raises(InvalidRequest, match="not held for review"):
        await memories.review(mine.id, "accept")
    with pytest.raises(InvalidRequest, match="accept or reject"):
        await memories.review(held.id, "maybe")  # type: ignore[arg-type]


async def test_memories_of_other_owners_are_not_found(memories: Memories) -> None:
    (one,) = await remember_all(memories, "Ann likes tea")
    for act in (memories.get, memories.forget, memories.update):
        with pytest.raises(MemoryNotFound):
            await act(one.id, owners=[BOB, APP])
    with pytest.raises(MemoryNotFound):
        await memories.review(one.id, "accept", owners=[BOB])
    with pytest.raises(MemoryNotFound):
        await memories.remember("mine now", user_id="bob", supersedes=[one.id])


# -- forgetting ----------------------------------------------------------------------


async def test_forgetting_deletes_history_and_signals_too(memories: Memories) -> None:
    (one, other) = await remember_all(memories, "My email is ann@x.example", "Ann likes tea")
    newer = (await memories.remember("My email is ann@y.example", user_id="ann")).memory
    await memories.recall("email", user_id="ann")
    await memories.settled()
    changed: list[Owner] = []

    async def record_change(owner: Owner) -> None:
        changed.append(owner)

    memories.on_changed.append(record_change)
    assert set(await memories.forget(newer.id)) == {newer.id, one.id}
    assert changed == [ANN]
    assert [left.id for left in (await memories.page(ANN)).memories] == [other.id]
    assert await memories.store.signals(ANN) == ()
    assert contents(await memories.recall("email", user_id="ann")) == []
    with pytest.raises(MemoryNotFound):
        await memories.forget(newer.id)


async def test_memory_is_deleted_with_its_only_source(memories: Memories) -> None:
    (alone,) = await remember_all(memories, "Ann likes tea", sources=[source("s", 1, 2)])
    (both,) = await remember_all(memories, "Ann likes gin", sources=[source("s", 1), source("t", 4)])
    (wide,) = await remember_all(memories, "Ann likes ale", sources=[source("s", 1, 7)])
    (bobs,) = await remember_all(memories, "Bob likes tea", user_id="bob", sources=[source("s", 1, user="bob")])
    (shared,) = [(await memories.remember("Tea for all", app=True, sources=[source("s", 1)])).memory]
    assert await memories.forget_source("ann", "s", seqs=[1]) == (shared.id,)
    assert (await memories.get(alone.id)).sources[0].seqs == (2,)
    assert [one.session_id for one in (await memories.get(both.id)).sources] == ["t"]
    assert set(await memories.forget_source("ann", "s")) == {alone.id, wide.id}
    assert await memories.get(bobs.id) == bobs
    assert await memories.forget_source("ann", "s") == ()


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


async def test_erasing_a_message_deletes_its_memories_and_deleting_a_session_does_not() -> None:
    async with open_holdfasts("memory") as (hf,):
        session = await hf.session("s", user_id="ann")
        await session.append("I like tea")
        await session.append("I like gin")
        await remember_all(hf.memories, "Ann likes tea", sources=[source("s", 0)])
        await remember_all(hf.memories, "Ann likes gin", sources=[source("s", 1)])
        await hf.erase(SessionRef("ann", "s"), 0)
        assert [one.content for one in (await hf.memories.page(ANN)).memories] == ["Ann likes gin"]
        await hf.delete(SessionRef("ann", "s"))
        assert [one.content for one in (await hf.memories.page(ANN)).memories] == ["Ann likes gin"]


async def test_deleting_a_user_deletes_their_memories(memories: Memories) -> None:
    del memories
    async with open_holdfasts("memory") as (hf,):
        await remember_all(hf.memories, "Ann likes tea")
        assert contents(await hf.memories.recall("tea", user_id="ann")) == ["Ann likes tea"]
        assert (await hf.delete_user("ann")).memories == 1
        assert contents(await hf.memories.recall("tea", user_id="ann")) == []
        assert (await hf.memories.remember("Ann likes tea", user_id="ann")).outcome == "new"


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

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"content": " "}, "content is empty"),
    ({"content": 7}, "content must be a string"),
    ({"type": "odd"}, "type must be one of semantic"),
    ({"origin": "god"}, "origin must be one of user"),
    ({"importance": 2}, "importance"),
    ({"importance": float("nan")}, "importance"),
    ({"tags": "ab"}, "tags must be a list"),
    ({"tags": [""]}, "a tag has 1 to 64"),
    ({"valid_from": 5, "valid_until": 5}, "valid_until must be after"),
    ({"valid_from": "yesterday"}, "valid_from must be milliseconds"),
    ({"user_id": 5}, "user_id must be a string"),
    ({"user_id": ""}, "1 to"),
    ({"app": True}, "leave out user_id"),
    ({"content": "half \ud800"}, "JSON|surrogate"),
    ({"metadata": {"a": object()}}, "JSON"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
async def test_invalid_memories_are_rejected(given: dict[str, Any], words: str) -> None:
    async with open_holdfasts("memory") as (hf,):
        with pytest.raises(InvalidRequest, match=words) as caught:
            await hf.memories.remember(**{"content": "Ann likes tea", "user_id": "ann", **given})
        assert "Ann likes" not in str(caught.value)
        assert (await hf.memories.page(ANN)).total == 0


async def test_oversized_memory_is_rejected_and_not_quoted() -> None:
    async with open_holdfasts("memory") as (hf,):
        with pytest.raises(TooLarge, match="8,000") as caught:
            await hf.memories.remember("tea" * MEMORY_CHARS, user_id="ann")
        assert "teatea" not in str(caught.value)


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
