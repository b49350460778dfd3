"""Hooks for session ends: which ends they receive, in order and isolated from each other, and at process shutdown."""

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
    talk,
)

# -- registering ---------------------------------------------------------------


async def test_functions_can_be_hooks(clock: Clock) -> None:
    """Plain and async ones, by call or decorator; a plain one runs in a thread and can await from there."""
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
        assert hf.engine.hook_dispatcher.outcomes[f"{__name__}.test_functions_can_be_hooks.<locals>.first", "told"] == 1
        await talk(hf, "b")
        await hf.delete(ref("b"))
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert [name for name, *_ in told] == ["first", "second", "first"]


async def _texts(session: EndedSession) -> list[str]:
    return [entry.message.text async for entry in session.entries()]


class Told:
    """A callable that is not a function."""

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
def test_invalid_hooks_are_rejected(callback: Any, more: dict[str, Any], said: str) -> None:
    hf = Holdfast(MEMORY)
    hf.on_expire(Told(), name="taken")
    with pytest.raises(InvalidRequest, match=said):
        hf.on_expire(callback, **more)


def test_number_of_hooks_is_limited() -> None:
    hooks = HookRegistry()
    for number in range(HOOKS):
        hooks.add(RecordingHook(f"ear {number}"))
    with pytest.raises(InvalidRequest, match=str(HOOKS)):
        hooks.add(RecordingHook("one more"))


# -- order, isolation, time ----------------------------------------------------


async def test_hooks_run_in_order_and_failures_are_isolated(tmp_path: Path, clock: Clock) -> None:
    """A hook that raises, cancels itself or hangs does not keep the others from running."""
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

        async def note_end(session: EndedSession, reason: str) -> None:
            order.append("gone")
            raise asyncio.CancelledError

        async def hangs(session: EndedSession, reason: str) -> None:
            order.append("hangs")
            await asyncio.Event().wait()

        async def last(session: EndedSession, reason: str) -> None:
            order.append("last")

        for function in (slow, wrong, note_end, hangs, last):
            hf.on_expire(function, name=function.__name__)
        await close_with_hooks(hf)
        assert order == ["slow begins", "slow ends", "wrong", "gone", "hangs", "last"]
        (left,) = await hf.engine.life.store.endings(due=2**50)
        assert (left.hooks, left.attempts) == (("wrong", "note_end", "hangs"), 1)
        assert left.error == "wrong: ValueError: no; note_end: it was cancelled; hangs: it took more than 0.05 s"
        outcomes = hf.engine.hook_dispatcher.outcomes
        assert dict(outcomes.keys()) == {
            "slow": "told",
            "wrong": "failed",
            "note_end": "failed",
            "hangs": "failed",
            "last": "told",
        }


async def test_hook_that_ignores_cancellation_is_abandoned(tmp_path: Path, clock: Clock) -> None:
    """It delays neither the next hook nor the shutdown for long."""
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


async def test_turns_do_not_wait_for_hooks(tmp_path: Path, clock: Clock) -> None:
    """Neither do delete and close."""
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


# -- process shutdown --------------------------------------------------------------


async def test_shutdown_does_not_wait_forever_for_hooks(tmp_path: Path, clock: Clock) -> None:
    """A hanging delivery is left to the next start."""
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
