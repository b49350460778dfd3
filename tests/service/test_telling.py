"""Hooks hear of ends: who may be told of what, in order and apart from each other, and at the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest

from holdfast.domain.session import EndReason
from holdfast.errors import InvalidRequest
from holdfast.holdfast import Holdfast
from holdfast.hooks import EndedSession
from holdfast.hooks.registry import HookRegistry
from holdfast.limits import HOOKS
from tests.clocks import Clock
from tests.service.expiry_kit import (
    MEMORY,
    RecordingHook,
    change_schedule,
    close_with_hooks,
    file,
    life,
    list_due_hooks,
    ref,
    state,
    talk,
)

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

        await close_with_hooks(hf)
        assert told == [("first", "a", "close", ["hello"]), ("second", "default", "close", ["hello"])]
        assert hf.engine.hook_dispatcher.outcomes[f"{__name__}.test_functions_are_told.<locals>.first", "told"] == 1
        await talk(hf, "b")
        await hf.delete(ref("b"))
        await hf.engine.hook_dispatcher.wait_until_idle()
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
    hooks = HookRegistry()
    for number in range(HOOKS):
        hooks.add(RecordingHook(f"ear {number}"))
    with pytest.raises(InvalidRequest, match=str(HOOKS)):
        hooks.add(RecordingHook("one more"))


async def test_only_those_that_want_a_reason_hear_of_it(tmp_path: Path, clock: Clock) -> None:
    """With nobody to tell, nothing is recorded."""
    async with life(file(tmp_path), clock, session_ttl=1000, max_sessions=1) as hf:
        reasons: list[EndReason] = ["ttl", "cap", "delete", "close"]
        ears = {reason: RecordingHook(reason, [reason]) for reason in reasons}
        everybody = RecordingHook("everybody")
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
        await hf.engine.hook_dispatcher.wait_until_idle()
        heard = {reason: [name for _, name in ear.heard] for reason, ear in ears.items()}
        assert heard == {"ttl": ["expired"], "cap": ["capped"], "delete": ["capped"], "close": ["closed"]}
        assert sorted(everybody.heard) == [
            ("cap", "capped"),
            ("close", "closed"),
            ("delete", "capped"),
            ("ttl", "expired"),
        ]
        assert await list_due_hooks(hf) == []
    async with life(file(tmp_path), clock) as hf:
        hf.add_hook(RecordingHook(reasons=["ttl"]))
        await talk(hf, "a")
        await hf.close_session(ref("a"))
        assert await list_due_hooks(hf) == []


# -- order, isolation, time ----------------------------------------------------


async def test_hooks_are_told_in_order_each_awaited_and_apart(tmp_path: Path, clock: Clock) -> None:
    """One that raises, one that ends itself and one that hangs do not keep the others from hearing."""
    async with life(file(tmp_path), clock) as hf:
        change_schedule(hf, call_seconds=0.05)
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
        await close_with_hooks(hf)
        assert order == ["slow begins", "slow ends", "wrong", "gone", "hangs", "last"]
        (left,) = await hf.engine.life.store.endings(due=2**50)
        assert (left.hooks, left.attempts) == (("wrong", "gone", "hangs"), 1)
        assert left.error == "wrong: ValueError: no; gone: it was cancelled; hangs: it took more than 0.05 s"
        outcomes = hf.engine.hook_dispatcher.outcomes
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
        change_schedule(hf, call_seconds=0.01)
        release, ear = asyncio.Event(), RecordingHook()

        async def stubborn(session: EndedSession, reason: str) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        hf.on_expire(stubborn, name="stubborn")
        hf.add_hook(ear)
        await close_with_hooks(hf)
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
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert heard["delete"] == 1


# -- the end of the process ----------------------------------------------------


async def test_at_a_clean_end_those_hear_of_it_that_asked(tmp_path: Path, clock: Clock) -> None:
    """Of the sessions that were written to here, which stay as they are."""
    asked, others = RecordingHook("asked", ["shutdown", "ttl"]), RecordingHook("others")
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
        assert await list_due_hooks(hf) == []


async def test_the_end_does_not_wait_for_ever(tmp_path: Path, clock: Clock) -> None:
    """What hangs then is left to the next start."""
    async with life(file(tmp_path), clock) as hf:
        change_schedule(hf, close_seconds=0.05)
        began = asyncio.Event()

        async def hangs(session: EndedSession, reason: str) -> None:
            began.set()
            await asyncio.Event().wait()

        hf.on_expire(hangs, name="hangs")
        await talk(hf, "a")
        await hf.close_session(ref("a"))
        await began.wait()
    async with life(file(tmp_path), clock) as hf:
        assert await list_due_hooks(hf) == [("hangs",)]
