"""The contract, races: many writers, cancelled callers, two openings of one store."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio

from holdfast.domain.artifact import Scope, UserRef
from holdfast.domain.session import SessionRef
from holdfast.errors import HoldfastError, IdempotencyConflict, SessionExists, StaleSession, TooLarge
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.verify import verify

from .artifacts import artifact
from .kit import REF, assistant, compaction, lay, live, seqs, session, texts, user
from .plugin import OpenStore


async def test_fifty_writers_on_one_session(openings: list[Store]) -> None:
    """All succeed, each one's entries stand together and in its order, and nothing is lost or doubled."""
    await openings[0].create(session())
    answers: list[Appended] = []

    async def write(name: int) -> None:
        for at in range(4):
            entries = [user(f"{name}.{at}.a"), assistant(f"{name}.{at}.b")]
            answers.append(await _one_of(openings, name).append(REF, Append(entries=entries, timestamp=2)))

    async with anyio.create_task_group() as group:
        for name in range(50):
            group.start_soon(write, name)
    log = await openings[-1].entries(REF)
    assert seqs(log) == list(range(400))
    assert sorted(answer.version for answer in answers) == list(range(1, 201))
    for answer in answers:
        first, second = answer.entries
        assert second.seq == first.seq + 1
        assert log[first.seq : second.seq + 1] == (first, second)
    wrote = [f"{name}.{at}.{part}" for name in range(50) for at in range(4) for part in "ab"]
    assert sorted(texts(log), key=_writer_of) == wrote
    assert await verify(openings[-1], REF) == 400


async def test_two_hundred_writers_share_twenty_sessions(openings: list[Store]) -> None:
    """Whatever their clocks say, each history is gapless and holds each of its markers once, each writer's in its order."""
    refs = [SessionRef("ann", f"s{at}") for at in range(20)]
    for ref in refs:
        await openings[0].create(session(ref))
    wrote: dict[SessionRef, list[str]] = {ref: [] for ref in refs}

    async def write(name: int) -> None:
        for at in range(5):
            ref, clock = refs[name * (at + 1) % len(refs)], (name % 3 - 1) * at
            marker = f"{name}.{at}"
            entries = [user(marker, timestamp=clock)]
            (entry,) = (
                await _one_of(openings, name + at).append(ref, Append(entries=entries, timestamp=clock))
            ).entries
            assert entry.message.text == marker
            wrote[ref].append(marker)

    async with anyio.create_task_group() as group:
        for name in range(200):
            group.start_soon(write, name)
    for ref in refs:
        log = await openings[-1].entries(ref)
        assert seqs(log) == list(range(len(wrote[ref])))
        assert sorted(texts(log), key=_writer_of) == sorted(
            wrote[ref], key=lambda text: tuple(map(int, text.split(".")))
        )
        assert await verify(openings[-1], ref) == len(log)


def _one_of(openings: list[Store], number: int) -> Store:
    return openings[number % len(openings)]


def _writer_of(marker: str) -> int:
    """Who wrote it; sorted by that, a log keeps each writer's own order."""
    return int(marker.partition(".")[0])


async def test_a_window_is_seen_at_one_moment(store: Store) -> None:
    """While others append and rewind, the session, its counters and its entries belong together."""
    await store.create(session())
    await store.append(REF, Append(entries=[user("first")], timestamp=2))
    writing = True

    async def write() -> None:
        nonlocal writing
        for at in range(1, 60):
            await store.append(REF, Append(entries=[user("a"), user("b")], retire_from=at, timestamp=2))
        writing = False

    async def read() -> None:
        while writing:
            rows = await store.window(REF, None)
            assert rows.entries[-1].seq == rows.session.tail.last_seq
            assert len(rows.entries) == rows.session.messages

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        for _ in range(4):
            group.start_soon(read)


async def test_one_of_several_writers_with_the_same_expectation_wins(store: Store) -> None:
    """The others get `StaleSession`; round after round exactly one entry is written."""
    await store.create(session())
    for version in range(10):
        writes = [store.append(REF, Append(entries=[user(str(at))], timestamp=2, expect=version)) for at in range(8)]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert Counter(type(outcome) for outcome in outcomes) == {Appended: 1, StaleSession: 7}
    assert (await store.get(REF)).messages == 10


