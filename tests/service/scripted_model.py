"""A model that answers what a test says, and the session `s` that most tests of turns use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.models.collect import to_chunks

REF = SessionRef("default", "s")


class ScriptedModel:
    """A model that answers what `say` returns: a text, chunks, or errors instead of them or among them.

    Attributes:
        prompts: The messages of each request.
        bodies: Each request.
        headers: The headers of each request.
        gate: What each answer waits for; None means nothing.
        asked: Set by the first request.

    Args:
        say: Makes the answer to a request; or the answer to all.
        name: Name of the model.
        origin: Where it would be called; None means unknown.
    """

    def __init__(self, say: Any, *, name: str = "told", origin: str | None = None) -> None:
        self.name = name
        self.origin = origin
        self.say = say if callable(say) else lambda _: say
        self.prompts: list[list[dict[str, Any]]] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str] | None] = []
        self.gate: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        self.prompts.append(request.get("messages", []))
        self.bodies.append(request)
        self.headers.append(headers)
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        said = self.say(request)
        for chunk in [said] if isinstance(said, Exception) else make_chunks(said) if isinstance(said, str) else said:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def close(self) -> None:
        """See `Model.close`."""


def make_chunks(text: str | None, *, usage: Mapping[str, int] | None = None, **message: Any) -> list[dict[str, Any]]:
    """Return a reply as the chunks of a stream; `message` has more fields of it."""
    said = {"role": "assistant", "content": text, **message}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    completion = {"id": "x", "choices": [{"index": 0, "message": said, "finish_reason": reason}]}
    return list(to_chunks({**completion, **({"usage": usage} if usage else {})}, by_word=True))


@asynccontextmanager
async def open_session(
    say: Any = "ok",
    *,
    url: str = "sqlite://:memory:",
    context: ContextSettings | None = None,
    **llm: Any,
) -> AsyncIterator[tuple[Holdfast, ScriptedModel]]:
    """Open a Holdfast with session `s`, and the model that answers."""
    model = ScriptedModel(say)
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model, **llm)}, context=context)
    async with Holdfast(url, roster=roster) as hf:
        await hf.session("s")
        yield hf, model


async def texts(hf: Holdfast) -> list[str]:
    """Return the texts of the live path of `s`."""
    return [entry.message.text for entry in await hf.store.entries(REF)]
