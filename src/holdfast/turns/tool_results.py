"""Refuses results of tools that nobody asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from holdfast.domain.messages import Message
from holdfast.domain.session import Session
from holdfast.errors import InvalidMessage
from holdfast.limits import CALL_LOOKBACK
from holdfast.stores.base import Store


def unasked_result(session: Session | None, messages: Sequence[Message]) -> Message | None:
    """Return the first of the results that `messages` begin with whose call is not open in the session.

    Args:
        session: as it is; None: a new one.
        messages: new messages, to be written after its log.
    """
    open_calls = session.tail.open_calls if session else ()
    results = takewhile(lambda message: message.role == "tool", messages)
    return next((one for one in results if one.tool_call_id not in open_calls), None)


def refuse_result(message: Message) -> InvalidMessage:
    """Return the error for a result without its call."""
    text = f"the result of call {message.tool_call_id!r:.100} comes without the call: send the assistant message with it first"
    return InvalidMessage(text, param="messages[0].tool_call_id")


async def check_results(store: Store, session: Session, messages: Sequence[Message]) -> None:
    """Refuse results whose call is not in the session. A result that comes late, or once more, is taken.

    Raises:
        InvalidMessage: the call is not among the last `limits.CALL_LOOKBACK` messages.
    """
    unasked = unasked_result(session, messages)
    if unasked is None:
        return
    stored = await store.entries(session.ref, limit=CALL_LOOKBACK, descending=True) if session.messages else ()
    if not any(call.id == unasked.tool_call_id for entry in stored for call in entry.message.tool_calls):
        raise refuse_result(unasked)
