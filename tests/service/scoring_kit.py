"""Shared by tests of scoring: a session whose messages are scored, and a scorer that records its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agents import Llm
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, SessionRef
from holdfast.overlays.scorers import Scorer
from holdfast.overlays.scoring import Scoring
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from holdfast.tokens import STORED
from tests.clocks import Clock

REF = SessionRef("ada", "s")


class Rig:
    """A session in a real store, and its scorers."""

    def __init__(self, store: Store, scorer: Scorer | Llm | None) -> None:
        self.store = store
        self.clock = Clock(1_000_000)
        self.scorer = scorer
        self.told: dict[int, float] = {}
        self.scoring = Scoring(store, lambda _: self.scorer, self.clock, lambda _, found: self.told.update(found))

    async def say(self, *messages: Message, **fields: Any) -> tuple[Entry, ...]:
        new = [NewEntry(message=said, tokens=STORED.message(said), timestamp=0, **fields) for said in messages]
        return (await self.store.append(REF, Append(entries=new, timestamp=0))).entries

    async def score(self) -> int:
        return await self.scoring.score(REF, "mine")

    async def importances(self) -> list[float | None]:
        return [entry.importance for entry in await self.store.entries(REF)]


@asynccontextmanager
async def open_rig(scorer: Scorer | Llm | None) -> AsyncIterator[Rig]:
    store = await open_store("sqlite://:memory:", tenant="acme")
    try:
        await store.create(NewSession(id=REF.id, user_id=REF.user_id, timestamp=0))
        rig = Rig(store, scorer)
        yield rig
        await rig.scoring.close()
    finally:
        await store.close()


def user(text: str) -> Message:
    return Message(role="user", content=text)