async def test_one_of_several_creators_wins(store: Store) -> None:
    """The others get `SessionExists`."""
    outcomes = await asyncio.gather(*(store.create(session()) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(outcome, SessionExists) for outcome in outcomes) == 7


async def test_each_of_many_keys_writes_once(openings: list[Store]) -> None:
    """Twenty keys, each used by eight at once for two different contents: one content of each is written, once.

    Who brings that one gets its answer, first or replayed; who brings the other is refused.
    """
    await openings[0].create(session())

    async def write(key: int, caller: int) -> tuple[int, int, Appended | IdempotencyConflict]:
        content = caller % 2
        entries = [user(f"{key}.{content}"), assistant(f"{key}.{content}")]
        new = Append(entries=entries, timestamp=2, idempotency_key=f"k{key}", fingerprint=b"%d" % content)
        try:
            return key, content, await _one_of(openings, caller // 2).append(REF, new)
        except IdempotencyConflict as exc:
            return key, content, exc

    outcomes = await asyncio.gather(*(write(key, caller) for caller in range(8) for key in range(20)))
    log = await live(openings[-1])
    assert len(log) == 40
    for key in range(20):
        mine = [(content, outcome) for at, content, outcome in outcomes if at == key]
        first = [content for content, outcome in mine if isinstance(outcome, Appended) and not outcome.replayed]
        assert len(first) == 1
        for content, outcome in mine:
            assert isinstance(outcome, Appended if content == first[0] else IdempotencyConflict)
            if isinstance(outcome, Appended):
                assert texts(outcome.entries) == [f"{key}.{content}"] * 2
        assert log.count(f"{key}.{first[0]}") == 2
    assert await verify(openings[-1], REF) == 40


async def test_one_of_several_processes_gets_a_lease(shared_opener: OpenStore) -> None:
    """Two openings, forty holders, round after round: each round is exactly one's."""
    stores = [await shared_opener() for _ in range(2)]
    for round_ in range(10):
        now = 10 * round_
        wants = [stores[at % 2].lease("sweep", str(at), now=now, until=now + 10) for at in range(40)]
        answers = await asyncio.gather(*wants)
        assert sum(answers) == 1
        if round_ % 2:
            await stores[0].release("sweep", str(answers.index(True)))


async def test_one_of_several_calibration_writers_wins(shared_opener: OpenStore) -> None:
    """Counting by reading and writing back loses nothing."""
    stores = [await shared_opener() for _ in range(2)]

    async def count(store: Store) -> None:
        for _ in range(5):
            learned = await store.learned("m")
            while not await store.learn("m", b"%d" % (int(learned or b"0") + 1), timestamp=1, expect=learned):
                learned = await store.learned("m")

    await asyncio.gather(*(count(store) for store in (*stores, *stores)))
    assert await stores[0].learned("m") == b"20"


async def test_simultaneous_compactions_are_consistent(shared_opener: OpenStore) -> None:
    """Ids have no gap, and one is live in the end, with the longest range."""
    stores = [await shared_opener() for _ in range(2)]
    await stores[0].create(session())
    await stores[0].append(REF, Append(entries=[user("x") for _ in range(40)], timestamp=2))
    await asyncio.gather(*(lay(stores[at % 2], compaction(0, at)) for at in range(40)))
    found = await stores[1].compactions(REF)
    assert [one.id for one in found] == list(range(1, 41))
    assert [one.last for one in found if one.status == "live"] == [39]
    assert (await stores[0].get(REF)).version == 41


async def test_a_refused_write_does_not_affect_others_in_its_batch(store: Store) -> None:
    """Good and bad writes at once, some of which fail in the middle: each gets its own outcome."""
    await store.create(session())
    writes = [
        Append(entries=[user(str(at)), user("bad", timestamp=2**70 if at % 3 == 0 else 1)], timestamp=2)
        for at in range(30)
    ]
    outcomes = await asyncio.gather(*(store.append(REF, write) for write in writes), return_exceptions=True)
    for at, outcome in enumerate(outcomes):
        assert isinstance(outcome, HoldfastError) if at % 3 == 0 else isinstance(outcome, Appended)
    kept = [text for at in range(30) if at % 3 for text in (str(at), "bad")]
    assert Counter(await live(store)) == Counter(kept)
    assert await verify(store, REF) == 40


async def test_artifacts_never_exceed_their_room(openings: list[Store]) -> None:
    """Of a session and of a user: one of four artifacts of 60 bytes fits into a room of 100."""
    for number in range(5):
        refs: list[Scope] = [SessionRef(f"u{number}", "s"), UserRef(f"u{number}")]
        await openings[0].create(session(SessionRef(f"u{number}", "s")))
        for prefix, scope in zip(("", "user:"), refs, strict=True):
            news = [artifact(f"{prefix}{at}", f"b{number}{at}{len(prefix)}", b"x" * 60) for at in range(4)]
            adds = [_one_of(openings, at).add_artifact(scope, new, room=100) for at, new in enumerate(news)]
            outcomes = await asyncio.gather(*adds, return_exceptions=True)
            assert sum(isinstance(outcome, TooLarge) for outcome in outcomes) == 3
            assert len((await openings[0].artifacts(scope)).artifacts) == 1


async def test_many_cancellations_lose_nothing(store: Store) -> None:
    """Callers that give up at any moment: a write is done or not, and nobody gets another's answer."""
    await store.create(session())
    answered: list[str] = []

    async def write(marker: str) -> None:
        done = await store.append(REF, Append(entries=[user(marker), assistant(marker)], timestamp=2))
        assert texts(done.entries) == [marker, marker]
        answered.append(marker)

    async def read(marker: str) -> None:
        ref = SessionRef("reader", marker)
        await store.create(session(ref, metadata={"marker": marker}))
        assert (await store.get(ref)).metadata == {"marker": marker}

    for storm in range(20):
        tasks = [asyncio.create_task(write(f"{storm}.{at}")) for at in range(20)]
        tasks += [asyncio.create_task(read(f"{storm}.{at}")) for at in range(10)]
        for hops, task in enumerate(tasks[::2]):
            for _ in range(hops % 4):
                await asyncio.sleep(0)
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError)
    counts = Counter(await live(store))
    assert set(counts.values()) == {2}
    assert set(answered) <= set(counts)
    assert await verify(store, REF) == 2 * len(counts)


async def test_close_finishes_accepted_writes(store: Store) -> None:
    """Writes that wait when the store is closed are done and acknowledged."""
    await store.create(session())
    writes = [asyncio.create_task(store.append(REF, Append(entries=[user("a")], timestamp=2))) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    answers = await asyncio.gather(*writes)
    assert sorted(answer.version for answer in answers) == list(range(1, 21))
