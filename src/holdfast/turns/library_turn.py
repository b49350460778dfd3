"""Turns of programs that use the library and call the model themselves."""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.context.explain import Overhead, format_table, measure_compactions
from holdfast.context.fitting import Sent, fit_messages
from holdfast.context.sources import MessageSource, join_sources, list_message_sources
from holdfast.domain.messages import Message
from holdfast.domain.session import ModelCall, Session
from holdfast.domain.state import Change
from holdfast.errors import HoldfastError, InvalidRequest, StoreError
from holdfast.tools.context import State
from holdfast.turns.model_call import make_call_record, make_further_call_record
from holdfast.turns.prompt import build_prompt, to_sendable
from holdfast.turns.reply_assembler import append_reply, read_reply_text
from holdfast.turns.scope import TurnScope
from holdfast.turns.turn import Turn
from holdfast.wire.openai import parse_origin, to_chat_message
from holdfast.wire.sendable import Sendable, to_message

_ENDED: Final = "the turn has ended: open another one, or add what is missing with session.append()"


class LibraryTurn:
    """A turn as a context manager: `async with session.turn("…") as turn`.

    The messages of the turn are in the log before the block begins.
    """

    def __init__(self, make: Callable[[], Turn]) -> None:
        self._make = make
        self._open: OpenTurn

    async def __aenter__(self) -> OpenTurn:
        """Begin the turn, and build the first prompt."""
        turn = self._make()
        scope = TurnScope(turn, revive=True)
        await scope.__aenter__()
        try:
            await turn.engine.life.record_use(turn.session)
            await turn.lock.run_interruptibly(partial(build_prompt, turn))
            self._open = OpenTurn(turn, scope, await get_prompt(turn))
        except BaseException as exc:
            await scope.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        return self._open

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the turn; see `OpenTurn.end`."""
        await self._open.abort(error)

    async def begin(self) -> OpenTurn:
        """Begin the turn without an `async with` block; see `SessionHandle.begin_turn`."""
        opened = await self.__aenter__()
        opened.watch()
        return opened


class _Flush(msgspec.Struct):
    """Messages, state changes and usage that a turn writes at once."""

    messages: list[Message]
    delta: dict[str, Change]
    calls: list[ModelCall]
    refusal: InvalidRequest | None = None
    """The error with which the store refused `delta`, which is raised when the messages are written without it; None: no error."""


class OpenTurn:
    """A turn in progress, for a program that calls the model itself.

    Attributes:
        messages: the messages to send to the model (the working set). `next` builds them again.
        state: the session's state as a mapping. Changes are written together with added messages, by `next` and at the
            end of the turn. Await `load_state` before reading `user:` and `app:` keys. Writing these keys needs no
            preparation.
    """

    def __init__(self, turn: Turn, scope: TurnScope, sent: Sequence[Sent]) -> None:
        self._turn = turn
        self._scope = scope
        self._watch: weakref.finalize[[TurnScope, asyncio.AbstractEventLoop, str], OpenTurn] | None = None
        self._added: list[Message] = []
        self._usages: list[Any] = []
        self._called: WorkingSet | None = None
        self._failed: _Flush | None = None
        """The flush that failed. It is tried again, unchanged, before anything else is written: the store may have committed it."""
        self._flushing: asyncio.Task[None] | None = None
        """The last flush, which may still run if its caller was cancelled."""
        self._ended = False
        self._failure: BaseException | None = None
        """The error of the last write: a second `end` raises it again, because messages may be missing in the log."""
        self.state = State(turn.turn_state)
        self._show(sent)

    def __repr__(self) -> str:
        size = f"{len(self.messages)} messages, {self.working_set.tokens} of {self.working_set.budget} tokens"
        return f"<turn of session {self._turn.request.ref.id!r}: {size}>"

    def _show(self, sent: Sequence[Sent]) -> None:
        self.messages = [to_chat_message(message) for message, _ in sent]
        self._groups = [sources for _, sources in sent]

    @property
    def session(self) -> Session:
        """The session after the last write."""
        return self._turn.session

    @property
    def agent(self) -> str | None:
        """Name of the agent that answers; None: no agent.

        It is the session's agent, or the agent of its team that answered last.
        """
        return self._turn.agent

    @property
    def working_set(self) -> WorkingSet:
        """The messages to send to the model, together with the data from which they were built."""
        built = self._turn.working_set
        assert built is not None, "a turn begins with a working set"
        return built

    @property
    def sources(self) -> list[MessageSource]:
        """For each of `messages`, the log entries that the message comes from. `next` replaces this list."""
        return join_sources(list_message_sources(self.working_set.show()), self._groups)

    def add(self, message: Sendable, *, usage: Any = None, origin: Any = None) -> None:
        """Add a message to the turn: a reply, a tool result or a note.

        The message is written by `next`, or at the end of the turn.

        Args:
            message: a dict, a message of an SDK, or a text, which becomes an assistant's message.
            origin: the message in your framework's own format, any JSON value. The value is stored with the message and
                never sent.
            usage: for a reply, the usage that the provider reported, in Chat Completions format, as a dict or the SDK's
                object. The usage is added to the session's usage, and calibrates token counts.

        Raises:
            InvalidMessage: the message is not valid.
            SecretBlocked: a user's message contains a secret, and the guard refuses secrets.
            InvalidRequest: the turn has ended.
            TurnInterrupted: another turn interrupted this one. This message is not written; messages added before are
                written when the block ends.
            TurnLost: another server took the session over. Messages that were not written yet are lost.
        """
        if self._ended:
            raise InvalidRequest(_ENDED)
        self._turn.lock.check()
        engine = self._turn.engine
        with engine.mask_errors():
            made = to_message(message, "message", text_role="assistant")
            if origin is not None:
                made = made.evolve(origin=parse_origin(origin))
        if engine.guard is not None:
            engine.guard.mask_messages(
                [made], place="added"
            )  # refuse it now, because a refusal at the end of the turn would be too late
        self._added.append(made)
        if usage is not None:
            self._usages.append(usage.model_dump() if hasattr(usage, "model_dump") else usage)

    async def load_state(self) -> State:
        """Read the state that the session shares with other sessions into `state`, and return `state`.

        After this call, `next` also reads the shared state again.
        """
        await self._turn.engine.scopes.load(self._turn.turn_state, self._turn.request.ref.user_id)
        return self.state

    async def next(self) -> list[dict[str, Any]]:
        """Write the added messages, and return the messages to send to the model next. Only turns with tools need this.

        Raises:
            TurnInterrupted: another turn interrupted this one, as in `add`.
            TurnLost: another server took the session over, as in `add`.
            InvalidRequest: the store refuses the changes of `state`. The messages are in the log without them.
        """
        self._turn.engine.check_loop()
        if self._ended:
            raise InvalidRequest(_ENDED)
        self._turn.lock.check()
        await asyncio.shield(self._begin_flush())
        if self._turn.turn_state.loaded:
            await self.load_state()
        await self._turn.lock.run_interruptibly(lambda: build_prompt(self._turn))
        self._show(await get_prompt(self._turn))
        return self.messages

    async def end(self) -> None:
        """Write the added messages, even if the caller is cancelled, and end the turn.

        The end of an `async with` block calls this. After `begin_turn`, the program must call it, from any task. A
        second call does nothing, or raises the error of the first one again.

        Raises:
            InvalidRequest: the store refuses the changes of `state`. The messages are in the log without them.
            TurnLost: another server took the session over. Messages that were not written yet are lost.
        """
        await self.abort(None)

    async def abort(self, error: BaseException | None = None) -> None:
        """End the turn because of an error, as if the error was raised in an `async with` block.

        Messages that were added are written.

        Args:
            error: the reason; it is not raised here. If the turn's task was cancelled, the last write is not awaited.

        Raises the errors of `end`.
        """
        if self._ended:
            if self._failure is not None:
                raise self._failure
            return
        self._turn.engine.check_loop()
        self._ended = True
        self.state.seal()
        if self._watch is not None:
            self._watch.detach()
        try:
            try:
                await asyncio.shield(self._begin_flush(last=True))
            except StoreError:  # the store may be available again, and nothing else would write these messages
                await asyncio.shield(self._begin_flush(last=True))
        except BaseException as exc:
            self._failure = exc
            await self._scope.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        await self._scope.__aexit__(None if error is None else type(error), error, None)

    async def save_view(self) -> None:
        """Save the state of the prompt builder (the view) if that is due.

        Errors are ignored, because the next prompt can be built without it.

        For turns that end without a write, because other calls append the messages.
        """
        if self._turn.stepped:
            with suppress(HoldfastError):
                await self._turn.append(())

    def watch(self) -> None:
        """End the turn with a warning if this object is garbage-collected before the turn has ended."""
        self._watch = weakref.finalize(self, _end_abandoned, self._scope, asyncio.get_running_loop(), repr(self))
        self._watch.atexit = False

    @property
    def interrupted(self) -> bool:
        """True if another turn waits for this one to stop. As soon as this is True, `add` and `next` raise errors."""
        return self._turn.lock.interrupted

    def _begin_flush(self, *, last: bool = False) -> asyncio.Task[None]:
        """Start to write added messages and state changes, after earlier flushes whose callers were cancelled.

        The returned task raises `InvalidRequest` if the store refuses the state changes. The messages are written without them.

        Args:
            last: True if this is the last write, which ends the turn.
        """
        self._flushing = flushing = self._turn.begin(self._flush(self._flushing, last=last))
        return flushing

    async def _flush(self, previous: asyncio.Task[None] | None, *, last: bool) -> None:
        if previous is not None and not previous.done():
            await asyncio.wait((previous,))
        if self._failed is not None:
            is_all = not self._added and not self.state.is_changed
            await self._write(self._failed, last=last and is_all, again=True)
        added, self._added = self._added, []
        delta = self.state.take()
        if added or delta:
            await self._write(_Flush(added, delta, self._make_calls(added)), last=last)

    async def _write(self, flush: _Flush, *, last: bool, again: bool = False) -> None:
        agent = self._turn.request.responder.agent
        how: dict[str, Any] = {"calls": flush.calls, "state_delta": flush.delta or None, "last": last, "again": again}
        self._failed = flush
        self.state.held = flush.delta
        try:
            if agent is not None and agent.output_key:
                await append_reply(self._turn, flush.messages, read_reply_text(flush.messages), **how)
            else:
                await self._turn.append(flush.messages, **how)
        except InvalidRequest as exc:
            if not flush.delta:
                raise
            flush.refusal, flush.delta, self.state.held = exc, {}, {}
            if flush.messages:
                await self._turn.append(flush.messages, calls=flush.calls, last=last)
        self._failed, self.state.held = None, {}
        if flush.refusal is not None:
            raise flush.refusal

    def _make_calls(self, added: Sequence[Message]) -> list[ModelCall]:
        """Return the records of the model calls that the replies in `added` came from; an empty list if there are no replies.

        The first reply after each working set has a record even without usage. Further replies have one for each usage, without the
        prompt, which is unknown.
        """
        built, calls = self._turn.working_set, []
        for message in added:
            if message.role == "assistant":
                usages, self._usages = self._usages, []
                if built is not None and built is not self._called:
                    self._called = built
                    calls.append(make_call_record(self._turn, None, usages.pop(0) if usages else None))
                if usages:
                    calls += [make_further_call_record(self._turn, usage) for usage in usages]
                break
        return calls

    def explain(self) -> str:
        """Return a text about the last prompt: which messages it contains and leaves out, and why.

        One line describes several messages in a row.
        """
        built = self._turn.working_set
        assert built is not None, "a turn begins with a working set"
        used = f"strategy {built.request.strategy.name}, {built.tokens:,} of {built.budget:,} tokens"
        record, broken = built.record, built.broken
        lines = [f"{len(built.messages)} messages, {used}", *map(str, measure_compactions(record))]
        if record.known:
            lines.append(f"known since before: {', '.join(record.known)}")
        if record.recalled:
            lines.append(f"recalled in {record.recalled_tokens} tokens: {', '.join(record.recalled)}")
        lines += [f"not recalled: {why}" for why in record.missed]
        if broken is not None:
            lines.append(f"the previous prompt differs from its message {broken.message}: {broken.why}")
        return "\n".join([*lines, *format_table(Overhead.from_record(record), built.list_decisions())])

    def explanation(self) -> dict[str, Any]:
        """Return JSON data that explain how the last prompt was built.

        The data contain strategy, budget arithmetic, compactions, prefix, hash, decisions, and the frontier: the `seq`
        before which messages are no longer sent verbatim.
        """
        built = self._turn.working_set
        assert built is not None, "a turn begins with a working set"
        counted = built.describe_count(self._turn.provider_count)
        shown = (built.explain(), {"counted": counted, "decisions": built.list_decisions()})
        build, more = msgspec.to_builtins(shown)
        return {**build, **more}


def _end_abandoned(scope: TurnScope, loop: asyncio.AbstractEventLoop, name: str) -> None:
    """Release the session of a turn whose object was garbage-collected.

    Messages that were added and not written are lost.
    """
    scope.disown()
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(scope.__aexit__(None, None, None)))
    warnings.warn(f"{name} was neither ended nor aborted", ResourceWarning, stacklevel=2)


async def get_prompt(turn: Turn) -> list[Sent]:
    """Return the messages of a turn's next prompt, ready to send."""
    built, llm = turn.working_set, turn.request.responder.llm
    if built is None:
        return []
    messages = await to_sendable(turn.engine, turn.request.ref, llm, built)
    if llm.dialect != "openai" or llm.records:  # a record describes one message of the log
        return [(message, (at,)) for at, message in enumerate(messages)]
    return fit_messages(messages, None, llm.model)
