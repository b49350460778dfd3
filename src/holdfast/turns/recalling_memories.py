"""The memories that come into a turn's prompts by themselves: those that answer the user's message, and that nobody has to review first."""

from __future__ import annotations

from typing import Final

from holdfast.context.recalled import RecalledItem
from holdfast.limits import QUERY_CHARS, RECALL_VECTOR_SECONDS
from holdfast.turns.recalling import asked_in, is_shared
from holdfast.turns.turn import Turn

LEAST_SCORE: Final = 0.12
"""Score below which a memory has too little to do with the message; above `holdfast.memory.lookup.UNASKED`."""
USUAL: Final = 5


async def memories(turn: Turn) -> list[RecalledItem]:
    """What the user's, the agent's and the app's memories have that answers the turn's message; none that is held for review.

    Where several users take part the owner's are not for them, as past conversations are not.
    """
    query = (await asked_in(turn))[:QUERY_CHARS]
    if not query.strip():
        return []
    ref, settings = turn.request.ref, turn.request.voice.recalls.get("memory")
    found = await turn.engine.memories.recall(
        query,
        user_id=None if is_shared(turn) else ref.user_id,
        agent=turn.request.voice.agent_name,
        limit=settings.max_results if settings else USUAL,
        min_score=LEAST_SCORE,
        include_quarantined=False,
        sure=True,
        session=turn.root or ref.id,
        patience=RECALL_VECTOR_SECONDS,
    )
    return [
        RecalledItem(
            kind="memory",
            id=one.memory.id,
            text=one.memory.content,
            at=one.memory.updated_at,
            author=one.memory.origin,
            score=one.score,
            note=one.memory.type,
        )
        for one in found.found
    ]
