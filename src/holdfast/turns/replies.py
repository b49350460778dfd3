"""Write what an agent says: the model's reply, or the agent's failure message.

The text of the reply is also stored in the state under the agent's `output_key`, in the same write. A failure message
replaces the reply if no model answers and nothing was said yet. Without it, the user of a voice agent would hear
silence, because a voice agent cannot show an error. The failure message is in the log like any reply, but marked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.domain.state import TEMP
from holdfast.errors import InvalidRequest, ModelError, ModelRejected
from holdfast.limits import ERROR_CHARS
from holdfast.log.items import Head
from holdfast.stores.log import Appended
from holdfast.turns.model_call import OF_KEY
from holdfast.turns.prompt import fill_template
from holdfast.turns.reply_assembler import ReplyAssembler, with_artifacts
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
    """Write the messages that end the reply of the turn's agent, and store the text of the reply in the state.

    The state may refuse the text, for example because it is too long for a value. The reply is then written without
    storing the text, so that the reply is not lost, and a warning is logged.

    Args:
        turn: the turn of the agent.
        messages: the reply, and other messages to write with it.
        text: the text of the whole reply; None or empty: no text is stored in the state.
        state_delta: other changes of the state.
        **how: other arguments of `Turn.append`.

    Raises:
        InvalidRequest: the store refuses the messages, or the other changes.
    """
    agent = turn.request.responder.agent
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
            "agent": turn.request.responder.agent_name,
            "key": key,
            "code": exc.code,
        }
        _log.warning("a reply could not be stored under its agent's output_key", extra={"fields": fields})
        return appended


def read_reply_text(messages: Sequence[Message]) -> str | None:
    """Return the text of the last assistant message; None if there is no assistant message, or the last one has tool calls."""
    last = next((one for one in reversed(messages) if one.role == "assistant"), None)
    return None if last is None or last.tool_calls else last.text


SOURCE: Final = "llm_failure"
"""Value of `metadata.source` of a failure message."""
_AGAIN: Final = "no model answered when this was asked first"


async def make_failure_text(turn: Turn, assembler: ReplyAssembler, error: ModelError) -> str | None:
    """Return the failure message that the turn's agent says after `error`, or None.

    The result is None if the agent has no failure message, if something was said already, or if a provider refused the
    caller's own key: the caller gets the error in this case, because only the caller can fix it.
    """
    agent = turn.request.responder.agent
    own_key = error.handed and isinstance(error, ModelRejected) and error.status in OF_KEY
    if agent is None or not agent.failure_message or assembler.has_spoken or own_key:
        return None
    text = await fill_template(turn.engine, turn.session, agent.failure_message, agent, turn.temp)
    return text if text.strip() else None


async def say_failure(
    turn: Turn, assembler: ReplyAssembler, text: str, error: ModelError, *, whole: Turn | None = None
) -> None:
    """Write the failure message to the log as the end of the reply, and send it.

    Args:
        turn: the turn of an agent with a failure message.
        assembler: the reply so far.
        text: the failure message, from `make_failure_text`.
        error: the error that it replaces.
        whole: the turn of which `turn` is a part; None: it is the whole turn.
    """
    agent, code, whole = turn.request.responder.agent, error.code, whole or turn
    assert agent is not None, "only an agent has a failure message"
    sent = assembler.separate_text(text)
    metadata = with_artifacts(turn, {**(assembler.metadata or {}), "source": SOURCE, "error": code})
    whole.failure = {"code": code, "message": _make_error_text(turn, error.public_message)}
    turn.engine.failures[code] += 1
    # The upstream's message is not logged, because it may quote the conversation.
    fields = {"session_id": turn.request.ref.id, "agent": agent.name, "code": code}
    _log.error("no model answered: the agent's failure message was said", extra={"fields": fields})
    reply = Message(role="assistant", content=text)
    await turn.settle(turn.append([reply], metadata=metadata, last=True))
    for deltas in assembler.end_with_text(sent, make_head(turn, turn.request.responder.llm.model)):
        await whole.say(deltas)
        whole.closed = True


def make_head(turn: Turn, model: str) -> Head:
    """Return the head of a reply that no model began."""
    name = f"chatcmpl-{turn.session.id}-{turn.session.tail.last_seq}"
    return Head({"id": name, "created": turn.engine.clock() // 1000, "model": model})


def read_failure(entry: Entry) -> dict[str, str] | None:
    """Return the `code` of the error that a failure message replaced, and a fixed `message`; None if `entry` is no failure message.

    The response reports these values if it repeats a stored failure message.
    """
    metadata = entry.metadata or {}
    if metadata.get("source") != SOURCE:
        return None
    return {"code": str(metadata.get("error", ModelError.code)), "message": _AGAIN}


def _make_error_text(turn: Turn, words: str) -> str:
    """Return the message of an error without secrets, cut to the maximum length."""
    guard = turn.engine.guard
    masked = words if guard is None else guard.mask_text(words)
    return masked if len(masked) <= ERROR_CHARS else masked[:ERROR_CHARS] + "…"
