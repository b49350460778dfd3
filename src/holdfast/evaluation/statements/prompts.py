"""The prompts that the turns of a conversation send, through the library on a store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.agents import Roster, offline
from holdfast.context.build import WorkingSet
from holdfast.context.escaping import marker_of
from holdfast.context.settings import ContextSettings
from holdfast.context.view import encode_state
from holdfast.domain.messages import Message
from holdfast.domain.session import Session
from holdfast.engine.entries import new_entries
from holdfast.engine.markers import Markers
from holdfast.errors import BudgetTooSmall
from holdfast.evaluation.statements.conversations import Conversation
from holdfast.evaluation.statements.figures import Figures, Prompt, Tally, find_asked, prompt_from
from holdfast.holdfast import Holdfast
from holdfast.sessions.handle import SessionHandle
from holdfast.stores.base import Append, SavedView

WINDOW: Final = 2_000_000
"""Tokens of the model's window: only the budgets count here."""
_START: Final = 1_767_225_600_000
"""When conversations begin, in milliseconds since the epoch; a message comes a minute after the one before."""
_MINUTE: Final = 60_000
_TRIES: Final = 4
"""Times that a prompt is built in which a search is late."""
_MARKER: Final = marker_of(b"statements", "")


class Run(NamedTuple):
    """A strategy at a budget."""

    label: str
    budget: int
    settings: ContextSettings


async def measure_statements(
    conversations: Iterable[Conversation],
    runs: Sequence[Run],
    *,
    asked: bool = False,
    on_prompt: Callable[[], None] = lambda: None,
) -> list[Figures]:
    """Build the prompts of real turns and look for the labelled statements.

    The log of a conversation up to its last user message is answered by a turn of each run. With `asked`, each statement's question
    then follows the whole conversation, one at a time, and is answered by a turn of each run as well.

    Args:
        conversations: what is measured.
        runs: strategies at budgets.
        asked: whether the questions are asked, too: a prompt for each statement and run.
        on_prompt: called after each prompt, for a progress bar.
    """
    tallies = [Tally() for _ in runs]
    for conversation in conversations:
        async with _open_session(conversation, runs, on_prompt) as session:
            prompts = await session.prompts()
            answers = await _ask_all(conversation, session, tallies) if asked else [{} for _ in runs]
        for tally, prompt, found in zip(tallies, prompts, answers, strict=True):
            tally.count_prompt(prompt)
            tally.add(conversation, prompt, found)
    return [tally.make_figures(run.label, run.budget) for run, tally in zip(runs, tallies, strict=True)]


async def _ask_all(
    conversation: Conversation, session: _Session, tallies: Sequence[Tally]
) -> list[dict[str, tuple[bool, bool]]]:
    """Ask each statement's question at the end of the conversation; for each run, by statement id, what was found."""
    await session.append(range(conversation.last_user + 1, len(conversation.messages)))
    answers: list[dict[str, tuple[bool, bool]]] = [{} for _ in tallies]
    for statement in conversation.statements:
        await session.ask(statement.question)
        for tally, found, prompt in zip(tallies, answers, await session.prompts(), strict=True):
            tally.count_prompt(prompt)
            found[statement.id] = find_asked(conversation, statement, prompt)
    return answers


class _FixedMarkers(Markers):
    """Gives every session the same marker: equal conversations have equal figures, and nobody speaks to these."""

    async def of(self, session: Session) -> str:
        return _MARKER


class _Session:
    """A session, looked at by several strategies and budgets in turn.

    Each has a view of its own. Views are saved after the first prompt and kept while questions come and go, as a session that goes on
    keeps them, so that a build reads the verbatim rest alone.
    """

    def __init__(
        self,
        hf: Holdfast,
        handle: SessionHandle,
        conversation: Conversation,
        runs: Sequence[Run],
        on_prompt: Callable[[], None],
    ) -> None:
        self._hf = hf
        self._conversation = conversation
        self._on_prompt = on_prompt
        voices = [hf.roster.with_context(handle.voice, run.settings) for run in runs]
        self._handles = [SessionHandle(hf.engine, handle.ref, voice) for voice in voices]
        self._ref = handle.ref
        self._views: dict[str, SavedView] = {}
        self._question: int | None = None

    async def append(self, places: Iterable[int]) -> None:
        """Write messages of the conversation to the log."""
        fields = self._conversation.fields
        own = [{"timestamp": _START + _MINUTE * at, **fields[at]} for at in places]
        await self._write([self._conversation.messages[at] for at in places], own)

    async def ask(self, question: str) -> None:
        """Write a question to the end of the log, in place of the question before it."""
        self._question = await self._write([Message(role="user", content=question)], [{}])

    async def prompts(self) -> list[Prompt | None]:
        """Build the prompt of each run as a turn that answers the last message; None: it was refused."""
        prompts = []
        for handle in self._handles:
            prompts.append(await self._prompt(handle))
            self._on_prompt()
        return prompts

    async def _prompt(self, handle: SessionHandle) -> Prompt | None:
        """Build a prompt; again if a search was late, so that figures do not depend on how busy the machine is."""
        try:
            first = prompt = await self._build(handle)
            for _ in range(_TRIES - 1):
                if not prompt.is_late:
                    break
                prompt = await self._build(handle)
        except BudgetTooSmall:
            return None
        return msgspec.structs.replace(prompt, is_late=first.is_late)

    async def _build(self, handle: SessionHandle) -> Prompt:
        async with handle.turn() as turn:
            built = turn.working_set
            state = built.state
            if state.frontier and self._question is None:
                self._views[handle.voice.view_key()] = SavedView(state.frontier, encode_state(state), state.keep)
            return _to_prompt(built)

    async def _write(self, messages: Sequence[Message], own: Sequence[dict[str, Any]]) -> int:
        """Write messages with the views; return the first one's `seq`."""
        now = self._hf.clock()
        entries = await new_entries(messages, own, timestamp=now)
        write = Append(entries=entries, timestamp=now, views=self._views, retire_from=self._question)
        appended = await self._hf.store.append(self._ref, write)
        if self._hf.index is not None:
            await self._hf.index.settled()
        return appended.start


@asynccontextmanager
async def _open_session(
    conversation: Conversation, runs: Sequence[Run], on_prompt: Callable[[], None]
) -> AsyncIterator[_Session]:
    """Yield a session that holds the conversation up to its last user message, in a Holdfast of its own."""
    now = _START + _MINUTE * (len(conversation.messages) + 1)
    roster = Roster({"default": msgspec.structs.replace(offline(), context_window=WINDOW)})
    async with Holdfast("sqlite://:memory:", roster=roster, clock=lambda: now) as hf:
        hf.engine.markers = _FixedMarkers(hf.store)
        handle = await hf.session("statements", system=conversation.system or None)
        session = _Session(hf, handle, conversation, runs, on_prompt)
        await session.append(range(conversation.last_user + 1))
        yield session


def _to_prompt(built: WorkingSet) -> Prompt:
    """Return what a working set says; a user message that stands for no entry is a block, unless it is the recalled one."""
    leading = len(built.request.leading())
    messages, seqs = built.messages[leading:], built.seqs()[leading:]
    current = max(at for at, message in enumerate(messages) if message.role == "user" and seqs[at] is not None)
    recalled = built.recalled.message if built.recalled else None
    blocks = [
        at
        for at, message in enumerate(messages)
        if seqs[at] is None and message.role == "user" and message is not recalled
    ]
    is_late = any("late" in missed for missed in built.request.recall.missed)
    return prompt_from(messages, current, blocks, is_late=is_late)
