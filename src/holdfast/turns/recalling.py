"""What a turn recalls: looked for once, before its first call, and the same in all of its prompts.

Whoever knows something (past conversations, memories) is asked side by side, for a moment. Who is late, or fails, is left out: the
record of the call says so, and the turn goes on. What is found is data: `holdfast.context.recalled` says how it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
import msgspec

from holdfast.agents import Voice
from holdfast.context.build import WorkingSet
from holdfast.context.recalled import Recall, RecalledItem, RecalledKind
from holdfast.domain.participants import is_shared as read_by_others
from holdfast.limits import RECALL_SECONDS
from holdfast.turns.turn import Turn

_log: Final = logging.getLogger("holdfast.recall")
Recalling = Callable[[Turn], Awaitable[Sequence[RecalledItem]]]
"""Gives what answers the turn's message (`asked_in`), of one kind; see `Engine.recalling`."""
_LOOKED_BACK: Final = 64
"""Messages in which the one is looked for that a turn answers, where its request has none."""


def budgets_of(voice: Voice) -> dict[RecalledKind, int]:
    """Tokens by kind that are kept free in the prompts of a voice."""
    return {kind: settings.budget for kind, settings in voice.recalls.items() if settings.inject}


async def recalled(turn: Turn) -> None:
    """Find what the turn's prompts are to have recalled, unless that is known."""
    name, budgets = turn.request.voice.agent_name, budgets_of(turn.request.voice)
    if not budgets or name in turn.recalls:
        return
    found: dict[RecalledKind, Sequence[RecalledItem]] = {}
    missed: list[str] = []
    async with anyio.create_task_group() as tasks:
        for kind in budgets:
            if (recalling := turn.engine.recalling.get(kind)) is not None:
                tasks.start_soon(_asked, turn, kind, recalling, found, missed)
    items = tuple(item for kind in budgets for item in found.get(kind, ()))
    turn.recalls[name] = Recall(budgets=budgets, items=items, missed=tuple(sorted(missed)))


async def _asked(
    turn: Turn,
    kind: RecalledKind,
    recalling: Recalling,
    found: dict[RecalledKind, Sequence[RecalledItem]],
    missed: list[str],
) -> None:
    """Ask for one kind, for a moment."""
    try:
        with anyio.fail_after(RECALL_SECONDS):
            found[kind] = await recalling(turn)
    except TimeoutError:
        missed.append(f"{kind}: late")
    except Exception as exc:  # noqa: BLE001 - the last place: no turn fails for the sake of what it might recall
        missed.append(f"{kind}: failed")
        # Neither the message nor what was found is in the log: only the kind of the error.
        _log.warning("nothing recalled of kind %s in session %r: %s", kind, turn.request.ref.id, type(exc).__name__)


def keep(turn: Turn, built: WorkingSet) -> None:
    """Have the turn's further prompts recall what the first one did."""
    recall = built.request.recall
    turn.recalls[turn.request.voice.agent_name] = msgspec.structs.replace(
        recall, items=(), block=built.recalled, searched=True, spare=False
    )


async def asked_in(turn: Turn) -> str:
    """The text of the user's message that the turn answers; empty: there is none."""
    for message in reversed(turn.request.incoming):
        if message.role == "user":
            return message.text
    last = await turn.engine.store.entries(turn.request.ref, limit=_LOOKED_BACK, descending=True)
    return next((entry.message.text for entry in last if entry.message.role == "user"), "")


def is_shared(turn: Turn) -> bool:
    """Whether others than its user take part in the session, or asked: what the user has said elsewhere is not for them."""
    return turn.request.guest or read_by_others(turn.session.metadata)
