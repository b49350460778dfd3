"""What a media part holds, whichever client wrote it: OpenAI's parts of both its APIs, Anthropic's blocks, data URLs.

Nothing is fetched and nothing decoded; a part that says neither data nor a place where it lies is none.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from holdfast.messages import Part

Kind = Literal["image", "audio", "video", "file"]
_KINDS: dict[str, Kind] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "document": "file",
    "file": "file",
    "input_file": "file",
}
_MIME_BY_NAME = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "heic": "image/heic",
    "heif": "image/heif",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "md": "text/markdown",
    "mp3": "audio/mp3",
    "wav": "audio/wav",
    "ogg": "audio/ogg",
    "flac": "audio/flac",
    "mp4": "video/mp4",
    "mov": "video/mov",
    "webm": "video/webm",
}
"""A table of its own: the one of the standard library also reads the machine's files, and differs from one to the next."""
_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)


class Media(msgspec.Struct, frozen=True, gc=False):
    """One medium: `data` in base64, or the `url` where it lies."""

    kind: Kind
    mime: str | None = None
    data: str | None = None
    url: str | None = None
    name: str | None = None

    @property
    def words(self) -> str | None:
        """The text of a text file that stands in the part itself."""
        if self.data is None or not (self.mime or "").startswith("text/"):
            return None
        try:
            return base64.b64decode(self.data, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None


def media_of(part: Part) -> Media | None:
    """The medium in `part`; None where it has none that can be read."""
    kind = _KINDS.get(part.type)
    if kind is None or part.text is not None:
        return None
    source = part.extra.get("source")
    if isinstance(source, Mapping):
        return _of_source(kind, source, _text(part.extra.get("title")))
    fields = part.extra.get(part.type.removeprefix("input_") if kind == "file" else part.type)
    if isinstance(fields, str):
        return _of_url(kind, fields, None)
    if not isinstance(fields, Mapping):
        fields = part.extra
    name = _text(fields.get("filename"))
    for key in ("url", "image_url", "file_url", "file_data"):
        if value := _text(fields.get(key)):
            return _of_url(kind, value, name)
    if data := _text(fields.get("data")):
        form = _text(fields.get("format"))
        return Media(kind, f"{kind}/{form}" if form and kind == "audio" else None, data, name=name)
    return None


def _of_source(kind: Kind, source: Mapping[str, Any], name: str | None) -> Media | None:
    """Anthropic's `source` of an image or a document."""
    mime, data, url = (_text(source.get(key)) for key in ("media_type", "data", "url"))
    match source.get("type"):
        case "base64" if data:
            return Media(kind, mime, data, name=name)
        case "text" if data:
            return Media(kind, "text/plain", base64.b64encode(data.encode()).decode(), name=name)
        case "url" if url:
            return Media(kind, _mime_of(url), url=url, name=name)
    return None


def _of_url(kind: Kind, url: str, name: str | None) -> Media:
    found = _DATA_URL.match(url)
    if found is None and "://" not in url[:16]:
        return Media(kind, _mime_of(name or "") or ("application/pdf" if kind == "file" else None), url, name=name)
    if found is None:
        return Media(kind, _mime_of(url) or _mime_of(name or ""), url=url, name=name)
    data = url[found.end() :]
    if "base64" not in found[2].lower():
        data = base64.b64encode(unquote_to_bytes(data)).decode()
    return Media(kind, found[1].lower() or "text/plain", data, name=name)


def _mime_of(name: str) -> str | None:
    """By the ending of a file's name or of a URL's path."""
    try:
        path = urlsplit(name).path
    except ValueError:
        return None
    return _MIME_BY_NAME.get(path.rpartition(".")[2].lower()) if "." in path else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
