"""An agent loop of forty turns whose process is killed again and again: no event is lost or stored twice, and every prompt stays valid."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed here: make adapters")

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.session import Session

import holdfast
from holdfast.adapters.adk import HoldfastSessionService, WorkingSetPlugin
from tests.adapters.test_adk import ADA, ScriptedModel, ask, check_contents, count_tokens, find, read

TURNS = 40
BUDGET = 900
KILLS = ("tool:9", "before:18", "after:15", "model:7", "never:1")
"""Where each process is killed: in the tool, in the model, or before or after an event is written, when this happens for the nth time."""


class Killer:
    """Kills the process when something happens for the nth time.

    Args:
        plan: what, and how often it may happen, such as `tool:5`.
    """

    def __init__(self, plan: str) -> None:
        self._kind, _, number = plan.partition(":")
        self._left = int(number)

    def pass_by(self, kind: str) -> None:
        """Kill the process if its time has come."""
        self._left -= kind == self._kind
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class JournalingService(HoldfastSessionService):
    """Writes to a file which events it was asked to store, and which it has stored."""

    def __init__(self, hf: holdfast.Holdfast, journal: Path, killer: Killer) -> None:
        super().__init__(hf)
        self._journal, self._killer = journal, killer

    async def append_event(self, session: Session, event: Event) -> Event:
        self._write("begun", event)
        self._killer.pass_by("before")
        stored = await super().append_event(session, event)
        self._killer.pass_by("after")
        self._write("stored", event)
        return stored

    def _write(self, what: str, event: Event) -> None:
        with self._journal.open("a") as file:
            file.write(f"{what} {event.id}\n")


class KilledModel(ScriptedModel):
    """A model that checks each prompt, and may be killed in the middle of its reply."""

    killer: Any

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncIterator[LlmResponse]:
        check_contents(llm_request.contents)
        self.killer.pass_by("model")
        async for response in super().generate_content_async(llm_request, stream):
            yield response


def count_turns(session: Session) -> int:
    """Return the number of questions that were asked."""
    return sum(event.author == "user" for event in session.events)


async def run_turns(url: str, journal: Path, plan: str) -> None:
    """Ask questions until there are `TURNS` turns, or until the process is killed. Print the tokens of the prompts."""
    killer = Killer(plan)

    def find_order(order: int) -> str:
        """Find an order."""
        killer.pass_by("tool")
        return find(order)

    find_order.__name__ = "find"
    async with holdfast.open(url) as hf:
        service = JournalingService(hf, journal, killer)
        if await service.get_session(**ADA, session_id="s") is None:
            await service.create_session(**ADA, session_id="s")
        model = KilledModel(model="scripted", prompts=[], killer=killer)
        agent = LlmAgent(name="helper", model=model, instruction="You help with orders.", tools=[find_order])
        app = App(name="shop", root_agent=agent, plugins=[WorkingSetPlugin(budget=BUDGET)])
        runner = Runner(app=app, session_service=service)
        while (number := count_turns(await read(service))) < TURNS:
            await ask(runner, number)
        print(max(count_tokens(prompt) for prompt in model.prompts))


def test_a_loop_that_is_killed_again_and_again_ends_with_every_event_once(tmp_path: Path) -> None:
    url, journal = f"sqlite:///{tmp_path}/chat.db", tmp_path / "journal"
    program = (
        "import asyncio, sys, pathlib; from tests.adapters.test_adk_killed import run_turns;"
        "asyncio.run(run_turns(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]))"
    )
    for plan in KILLS:
        done = subprocess.run(
            [sys.executable, "-c", program, url, str(journal), plan], capture_output=True, text=True, check=False
        )
        assert done.returncode == (0 if plan.startswith("never") else -signal.SIGKILL), done.stderr[-2000:]
    assert int(done.stdout) < 2 * BUDGET

    async def load() -> Session:
        async with holdfast.open(url) as hf:
            return await read(HoldfastSessionService(hf))

    session = asyncio.run(load())
    lines = [line.split() for line in journal.read_text().splitlines()]
    begun, acknowledged = ([name for what, name in lines if what == kind] for kind in ("begun", "stored"))
    stored = [event.id for event in session.events]
    assert len(set(stored)) == len(stored), "no event is stored twice"
    assert [name for name in stored if name in acknowledged] == acknowledged, "no event is lost or out of order"
    assert [name for name in begun if name in stored] == stored, "every event was appended by the loop"
    assert len(stored) - len(acknowledged) == sum(plan.startswith("after") for plan in KILLS)
    assert count_turns(session) == TURNS
