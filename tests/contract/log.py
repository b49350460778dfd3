"""The contract, the log: order, the append primitive, `expect`, idempotency, paging."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace as evolve

from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.domain.session import Ending, ModelCall, PromptText, SessionRef, Usage
from holdfast.errors import (
    InvalidMessage,
    InvalidRequest,
    StaleSession,
)
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.verify import verify

from .kit import REF, assistant, live, new, note, seqs, session, texts, user
from .once import RULE, once


async def test_entries_are_read_back_unchanged(store: Store) -> None:
    """Everything of an entry survives: unknown fields, parts, calls, metadata, importance, NUL and emoji."""
    message = Message(
        role="assistant",
        content=(Part("text", "a\0b 🙂"), Part("image_url", extra={"image_url": {"url": "data:x"}})),
        tool_calls=(ToolCall("c", "f", "{ bad", extra={"index": 0}, function_extra={"strict": True}),),
        name="n",
        extra={"reasoning_content": "hm", "nested": {"k": [1, 2.5, None, "\u2028"]}},
    )
    written = new(message, metadata={"source": "llm"}, agent="bo", importance=0.25, pinned=True, timestamp=7, tokens=3)
    await store.create(session())
    appended = await store.append(REF, Append(entries=[written], timestamp=2))
    (entry,) = await store.entries(REF)
    assert (entry,) == appended.entries
    assert entry.message == message
    assert (entry.metadata, entry.agent, entry.importance, entry.pinned) == ({"source": "llm"}, "bo", 0.25, True)
    assert (entry.timestamp, entry.tokens, entry.total) == (7, 3, 3)


@once(RULE)
async def test_absent_and_null_content_differ(store: Store) -> None:
    """A message that left `content` out comes back without it, one with null comes back with null."""
    messages = [
        Message(role="assistant"),
        Message(role="assistant", content=None),
        Message(role="assistant", content=""),
    ]
    await store.create(session())
    await store.append(REF, Append(entries=[new(message) for message in messages], timestamp=2))
    assert [entry.message for entry in await store.entries(REF)] == messages


async def test_a_stale_expect_writes_nothing(store: Store) -> None:
    """`StaleSession` tells both versions, and the log is as it was."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a")], timestamp=2, expect=0))
    before = await store.get(REF)
    for stale in (0, 2):
        with pytest.raises(StaleSession) as caught:
            await store.append(REF, Append(entries=[user("b")], timestamp=3, expect=stale, state_delta={"k": 1}))
        assert (caught.value.expected, caught.value.version) == (stale, 1)
    assert await store.get(REF) == before
    assert await live(store) == ["a"]


async def test_a_write_is_all_or_nothing(store: Store) -> None:
    """When the last entry of a write cannot be stored, nothing of the write is."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a")], timestamp=2))
    before = await store.get(REF)
    bad = Append(
        entries=[user("b"), user("c", timestamp=2**70)],
        timestamp=3,
        retire_from=0,
        state_delta={"k": 1},
        calls=[ModelCall(model="m", timestamp=1)],
        views={"v": SavedView(0, b"")},
        idempotency_key="k",
    )
    with pytest.raises(InvalidRequest):
        await store.append(REF, bad)
    assert await store.get(REF) == before
    assert await live(store) == ["a"]
    assert await store.calls(REF) == ()
    assert (await store.window(REF, "v")).view is None
    assert not (await store.append(REF, Append(entries=[user("d")], timestamp=4, idempotency_key="k"))).replayed


@once(RULE)
async def test_turn_ids_do_not_decrease(store: Store) -> None:
    """A caller may name the turn, but not one before the log's."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a", turn_id=4), assistant("b")], timestamp=2))
    with pytest.raises(InvalidMessage):
        await store.append(REF, Append(entries=[user("c", turn_id=3)], timestamp=2))
    assert [entry.turn_id for entry in await store.entries(REF)] == [4, 4]
    assert await verify(store, REF) == 2


