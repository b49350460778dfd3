"""Turns on a server, in which your program calls the model.

The server keeps nothing of a turn. Each write names the log that the turn has seen; if another client has written to it, the write
raises `StaleSession`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from holdfast.context.sources import MessageSource
from holdfast.domain.messages import Message
from holdfast.domain.session import Session
from holdfast.domain.state import Change
from holdfast.errors import InvalidRequest, StaleSession
from holdfast.models.collect import join_usages
from holdfast.remote.objects import TurnPrompt, Written, parse_with, to_log_json, to_prompt
from holdfast.remote.transport import make_key
from holdfast.tools.context import State, TurnState
from holdfast.wire.openai import parse_origin
from holdfast.wire.sendable import Sendable, to_message

_HINT = "read session.state instead"


class Flush(msgspec.Struct):
    """Messages, state changes and usage that a turn writes at once."""

    messages: list[Message]
    delta: Mapping[str, Change]
    usage: Any
    key: str
    """The idempotency key. It stays with these messages, so that they are never written twice."""
    refusal: InvalidRequest | None = None
    """The error with which the server refused `delta`, which is raised when the messages are written without it; None: no error."""


class Steps(NamedTuple):
    """The requests of a turn."""

    call: Callable[..., Awaitable[Any]]
    """Sends a request for the session; see `RemoteSession`."""
    append: Callable[..., Awaitable[Written]]
    """Appends messages to the session's log."""
    opening: dict[str, Any]
    """The body that begins the turn: its messages."""
    options: dict[str, Any]
    """The body that continues it."""
    key: str | None

    async def begin(self) -> TurnPrompt:
        """Write the turn's messages, and return the first working set."""
        return await self._post({**self.options, **self.opening}, headers=make_key(self.key))

    async def build(self) -> TurnPrompt:
        """Return the working set for the log as it is now."""
        return await self._post(self.options, repeatable=True)

    async def write(self, flush: Flush, log_marker: str) -> Written:
        """Append messages and change the state, if the log is still at `log_marker`, or was when the same flush was first written."""
        sent = [to_log_json(message) for message in flush.messages]
        more: dict[str, Any] = {"expect_log": log_marker, "usage": flush.usage, "return_session": False}
        return await self.append(sent, delta=flush.delta, key=flush.key, **more)

    async def _post(self, body: dict[str, Any], **options: Any) -> TurnPrompt:
        prompt: TurnPrompt = await self.call("POST", "turns", body=body, parse=parse_with(to_prompt), **options)
        return prompt


