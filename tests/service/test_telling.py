"""Hooks hear of ends: all of them, in order, apart from each other, at least once, and never again after they were told."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest

from holdfast.domain.session import EndReason
from holdfast.errors import HookFailed, InvalidRequest, StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.hooks import EndedSession
from holdfast.hooks.callbacks import Hooks
from holdfast.life.settings import LifeSettings
from holdfast.life.telling import Patience
from holdfast.limits import HOOKS
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.wrapper import StoreWrapper
from tests.clocks import Clock
from tests.service.life_kit import DAY, MEMORY, Ear, file, life, patience, ref, rows, state, talk
from tests.stores.servers import place
from tests.waiting import until


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def due(hf: Holdfast) -> list[tuple[str, ...]]:
    """The hooks that are left to be told of each end that is recorded."""
    return [ending.hooks for ending in await hf.engine.life.store.endings(due=2**50)]


async def ended(hf: Holdfast, name: str = "a") -> None:
    """A session that is closed, and its hooks told as far as they let themselves be."""
    await talk(hf, name)
    await hf.close_session(ref(name))
    await hf.engine.teller.idle()


# -- registering ---------------------------------------------------------------


async def test_functions_are_told(clock: Clock) -> None:
    """Plain and async ones, as a call or a decorator; a plain one in a thread, from where it can await."""
    async with life(MEMORY, clock) as hf:
        told: list[tuple[str, str, str, Any]] = []

        @hf.on_expire
        async def first(session: EndedSession, reason: EndReason) -> None:
            texts = [entry.message.text async for entry in session.entries()]
            told.append(("first", session.id, reason, texts))

        @hf.on_expire(name="second", reasons=["close"])
        def second(session: EndedSession, reason: EndReason) -> None:
            assert threading.current_thread() is not threading.main_thread()
            texts = anyio.from_thread.run(_texts, session)
            told.append(("second", session.user_id, reason, texts))

        await ended(hf)
        assert told == [("first", "a", "close", ["hello"]), ("second", "default", "close", ["hello"])]
        assert hf.engine.teller.outcomes[f"{__name__}.test_functions_are_told.<locals>.first", "told"] == 1
        await talk(hf, "b")
        await hf.delete(ref("b"))
        await hf.engine.teller.idle()
        assert [name for name, *_ in told] == ["first", "second", "first"]


async def _texts(session: EndedSession) -> list[str]:
    return [entry.message.text async for entry in session.entries()]


class Told:
    """Something that can be called and is no function."""

    async def __call__(self, session: EndedSession, reason: str) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("callback", "more", "said"),
    [
        (3, {}, "function, not int"),
        (lambda session: None, {"name": "x"}, "two arguments"),
        (lambda session, reason: None, {}, "name="),
        (Told(), {}, "name="),
        (lambda session, reason: None, {"name": ""}, "1 to 512 bytes"),
        (lambda session, reason: None, {"name": "x" * 513}, "1 to 512 bytes"),
        (lambda session, reason: None, {"name": "\ud800"}, "1 to 512 bytes"),
        (lambda session, reason: None, {"name": "x", "reasons": ["boredom"]}, "not boredom"),
        (lambda session, reason: None, {"name": "x", "reasons": []}, "not none"),
        (lambda session, reason: None, {"name": "taken"}, "registered already"),
    ],
)
def test_what_cannot_be_told_is_refused(callback: Any, more: dict[str, Any], said: str) -> None:
    hf = Holdfast(MEMORY)
    hf.on_expire(Told(), name="taken")
    with pytest.raises(InvalidRequest, match=said):
        hf.on_expire(callback, **more)


def test_there_is_an_end_to_how_many_hooks_there_may_be() -> None:
    hooks = Hooks()
    for number in range(HOOKS):
        hooks.add(Ear(f"ear {number}"))
    with pytest.raises(InvalidRequest, match=str(HOOKS)):
        hooks.add(Ear("one more"))


async def test_only_those_that_want_a_reason_hear_of_it(tmp_path: Path, clock: Clock) -> None:
    """With nobody to tell, nothing is recorded."""
    async with life(file(tmp_path), clock, session_ttl=1000, max_sessions=1) as hf:
        reasons: list[EndReason] = ["ttl", "cap", "delete", "close"]
        ears = {reason: Ear(reason, [reason]) for reason in reasons}
        everybody = Ear("everybody")
        for ear in (*ears.values(), everybody):
            hf.add_hook(ear)
        for name in ("capped", "expired"):
            await talk(hf, name)
            clock.now += 1
        clock.now += 1000
        await hf.sweep()
        await talk(hf, "closed")
        await hf.close_session(ref("closed"))
        await hf.delete(ref("capped"))
        await hf.engine.teller.idle()
        heard = {reason: [name for _, name in ear.heard] for reason, ear in ears.items()}
        assert heard == {"ttl": ["expired"], "cap": ["capped"], "delete": ["capped"], "close": ["closed"]}
        assert sorted(everybody.heard) == [
            ("cap", "capped"),
            ("close", "closed"),
            ("delete", "capped"),
            ("ttl", "expired"),
        ]
        assert await due(hf) == []
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(Ear(reasons=["ttl"]))
        await talk(hf, "a")
        await hf.close_session(ref("a"))
        assert await due(hf) == []


# -- order, isolation, time ----------------------------------------------------


async def test_hooks_are_told_in_order_each_awaited_and_apart(tmp_path: Path, clock: Clock) -> None:
    """One that raises, one that ends itself and one that hangs do not keep the others from hearing."""
    async with life(file(tmp_path), clock) as hf:
        patience(hf, call=0.05)
        order: list[str] = []

        async def slow(session: EndedSession, reason: str) -> None:
            order.append("slow begins")
            for _ in range(10):  # a hook that did not wait for this one would begin meanwhile
                await hf.store.ping()
            order.append("slow ends")

        async def wrong(session: EndedSession, reason: str) -> None:
            order.append("wrong")
            raise ValueError("no")

        async def gone(session: EndedSession, reason: str) -> None:
            order.append("gone")
            raise asyncio.CancelledError

        async def hangs(session: EndedSession, reason: str) -> None:
            order.append("hangs")
            await asyncio.Event().wait()

        async def last(session: EndedSession, reason: str) -> None:
            order.append("last")

        for function in (slow, wrong, gone, hangs, last):
            hf.on_expire(function, name=function.__name__)
        await ended(hf)
        assert order == ["slow begins", "slow ends", "wrong", "gone", "hangs", "last"]
        (left,) = await hf.engine.life.store.endings(due=2**50)
        assert (left.hooks, left.attempts) == (("wrong", "gone", "hangs"), 1)
        assert left.error == "wrong: ValueError: no; gone: it was cancelled; hangs: it took more than 0.05 s"
        outcomes = hf.engine.teller.outcomes
        assert dict(outcomes.keys()) == {
            "slow": "told",
            "wrong": "failed",
            "gone": "failed",
            "hangs": "failed",
            "last": "told",
        }


async def test_a_hook_that_does_not_stop_is_left_behind(tmp_path: Path, clock: Clock) -> None:
    """It holds up neither the next hook nor the end of the process for long."""
    async with life(file(tmp_path), clock) as hf:
        patience(hf, call=0.01)
        release, ear = asyncio.Event(), Ear()

        async def stubborn(session: EndedSession, reason: str) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        hf.on_expire(stubborn, name="stubborn")
        hf.add_hook(ear)
        await ended(hf)
        assert ear.heard == [("close", "a")]
        release.set()


async def test_no_turn_waits_for_a_hook(tmp_path: Path, clock: Clock) -> None:
    """Nor does whoever deletes or closes."""
    async with life(file(tmp_path), clock, session_ttl=1000) as hf:
        release, heard = asyncio.Event(), Counter[str]()

        async def slow(session: EndedSession, reason: str) -> None:
            await release.wait()
            heard[reason] += 1

        hf.on_expire(slow, name="slow")
        session = await hf.session("a")
        await session.send("one")
        clock.now += 1000
        await session.send("two")
        await session.close()
        await session.send("three")
        await session.delete()
        assert not heard
        release.set()
        await hf.engine.teller.idle()
        assert heard["delete"] == 1


# -- again ---------------------------------------------------------------------


async def test_a_failed_delivery_is_tried_again_later_and_later(tmp_path: Path, clock: Clock) -> None:
    """Under the same delivery id; those that heard are not told again, and not before it is time."""
    async with life(file(tmp_path), clock) as hf:
        ear, other = Ear("ear"), Ear("other")
        ear.failing = 4
        hf.add_hook(ear)
        hf.add_hook(other)
        await ended(hf)
        for pause in (1_000, 5_000, 30_000, 120_000):
            await hf.sweep()
            clock.now += pause - 1
            await hf.sweep()
            calls = len(ear.calls)
            clock.now += 1 + pause // 5
            await hf.sweep()
            assert len(ear.calls) == calls + 1
        assert ear.heard == [("close", "a")]
        assert [attempt for *_, attempt in ear.calls] == [1, 2, 3, 4, 5]
        assert len({delivery for _, _, delivery, _ in ear.calls}) == 1
        assert len(other.calls) == 1
        clock.now += DAY
        await hf.sweep()
        assert (len(ear.calls), len(other.calls), await due(hf)) == (5, 1, [])


@pytest.mark.parametrize(
    ("asked", "pause"),
    [(60.0, 60_000), (0.5, 1_000), (None, 1_000), (1e9, 3_600_000), (float("nan"), 1_000), (-5, 1_000)],
)
async def test_a_hook_is_left_alone_for_as_long_as_it_asks(
    tmp_path: Path, clock: Clock, asked: float | None, pause: int
) -> None:
    """At least as long as otherwise, and an hour at most; whoever else failed waits with it."""
    calls: list[int] = []

    async def busy(session: EndedSession, reason: str) -> None:
        calls.append(clock.now)
        if len(calls) == 1:
            raise HookFailed("busy", retry_after=asked)

    async with life(file(tmp_path), clock) as hf:
        other = Ear("other")
        other.failing = 1
        hf.on_expire(busy)
        hf.add_hook(other)
        await ended(hf)
        first = clock.now
        clock.now = first + pause - 1
        await hf.sweep()
        assert (len(calls), len(other.calls)) == (1, 1)
        clock.now = first + pause + pause // 5 + 1
        await hf.sweep()
        assert (len(calls), other.heard, await due(hf)) == (2, [("close", "a")], [])


async def test_a_deleted_session_waits_for_its_last_hook(tmp_path: Path, clock: Clock) -> None:
    """Whole, for its hooks alone; a new one of its name does not see it."""
    async with life(file(tmp_path), clock) as hf:
        ear = Ear()
        ear.failing = 1
        hf.add_hook(ear)
        await talk(hf, "a", "secret plans")
        await hf.delete(ref("a"))
        await hf.engine.teller.idle()
        await talk(hf, "a", "another life")
        clock.now += 10_000
        await hf.sweep()
        assert (ear.heard, ear.texts) == ([("delete", "a")], [["secret plans"]])
        session = await hf.session("a")
        assert [message["content"] for message in await session.messages()] == ["another life"]
        (left,) = await hf.engine.life.store.endings(due=2**50) or [None]
        assert left is None


async def test_it_is_given_up_in_the_end(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """With a line in the log; what waited for it goes."""
    async with life(file(tmp_path), clock) as hf:
        patience(hf, attempts=3)
        ear = Ear()
        ear.failing = 99
        hf.add_hook(ear)
        await talk(hf, "a")
        await hf.delete(ref("a"))
        for _ in range(5):
            await hf.engine.teller.idle()
            clock.now += DAY
            await hf.sweep()
        assert len(ear.calls) == 3
        assert "given up" in caplog.text
        assert hf.engine.teller.outcomes["ear", "given_up"] == 1
        assert (await due(hf), await hf.engine.life.store.tenants()) == ([], ())


def test_the_tries_take_a_week() -> None:
    """Seven days of them, at the pauses there are."""
    told = Patience()
    pauses = [told.pauses[min(number, len(told.pauses) - 1)] for number in range(told.attempts - 1)]
    assert 7 * DAY <= sum(pauses) < 7.1 * DAY
    assert told.claim > told.call * 1000


async def test_a_hook_that_is_configured_no_more_is_forgotten_after_a_day(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not before: it may be registered yet, or be another process's."""
    async with life(file(tmp_path), clock) as hf:
        old, ear = Ear("old"), Ear()
        old.failing = ear.failing = 1
        hf.add_hook(old)
        hf.add_hook(ear)
        await ended(hf)
    clock.now += 3 * DAY
    async with life(file(tmp_path), clock) as hf:
        await hf.sweep()
        assert await due(hf) == [("old", "ear")], "nobody is here to be told"
        hf.add_hook(ear)
        await hf.sweep()
        assert await due(hf) == [("old",)]
        clock.now += DAY - 1
        await hf.sweep()
        assert await due(hf) == [("old",)]
        clock.now += 2
        for _ in range(3):
            await hf.sweep()
            clock.now += 600_000
        assert await due(hf) == []
        assert "hook 'old' is configured no more" in caplog.text
        assert hf.engine.teller.outcomes["old", "dropped"] == 1


