"""How a turn opens: what came is related to the log and written ahead, and the session is claimed, behind turns of other servers."""

from __future__ import annotations

from holdfast.domain.session import Session
from holdfast.turns.resuming import related
from holdfast.turns.turn import Turn


async def opened(turn: Turn) -> None:
    """Open a turn that has come up in this process (`turn.hold`).

    Raises:
        SessionNotFound: no such session.
        SessionBusy: a turn of another server has it; this one is refused, or has waited for too long.
        TurnInterrupted: another turn asked for its place; what came is in the log.
    """

    async def opening() -> Session | None:
        await related(turn)
        return turn.session if turn.answered is None else None

    await turn.hold.opened(opening)
