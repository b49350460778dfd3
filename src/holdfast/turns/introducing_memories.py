"""What a session is told of promoted memories when it begins: read once for each prompt, for agents that remember."""

from __future__ import annotations

import logging
from typing import Final

from holdfast.agents import Voice
from holdfast.context.introduced import SHARE, Introduction, introduction_of
from holdfast.domain.participants import is_shared
from holdfast.domain.session import Session
from holdfast.engine.engine import Engine
from holdfast.errors import StoreUnavailable
from holdfast.memory.checks import seen_by

_log: Final = logging.getLogger("holdfast.dreams")


async def introduced(engine: Engine, session: Session, voice: Voice) -> Introduction | None:
    """What a voice is told of the promoted memories of the session's user, the agent and the app; None: nothing.

    Args:
        engine: of the store.
        session: as it stands.
        voice: who speaks; unless memories come into its prompts by themselves, it is told nothing.
    """
    recalls, budget = voice.recalls.get("memory"), engine.dreaming.settings.inject_budget
    if recalls is None or not recalls.inject or not budget:
        return None
    try:
        user = None if is_shared(session.metadata) else session.ref.user_id
        found = [await engine.promoted.of(owner) for owner in seen_by(user, voice.agent_name)]
    except StoreUnavailable as exc:  # no turn fails for the sake of what it might know
        _log.warning("a session was told of no promoted memories: %s", exc.code)
        return None
    # The model's own window, and not what a provider has taught of it: that would change the block within a session.
    room = min(budget, voice.llm.budget(None).input // SHARE)
    memories = [one for some in found for one in some.memories]
    marker = await engine.markers.of(session)
    return introduction_of(memories, session.created_at, room, voice.llm.counter, marker=marker)
