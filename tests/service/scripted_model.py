"""A model that says what a test has it say, and the session `s` that most tests of turns have it say it in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.models import to_chunks

REF = SessionRef("default", "s")


class ScriptedModel:
    """A model that answers with what `say` returns: a text, chunks, or an error in their place or among them.

    Attributes:
        prompts: the messages of each request.
        bodies: each request.
        headers: those of each request.
        gate: what each answer waits for; None: nothing.
        asked: set by the first request.

    Args:
        say: from a request to what is answered; or the answer to all.
        name: what it is called.
        origin: where it would be called; None: it does not say.
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
        """See `Model.stream`."""
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
    """A reply as the chunks of a stream; `message` are more fields of it."""
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
    """A Holdfast with session `s`, and the model behind it."""
    model = ScriptedModel(say)
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model, **llm)}, context=context)
    async with Holdfast(url, roster=roster) as hf:
        await hf.session("s")
        yield hf, model


async def texts(hf: Holdfast) -> list[str]:
    """The live path of `s`."""
    return [entry.message.text for entry in await hf.store.entries(REF)]
