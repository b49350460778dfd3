"""Detach media data from messages, and restore them exactly.

A part keeps its structure. In the text that contained the data, the beginning before the data stays, such as
`data:image/png;base64,`. `Part.held` refers to the data by their SHA-256. Only this module writes that field, and no
wire format contains it. So a request cannot refer to stored content, and content is looked up only in the message's own
session.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.domain.images import Picture, parse_picture
from holdfast.domain.medium import KINDS, DetachedData, Kind, detach_data, find_medium, replace_at
from holdfast.domain.messages import Message, Part
from holdfast.limits import VIDEO_FRAMES

_TAKES: dict[Kind, str] = {"image": "images", "audio": "audio", "video": "videos", "file": "files"}
_URL_CHARS = 200
"""Number of characters of a link that are shown in a description."""


def take_out_data(
    messages: Sequence[Message], contents: dict[bytes, bytes], *, plain: bool = True
) -> tuple[Message, ...]:
    """Return the messages without their media data. Messages without data are returned as the same objects.

    Args:
        messages: the messages. Some of their data may already be detached.
        contents: receives the detached data by their SHA-256.
        plain: False: do not detach data that are not in base64, or that are in unusual fields.
    """
    return tuple(
        _map_stored_media(message, lambda part: _detach_part_data(part, contents, plain=plain)) for message in messages
    )


def _detach_part_data(part: Part, contents: dict[bytes, bytes], *, plain: bool) -> Part:
    extra, held = detach_data(part.type, part.extra, part.held, contents, plain=plain)
    return part if held is part.held else msgspec.structs.replace(part, extra=extra, held=held)


def restore_data(message: Message, contents: Mapping[bytes, bytes]) -> Message:
    """Return the message with its media data restored. Data that are missing from `contents` stay detached."""
    return _map_stored_media(message, lambda part: _restore_part_data(part, contents))


def _restore_part_data(part: Part, contents: Mapping[bytes, bytes]) -> Part:
    extra, left = part.extra, []
    for one in part.held:
        content = contents.get(one.hash)
        if content is None:
            left.append(one)
        else:
            extra = replace_at(extra, one.path, _restore_text(extra, one, content))
    return part if extra is part.extra else msgspec.structs.replace(part, extra=extra, held=tuple(left))


def _restore_text(extra: Mapping[str, Any], one: DetachedData, content: bytes) -> str:
    return content.decode() if one.text else _get_text_at(extra, one) + base64.b64encode(content).decode()


def _get_text_at(extra: Any, one: DetachedData) -> str:
    """Return the text that was left in a part's fields when its data were detached."""
    for key in one.path:
        extra = extra[key]
    return str(extra)


def list_hashes(messages: Iterable[Message], *, origins: bool = True) -> tuple[bytes, ...]:
    """Return the SHA-256 of all detached data that the messages refer to, in order and without duplicates.

    Args:
        messages: the messages.
        origins: False leaves out data that were detached from `Message.origin`, which no model receives.
    """
    found: dict[bytes, None] = {}
    for message in messages:
        for part in message.media:
            found.update(dict.fromkeys(one.hash for one in part.held))
        if origins and message.origin_held:
            found.update(dict.fromkeys(one.hash for one in message.origin_held))
    return tuple(found)


def count_chars(messages: Iterable[Message]) -> int:
    """Return the number of characters in media parts and in `Message.origin`, as an estimate of the time for detaching their data."""
    chars = 0
    for message in messages:
        chars += sum(_count_chars(part.extra) for part in message.media if part.type in KINDS)
        if message.origin is not None:
            chars += _count_chars(message.origin)
    return chars


def measure_part(part: Part) -> int:
    """Return the characters of a media part with its data, as it is sent."""
    return sum(one.chars for one in part.held) + _count_chars(part.extra)


def _count_chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return sum(map(_count_chars, inner))


_ORIGIN = "origin"


def _map_stored_media(message: Message, change: Callable[[Part], Part]) -> Message:
    """Return the message with `change` applied to its media parts and its origin; the same object if nothing changes."""
    message = _map_media_parts(message, change)
    if message.origin is None:
        return message
    before = _wrap_origin(message)
    after = change(before)
    return message if after is before else message.evolve(origin=after.extra[_ORIGIN], origin_held=after.held)


def _wrap_origin(message: Message) -> Part:
    """Return the origin of a message as a media part, because its data are detached and restored like those of parts."""
    return Part("file", None, {_ORIGIN: message.origin}, message.origin_held)


