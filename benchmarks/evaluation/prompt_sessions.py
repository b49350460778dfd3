"""Build the prompts that turns of the library would send, in sessions in memory and without calling a model, so that they can be examined."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Roster, offline
from holdfast.context.build import WorkingSet
from holdfast.context.escaping import derive_marker
from holdfast.context.settings import ContextSettings
from holdfast.context.view import encode_state
from holdfast.domain.history import continue_log
from holdfast.domain.messages import Message
from holdfast.domain.session import Session
from holdfast.engine.engine import Markers
from holdfast.engine.entries import make_entries
from holdfast.errors import BudgetTooSmall
from holdfast.holdfast import Holdfast
from holdfast.indexes.settings import IndexSettings
from holdfast.lifecycle.settings import LifeSettings
from holdfast.limits import PAGE
from holdfast.overlays.session_cache import read_view
from holdfast.sessions.handle import SessionHandle
from holdfast.stores.log import Append, SavedView
from holdfast.turns.prompt import add_recall, draft_from, prepare_request
from holdfast.turns.turn import TurnRequest

WINDOW: Final = 2_000_000
"""Size of the model's context window in tokens. This window is so large that only the budgets limit a prompt."""
_NAME: Final = "statements"
MARKER: Final = derive_marker(_NAME.encode(), "")
"""Marker of generated blocks in all sessions of this module. The marker is constant, so that a conversation always gives the same
results."""
_T = TypeVar("_T")


class Run(NamedTuple):
    """A strategy and a token budget, with which prompts are built."""

    label: str
    budget: int
    settings: ContextSettings


class _FixedMarkers(Markers):
    """Derives the same marker for every session."""

    async def derive(self, session: Session) -> str:
        return MARKER


class PromptSession(Generic[_T]):
    """A session whose prompts are built for several runs, which are strategies with budgets.

    For each run, the state of the first prompt is saved, and kept while questions are added and removed. As in any session that continues,
    later prompts are built from this state and the messages that are still sent verbatim.
    """

    def __init__(
        self,
        hf: Holdfast,
        handle: SessionHandle,
        runs: Sequence[Run],
        read: Callable[[WorkingSet], _T],
        on_prompt: Callable[[], None],
    ) -> None:
        self.hf = hf
        self._read = read
        self._on_prompt = on_prompt
        responders = [hf.roster.with_context(handle.responder, run.settings) for run in runs]
        self._handles = [SessionHandle(hf.engine, handle.ref, responder) for responder in responders]
        self.ref = handle.ref
        self._views: dict[str, SavedView] = {}
        self._question: int | None = None

    async def append(self, messages: Sequence[Message], fields: Sequence[Mapping[str, Any]]) -> None:
        """Append messages to the log.

        Args:
            messages: The messages.
            fields: Holdfast's own fields of each message, such as `timestamp`.
        """
        for start in range(0, len(messages), PAGE):
            await self._write(messages[start : start + PAGE], fields[start : start + PAGE])

    async def ask(self, question: str) -> None:
        """Append a question to the log, in place of the previous question."""
        self._question = await self._write([Message(role="user", content=question)], [{}])

    async def build_prompts(self) -> list[_T | None]:
        """Build the prompt of each run for a turn that answers the last message. A prompt that does not fit its budget is None."""
        return await self._build_all(self._build)

    async def save_views(self) -> None:
        """Save the state from which each run's prompts are built, so that previews need not read the complete log."""
        for handle in self._handles:
            await _try_build(partial(self._build, handle))
        await self._write([], [])

    async def build_previews(self, question: str) -> list[_T | None]:
        """Build the prompt of each run for a turn that answers `question`. A prompt that does not fit its budget is None.

        Nothing is written to the log, so that questions do not affect each other.
        """
        return await self._build_all(partial(self._build_preview, Message(role="user", content=question)))

    async def _build_all(self, build: Callable[[SessionHandle], Awaitable[_T]]) -> list[_T | None]:
        prompts = []
        for handle in self._handles:
            prompts.append(await _try_build(partial(build, handle)))
            self._on_prompt()
        return prompts

    async def _build(self, handle: SessionHandle) -> _T:
        async with handle.turn() as turn:
            built = turn.working_set
            state = built.state
            if state.frontier and self._question is None:
                self._views[handle.responder.view_key] = SavedView(state.frontier, encode_state(state), state.keep)
            return self._read(built)

    async def _build_preview(self, message: Message, handle: SessionHandle) -> _T:
        """Build the prompt for a new message without writing the message to the log, like the library's previews."""
        engine, responder = self.hf.engine, handle.responder
        view = await read_view(engine.store, self.ref, responder.view_key)
        entries, tail = continue_log(view.session.tail, await make_entries([message], [{}], timestamp=engine.clock()))
        session = msgspec.structs.replace(view.session, tail=tail)
        view = msgspec.structs.replace(view, session=session, entries=(*view.entries, *entries))
        asked = TurnRequest(ref=self.ref, responder=responder, incoming=(message,))
        request = await prepare_request(engine, session, asked)
        return self._read(await add_recall(engine, session, await run_cpu(draft_from, request, view)))

    async def _write(self, messages: Sequence[Message], own: Sequence[Mapping[str, Any]]) -> int:
        """Write messages and saved states, and return the position of the first message.

        The current question, if any, is removed from the log.
        """
        now = self.hf.clock()
        entries = await make_entries(messages, own, timestamp=now)
        write = Append(entries=entries, timestamp=now, views=self._views, retire_from=self._question)
        appended = await self.hf.store.append(self.ref, write)
        if self.hf.index is not None:
            await self.hf.index.settled()
        return appended.start


