"""A store that loses the answers to writes: it commits, or not, and raises an error in any case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from holdfast.domain.messages import Message
from holdfast.domain.session import SessionRef
from holdfast.errors import StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.wrapper import StoreWrapper
from tests.clocks import Clock
from tests.given_store import HoldfastOn

REF = SessionRef("default", "s")
Loss = Literal["answer", "request", "both", "late"]
"""What is lost of a write: `answer` - it is committed, and an error is raised. `request` - an error is raised instead. `both` - like
`answer`, and the next calls fail too, so that nothing can be read. `late` - like `both`, but the commit happens only after that.
"""
CALLS_DOWN = 3
"""Calls that fail after a write whose loss is `both` or `late`."""


class Losses:
    """Decides which writes are lost.

    Attributes:
        plan: the loss by number of the write, counted from 0. Writes that only claim or release the session are not counted.
        writes: the writes so far.
        pauses: the number of times that the event loop goes round before each write, so that tests can cancel in between.
    """

    def __init__(self, plan: Mapping[int, Loss]) -> None:
        self.plan = dict(plan)
        self.writes = 0
        self.pauses = 0
        self._down = 0
        self._replacement: Callable[[Store, SessionRef, Append], Awaitable[Appended]] | None = None
        self._held: list[Coroutine[Any, Any, Appended]] = []
        self._late: list[asyncio.Task[Any]] = []

    def check(self) -> None:
        """Raise an error while nothing can be reached."""
        if self._down:
            self._down -= 1
            if not self._down:
                self._commit_held()
            raise StoreUnavailable("the store cannot be reached")

    async def append(self, inner: Store, ref: SessionRef, write: Append) -> Appended:
        """Write, or lose the write or its answer, as planned or as a test says."""
        return await (self._replacement or self._append)(inner, ref, write)

    def replace_append(self, function: Callable[[Store, SessionRef, Append], Awaitable[Appended]]) -> None:
        """Let a function make all writes from now on."""
        self._replacement = function

    async def _append(self, inner: Store, ref: SessionRef, write: Append) -> Appended:
        if not (write.entries or write.state_delta or write.calls or write.retire_from is not None):
            self.check()
            return await inner.append(ref, write)
        self.check()
        number, self.writes = self.writes, self.writes + 1
        for _ in range(self.pauses):
            await asyncio.sleep(0)
        loss = self.plan.get(number)
        if loss is None:
            return await inner.append(ref, write)
        if loss in ("both", "late"):
            self._down = CALLS_DOWN
        if loss == "late":
            self._held.append(inner.append(ref, write))
        elif loss != "request":
            await inner.append(ref, write)
        raise StoreUnavailable(f"the answer to write {number} is lost")

    def _commit_held(self) -> None:
        """Commit late writes, while the next calls are made."""
        self._late += map(asyncio.ensure_future, self._held)
        self._held.clear()

    async def settle(self) -> None:
        """Wait for late commits. Some of them are refused."""
        self._commit_held()
        await asyncio.gather(*self._late, return_exceptions=True)


class LossyStore(StoreWrapper):
    """A store with losses."""

    def __init__(self, inner: Store, losses: Losses) -> None:
        super().__init__(inner)
        self.losses = losses

    def wrap(self, inner: Store) -> LossyStore:
        return type(self)(inner, self.losses)

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        return await self.losses.append(self.inner, ref, write)

    async def get(self, ref: SessionRef) -> Any:
        self.losses.check()
        return await self.inner.get(ref)

    async def entries(self, ref: SessionRef, **options: Any) -> Any:
        self.losses.check()
        return await self.inner.entries(ref, **options)


@asynccontextmanager
async def open_lossy(
    url: str, plan: Mapping[int, Loss] = {}, **settings: Any
) -> AsyncIterator[tuple[Holdfast, Losses, Store]]:
    """Open a Holdfast with session `s` on a store with losses, and the store below, without losses."""
    settings = {"clock": Clock(), "index": None, **settings}
    inner, losses = await open_store(url, tenant="default"), Losses({})
    store: Any = LossyStore(inner, losses)
    try:
        async with HoldfastOn(store, **settings) as hf:
            await hf.session("s")
            losses.plan |= plan
            yield hf, losses, inner
            losses.plan.clear()
            await losses.settle()
    finally:
        await inner.close()


class Record(msgspec.Struct, frozen=True):
    """All that a turn leaves in a session."""

    texts: list[str]
    calls: int
    prompt_tokens: int
    completion_tokens: int
    state: dict[str, Any]


async def read_record(store: Store, *, live: bool = False) -> Record:
    """Return what is stored in the session `s`; with `live` only its live path, and the notes."""
    session = await store.get(REF)
    stored = await store.entries(REF, retired=True)
    entries = [entry for entry in stored if not live or entry.is_note or entry.retired_by is None]
    usage = session.usage
    assert usage.calls == len(await store.calls(REF))
    state = {key: value for key, value in session.state.items() if value is not None}
    texts = [_describe(entry.message) for entry in entries]
    return Record(texts, usage.calls, usage.prompt_tokens, usage.completion_tokens, state)


def _describe(message: Message) -> str:
    """Return a message in short: its role, the ids of calls, and its text."""
    ids = [*(call.id for call in message.tool_calls), *filter(None, [message.tool_call_id])]
    text = "" if message.role == "note" else message.text
    return f"{' '.join([message.role, *ids])}: {text}".rstrip()
