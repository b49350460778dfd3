"""Closing a portal while calls run, fork, and the exit of the interpreter."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import StoreClosed
from tests.service.test_portal_calls import interrupt  # noqa: F401 - a fixture
from tests.waits import block_until

MEMORY = "sqlite://:memory:"


class Gate:
    """A function that runs in a portal until the test lets it go on."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go_on: Future[None] = Future()
        self.cancelled = False

    async def wait(self, portal: holdfast.Portal | None = None) -> str:
        self.started.set()
        try:
            await asyncio.wrap_future(self.go_on)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if portal is not None:
            await portal.run(portal.hf.sessions)
        return "done"

    @asynccontextmanager
    async def block(self) -> AsyncIterator[None]:
        yield
        await self.wait()


def takes_calls(portal: holdfast.Portal) -> bool:
    try:
        portal.call(asyncio.sleep, 0)
    except StoreClosed:
        return False
    return True


# -- closing -----------------------------------------------------------------------


def test_closing_waits_for_running_calls() -> None:
    """New calls are refused meanwhile, but running ones may use the portal in its own loop."""
    gate = Gate()
    portal = holdfast.Portal(MEMORY).start()
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(portal.call, gate.wait, portal)
        gate.started.wait()
        closing = pool.submit(portal.close)
        block_until(lambda: not takes_calls(portal))
        with pytest.raises(StoreClosed, match="takes no new calls"):
            _ = portal.hf
        assert not call.done()
        assert not closing.done()
        gate.go_on.set_result(None)
        assert call.result() == "done"
        closing.result()
    with pytest.raises(StoreClosed, match="not open"):
        _ = portal.hf


# -- fork and exit --------------------------------------------------------------------

START = """
import holdfast, sys, threading
portal = holdfast.Portal(sys.argv[1]).start()
session = portal.call(portal.hf.session, "s")
for number in range(20):
    portal.call(session.append, str(number))
"""
"""A program that opens a portal, and does not close it. It prints what it is sure to have stored."""


def run_program(path: Path, program: str) -> tuple[str, str]:
    """Run a program with a database until it ends. Return what it printed, and what it logged."""
    command = [sys.executable, "-W", "always", "-c", START + program, f"sqlite:///{path}/chat.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def count_messages(path: Path) -> int:
    with holdfast.Portal(f"sqlite:///{path}/chat.db") as portal:
        return len(portal.call(portal.call(portal.hf.session, "s").messages))


def test_interpreter_exits_with_an_unclosed_portal(tmp_path: Path) -> None:
    """Although threads, blocks, generators, turns and finalizers use it. What was acknowledged is stored."""
    program = """
import anyio.to_thread, asyncio
portal.call(lambda: anyio.to_thread.run_sync(int))
portal.call(lambda: asyncio.to_thread(int))
other, third = portal.call(portal.hf.session, "other"), portal.call(portal.hf.session, "third")
turn = portal.call(other.begin_turn, "a")
block = portal.enter(session.turn("a"))
block.__enter__()
def keep():
    with portal.enter(third.turn("b")):
        yield
def read():
    yield from portal.iterate(session.records("orders").iterate())
portal.call(session.records("orders").put, "1", 1)
kept, reading = keep(), read()
next(kept), next(reading)
def wait():
    try:
        portal.call(asyncio.sleep, 3600)
    except holdfast.errors.StoreClosed:
        pass
threading.Thread(target=wait, daemon=True).start()
class Late:
    def __del__(self):
        try:
            portal.call(session.append, "late")
        except holdfast.errors.StoreClosed:
            print("refused")
late = Late()
"""
    printed, logged = run_program(tmp_path, program)
    assert printed == "refused\n"
    assert logged.startswith("a portal was closed, with at most 0 seconds for running calls; cancelled: ")
    assert len(logged.splitlines()) == 1, "there is no error"
    assert count_messages(tmp_path) == 21
