"""What comes after a turn, however it ended: answered, failed, interrupted, or left by whoever asked.

    index -> compact -> clear_temp

Each step begins what it has to do and waits for nothing. One that goes wrong keeps none of those behind it from being done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.turns.turn import Turn

_log = logging.getLogger("holdfast.turn")


def index(turn: Turn) -> None:
    """Have what the turn wrote indexed, in the background; nothing where it wrote nothing."""
    if turn.wrote:
        turn.engine.indexing.soon(turn.request.ref, turn.session)


def compact(turn: Turn) -> None:
    """Have a summary made of each view that is due for one, and what is new rated; in the background.

    Nothing where no prompt was built.
    """
    ref, prompts = turn.request.ref, dict(turn.prompts)
    if turn.working_set is not None:
        prompts[turn.key] = (turn.request.voice, turn.working_set)
    for voice, built in prompts.values():
        turn.engine.compactor.after_turn(ref, voice, built, turn.session)
        if built.request.policy.scorer is not None:
            turn.engine.scoring.soon(ref, built.request.policy.scorer)


def clear_temp(turn: Turn) -> None:
    """Drop what stands under `temp:` keys of the state, and what the agent was told, which may have named some."""
    turn.temp.clear()
    turn.instruction = ()


STEPS: Final[tuple[Callable[[Turn], None], ...]] = (index, compact, clear_temp)


@contextmanager
def followed(turn: Turn) -> Iterator[None]:
    """A block that is a turn, and behind it what comes after one."""
    try:
        yield
    finally:
        for step in STEPS:
            try:
                step(turn)
            except Exception as exc:  # noqa: BLE001 - the last place: the turn is over, and its reply is what counts
                _log.error("%s: not done after a turn of session %r", step.__name__, turn.request.ref.id, exc_info=exc)