# -- idempotency -------------------------------------------------------------


async def test_a_key_writes_once(store: Store) -> None:
    """The second write with a key answers what the first did, and writes nothing."""
    await store.create(session())
    write = Append(entries=[user("a"), assistant("b")], timestamp=2, idempotency_key="k", fingerprint=b"f")
    first = await store.append(REF, write)
    again = await store.append(REF, write)
    assert not first.replayed
    assert again.replayed
    assert (again.entries, again.version, again.session) == (first.entries, first.version, first.session)
    assert await live(store) == ["a", "b"]


async def test_a_replay_is_answered_after_newer_writes(store: Store) -> None:
    """The first answer's entries and version come back after other writes; a stale `expect` does not matter then."""
    await store.create(session())
    write = Append(entries=[user("a")], timestamp=2, idempotency_key="k", fingerprint=b"f", expect=0)
    first = await store.append(REF, write)
    await store.append(REF, Append(entries=[assistant("b")], timestamp=3))
    again = await store.append(REF, write)
    assert (again.replayed, again.entries, again.version) == (True, first.entries, 1)
    assert again.session.version == 2
    await store.append(REF, Append(retire_from=0, timestamp=3))
    assert seqs((await store.append(REF, write)).entries) == [0]


# -- reading -----------------------------------------------------------------


async def test_entries_are_read_by_range(store: Store) -> None:
    """`start <= seq < stop`, from either end, at most `limit`."""
    await store.create(session())
    await store.append(REF, Append(entries=[user(str(at)) for at in range(10)], timestamp=2))
    assert seqs(await store.entries(REF, start=3, stop=6)) == [3, 4, 5]
    assert seqs(await store.entries(REF, start=8)) == [8, 9]
    assert seqs(await store.entries(REF, limit=2)) == [0, 1]
    assert seqs(await store.entries(REF, limit=2, descending=True)) == [9, 8]
    assert seqs(await store.entries(REF, stop=5, limit=2, descending=True)) == [4, 3]
    assert seqs(await store.entries(REF, start=5, stop=5)) == []
    assert seqs(await store.entries(REF, limit=0)) == []
    with pytest.raises(InvalidRequest):
        await store.entries(REF, limit=-1)


async def _list_found(store: Store, *places: tuple[str, int], around: int = 0) -> dict[Any, tuple[str, list[int]]]:
    """Identity of the session and `seq` of the entries, by place."""
    found = await store.entries_at(REF.user_id, places, around=around)
    return {place: (one.identity, sorted(one.entries)) for place, one in found.items()}


async def test_entries_of_several_sessions_are_read_at_once(store: Store) -> None:
    """Live ones, also one place twice; what has gone, or is another user's, is left out. An erased entry is still there."""
    odd, gone, stranger = SessionRef("ann", "s2 \0 ü"), SessionRef("ann", "gone"), SessionRef("bob", "s1")
    for ref in (REF, odd, gone, stranger):
        await store.create(session(ref, identity=f"of {ref.id}"))
        await store.append(ref, Append(entries=[user(f"{ref.id} {at}") for at in range(3)], timestamp=2))
    await store.append(REF, Append(entries=[user("again")], retire_from=2, timestamp=3))
    await store.erase(REF, 0)
    ending = Ending(id="e", user_id="ann", session_id="gone", withdrawn=True, reason="delete", ended_at=9, due_at=9)
    await store.end(ending)
    places = [("s1", 0), ("s1", 2), ("s1", 3), ("s1", 4), (odd.id, 1), (odd.id, 1), ("gone", 0), ("nowhere", 0)]
    found = await store.entries_at("ann", places)
    assert await _list_found(store, *places) == {
        ("s1", 0): ("of s1", [0]),
        ("s1", 3): ("of s1", [3]),
        (odd.id, 1): (f"of {odd.id}", [1]),
    }
    assert found[odd.id, 1].entries[1] == (await store.entries(odd, start=1))[0]
    await store.replace(session(identity="new"), [user("b")])
    assert await _list_found(store, *places) == {("s1", 0): ("new", [0]), (odd.id, 1): (f"of {odd.id}", [1])}


