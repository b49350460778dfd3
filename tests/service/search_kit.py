"""A Holdfast whose users have talked before, and its model: for tests of search and of what is recalled."""

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

    async def said(self, session_id: str, *lines: str | Line, user: str = "ada", agent: str | None = None) -> None:
        """Have a session say something, now: the user and the assistant in turn, or who is named."""
        turns = [
            (("user", "assistant")[at % 2], line) if isinstance(line, str) else line for at, line in enumerate(lines)
        ]
        session = await self.hf.session(session_id, user_id=user, agent=agent)
        await session.append([{"role": role, "content": text, "timestamp": self.clock.now} for role, text in turns])
        await self.settled()

    async def settled(self) -> None:
        """Return when the index has all of it."""
        assert self.hf.engine.index is not None
        await self.hf.engine.index.settled()

    async def found(self, query: str, user: str = "ada", **asked: Any) -> list[str]:
        """What a search finds, as `session#seq`."""
        return [hit.id for hit in (await self.hf.search(query, user, **asked)).hits]

    def ref(self, session_id: str, user: str = "ada") -> SessionRef:
        """A session's."""
        return SessionRef(user, session_id)


@asynccontextmanager
async def open_talks(
    say: Callable[[dict[str, Any]], Any] | Sequence[Any] = lambda _: "ok",
    *,
    agents: Mapping[str, Agent] | None = None,
    url: str = "sqlite://:memory:",
    **settings: Any,
) -> AsyncIterator[Talks]:
    """A Holdfast with an agent `finder` that recalls past conversations, and one, `plain`, that does not."""
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
    """Sessions that end by nothing, however the clock goes."""
    from holdfast.lifecycle.settings import LifeSettings

    return LifeSettings(session_ttl=0)
