"""Read sessions that mistral.rs exported: their messages contain a placeholder for each medium, and the media are in lists.

`{"messages": […, {"type": "image"}, …], "images": [base64], "videos": [{"fps", "frames": [base64], …}]}`.

The media are in the order of their placeholders. Tool results do not contain the id of their call, but are in the order
of the calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.domain.medium import decode_base64
from holdfast.errors import InvalidMessage, InvalidRequest

_LISTS: Final = {"images": "image", "videos": "video"}
_MAGIC: Final = ((b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"), (b"RIFF", "image/webp"), (b"BM", "image/bmp"))
_PNG: Final = "image/png"
"""The format in which mistral.rs writes every image."""
_HEAD: Final = 16


def restore_media(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an import in which each placeholder is replaced by its medium; the same object if it has no media in lists.

    Raises:
        InvalidRequest: the numbers of media and placeholders differ, or a medium is invalid. The message says which.
    """
    messages = data.get("messages")
    given = {name: data[name] for name in _LISTS if isinstance(data.get(name), list)}
    if not isinstance(messages, list) or not given or any(map(_is_mention, given.values())):
        return data
    made = _assign_call_ids([_copy(message) for message in messages])
    for name, kind in _LISTS.items():
        _fill_placeholders(made, name, kind, given.get(name, []))
    return {**data, "messages": made, **{name: [] for name in given}}


def _is_mention(items: Sequence[Any]) -> bool:
    """Return True if a list only describes media, because the messages contain the media themselves."""
    return any(isinstance(item, Mapping) and "seq" in item for item in items)


def _copy(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    return {**message, "content": list(content)} if isinstance(content, list) else dict(message)


def _fill_placeholders(messages: list[Any], name: str, kind: str, items: Sequence[Any]) -> None:
    places = list(_find_placeholders(messages, kind))
    if len(places) != len(items):
        counts = f"{name} has {len(items)} items, and the messages have {len(places)} parts"
        raise InvalidRequest(f'{counts} {{"type": "{kind}"}} as placeholders: there must be one for each', param=name)
    for at, ((content, place), item) in enumerate(zip(places, items, strict=True)):
        where = f"{name}[{at}]"
        content[place] = _make_image_part(item, where) if kind == "image" else _make_video_part(item, where)


def _find_placeholders(messages: list[Any], kind: str) -> Iterator[tuple[list[Any], int]]:
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        for place, part in enumerate(content):
            if isinstance(part, Mapping) and dict(part) == {"type": kind}:
                yield content, place


def _make_image_part(item: Any, where: str) -> dict[str, Any]:
    head = _check_base64(item, where)
    mime = next((mime for magic, mime in _MAGIC if head.startswith(magic)), _PNG)
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{item}"}}


def _make_video_part(item: Any, where: str) -> dict[str, Any]:
    frames = item.get("frames") if isinstance(item, Mapping) else None
    if not isinstance(frames, list):
        raise InvalidMessage(f"{where} must be an object with frames, a list of images in base64", param=where)
    for at, frame in enumerate(frames):
        _check_base64(frame, f"{where}.frames[{at}]")
    return {"type": "video", **item}


def _check_base64(item: Any, where: str) -> bytes:
    """Return the first bytes of an image in base64.

    Raises:
        InvalidMessage: the item is not valid base64.
    """
    content = decode_base64(item) if isinstance(item, str) else None
    if not content:
        raise InvalidMessage(f"{where} must be an image in base64, but could not be decoded", param=where)
    return content[:_HEAD]


def _assign_call_ids(messages: list[Any]) -> list[Any]:
    """Add the call id to each tool result without one. Results belong to the preceding calls, in order."""
    left: list[Any] = []
    for message in messages:
        if not isinstance(message, dict):
            continue
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            left = [call.get("id") for call in calls if isinstance(call, Mapping)]
        elif message.get("role") == "tool" and not message.get("tool_call_id") and left:
            message["tool_call_id"] = left.pop(0)
    return messages