async def test_entries_are_read_with_those_around_them(store: Store) -> None:
    """Live ones whose `seq` is close; also of a place that is none itself."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("a"), user("retired"), user("retired")], timestamp=2))
    await store.append(REF, Append(entries=[user("b"), note(), user("c")], retire_from=1, timestamp=2))
    places = [("s1", at) for at in range(8)]
    found = await _list_found(store, *places, around=2)
    wanted = {0: [0], 1: [0, 3], 2: [0, 3], 3: [3, 5], 4: [3, 5], 5: [3, 5], 6: [5], 7: [5]}
    assert {at: numbers for (_, at), (_, numbers) in found.items()} == wanted
    assert {one.end for one in (await store.entries_at("ann", places)).values()} == {6}


async def test_pages_cover_the_whole_log(store: Store) -> None:
    """Reading page by page gives what reading at once gives, also over retired entries."""
    await store.create(session())
    for at in range(6):
        entries = [user(f"{at}.{i}") for i in range(5)]
        await store.append(REF, Append(entries=entries, retire_from=at * 5 - 2 if at else None, timestamp=2))
    for retired, descending in itertools.product((False, True), (False, True)):
        await _check_pages(store, retired=retired, descending=descending)


async def _check_pages(store: Store, *, retired: bool, descending: bool) -> None:
    whole = await store.entries(REF, retired=retired, descending=descending)
    pages: list[int] = []
    while page := await store.entries(
        REF,
        start=pages[-1] + 1 if pages and not descending else 0,
        stop=pages[-1] if pages and descending else None,
        limit=3,
        retired=retired,
        descending=descending,
    ):
        pages.extend(seqs(page))
    assert pages == seqs(whole)
    assert pages == sorted(pages, reverse=descending)
    assert len(pages) == (30 if retired else 20)


async def test_reads_see_acknowledged_writes(store: Store) -> None:
    """A read after a write's return sees it, every time."""
    await store.create(session())
    for at in range(50):
        await store.append(REF, Append(entries=[user(str(at))], timestamp=2))
        assert (await store.get(REF)).messages == at + 1
        assert texts(await store.entries(REF, limit=1, descending=True)) == [str(at)]


async def test_texts_of_prompts_are_stored_once_and_deleted_with_what_they_quote(store: Store) -> None:
    """They are stored with a call, and not returned with it. Texts of an older prompt that quote messages are not stored after an erasure."""
    system, digest, cut = (
        PromptText(1, b'"be kind"'),
        PromptText(2, b'"a digest"', None, 0, 2),
        PromptText(3, b'"c"', None, 3, 3),
    )
    other, memory = PromptText(4, b'"of another"', "s2", 5, 5), PromptText(5, b'"a memory"', "m1")
    every = (system, digest, cut, other, memory)
    await store.create(session())
    await store.append(REF, Append(entries=[user(str(at)) for at in range(4)], timestamp=2))
    call = ModelCall(model="m", timestamp=1, texts=every, built_at=1)
    await store.append(REF, Append(calls=[call], timestamp=2))
    after = await store.append(REF, Append(calls=[evolve(call, texts=(system, digest))], timestamp=2))
    assert {one.texts for one in await store.calls(REF)} == {()}
    assert await store.prompt_texts(REF) == every
    assert await store.prompt_texts(REF, [2, 5, 77]) == (digest, memory)
    assert await store.prompt_texts(REF, []) == ()
    await store.erase(REF, 1)
    assert await store.prompt_texts(REF) == (system, cut, other, memory)
    await store.append(REF, Append(calls=[evolve(call, built_at=after.version)], timestamp=2))
    assert await store.prompt_texts(REF) == (system, cut, other, memory)
    await store.create(session(SessionRef(REF.user_id, "s2")))
    await store.append(SessionRef(REF.user_id, "s2"), Append(entries=[user(str(at)) for at in range(6)], timestamp=2))
    await store.erase(SessionRef(REF.user_id, "s2"), 4)
    assert other in await store.prompt_texts(REF)
    await store.remove(SessionRef(REF.user_id, "s2"))
    assert await store.prompt_texts(REF) == (system, cut, memory)
    await store.remove(REF)
    await store.create(session())
    assert await store.prompt_texts(REF) == ()


