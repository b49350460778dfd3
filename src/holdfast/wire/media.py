"""What a media part holds, whichever client wrote it, and media parts as Chat Completions have them.

Nothing is fetched. What cannot be said in Chat Completions without losing something is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.media.parts import frames_of
from holdfast.domain.medium import Medium, medium
from holdfast.domain.messages import TEXT_PARTS, Message, Part

Media = Medium
SHOWN_BEHIND: Final = "[media: shown behind the results]"
"""In a tool's result, where Chat Completions take no media."""
FROM_RESULT: Final = "[media in the result of {id}]"
"""Before these, where they stand instead."""
FRAMES: Final = "[video{about}: Chat Completions take no such video]"
"""In place of a video that has no link and no data as a whole."""
_AUDIO_FORMATS: Final = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mp3": "mp3",
    "audio/mpeg": "mp3",
}
"""What Chat Completions take."""
_NATIVE: Final = frozenset({"text", "refusal", "image_url", "input_audio", "file", "video_url"})
"""Types that are theirs already."""
_KEPT: Final = ("cache_control",)
"""Fields of other dialects' parts that gateways to their models read in Chat Completions too."""


def media_of(part: Part) -> Media | None:
    """The medium in `part`; None where it has none that can be read."""
    return None if part.text is not None else medium(part.type, part.extra, part.held)


def chat(message: Message) -> Message:
    """`message` with the parts of other dialects as Chat Completions have them, where they can say the same.

    Anthropic's images and documents, and the parts of OpenAI's Responses. The same object where there are none.
    """
    if not isinstance(message.content, tuple) or all(part.type in _NATIVE for part in message.content):
        return message
    return message.evolve(content=tuple(_chat_part(part) for part in message.content))


def behind_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with what Chat Completions do not take in a tool's result behind it: they take text alone there.

    Other parts stand in a message of the user's role, behind all results of the round, and the result says so.
    """
    told: list[Message] = []
    moved: list[Part] = []
    for message in messages:
        if message.role != "tool":
            told += [Message(role="user", content=tuple(moved))] if moved else []
            moved = []
        elif parts := [part for part in message.media if part.type in _NATIVE]:
            content = message.content if isinstance(message.content, tuple) else ()
            texts = [part for part in content if part not in parts]
            moved += [Part("text", FROM_RESULT.format(id=message.tool_call_id)), *parts]
            message = message.evolve(content=(*texts, Part("text", SHOWN_BEHIND)))  # noqa: PLW2901 - as it is sent
        told.append(message)
    return (*told, Message(role="user", content=tuple(moved))) if moved else tuple(told)


def _chat_part(part: Part) -> Part:
    if part.type in _NATIVE:
        return part
    if part.text is not None:
        return msgspec.structs.replace(part, type="text") if part.type in TEXT_PARTS else part
    found = media_of(part)
    made = None if found is None else _made(found, part.extra)
    if made is None and part.type == "video":
        frames = frames_of(part)
        return Part("text", FRAMES.format(about=f": {len(frames)} frames" if frames else ""))
    if made is None:
        return part
    kind, fields = made
    return Part(kind, None if fields is not None else _words(found), {**(fields or {}), **_beside(part.extra)})


def _made(found: Media, extra: dict[str, Any]) -> tuple[str, dict[str, Any] | None] | None:
    """Type and fields of a part that says the same; fields None: it is a text. None when there is no such part."""
    match found.kind:
        case "image":
            url = found.url if found.url is not None else _data_url(found)
            detail = {"detail": extra["detail"]} if isinstance(extra.get("detail"), str) else {}
            return None if url is None else ("image_url", {"image_url": {"url": url, **detail}})
        case "file" if found.form == "plain":
            return "text", None
        case "file" if found.data is not None and (url := _data_url(found)) is not None:
            return "file", {"file": {"filename": found.name or "document.pdf", "file_data": url}}
        case "audio" if found.data is not None and found.mime in _AUDIO_FORMATS:
            return "input_audio", {"input_audio": {"data": found.data, "format": _AUDIO_FORMATS[found.mime]}}
        case "video" if (url := found.url or _data_url(found)) is not None:
            return "video_url", {"video_url": {"url": url}}
    return None


def _words(found: Media | None) -> str | None:
    if found is None or found.words is None:
        return None
    return f"{found.name}\n\n{found.words}" if found.name else found.words


def _data_url(found: Media) -> str | None:
    if found.data is None:
        return None
    if found.form == "base64" and found.start:
        return found.whole
    return f"data:{found.mime};base64,{found.data}" if found.mime else None


def _beside(extra: dict[str, Any]) -> dict[str, Any]:
    return {name: extra[name] for name in _KEPT if name in extra}
