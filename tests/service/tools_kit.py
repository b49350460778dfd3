"""A bench for tests of tools: a session `s`, a model that follows a script, and functions that it may call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast.agents import Agent, Llm, Roster
from holdfast.domain.session import Entry
from holdfast.holdfast import Holdfast
from holdfast.models.collect import to_chunks
from holdfast.sessions.handle import SessionHandle
from holdfast.tools.tool import ToolLimits
from holdfast.turns.respond import collect_reply, respond
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import parse_message
from tests.service.scripted_model import REF, ScriptedModel

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 4}}
THEIRS = [{"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}]
"""A tool of the client's."""
Call = tuple[str, str, Any]
"""Id, name and arguments of a call: an object, or the text itself."""


def make_reply(
    text: str | None = None, *calls: Call, reason: str | None = None, usage: Any = USAGE
) -> list[dict[str, Any]]:
    """Return a reply of the model as chunks: text, calls and usage."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [make_call(*call) for call in calls]
    choice = {"index": 0, "message": message, "finish_reason": reason or ("tool_calls" if calls else "stop")}
    completion = {"id": f"x{text}{len(calls)}", "model": "told", "created": 1, "choices": [choice]}
    return list(to_chunks({**completion, **({"usage": usage} if usage else {})}, by_word=True))


def make_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


def content(completion: dict[str, Any]) -> Any:
    return completion["choices"][0]["message"]["content"]


class Bench:
    """A Holdfast with session `s`, and its model."""

    def __init__(self, hf: Holdfast, model: ScriptedModel, session: SessionHandle) -> None:
        self.hf = hf
        self.model = model
        self.session = session

    def turn(self, *messages: str | dict[str, Any], **fields: Any) -> Turn:
        return Turn(self.hf.engine, self.request(*messages, **fields))

    def request(self, *messages: str | dict[str, Any], agent: str | None = None, **fields: Any) -> TurnRequest:
        incoming = tuple(
            parse_message({"role": "user", "content": one} if isinstance(one, str) else one) for one in messages
        )
        responder = self.hf.roster.find_responder(agent=agent)
        return TurnRequest(ref=REF, responder=responder, incoming=incoming, **fields)

    async def ask(self, *messages: str | dict[str, Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
        """Run a turn, with an idempotency key or without, and return the completion as a client collects it."""
        request = self.request(*messages, **fields)
        turn = Turn(self.hf.engine, request if key is None else request.with_key(key))
        return (await collect_reply(turn)).build_completion()

    async def log(self) -> list[Entry]:
        return list(await self.hf.store.entries(REF))

    async def describe_log(self) -> list[str]:
        """Return the live path in short: role, calls or the id of the answered call, and content."""
        return [short(entry) for entry in await self.log()]


async def stop_at(turn: Turn, part: int | None) -> bool:
    """Run a turn, and cancel it when it sends a part of its reply, by number. Return False if the reply has fewer parts."""
    seen, there = 0, asyncio.Event()

    async def receive(_: object) -> None:
        nonlocal seen
        if seen == part:
            there.set()
            await asyncio.Event().wait()
        seen += 1

    running, waiting = asyncio.ensure_future(respond(turn, receive)), asyncio.ensure_future(there.wait())
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return there.is_set()


def short(entry: Entry) -> str:
    message = entry.message
    calls = "".join(f" {call.name}({call.id})" for call in message.tool_calls)
    result = f" {message.tool_call_id}" if message.tool_call_id else ""
    return f"{message.role}{calls}{result}: {message.text}"


@asynccontextmanager
async def bench(
    script: Sequence[Any] | Callable[[dict[str, Any]], Any],
    *tools: Any,
    url: str = "sqlite://:memory:",
    agents: dict[str, Agent] | None = None,
    limits: ToolLimits | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Open a bench whose model says what is in `script`, in order."""
    replies = None if callable(script) else iter(script)
    model = ScriptedModel(script if callable(script) else lambda _: next(replies))  # type: ignore[arg-type]  # an iterator then
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model)}, agents)
    async with Holdfast(url, roster=roster, tools=tools, tool_limits=limits, **settings) as hf:
        yield Bench(hf, model, await hf.session("s"))