class RemoteTurn:
    """A turn as a block: `async with session.turn("…") as turn`. The messages of the turn are in the log before the block begins."""

    def __init__(self, make: Callable[[], Steps]) -> None:
        self._make = make
        self._open: OpenRemoteTurn

    async def __aenter__(self) -> OpenRemoteTurn:
        """Write the turn's messages, and get the first working set."""
        self._open = await self.begin()
        return self._open

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the turn; see `OpenRemoteTurn.end`."""
        await self._open.abort(error)

    async def begin(self) -> OpenRemoteTurn:
        """Open the turn without a block; see `RemoteSession.begin_turn`."""
        steps = self._make()
        return OpenRemoteTurn(steps, await steps.begin())


class OpenRemoteTurn:
    """A turn in progress.

    Attributes:
        messages: the working set, ready to send. `next` gets it again.
        sources: for each of `messages`, the log entries that it comes from.
        session: the session after the last request.
        agent: name of the agent that answers; None: no agent.
        state: the session's own state as a mapping. Changes are written together with added messages.
    """

    def __init__(self, steps: Steps, prompt: TurnPrompt) -> None:
        self._steps = steps
        self._added: list[Message] = []
        self._usages: list[Any] = []
        self._failed: Flush | None = None
        """The flush that failed. It is tried again, unchanged, before anything else is written: the server may have written it."""
        self._writing = asyncio.Lock()
        self._ended = False
        self._turn_state = TurnState(prompt.session.state, {}, _HINT)
        self.state = State(self._turn_state)
        self._take(prompt)

    def __repr__(self) -> str:
        size = f"{len(self.messages)} messages, {self._tokens} of {self._budget} tokens"
        return f"<turn of session {self.session.id!r}: {size}>"

    def _take(self, prompt: TurnPrompt) -> None:
        self.messages: list[dict[str, Any]] = prompt.messages
        self.sources: list[MessageSource] = prompt.sources
        self.session: Session = prompt.session
        self.agent: str | None = prompt.agent
        self._tokens, self._budget = prompt.conversation_tokens, prompt.budget
        self._log_marker = prompt.session.log_marker
        self._turn_state.own = prompt.session.state

    def add(self, message: Sendable, *, usage: Any = None, origin: Any = None) -> None:
        """Add a reply, a tool result or a note. It is written by `next`, or at the end of the turn.

        Args:
            message: a dict, a message of an SDK, or a text, which becomes an assistant's message.
            usage: for a reply, the usage that the provider reported, in Chat Completions format, as a dict or the SDK's object. It is
                added to the session's usage.
            origin: the message in your framework's own format, any JSON value. It is stored with the message and never sent.

        Raises:
            InvalidMessage: the message is not valid.
            InvalidRequest: the turn has ended.
        """
        if self._ended:
            raise InvalidRequest("the turn has ended: open another one, or add what is missing with session.append()")
        made = to_message(message, "message", text_role="assistant")
        self._added.append(made if origin is None else made.evolve(origin=parse_origin(origin)))
        if usage is not None:
            self._usages.append(usage.model_dump() if hasattr(usage, "model_dump") else usage)

    async def next(self) -> list[dict[str, Any]]:
        """Write the added messages, and return the working set for the next call. For turns with tools.

        Raises:
            StaleSession: another client has written to the log since the turn's last request. Nothing was written.
            InvalidRequest: the server refuses the changes of `state`. The messages are in the log without them.
        """
        if self._ended:
            raise InvalidRequest("the turn has ended: open another one")
        await _finish(self._flush())
        prompt = await self._steps.build()
        if prompt.session.log_marker != self._log_marker:
            raise StaleSession(self.session.id, expected=None, version=prompt.session.version)
        self._take(prompt)
        return self.messages

    async def end(self) -> None:
        """Write the added messages, even if the caller is cancelled, and end the turn. A second call does nothing.

        Raises:
            StaleSession: another client has written to the log since the turn's last request. The added messages were not written.
            InvalidRequest: the server refuses the changes of `state`. The messages are in the log without them.
        """
        if self._ended:
            return
        self._ended = True
        self.state.seal()
        await _finish(self._flush())

    async def abort(self, error: BaseException | None = None) -> None:
        """End the turn because of an error: messages that were added are written. Raises the errors of `end`."""
        del error
        await self.end()

    async def _flush(self) -> None:
        """Write added messages and state changes."""
        async with self._writing:
            if self._failed is not None:
                await self._write(self._failed)
            added, self._added = self._added, []
            delta = self.state.take()
            if added or delta:
                usages, self._usages = self._usages, []
                await self._write(Flush(added, delta, join_usages(usages), uuid.uuid4().hex))

    async def _write(self, flush: Flush) -> None:
        self._failed, self.state.held = flush, flush.delta
        written = None
        try:
            written = await self._steps.write(flush, self._log_marker)
        except InvalidRequest as exc:
            if not flush.delta:
                raise
            flush.refusal, flush.delta, flush.key, self.state.held = exc, {}, uuid.uuid4().hex, {}
            if flush.messages:
                written = await self._steps.write(flush, self._log_marker)
        if written is not None:
            self._log_marker = written.log_marker
        self._failed, self.state.held = None, {}
        if flush.refusal is not None:
            raise flush.refusal


async def _finish(write: Awaitable[None]) -> None:
    """Await a write. If the caller is cancelled, finish the write first."""
    task = asyncio.ensure_future(write)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            with suppress(Exception):
                await task
        raise
