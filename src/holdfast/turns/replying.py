"""Writing what an agent says: with the reply's text under the agent's `output_key`, in the write that records the reply."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.domain.messages import Message
from holdfast.domain.state import TEMP
from holdfast.errors import InvalidRequest
from holdfast.stores.log import Appended
from holdfast.turns.turn import Turn

_log = logging.getLogger("holdfast.turn")


async def append_reply(
    turn: Turn,
    messages: Sequence[Message],
    text: str | None,
    *,
    state_delta: Mapping[str, Any] | None = None,
    **how: Any,
) -> Appended:
    """Write messages that end the reply of the turn's agent.

    Where the state refuses the text (it is too long for a value, say), the reply is written without it: it must not be lost
    for that. A log line tells.

    Args:
        turn: whose agent replies.
        messages: the reply, and what is written with it.
        text: of the whole reply; None, or nothing: it is none that is kept.
        state_delta: other changes of the state.
        how: see `Turn.append`.

    Raises:
        InvalidRequest: the store refuses the messages, or the other changes.
    """
    agent = turn.request.voice.agent
    key = agent.output_key if agent is not None and text else None
    if key is None:
        return await turn.append(messages, state_delta=state_delta, **how)
    if key.startswith(TEMP):
        appended = await turn.append(messages, state_delta=state_delta, **how)
        turn.temp[key] = text
        return appended
    try:
        return await turn.append(messages, state_delta={**(state_delta or {}), key: text}, **how)
    except InvalidRequest as exc:
        appended = await turn.append(messages, state_delta=state_delta, **how)
        fields = {
            "session_id": turn.request.ref.id,
            "agent": turn.request.voice.agent_name,
            "key": key,
            "code": exc.code,
        }
        _log.warning("a reply could not be kept under its agent's output_key", extra={"fields": fields})
        return appended


def text_of_reply(messages: Sequence[Message]) -> str | None:
    """The text of the last of these messages that is a whole reply: an assistant's without calls; None: there is none."""
    last = next((one for one in reversed(messages) if one.role == "assistant"), None)
    return None if last is None or last.tool_calls else last.text
