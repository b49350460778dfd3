"""An agent's failure message: what it says in place of a reply, where no model answers and nothing was said yet.

A voice agent cannot show an error: whoever talks to it hears silence. What it says instead is in the log like any reply, marked.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any, Final

from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.errors import ModelError, ModelRejected
from holdfast.limits import ERROR_CHARS
from holdfast.turns.failover import OF_KEY
from holdfast.turns.instructing import worded
from holdfast.turns.reply_artifacts import with_artifacts
from holdfast.turns.showing import Shown
from holdfast.turns.turn import Turn

_log = logging.getLogger("holdfast.turn")
SOURCE: Final = "llm_failure"
"""`metadata.source` of a failure message."""
_AGAIN: Final = "no model answered when this was asked first"


async def words_after(turn: Turn, shown: Shown, error: ModelError) -> str | None:
    """The failure message that the turn's agent says after `error`; None: it says none.

    It has to have one, and nothing may have been said yet. A caller's own key that the model's provider refuses is the caller's
    to mend, so it is told.
    """
    agent = turn.request.voice.agent
    own_key = error.handed and isinstance(error, ModelRejected) and error.status in OF_KEY
    if agent is None or not agent.failure_message or shown.heard or own_key:
        return None
    text = await worded(turn.engine, turn.session, agent.failure_message, agent, turn.temp)
    return text if text.strip() else None


async def apology(
    turn: Turn, shown: Shown, instead: str, error: tuple[str, str]
) -> AsyncGenerator[dict[str, Any], None]:
    """Record the failure message as the end of the reply, and tell it.

    Args:
        turn: whose agent has one.
        shown: its reply so far.
        instead: as `words_after` gives it.
        error: code and words of what happened.
    """
    agent, (code, words) = turn.request.voice.agent, error
    assert agent is not None, "somebody has a failure message"
    message = Message(role="assistant", content=instead)
    text = shown.apart(message.text)
    metadata = with_artifacts(turn, {**(shown.metadata or {}), "source": SOURCE, "error": code})
    turn.failure = {"code": code, "message": _told(turn, words)}
    turn.engine.failures[code] += 1
    # Without the upstream's words: they may quote what was said.
    fields = {"session_id": turn.request.ref.id, "agent": agent.name, "code": code}
    _log.error("no model answered: the agent's failure message was said", extra={"fields": fields})
    await turn.engine.settle(turn.request.ref, turn.append([message], metadata=metadata, last=True))
    now, llm = turn.engine.clock(), turn.request.voice.llm
    head = {"id": f"chatcmpl-{turn.session.id}-{turn.session.tail.last_seq}", "object": "chat.completion.chunk"}
    for chunk in shown.told_instead(text, {**head, "created": now // 1000, "model": llm.model}):
        yield chunk
        turn.closed = True


def failure_in(entry: Entry) -> dict[str, str] | None:
    """What a response tells of a failure message that is told again; None for any other reply."""
    metadata = entry.metadata or {}
    if metadata.get("source") != SOURCE:
        return None
    return {"code": str(metadata.get("error", ModelError.code)), "message": _AGAIN}


def _told(turn: Turn, words: str) -> str:
    """An error's words without the secrets in them, as long as an error may be."""
    guard = turn.engine.guard
    told = words if guard is None else guard.told(words)
    return told if len(told) <= ERROR_CHARS else told[:ERROR_CHARS] + "…"
