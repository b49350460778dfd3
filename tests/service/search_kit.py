"""A Holdfast with past conversations, and its model: for tests of search and recall."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agents import Agent, Llm, Roster
from holdfast.context.recalled import RecallSettings
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from tests.clocks import Clock
from tests.service.scripted_model import ScriptedModel

DAY = 86_400_000
Line = tuple[str, str]
"""Role and text."""


class Talks:
    """A Holdfast, its clock and its model."""

    def __init__(self, hf: Holdfast, clock: Clock, model: ScriptedModel) -> None:
        self.hf = hf
        self.clock = clock
        self.model = model

    async def add_messages(
        self, session_id: str, *lines: str | Line, user: str = "ada", agent: str | None = None
    ) -> None:
        """Append messages to a session now: of the user and the assistant in turn, or of the given roles."""
        turns = [
            (("user", "assistant")[at % 2], line) if isinstance(line, str) else line for at, line in enumerate(lines)
        ]
        session = await self.hf.session(session_id, user_id=user, agent=agent)
        await session.append([{"role": role, "content": text, "timestamp": self.clock.now} for role, text in turns])
        await self.settled()

    async def settled(self) -> None:
        """Wait until the index has everything."""
        assert self.hf.engine.index is not None
        await self.hf.engine.index.settled()

    async def find(self, query: str, user: str = "ada", **asked: Any) -> list[str]:
        """Return search results as `session#seq`."""
        return [hit.id for hit in (await self.hf.search(query, user, **asked)).hits]

    def ref(self, session_id: str, user: str = "ada") -> SessionRef:
        """Return a session's reference."""
        return SessionRef(user, session_id)


@asynccontextmanager
async def open_talks(
    say: Callable[[dict[str, Any]], Any] | Sequence[Any] = lambda _: "ok",
    *,
    agents: Mapping[str, Agent] | None = None,
    url: str = "sqlite://:memory:",
    **settings: Any,
) -> AsyncIterator[Talks]:
    """Open a Holdfast with an agent `finder` that recalls past conversations, and an agent `plain` that does not."""
    replies = None if callable(say) else iter(say)
    model = ScriptedModel(say if callable(say) else lambda _: next(replies))  # type: ignore[arg-type]  # an iterator then
    known = agents or {
        "finder": Agent(name="finder", recalls={"conversation": RecallSettings()}),
        "plain": Agent(name="plain"),
    }
    clock = Clock()
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model)}, known)
    life = settings.pop("life", None)
    async with Holdfast(url, roster=roster, clock=clock, life=life or lasting(), **settings) as hf:
        yield Talks(hf, clock, model)


def lasting() -> Any:
    """Settings of sessions that never expire, whatever the clock says."""
    from holdfast.lifecycle.settings import LifeSettings

    return LifeSettings(session_ttl=0)
