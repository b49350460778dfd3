"""Check the media of a request before its messages are decoded: the number of media, their sizes in bytes, and their pixels.

Sizes are computed from the length of the base64, pixels from an image's header. Base64 is validated but never decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast import limits
from holdfast.domain.images import read_size
from holdfast.domain.media.parts import format_bytes
from holdfast.domain.medium import DATA_FIELDS, DATA_URL, KINDS, Path, find_medium, replace_at
from holdfast.errors import InvalidMessage, TooLarge

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_\-\s]*+=?\s*+=?\s*+", re.ASCII)
"""Base64 in either alphabet, with line breaks. Possessive quantifiers prevent backtracking, so matching is never slow."""
_LISTS: Final = ("messages", "system_messages")
_IMPORT_LISTS: Final = ("images", "videos")
"""Lists in an import that contain media in base64. Its messages contain placeholders for these media."""


def check_media(body: Mapping[str, Any], most: int) -> None:
    """Check that the media in the body of a request are valid, and within the limits. Each may have `most` bytes.

    Raises:
        TooLarge: there are too many media, or one has too many bytes or pixels. The message says which limit, and
            where.
        InvalidMessage: a text is not valid base64. The message says where.
    """
    count = 0
    for place, part in _iterate_parts(body):
        count += 1
        _check_part(part, place, most)
    for place, text in _iterate_import_media(body):
        count += 1
        _check_text(text, place, most, encoded=True)
    if count > limits.REQUEST_MEDIA:
        found = f"the request has {count} images, recordings, videos and files"
        raise TooLarge(f"{found}; the server accepts at most {limits.REQUEST_MEDIA}", param="messages")


def remove_data(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message of a request without the data of its media, so that the size of the rest can be measured."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_remove_part_data(part) for part in content]}


def _remove_part_data(part: Any) -> Any:
    if _is_media(part):
        bare: Any = part
        for path, _, _ in _iterate_data(part):
            bare = replace_at(bare, path, "")
        return bare
    return remove_data(part) if _is_result(part) else part


def _iterate_parts(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in _LISTS:
        messages = body.get(name)
        for at, message in enumerate(messages if isinstance(messages, list) else ()):
            if isinstance(message, dict):
                yield from _iterate_media(message.get("content"), f"{name}[{at}].content")


def _iterate_media(content: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the position and the fields of each media part, including those in Anthropic's `tool_result` blocks."""
    for at, part in enumerate(content if isinstance(content, list) else ()):
        if _is_media(part):
            yield f"{where}[{at}]", part
        elif _is_result(part):
            yield from _iterate_media(part.get("content"), f"{where}[{at}].content")


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in KINDS


def _iterate_import_media(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _IMPORT_LISTS:
        given = body.get(name)
        for at, item in enumerate(given if isinstance(given, list) else ()):
            frames = item.get("frames") if isinstance(item, dict) else None
            if isinstance(item, str):
                yield f"{name}[{at}]", item
            for frame, text in enumerate(frames if isinstance(frames, list) else ()):
                if isinstance(text, str):
                    yield f"{name}[{at}].frames[{frame}]", text


def _check_part(part: Mapping[str, Any], place: str, most: int) -> None:
    for _, text, encoded in _iterate_data(part):
        _check_text(text, place, most, encoded=encoded)


def _iterate_data(part: Mapping[str, Any]) -> Iterator[tuple[Path, str, bool]]:
    """Yield each text of a part that contains data: its position, the text, and True if it must be valid base64.

    A URL field may contain any identifier of another server. So a text there need not be base64, unless it is a data
    URL.
    """
    found = find_medium(part["type"], part)
    for path, text in _iterate_texts(part, ()):
        own = found is not None and found.path == path
        if own and found is not None and found.form == "plain":
            continue
        named = path[-1] in DATA_FIELDS
        frame = len(path) > 1 and path[-2] == "frames"
        if own or named or frame or DATA_URL.match(text):
            yield path, text, (own and named) or frame


def _iterate_texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        if path:
            yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iterate_texts(item, (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _iterate_texts(item, (*path, at))


def _check_text(text: str, place: str, most: int, *, encoded: bool) -> None:
    """Check the size, encoding and pixels of a data URL or base64 text. `encoded` is True if it must be valid base64."""
    url = DATA_URL.match(text)
    start = url.end() if url else 0
    if url is not None and "base64" not in url[2].lower():
        _check_size(len(text) - start, place, most)
        return
    _check_size((len(text) - start) * 3 // 4, place, most)
    if (encoded or url is not None) and not _is_base64(text, start):
        raise InvalidMessage(f"{place} holds data that are not valid base64", param=place)
    size = read_size(text)
    if size is not None and size.width * size.height > limits.IMAGE_PIXELS:
        found = f"{place} is an image of {size.width} x {size.height} pixels"
        raise TooLarge(f"{found}; the server accepts at most {limits.IMAGE_PIXELS}", param=place)


def _check_size(size: int, place: str, most: int) -> None:
    if size > most:
        found = f"{place} holds {format_bytes(size)} ({size} bytes)"
        raise TooLarge(f"{found}; the server's gateway.max_media is {most}", param=place)


def _is_base64(text: str, start: int) -> bool:
    if _BASE64.fullmatch(text, start) is None:
        return False
    bare = len(text) - start - sum(text.count(space, start) for space in "= \t\r\n\v\f")
    return bare % 4 != 1