@asynccontextmanager
async def open_session(
    runs: Sequence[Run],
    read: Callable[[WorkingSet], _T],
    *,
    clock: Callable[[], int],
    system: Sequence[Message] = (),
    embedder: Any = None,
    on_prompt: Callable[[], None] = lambda: None,
) -> AsyncIterator[PromptSession[_T]]:
    """Open a new `Holdfast` in memory, and yield an empty session in it.

    Args:
        runs: Strategies and budgets for which prompts are built.
        read: Function that extracts the caller's data from a prompt. It is called while the turn is open.
        clock: Function that returns milliseconds since the epoch.
        system: The system prompt.
        embedder: Embedder for the index, which closes it. None: the index contains no vectors.
        on_prompt: Function that is called after each prompt.
    """
    roster = Roster({"default": msgspec.structs.replace(offline(), context_window=WINDOW)})
    index = IndexSettings(embedder=embedder)
    life = LifeSettings(session_ttl=0)  # questions may be asked months later
    async with Holdfast("sqlite://:memory:", roster=roster, index=index, life=life, clock=clock) as hf:
        hf.engine.markers = _FixedMarkers(hf.store)
        handle = await hf.session(_NAME, system=tuple(system) or None)
        yield PromptSession(hf, handle, runs, read, on_prompt)


async def _try_build(build: Callable[[], Awaitable[_T]]) -> _T | None:
    """Build a prompt, or return None if it does not fit its budget."""
    try:
        return await build()
    except BudgetTooSmall:
        return None


def find_current(built: WorkingSet) -> int:
    """Return the index of the current user message in a prompt."""
    seqs = built.list_seqs()
    return max(at for at, message in enumerate(built.messages) if message.role == "user" and seqs[at] is not None)


def is_block(built: WorkingSet, place: int, seq: int | None) -> bool:
    """Return True if a message of a prompt is a digest, a summary or a block of facts, which replaces messages that are not sent.

    Args:
        built: The prompt.
        place: Index of the message in the prompt.
        seq: Position of the message in the log, or None if the log does not contain it.
    """
    message = built.messages[place]
    recalled = built.recalled.message if built.recalled else None
    return (
        seq is None
        and message.role == "user"
        and message is not recalled
        and place >= len(built.request.list_leading_messages())
    )
