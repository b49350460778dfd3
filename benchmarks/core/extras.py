"""Measure the core on recorded agents and on labelled statements, and the CPU of a turn by the length of the session."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from benchmarks.core.build import Log, Prompt, build
from benchmarks.core.step import Digest, Room, Step, Strategy
from benchmarks.evaluation.prompt_sessions import MARKER
from benchmarks.evaluation.statements.conversations import read_conversations
from benchmarks.evaluation.statements.figures import Figures, Tally, find_asked, make_prompt
from benchmarks.evaluation.statements.figures import Prompt as StatementPrompt
from holdfast.context.build import PRIMING, WorkingSet
from holdfast.domain.messages import Message
from holdfast.errors import BudgetTooSmall
from holdfast.replay.player import Player, Result, play_call
from holdfast.replay.player import Tally as CallTally
from holdfast.replay.prompt_checks import SessionTexts
from holdfast.replay.recordings import read
from holdfast.replay.specs import parse_spec
from holdfast.tokens import STORED
from holdfast.wire.openai import split_system

_MINUTE = 60_000


# -- arguments of recorded calls ---------------------------------------------------


class _Blocks(NamedTuple):
    summary: object
    compaction: object


class _Built(NamedTuple):
    """The fields of a working set that replay reads."""

    messages: tuple[Message, ...]
    total_tokens: int
    window: _Blocks


class CorePlayer(Player):
    """A player of recorded sessions whose prompts the core builds."""

    def __init__(self, strategy: Strategy, budget: int, system: tuple[Message, ...]) -> None:
        super().__init__(parse_spec("none").make_strategy(budget), budget, system)
        self.log, self.step, self.room, self._turn = Log(), Step(), Room(budget, strategy, MARKER), -1
        self._prompt: Prompt | None = None

    def append(self, message: Message) -> None:
        """Append the next message of the recording."""
        super().append(message)
        self.log.append(message, 0)

    def build(self) -> WorkingSet:
        """Return the prompt for the next call; within a turn it recalls what the first call recalled."""
        turn = max(self.log.users, default=0)
        same = self._prompt is not None and turn == self._turn
        recalled = self._prompt.recalled if same and self._prompt is not None else None
        self._prompt = build(self.log, self.step, self.room, recalled=recalled)
        self._turn, self.step = turn, self._prompt.step
        messages = (*self.request.system, *self._prompt.messages)
        total = PRIMING + sum(map(STORED.message, messages))
        blocks = (*self.step.blocks, None, None)
        return cast("WorkingSet", _Built(messages, total, _Blocks(blocks[0], blocks[1])))


def measure_arguments(path: Path, strategy: Strategy, budget: int) -> Result:
    """Replay recorded sessions, and measure which values of the calls' arguments the prompts contain."""
    tally = CallTally()
    for session in read([path], skip_bad=False, on_bad=lambda _: None):
        system, messages = split_system(session.messages)
        player, texts = CorePlayer(strategy, budget, system), SessionTexts()
        task = next((message for message in messages if message.role == "user"), None)
        before: tuple[Message, ...] = ()
        for message in messages:
            if message.role == "assistant" and player.entries:
                before = play_call(player, message, task, before, texts, tally=tally)
            player.append(message)
            texts.add(message)
    return tally.make_result("core", budget)


# -- statements ----------------------------------------------------------------------


def measure_statements(paths: Sequence[Path], strategy: Strategy, budget: int, *, asked: bool = False) -> Figures:
    """Return the labelled statements that are in the prompts of conversations."""
    tally = Tally()
    for conversation in read_conversations(paths):
        log, step, room = Log(), Step(), Room(budget, strategy, MARKER)
        found = None
        for at, message in enumerate(conversation.messages):
            log.append(message, _MINUTE * at)
            if message.role == "user":
                try:
                    built = build(log, step, room)
                except BudgetTooSmall:
                    continue
                step = built.step
                if at == conversation.last_user:
                    found = built
        prompt = None if found is None else _to_prompt(found)
        tally.count_prompt(prompt)
        answers = {}
        for statement in conversation.statements if asked else ():
            before = log.tail
            log.append(Message(role="user", content=statement.question), _MINUTE * len(conversation.messages))
            answers[statement.id] = find_asked(conversation, statement, _to_prompt(build(log, step, room)))
            log.drop(before)
        tally.add(conversation, prompt, answers)
    return tally.make_figures("core", budget)


def _to_prompt(built: Prompt) -> StatementPrompt:
    blocks = [at for at, seq in enumerate(built.seqs) if seq is None]
    return make_prompt(built.messages, built.current, blocks)


# -- CPU -----------------------------------------------------------------------------

_SAID = (
    "The limit for trip {} is now {} a month. We decided to go by train, since it is cheaper.",
    "I prefer berth {} to all others, because it is {} feet longer. What does the tide table say for the harbour?",
    "Do you remember which berth I wanted in week {}, and what {} cost?",
)
_FILLERS = 32
"""Number of turns whose messages and analyses are repeated to lengthen the session."""


def time_turns(lengths: Sequence[int], budget: int, turns: int = 100) -> Iterator[tuple[int, float, float, float]]:
    """Yield for each length of the session, in messages: mean and longest CPU of a turn's builds, and mean of its two appends, in ms."""
    log, step, room = Log(), Step(), Room(budget, Digest(), MARKER)
    number = 0

    def play() -> tuple[float, float]:
        nonlocal step, number
        number += 1
        started = time.process_time()
        log.append(Message(role="user", content=_SAID[number % 3].format(number, number % 50)), _MINUTE * number)
        appended = time.process_time()
        step = build(log, step, room).step
        built = time.process_time()
        reply = f"Berth {number} is free until Friday. {'The water is calm there. ' * 8}"
        log.append(Message(role="assistant", content=reply), _MINUTE * number)
        return built - appended, appended - started + time.process_time() - built

    for _ in range(_FILLERS):
        play()
    made = list(zip(log.entries[-2 * _FILLERS :], log.analyses[-2 * _FILLERS :], strict=True))
    for length in lengths:
        for at in range(len(log.entries), length):
            entry, analysis = made[at % len(made)]
            log.append(entry.message, _MINUTE * number, msgspec.structs.replace(analysis, statements=()))
            if at % 64 == 0:
                step = build(log, step, room).step
        times = [play() for _ in range(turns)]
        spent, appending = [one for one, _ in times], [one for _, one in times]
        yield length, 1000 * sum(spent) / turns, 1000 * max(spent), 1000 * sum(appending) / turns