async def test_another_process_goes_on_where_one_stopped(tmp_path: Path, clock: Clock) -> None:
    """At the next start, when the claim of the one before is over."""
    ear = Ear()
    ear.failing = 1
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await ended(hf)
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await hf.sweep()
        assert len(ear.calls) == 1
        clock.now += 100_000
        await hf.sweep()
        assert ear.heard == [("close", "a")]


async def test_it_looks_for_what_is_due_by_itself(tmp_path: Path, clock: Clock) -> None:
    """When a hook comes for which ends were left."""
    ear = Ear()
    ear.failing = 1
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await ended(hf)
    clock.now += DAY
    async with Holdfast(file(tmp_path), clock=clock) as hf:
        hf.add_hook(ear)
        await until(lambda: ear.heard)


# -- the end of the process ----------------------------------------------------


async def test_at_a_clean_end_those_hear_of_it_that_asked(tmp_path: Path, clock: Clock) -> None:
    """Of the sessions that were written to here, which stay as they are."""
    asked, others = Ear("asked", ["shutdown", "ttl"]), Ear("others")
    async with life(file(tmp_path), clock, session_ttl=1000) as hf:
        await talk(hf, "before")
    async with life(file(tmp_path), clock, session_ttl=1000) as hf:
        hf.add_hook(asked)
        hf.add_hook(others)
        await talk(hf, "expired")
        await talk(hf, "closed")
        await hf.close_session(ref("closed"))
        clock.now += 1000
        await talk(hf, "a")
        await (await hf.session("before")).info()
    assert (asked.heard, asked.texts) == ([("shutdown", "a")], [["hello"]])
    assert others.heard == [("close", "closed")]
    async with life(file(tmp_path), clock, session_ttl=1000) as hf:
        assert await state(hf, "a") == "active"
        assert await due(hf) == []


