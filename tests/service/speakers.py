"""Models that say what a test has them say, and a Holdfast whose first one has all the others stand in for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agents import Agent, Llm, Roster
from holdfast.domain.session import SessionRef
from holdfast.errors import (
    ModelUnavailable,
)
from holdfast.holdfast import Holdfast
from holdfast.models import as_chunks
from holdfast.turns.flow import respond
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import message_from
from tests.service.stage import Clock

REF = SessionRef("default", "s")
Say = Callable[[dict[str, Any]], Any]
DOWN = ModelUnavailable("http://one answered 503: overloaded", status=503)


class Spoken:
    """A model that answers what `say` gives: a text, chunks, or an error in their place or among them."""

    def __init__(self, name: str, say: Any, origin: str | None = None) -> None:
        self.name = name
        self.say: Say = say if callable(say) else lambda _: say
        self.origin = origin
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str] | None] = []
        self.gate: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """See `Model.stream`."""
        self.bodies.append(request)
        self.headers.append(headers)
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        said = self.say(request)
        for chunk in [said] if isinstance(said, Exception) else chunks_of(said) if isinstance(said, str) else said:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def close(self) -> None:
        """See `Model.close`."""


def chunks_of(text: str | None, **message: Any) -> list[dict[str, Any]]:
    said = {"role": "assistant", "content": text, **message}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    completion: dict[str, Any] = {
        "id": "x",
        "choices": [{"index": 0, "message": said, "finish_reason": reason}],
    }
    return list(as_chunks(completion, by_word=True))


@asynccontextmanager
async def house(
    *models: Spoken, fields: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any
) -> AsyncIterator[tuple[Holdfast, Clock]]:
    """A Holdfast whose first model has all the others stand in for it; `fields` are of their llms."""
    clock = settings.setdefault("clock", Clock())
    llms = {
        model.name: Llm(name=model.name, model="gpt-4o", client=model, **dict((fields or {}).get(model.name, {})))
        for model in models
    }
    first = llms[models[0].name]
    if not first.fallbacks:
        llms[first.name] = Llm(
            **{name: getattr(first, name) for name in first.__struct_fields__ if name != "fallbacks"},
            fallbacks=tuple(model.name for model in models[1:]),
        )
    roster = Roster(llms, {"kim": Agent(name="kim")}, context=settings.pop("context", None))
    async with Holdfast("sqlite://:memory:", roster=roster, **settings) as hf:
        await hf.session("s")
        yield hf, clock


async def ask(hf: Holdfast, text: str = "hi", **fields: Any) -> tuple[str, Turn]:
    """A turn of `s`: what was said, and the turn."""
    model = fields.pop("model", None)
    incoming = (message_from({"role": "user", "content": text}),)
    turn = Turn(hf.engine, TurnRequest(ref=REF, voice=hf.roster.voice(model=model), incoming=incoming, **fields))
    said = ""
    async for chunk in respond(turn):
        said += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    return said, turn


async def long_talk(hf: Holdfast) -> None:
    """Some 12,000 tokens that no model was sent yet."""
    handle = await hf.session("s")
    for n in range(40):
        await handle.append([{"role": "user", "content": f"{n} " + "word " * 300}])
        await handle.append([{"role": "assistant", "content": "aye"}])


async def log(hf: Holdfast) -> list[str]:
    return [entry.message.text for entry in await hf.store.entries(REF)]
