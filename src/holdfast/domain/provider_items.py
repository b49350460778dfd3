"""Items of OpenAI's Responses API that only their provider can read: calls of its own tools, and its compactions of a conversation.

A message contains such items in `extra`, among its reasoning details. A compaction item that a client sends on its own is a message of the
assistant without content. Prompts for models with the Responses API contain the items; see docs/compaction-apis.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain.messages import Message

DETAILS: Final = "reasoning_details"
"""Field of a message with the reasoning details, as OpenRouter names it."""
HOSTED: Final = "response.item"
"""Type of the reasoning details that contain an item."""
FORMAT: Final = "openai-responses-v1"
"""Value of `format` in reasoning details that come from the Responses API, as OpenRouter names it."""
ENCRYPTED: Final = "encrypted_content"
CALLS: Final = ("function_call", "custom_tool_call")
"""Types of items that are calls of tools of the request."""


def is_provider_compaction(item: object) -> bool:
    """Return True for a compaction item that has content. Whether Holdfast or a provider made it is not checked."""
    if not isinstance(item, Mapping) or item.get("type") != "compaction":
        return False
    return isinstance(item.get(ENCRYPTED), str) and bool(item[ENCRYPTED])


def list_details(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the reasoning details in the fields of a message, or of a delta, that contain an item."""
    given = fields.get(DETAILS)
    details = given if isinstance(given, list | tuple) else ()
    return [
        one
        for one in details
        if isinstance(one, Mapping) and one.get("type") == HOSTED and isinstance(one.get("item"), Mapping)
    ]


def has_compaction(message: Message) -> bool:
    """Return True if a message contains a compaction item."""
    return bool(message.extra) and any(is_provider_compaction(one["item"]) for one in list_details(message.extra))


def with_compactions(message: Message, items: Sequence[Mapping[str, Any]]) -> Message:
    """Return a message of the assistant with compaction items from a client. Which provider made them is not known."""
    details = [{"type": HOSTED, "format": FORMAT, "index": at, "item": item} for at, item in enumerate(items)]
    return message.evolve(extra={**message.extra, DETAILS: details}) if items else message


def drop_items(message: Message) -> Message:
    """Return a message without the items of a provider; the same object if it contains none."""
    if not message.extra or not list_details(message.extra):
        return message
    rest = [one for one in message.extra[DETAILS] if not isinstance(one, Mapping) or one.get("type") != HOSTED]
    extra = {name: value for name, value in message.extra.items() if name != DETAILS}
    return message.evolve(extra={**extra, DETAILS: rest} if rest else extra)