async def test_what_fails_at_the_end_is_told_at_the_next_start(tmp_path: Path, clock: Clock) -> None:
    ear = Ear(reasons=["shutdown"])
    ear.failing = 1
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await talk(hf, "a")
    clock.now += 100_000
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(ear)
        await hf.sweep()
        assert ear.heard == [("shutdown", "a")]
        assert await state(hf, "a") == "active"


async def test_the_end_does_not_wait_for_ever(tmp_path: Path, clock: Clock) -> None:
    """What hangs then is left to the next start."""
    async with life(file(tmp_path), clock) as hf:
        patience(hf, close=0.05)
        began = asyncio.Event()

        async def hangs(session: EndedSession, reason: str) -> None:
            began.set()
            await asyncio.Event().wait()

        hf.on_expire(hangs, name="hangs")
        await talk(hf, "a")
        await hf.close_session(ref("a"))
        await began.wait()
    async with life(file(tmp_path), clock) as hf:
        assert await due(hf) == [("hangs",)]


# -- a crash between any two steps ----------------------------------------------


class Crashed(StoreUnavailable):
    """The process ended here."""


class Mortal(StoreWrapper):
    """A store whose process dies at a step: before it is done, or right behind it; then nothing works any more."""

    STEPS = frozenset({"end", "get", "entries", "settle", "delete", "forget_ending", "endings", "lease", "release"})

    def __init__(self, inner: Store, fate: dict[str, int]) -> None:
        super().__init__(inner)
        self._fate = fate

    def around(self, inner: Store) -> Mortal:
        return type(self)(inner, self._fate)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name not in self.STEPS:
            return method

        async def step(*args: Any, **kwargs: Any) -> Any:
            fate = self._fate
            if fate["left"] <= 0:
                raise Crashed("dead")
            fate["left"] -= 1
            if fate["left"] == 0 and not fate["behind"]:
                raise Crashed("dead")
            result = await method(*args, **kwargs)
            if fate["left"] == 0:
                raise Crashed("dead")
            return result

        return step


