"""Examine prompts: find the values that a call needed and their context, tool calls without results, and the task of the session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.domain.messages import SYSTEM_ROLES, Message, ToolCall


class SessionTexts:
    """Finds the first message that contained a value, among the messages replayed so far.

    System messages are ignored, because every prompt contains them.
    """

    def __init__(self) -> None:
        self._texts: list[tuple[str, tuple[str, ...]]] = []
        self._calls: dict[str, tuple[str, ...]] = {}

    def add(self, message: Message) -> None:
        """Add the next message of the session."""
        if message.role in SYSTEM_ROLES:
            return
        for call in message.tool_calls:
            self._calls[call.id] = tuple(value for value in _list_arguments(call) if isinstance(value, str) and value)
        belongs = self._calls.get(str(message.tool_call_id), ()) if message.role == "tool" else ()
        self._texts.append((_get_text(message), belongs))

    def find_origin(self, value: str) -> tuple[str, ...] | None:
        """Return the string arguments of the tool call whose result was the first message that contained `value`.

        Return an empty tuple if the first message with the value was no tool result, or if the call had no string arguments. Return None if
        no message contained the value.
        """
        return next((belongs for text, belongs in self._texts if value in text), None)


def list_blocks(built: WorkingSet, conversation: Sequence[Message]) -> list[str]:
    """Return the blocks of a prompt. Two values in the same block are regarded as being together.

    A block is a message, a tool call with its results, or a single line of a digest or summary.
    """
    compaction_texts = [one.text for one in (built.window.summary, built.window.compaction) if one is not None]
    blocks: list[str] = []
    for message in conversation:
        if isinstance(message.content, str) and message.content in compaction_texts:
            blocks += message.content.splitlines()
        elif message.role == "tool" and blocks:
            blocks[-1] += "\n" + _get_text(message)
        else:
            blocks.append(_get_text(message))
    return blocks


def is_bound(value: str, origin: tuple[str, ...], blocks: Sequence[str]) -> bool:
    """Return True if a block contains `value`, together with one of the arguments in `origin` unless `origin` is empty."""
    holding = (block for block in blocks if value in block)
    return any(not origin or any(argument in block for argument in origin) for block in holding)


def list_values(message: Message) -> list[str]:
    """Return the argument values in a message's tool calls, without duplicates.

    Values with fewer than 4 characters or digits are left out.
    """
    found: dict[str, None] = {}
    for call in message.tool_calls:
        for value in _list_arguments(call):
            if len(value if isinstance(value, str) else "".join(filter(str.isdigit, str(value)))) >= 4:
                found[str(value)] = None
    return list(found)


def _list_arguments(call: ToolCall) -> Iterator[str | int | float]:
    """Yield the strings and numbers in the arguments of a call, at any depth. Yield none if the arguments are not valid JSON."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    yield from _list_scalars(arguments)


def _list_scalars(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _list_scalars(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _get_text(message: Message) -> str:
    return "\n".join((message.text, *(call.arguments for call in message.tool_calls)))


def has_orphan(messages: Sequence[Message]) -> bool:
    """Return True if a tool call is not directly followed by its result, or if a result does not directly follow its call."""
    open_calls: set[str] = set()
    for before, message in pairwise((Message(role="user"), *messages, Message(role="user"))):
        if message.role == "tool":
            if (before.role != "tool" and not before.tool_calls) or message.tool_call_id not in open_calls:
                return True
            open_calls.discard(str(message.tool_call_id))
        elif open_calls:
            return True
        else:
            open_calls = {call.id for call in message.tool_calls}
    return False


def has_task(messages: Sequence[Message], task: Message | None) -> bool:
    """Return True if a prompt contains the task, which is the first user message of the session. The message may be shortened."""
    if task is None:
        return True
    opening = task.text[:40]
    return any(message.role == "user" and opening in message.text for message in messages)
