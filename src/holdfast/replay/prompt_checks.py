"""What is looked for in a prompt: values that a call needed and what they belong to, orphans, the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.domain.messages import SYSTEM_ROLES, Message, ToolCall


class Said:
    """What a session said so far, and where a value first came from.

    System messages do not count, wherever they stand: they are instructions, and are sent with every prompt anyway.
    """

    def __init__(self) -> None:
        self._texts: list[tuple[str, tuple[str, ...]]] = []
        self._calls: dict[str, tuple[str, ...]] = {}

    def add(self, message: Message) -> None:
        """The next message of the session."""
        if message.role in SYSTEM_ROLES:
            return
        for call in message.tool_calls:
            self._calls[call.id] = tuple(value for value in _arguments(call) if isinstance(value, str) and value)
        belongs = self._calls.get(str(message.tool_call_id), ()) if message.role == "tool" else ()
        self._texts.append((_haystack(message), belongs))

    def origin(self, value: str) -> tuple[str, ...] | None:
        """The string arguments of the call whose result first held `value`; None where it was never said.

        Empty where it was first said in conversation, or the call had none.
        """
        return next((belongs for text, belongs in self._texts if value in text), None)


def blocks_of(built: WorkingSet, conversation: Sequence[Message]) -> list[str]:
    """What counts as standing together: a unit, or one line of a compaction."""
    laid = [one.text for one in (built.window.summary, built.window.compaction) if one is not None]
    blocks: list[str] = []
    for message in conversation:
        if isinstance(message.content, str) and message.content in laid:
            blocks += message.content.splitlines()
        elif message.role == "tool" and blocks:
            blocks[-1] += "\n" + _haystack(message)
        else:
            blocks.append(_haystack(message))
    return blocks


def is_bound(value: str, origin: tuple[str, ...], blocks: Sequence[str]) -> bool:
    """Whether `value` stands there, and with one of the arguments it was found by if it was found by any."""
    holding = (block for block in blocks if value in block)
    return any(not origin or any(argument in block for argument in origin) for block in holding)


def values_of(message: Message) -> list[str]:
    """The distinct argument values of a message's tool calls: strings of 4 or more characters, numbers of 4 or more digits."""
    found: dict[str, None] = {}
    for call in message.tool_calls:
        for value in _arguments(call):
            if len(value if isinstance(value, str) else "".join(filter(str.isdigit, str(value)))) >= 4:
                found[str(value)] = None
    return list(found)


def _arguments(call: ToolCall) -> Iterator[str | int | float]:
    """The scalars in a call's arguments; nothing where they are no JSON."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    yield from _scalars(arguments)


def _scalars(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _haystack(message: Message) -> str:
    return "\n".join((message.text, *(call.arguments for call in message.tool_calls)))


def has_orphan(messages: Sequence[Message]) -> bool:
    """Whether a call lacks its result, or a result its call, directly behind each other."""
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
    """Whether the task is there: the first user message, whole or as a marked stub of it."""
    if task is None:
        return True
    opening = task.text[:40]
    return any(message.role == "user" and opening in message.text for message in messages)