async def test_model_calls_are_recorded_and_summed(store: Store) -> None:
    """Newest first, and their sums on the session."""
    await store.create(session())
    made = [
        ModelCall(model="m", timestamp=at, prompt_tokens=10, completion_tokens=at, cached_tokens=4) for at in (1, 2, 3)
    ]
    await store.append(REF, Append(calls=made[:2], timestamp=2))
    after = await store.append(REF, Append(entries=[assistant("a")], calls=made[2:], timestamp=2))
    assert after.session.usage == (await store.get(REF)).usage == Usage(3, 30, 6, 12)
    assert await store.calls(REF) == tuple(reversed(made))
    assert await store.calls(REF, limit=1) == (made[2],)


async def test_a_model_call_stores_the_hash_of_its_prompt(store: Store) -> None:
    """Turn, place, view, hash and how its prompt was built come back; calls of one turn can be asked for."""
    await store.create(session())
    whole = ModelCall(
        model="m", timestamp=1, turn_id=4, through=17, view="v \0 ü", hash=b"h" * 16, build=b"\0b" * 8 * 1024
    )
    plain = ModelCall(model="m", timestamp=2)
    await store.append(REF, Append(calls=[whole, plain, evolve(whole, timestamp=3)], timestamp=2))
    assert await store.calls(REF) == (evolve(whole, timestamp=3), plain, whole)
    assert (plain.turn_id, plain.through, plain.view, plain.hash, plain.build) == (0, -1, "", b"", b"")
    assert await store.calls(REF, turn_id=4) == (evolve(whole, timestamp=3), whole)
    assert await store.calls(REF, turn_id=4, limit=1) == (evolve(whole, timestamp=3),)
    assert await store.calls(REF, turn_id=0) == (plain,)
    assert await store.calls(REF, turn_id=5) == ()


async def test_model_calls_are_read_by_ranges_of_turns(store: Store) -> None:
    """In both directions, in the order of the turns, also if a call of an earlier turn was recorded later."""
    await store.create(session())
    made = [ModelCall(model="m", timestamp=at, turn_id=turn) for at, turn in enumerate((0, 1, 1, 3, 2))]
    await store.append(REF, Append(calls=made, timestamp=2))

    async def read(**bounds: Any) -> list[int]:
        return [call.timestamp for call in await store.calls(REF, **bounds)]

    assert await read(start=0) == [3, 4, 2, 1, 0]
    assert await read(descending=False) == [0, 1, 2, 4, 3]
    assert await read(start=1, stop=3) == [4, 2, 1]
    assert await read(start=1, stop=3, descending=False, limit=2) == [1, 2]
    assert await read(stop=2, limit=2) == [2, 1]
    assert await read(start=4) == await read(stop=0) == []


# -- sizes ---------------------------------------------------------------------


async def test_a_large_message_is_stored(store: Store) -> None:
    """Far over 64 KB, byte for byte, also one that no quoting survives by luck."""
    await store.create(session())
    nasty = "".join(map(chr, range(0x20, 0x250))) + "\0\\'\"\n\r\x1a\\0' OR 1=1; -- %s %% ?1 $1 😀"
    for text in (nasty * 100, "x" * 3_000_000):
        await store.append(REF, Append(entries=[user(text)], timestamp=2, state_delta={"k": nasty}))
        assert (await store.entries(REF))[-1].message.text == text
    assert (await store.get(REF)).state == {"k": nasty}
