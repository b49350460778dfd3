"""Hold a session while a turn runs, and start the steps after the turn.

While a turn runs, it holds the lock of its session and keeps the session from expiring. These steps follow the turn,
whether it was answered, failed, was interrupted, or was abandoned by its caller:

    index -> compact -> clear_temp

Each step starts its work in the background and waits for nothing. If a step fails, the others still run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

from holdfast.errors import TurnInterrupted
from holdfast.turns.place import MatchLost
from holdfast.turns.turn import Turn
from holdfast.turns.turn_start import open_turn

_log = logging.getLogger("holdfast.turn")


class TurnScope:
    """Holds the session of one turn: `async with TurnScope(turn)`.

    Entering the block waits for the session, compares the request with the log, and writes the new messages. If the
    request was matched to a session that another request changed meanwhile, the turn moves to another session.

    Args:
        turn: the turn.
        revive: True to create an expired in-memory session again, without messages, so that an old handle can be used.
    """

    def __init__(self, turn: Turn, *, revive: bool = False) -> None:
        self._turn = turn
        self._revive = revive
        self._in_use = False

    async def __aenter__(self) -> None:
        """Begin the turn. Raises the errors of `open_turn` and `SessionLock.__aenter__`."""
        turn = self._turn
        while True:
            await turn.lock.__aenter__()
            try:
                if self._revive:
                    await turn.engine.ensure_present(turn.request.ref)
                await open_turn(turn)
                turn.engine.life.begin_use(turn.request.ref)
                self._in_use = True
                return
            except BaseException as exc:
                place, is_lost = None, isinstance(exc, MatchLost)
                try:  # before the session is free, so that this request stays before those that wait
                    place = await turn.find_place() if is_lost and turn.follows is not None else None
                finally:
                    await self.__aexit__(type(exc), exc, exc.__traceback__)
                if not is_lost:
                    raise
            turn.move(place or await turn.find_place())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        turn = self._turn
        try:
            if self._in_use:
                turn.engine.life.end_use(turn.request.ref)
                if turn.wrote and turn.answered is None:
                    failed = isinstance(error, Exception) and not isinstance(error, TurnInterrupted)
                    turn.engine.activity.count_turn(begun=turn.began, failed=failed or turn.failure is not None)
            for step in STEPS:
                try:
                    step(turn)
                except Exception as exc:  # noqa: BLE001 - the turn is over, and its reply must not fail because of a later step
                    message = "%s: not done after a turn of session %r"
                    _log.error(message, step.__name__, turn.request.ref.id, exc_info=exc)
        finally:
            await turn.lock.__aexit__(kind, error, trace)

    def disown(self) -> None:
        """Let the caller that began this turn begin another one, which then waits for this turn to end."""
        self._turn.lock.owner = None


def index(turn: Turn) -> None:
    """Schedule the indexing of the turn's messages, in the background."""
    if turn.wrote:
        turn.engine.indexing.schedule(turn.request.ref, turn.session)


def compact(turn: Turn) -> None:
    """Schedule background work: summaries of messages that left the prompt, and the rating of new messages.

    A summary is written for each view that needs one. Does nothing if no prompt was built.
    """
    ref, prompts = turn.request.ref, dict(turn.prompts)
    if turn.working_set is not None:
        prompts[turn.key] = (turn.request.responder, turn.working_set)
    for responder, built in prompts.values():
        turn.engine.compactor.compact_after_turn(ref, responder, built, turn.session)
        if built.request.strategy.scorer is not None:
            turn.engine.scoring.schedule(ref, built.request.strategy.scorer)


def clear_temp(turn: Turn) -> None:
    """Drop the values of `temp:` keys, and the agent's instruction, which may contain such values."""
    turn.temp.clear()
    turn.instruction = ()


STEPS: Final[tuple[Callable[[Turn], None], ...]] = (index, compact, clear_temp)
