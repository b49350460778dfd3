"""Models that answer as a test says, and a Holdfast whose first model has all others as fallbacks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agents import Agent, Llm, Roster
from holdfast.holdfast import Holdfast
from holdfast.log.items import Delta, get_text
from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import parse_message
from tests.clocks import Clock
from tests.service.scripted_model import REF, ScriptedModel


class NamedModel(ScriptedModel):
    """One of several models, with a name."""

    def __init__(self, name: str, say: Any, origin: str | None = None) -> None:
        super().__init__(say, name=name, origin=origin)


@asynccontextmanager
async def open_holdfast(
    *models: NamedModel, fields: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any
) -> AsyncIterator[tuple[Holdfast, Clock]]:
    """Open a Holdfast whose first model has all others as fallbacks; `fields` are options of their LLMs."""
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
    """Run a turn of `s`; return the reply and the turn."""
    model = fields.pop("model", None)
    incoming = (parse_message({"role": "user", "content": text}),)
    turn = Turn(
        hf.engine, TurnRequest(ref=REF, responder=hf.roster.find_responder(model=model), incoming=incoming, **fields)
    )
    said = ""

    async def receive(deltas: list[Delta]) -> None:
        nonlocal said
        said += get_text(deltas)

    await respond(turn, receive)
    return said, turn


async def log(hf: Holdfast) -> list[str]:
    return [entry.message.text for entry in await hf.store.entries(REF)]