@pytest.mark.parametrize("behind", [0, 1], ids=["before", "behind"])
@pytest.mark.parametrize("reason", ["ttl", "delete"])
async def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing_noted(
    tmp_path: Path, clock: Clock, reason: EndReason, behind: int
) -> None:
    """The process dies at each step of ending and telling; the next one tells what is left, and cleans up."""
    for steps in range(1, 40):
        url = f"sqlite:///{tmp_path}/{steps}.db"
        one, two = Ear("one"), Ear("two")
        died = await _until_death(url, clock, reason, fate={"left": steps, "behind": behind}, ears=(one, two))
        noted = Counter(name for ear in (one, two) for name in [ear.name] * len(ear.heard))
        async with life(url, clock, session_ttl=1000) as hf:
            for ear in (one, two):
                hf.add_hook(ear)
            clock.now += 200_000
            await hf.sweep()
            clock.now += 200_000
            await hf.sweep()
            again = reason == "delete" and await hf.delete(ref("a"))
            await hf.engine.teller.idle()
            assert await due(hf) == []
            assert {what for ear in (one, two) for what, _ in ear.heard} <= {reason, "ttl"}
            for ear in (one, two):
                assert len(ear.heard) >= 1, (steps, ear.name)
                assert len(ear.heard) <= 2 + again, (steps, ear.name)
                assert all(texts == ["hello"] for texts in ear.texts)
            # Nobody hears twice but the one that was being told when the process died.
            assert sum(len(ear.heard) for ear in (one, two)) <= 3 + 2 * again
            assert len(await rows(hf)) == (reason == "ttl")
        if not died:
            assert noted == {"one": 1, "two": 1}
            return
    pytest.fail("it takes no more than 40 steps")


