"""What each provider's dialect wants of a conversation beyond what holds for all of them.

The log and the window know nothing of it: a working set is adapted when it leaves, in the same way each time, so that
the bytes before the frontier stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import msgspec

from holdfast.context.units import distinct_id, labelled
from holdfast.errors import InvalidRequest
from holdfast.messages import SYSTEM_ROLES, Message

Dialect = Literal["openai", "anthropic", "gemini"]
DIALECTS: tuple[str, ...] = get_args(Dialect)
OPENING = "[the conversation begins with the assistant]"
"""Stands first where a dialect wants the user to begin and the assistant did."""
CLOSING = "[continue]"
"""Stands last where a dialect wants the user to end and the assistant did."""
SYSTEM_NOTE = "[a system message at this place of the conversation]\n"
"""Before a system message inside the conversation, where a dialect knows them only in front."""
RESERVE = 48
"""Tokens that a window leaves free for what `adapted` may add, so that it seldom has to be made smaller for that."""


def checked(dialect: str) -> Dialect:
    """`dialect` if it is one; `InvalidRequest` otherwise."""
    if dialect not in DIALECTS:
        raise InvalidRequest(f"dialect {dialect!r} is unknown; known: {', '.join(DIALECTS)}", param="dialect")
    return dialect  # type: ignore[return-value]  # just checked


def adapted(messages: Sequence[Message], dialect: Dialect) -> list[Message]:
    """The conversation, without the system prompt, as `dialect` takes it.

    OpenAI takes it as it is. Anthropic and Gemini want the user to begin and to end, system messages in front only, and
    tool-call ids that no other call of the prompt has.
    """
    if dialect == "openai":
        return list(messages)
    told = [_without_system_role(message) for message in _with_distinct_ids(messages)]
    if told and told[0].role == "assistant":
        told.insert(0, Message(role="user", content=OPENING))
    if told and told[-1].role == "assistant":
        told.append(Message(role="user", content=CLOSING))
    return told


def _without_system_role(message: Message) -> Message:
    if message.role not in SYSTEM_ROLES:
        return message
    return message.evolve(role="user", content=labelled(message.content, SYSTEM_NOTE))


def _with_distinct_ids(messages: Sequence[Message]) -> list[Message]:
    """Recordings reuse tool-call ids; a second use gets a number, and so do its results, which follow it directly."""
    used: set[str] = set()
    renamed: dict[str, str] = {}
    told = []
    for message in messages:
        if message.tool_calls:
            renamed = {call.id: distinct_id(call.id, used) for call in message.tool_calls}
        told.append(_with_ids(message, renamed))
    return told


def _with_ids(message: Message, renamed: Mapping[str, str]) -> Message:
    """`message` with the ids of its calls, or of the call it answers, as in `renamed`."""
    if message.tool_calls:
        calls = tuple(msgspec.structs.replace(call, id=renamed[call.id]) for call in message.tool_calls)
        return message.evolve(tool_calls=calls)
    if message.role == "tool":
        return message.evolve(tool_call_id=renamed[str(message.tool_call_id)])
    return message
