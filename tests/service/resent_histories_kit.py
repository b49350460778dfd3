"""Shared by tests of resent histories: short forms of messages, a bare store, and what a request changes in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from holdfast.agents import Roster
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.reconcile import Mode
from holdfast.domain.session import Entry, NewEntry, SessionRef
from holdfast.engine.engine import Engine
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.turns.turn_start import reconcile
from tests.service.matching_kit import find_landing

T = TypeVar("T")
REF = SessionRef("ada", "s")


def u(text: str) -> Message:
    """A user message."""
    return Message(role="user", content=text)


def a(text: str) -> Message:
    """An assistant message."""
    return Message(role="assistant", content=text)


def tc(*ids: str, name: str = "f") -> Message:
    """An assistant message with tool calls of those ids."""
    return Message(role="assistant", content=None, tool_calls=tuple(ToolCall(id_, name, '{"a":1}') for id_ in ids))


def t(id_: str, text: str = "seen") -> Message:
    """The tool result of the call `id_`."""
    return Message(role="tool", content=text, tool_call_id=id_)


class Desk:
    """One store, its engine, and a clock that advances with each write."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = 0
        self.engine = Engine(store, self._tick, Roster())

    def _tick(self) -> int:
        self.now += 1
        return self.now

    async def tell(self, messages: Sequence[Message], ref: SessionRef = REF, **fields: Any) -> None:
        """Create the session with a log of those messages."""
        await self.store.create(NewSession(id=ref.id, user_id=ref.user_id, timestamp=self._tick(), **fields))
        await self.add(messages, ref)

    async def add(self, messages: Sequence[Message], ref: SessionRef = REF, **fields: Any) -> None:
        """Append messages to the log."""
        entries = [NewEntry(message=message, tokens=1, timestamp=0, **fields) for message in messages]
        await self.store.append(ref, Append(entries=entries, timestamp=self._tick()))

    async def send(self, messages: Sequence[Message], mode: Mode = "auto", ref: SessionRef = REF) -> Turn:
        """Begin a turn with a request."""
        turn = Turn(
            self.engine, TurnRequest(ref=ref, responder=Roster().find_responder(), incoming=tuple(messages), mode=mode)
        )
        await reconcile(turn)
        return turn

    async def live(self, ref: SessionRef = REF) -> list[Message]:
        """Return the live path."""
        return [entry.message for entry in await self.store.entries(ref)]

    async def log(self, ref: SessionRef = REF) -> tuple[Entry, ...]:
        """Return the whole log."""
        return await self.store.entries(ref, retired=True)

    async def find(self, messages: Sequence[Message], *system: str, **more: Any) -> str | None:
        """Return the session that an unnamed request continues."""
        prompt = [Message(role="system", content=text) for text in system]
        landing = await find_landing(self.store, "ada", messages, prompt, **more)
        return None if landing is None else landing.place.ref.id


def run_at_desk(work: Callable[[Desk], Awaitable[T]]) -> T:
    """Run `work` with an empty store."""

    async def run() -> T:
        store = await open_store("sqlite://:memory:", tenant="t")
        desk = Desk(store)
        try:
            return await work(desk)
        finally:
            await desk.engine.close()
            await store.close()

    return asyncio.run(run())


LONG = [message for at in range(8) for message in (u(f"q{at}"), a(f"a{at}"))]