def _map_media_parts(message: Message, change: Any) -> Message:
    """Return the message with `change` applied to each of its media parts; the same object if no part changes."""
    if not isinstance(message.content, tuple):
        return message
    parts = tuple(change(part) if part.text is None else part for part in message.content)
    same = all(new is old for new, old in zip(parts, message.content, strict=True))
    return message if same else message.evolve(content=parts)


def get_picture(part: Part) -> Picture:
    """Return the properties of the image in a part, even if its data are detached."""
    if not part.held:
        return parse_picture(part.extra)
    return parse_picture(part.extra, {one.path: one.pixels for one in part.held})


# -- describing media without their data -------------------------------------


def mark_part(part: Part) -> dict[str, Any]:
    """Return the fields of a part. A description that cannot be mistaken for data replaces the detached data."""
    extra = part.extra
    for one in part.held:
        about = ", ".join(
            filter(None, [*_list_properties(one.mime, one.pixels, one.length or one.size), f"sha256:{one.sha256}"])
        )
        extra = replace_at(extra, one.path, f"{_get_text_at(extra, one)}[{about}]")
    return extra


def mark_parts(message: Message) -> Message:
    """Return the message with descriptions in place of media data that are still detached; the same object if there are none."""
    return _map_media_parts(
        message, lambda part: msgspec.structs.replace(part, extra=mark_part(part), held=()) if part.held else part
    )


def show_to_model(message: Message, inputs: Collection[str] | None) -> Message:
    """Return the message with descriptions in place of the media that the model does not accept.

    If the model accepts images but no videos, the frames of a video are shown as images.

    Args:
        message: the message.
        inputs: the kinds of media that the model accepts; None: all kinds.
    """
    if inputs is None:
        return message
    if "image" in inputs and "video" not in inputs:
        message = _expand_videos(message)
    return _map_media_parts(message, lambda part: _replace_unsupported(part, inputs))


def _expand_videos(message: Message) -> Message:
    """Replace each video that consists of frames (mistral.rs) by images, at most `VIDEO_FRAMES` per video."""
    content = message.content
    if not isinstance(content, tuple) or not any(get_frames(part) for part in content):
        return message
    return message.evolve(content=tuple(made for part in content for made in _expand_video(part)))


def get_frames(part: Part) -> Sequence[Any]:
    """Return the frames of a video that consists of images; an empty sequence for any other part."""
    frames = part.extra.get("frames") if part.type == "video" else None
    return frames if isinstance(frames, list) and all(isinstance(frame, str) for frame in frames) else ()


def _expand_video(part: Part) -> Iterable[Part]:
    frames = get_frames(part)
    if not frames:
        return (part,)
    step = max(1, math.ceil(len(frames) / VIDEO_FRAMES))
    chosen = range(0, len(frames), step)
    held = {one.path: one for one in part.held}
    note = Part("text", f"[video: {len(frames)} frames, of which {len(chosen)} follow as images]")
    return (note, *(_make_frame_part(frames[at], held.get(("frames", at))) for at in chosen))


def _make_frame_part(text: str, held: DetachedData | None) -> Part:
    """Return a frame of a video as an image part. mistral.rs writes frames as PNG in base64."""
    url = text if text.startswith("data:") else f"data:image/png;base64,{text}"
    moved_ = () if held is None else (msgspec.structs.replace(held, path=("image_url", "url")),)
    return Part("image_url", None, {"image_url": {"url": url}}, moved_)


def _replace_unsupported(part: Part, inputs: Collection[str]) -> Part:
    kind = KINDS.get(part.type)
    if kind is None or kind in inputs:
        return part
    return Part("text", f"[{kind}{describe_part(part)}: this model takes no {_TAKES[kind]}]")


def describe_part(part: Part) -> str:
    """Return a description of the medium in a part: `: image/png, 640x480, 31 kB`."""
    found = find_medium(part.type, part.extra, part.held)
    if found is None:
        return ""
    if found.url is not None:
        return f": {found.url[:_URL_CHARS]}"
    return ": " + ", ".join(filter(None, [found.name, *_list_properties(found.mime, found.size, found.length)]))


def mark_origin(message: Message) -> Any:
    """Return the origin of a message, with a description in place of its detached data."""
    return mark_part(_wrap_origin(message))[_ORIGIN]


def _list_properties(mime: str | None, size: tuple[int, int] | None, count: int | None) -> list[str | None]:
    return [mime, f"{size[0]}x{size[1]}" if size else None, None if count is None else format_bytes(count)]


def format_bytes(count: int) -> str:
    """Format a number of bytes for people: `31 kB`."""
    amount, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "bytes" else f"{amount:.1f} {unit}"
