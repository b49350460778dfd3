"""Messages that a provider refuses, replaced by notes in the prompts for that provider. The log keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.context.escaping import tag
from holdfast.context.window import Window
from holdfast.domain.messages import Message

NOTE: Final = "[message {seq} of the session is left out here{tag}: the model's provider refused it]"
RESULT_NOTE: Final = "[the result of a tool call in message {seq} of the session is left out with it{tag}]"


def refused_in(window: Window, upstream: str, without: Mapping[int, str]) -> dict[int, str]:
    """Return the reasons by `seq` of the messages in a window that are left out for an upstream.

    The current user message is never left out: if the provider refuses it, the client is told.

    Args:
        upstream: its name.
        without: further ones for this call alone.
    """
    if not without and not window.refused:
        return {}
    known = {seq: by[upstream] for seq, by in window.refused.items() if upstream in by}
    return {seq: why for seq, why in {**known, **without}.items() if seq != window.current}


def without_refused(window: Window, refused: Mapping[int, str], marker: str = "") -> list[Message]:
    """Return the conversation of a window with a note in place of each refused message.

    Where calls are refused, their results become notes too: a result without its call is refused by every provider.

    Args:
        window: what is sent.
        refused: reasons by `seq`.
        marker: the session's, for the notes.
    """
    messages = window.messages()
    if not refused:
        return messages
    calls: dict[str | None, int] = {}
    told: list[Message] = []
    for seq, message in zip(window.seqs(), messages, strict=True):
        if message.role != "tool":
            calls = {}
        if seq is not None and seq in refused and message.tool_calls:
            calls = {call.id: seq for call in message.tool_calls}
        if message.role == "tool" and message.tool_call_id in calls:
            told.append(
                Message(role="user", content=RESULT_NOTE.format(seq=calls[message.tool_call_id], tag=tag(marker)))
            )
        elif seq in refused:
            told.append(
                Message(
                    role=message.role, content=NOTE.format(seq=seq, tag=tag(marker)), tool_call_id=message.tool_call_id
                )
            )
        else:
            told.append(message)
    return told