async def _until_death(
    url: str, clock: Clock, reason: EndReason, *, fate: dict[str, int], ears: Collection[Ear]
) -> bool:
    """One process that ends a session, and may die of it; whether it did."""
    setup = await open_store(url, tenant="default")
    store: Any = Mortal(setup, {**fate, "left": 10_000})  # type: ignore[abstract]  # it passes on what it does not define
    settings = LifeSettings(sweep=False, session_ttl=1000)
    async with Holdfast(store=store, clock=clock, life=settings) as hf:
        for ear in ears:
            hf.add_hook(ear)
        await talk(hf, "a")
        live: Any = hf.engine.life.store
        live._fate.update(fate)
        try:
            if reason == "ttl":
                clock.now += 1000
                await hf.sweep()
            else:
                await hf.delete(ref("a"))
            await hf.engine.teller.idle()
        except Crashed:
            pass
        died = live._fate["left"] <= 0
        live._fate["left"] = 10_000  # for the close of what is shared
    await setup.close()
    return bool(died)


# -- several processes ---------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that two processes share."""
    with place(request.param, tmp_path) as url:
        yield url


async def test_two_sweeps_at_once_tell_each_end_once(shared: str, clock: Clock) -> None:
    """Whoever gets the lease, whoever ends it: each hook hears of each end exactly once when nothing fails."""
    number = 60
    async with life(shared, clock, session_ttl=1000) as one, life(shared, clock, session_ttl=1000) as two:
        ears = [Ear("ear") for _ in range(2)]
        for hf, ear in zip((one, two), ears, strict=True):
            hf.add_hook(ear)
        await asyncio.gather(*(one.create(f"s{at}") for at in range(number)))
        clock.now += 1000
        swept = await asyncio.gather(*(hf.sweep() for hf in (one, two) * 3))
        assert sum(one_.expired for one_ in swept) == number
        # Reads end them, too: both at once.
        await asyncio.gather(*(talk(hf, f"s{at}") for at in range(number) for hf in (one, two)))
        clock.now += 1000
        await asyncio.gather(*(talk(hf, f"s{at}") for at in range(number) for hf in (one, two)))
        for hf in (one, two):
            await hf.engine.teller.idle()
        heard = Counter(name for ear in ears for _, name in ear.heard)
        assert heard == {f"s{at}": 2 for at in range(number)}
        assert len({delivery for ear in ears for _, _, delivery, _ in ear.calls}) == 2 * number


async def test_the_lease_of_a_sweep_is_taken_over(shared: str, clock: Clock) -> None:
    """While its holder lives nobody else sweeps; when it is gone, the next one does."""
    async with life(shared, clock, session_ttl=1000) as hf:
        await hf.create("a")
        clock.now += 1000
        now = clock.now
        await hf.engine.life.store.lease("sweep", "a process that died", now=now, until=now + 60_000)
        swept = await hf.sweep()
        assert (swept.elsewhere, swept.expired) == (1, 0)
        clock.now += 60_000
        swept = await hf.sweep()
        assert (swept.elsewhere, swept.expired) == (0, 1)


async def test_the_claim_of_a_process_that_died_is_taken_over(shared: str, clock: Clock) -> None:
    """What one has taken on nobody else touches, until it has had its time."""
    async with life(shared, clock) as one, life(shared, clock) as two:
        began, ear = asyncio.Event(), Ear()

        async def hangs(session: EndedSession, reason: str) -> None:
            began.set()
            await asyncio.Event().wait()

        one.on_expire(hangs, name=ear.name)
        two.add_hook(ear)
        await talk(one, "a")
        await one.close_session(ref("a"))
        await began.wait()
        await two.sweep()
        assert ear.calls == []
        clock.now += 90_000
        await two.sweep()
        assert ear.heard == [("close", "a")]
        patience(one, close=0.01)
