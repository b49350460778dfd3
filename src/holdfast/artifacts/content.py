"""Determine the media type of an artifact's content, decode text, and measure the size and hash of a stream."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator
from mimetypes import MimeTypes
from typing import Any, Final

from holdfast.errors import InvalidRequest, TooLarge, UnsupportedType

UNKNOWN: Final = "application/octet-stream"
HEAD_BYTES: Final = 1024
"""Number of bytes at the start of a content that are examined to determine its type."""
_TOKEN: Final = r"[A-Za-z0-9!#$&^_.+-]{1,127}"  # noqa: S105  # part of a grammar
_TYPE: Final = re.compile(rf'({_TOKEN}/{_TOKEN})((?: ?; ?{_TOKEN}=(?:{_TOKEN}|"[\x20\x21\x23-\x5b\x5d-\x7e]*"))*)')
_MAX_CHARS: Final = 255
_known = MimeTypes()
"""Python's own table of media types, and the types that some Python versions lack. Tables of the system are not used, because they differ
between machines."""
for _kind, _ending in (
    ("text/markdown", ".md"),
    ("application/yaml", ".yaml"),
    ("application/yaml", ".yml"),
    ("application/toml", ".toml"),
    ("application/jsonl", ".jsonl"),
    ("application/vnd.apache.parquet", ".parquet"),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", ".docx"),
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", ".xlsx"),
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation", ".pptx"),
    ("image/webp", ".webp"),
    ("image/avif", ".avif"),
):
    _known.add_type(_kind, _ending)

_TEXT_TYPES: Final = frozenset(
    f"application/{name}"
    for name in ("json", "jsonl", "x-ndjson", "xml", "yaml", "x-yaml", "toml", "javascript", "sql", "x-sh", "x-tex")
)
"""Media types of text that do not start with `text/`."""
_CHARSET: Final = re.compile(r';\s*charset="?([^";\s]+)', re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Control characters that do not occur in text. Escape is not included, because text may contain escape sequences for terminals."""

_SIGNATURES: Final[tuple[tuple[str, re.Pattern[bytes]], ...]] = (
    ("image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ("image/gif", re.compile(rb"GIF8[79]a")),
    ("image/webp", re.compile(rb"RIFF.{4}WEBP", re.DOTALL)),
    ("application/zip", re.compile(rb"PK(?:\x03\x04|\x05\x06|\x07\x08)")),
    ("application/pdf", re.compile(rb".{0,1019}?%PDF-", re.DOTALL)),
)
"""Media types whose contents begin with a fixed signature. In a PDF, other bytes may precede the signature."""
_SIGNATURE_TYPES: Final = frozenset(kind for kind, _ in _SIGNATURES)


def check_type(value: Any) -> str:
    """Return a media type with type and subtype in lower case. Raise `InvalidRequest` if it is not valid."""
    found = _TYPE.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= _MAX_CHARS else None
    if found is None:
        message = f"mime_type must be a media type like text/plain or image/png, not {value!r}"[:200]
        raise InvalidRequest(message, param="mime_type")
    return found[1].lower() + found[2]


def detect_type(name: str, head: bytes, declared: str | None) -> str:
    """Return the media type of a content.

    If a type is declared, return it. Otherwise, return the type of the name's extension. If the extension is unknown, or the first bytes
    contradict its type, return the type whose signature the first bytes contain, or `application/octet-stream`.

    Args:
        name: name of the artifact.
        head: first bytes of the content; `HEAD_BYTES` are enough.
        declared: media type that the client declares; None: it declares none.

    Raises:
        InvalidRequest: the declared type is not a media type.
        UnsupportedType: the first bytes contradict the declared type.
    """
    found = next((kind for kind, signature in _SIGNATURES if signature.match(head)), None)
    if declared is not None:
        kind = check_type(declared)
        if is_contradiction(found, _strip_parameters(kind)):
            shown = f"is {found}" if found else "does not have its signature"
            raise UnsupportedType(f"the content is declared as {kind}, but {shown}", param="mime_type")
        return kind
    guess, encoding = _known.guess_type(name, strict=False)
    if encoding is not None:
        guess = {"gzip": "application/gzip", "bzip2": "application/x-bzip2"}.get(encoding)
    if guess is None or is_contradiction(found, guess):
        return found or UNKNOWN
    return guess


def is_contradiction(found: str | None, declared: str) -> bool:
    """Return True if a content cannot be of type `declared`.

    Args:
        found: the media type whose signature the first bytes contain; None: no known signature.
        declared: the media type to check.
    """
    if found == declared:
        return False
    # A ZIP may be one of many document types; texts and images never start with any of these signatures.
    return declared in _SIGNATURE_TYPES or (found is not None and declared.partition("/")[0] in ("text", "image"))


def _strip_parameters(mime_type: str) -> str:
    return mime_type.partition(";")[0].strip()


# -- text --------------------------------------------------------------------


def decode_text(data: bytes, mime_type: str) -> str | None:
    """Decode a content, or return None if it is not text.

    A content of unknown type (`application/octet-stream`) is text if it is valid UTF-8 without control characters.

    Args:
        data: the content, or a part of the content that begins and ends between two characters.
        mime_type: media type of the content. It may name a `charset`; the default is UTF-8.
    """
    bare = _strip_parameters(mime_type)
    if bare == UNKNOWN:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        return None if _CONTROL.search(text) else text
    if not is_text(mime_type):
        return None
    return data.decode(get_charset(mime_type), "replace")


def is_text(mime_type: str) -> bool:
    """Return True if contents of a media type are text: `text/…`, JSON, XML, YAML and similar."""
    bare = _strip_parameters(mime_type)
    return bare.startswith("text/") or bare in _TEXT_TYPES or bare.endswith(("+json", "+xml", "+yaml"))


def get_charset(mime_type: str) -> str:
    """Return the name of the charset in a media type. If there is none, or Python does not know it, return `utf-8`."""
    found = _CHARSET.search(mime_type)
    try:
        known = codecs.lookup(found[1]) if found else None
    except LookupError:
        known = None
    return known.name if known is not None and _decodes_to_text(known.name) else "utf-8"


def _decodes_to_text(charset: str) -> bool:
    """Return True if a Python codec decodes bytes to text. Codecs such as `base64` do not."""
    try:
        return isinstance(b"a ".decode(charset, "replace"), str)
    except (LookupError, ValueError):
        return False


# -- measuring -------------------------------------------------------------


class MeasuredStream:
    """Passes the chunks of a content on, and measures their size and hash.

    Args:
        chunks: the content.
        most: maximum bytes of the content. Iterating over a larger one raises `TooLarge`.
    """

    def __init__(self, chunks: AsyncIterable[bytes], most: int) -> None:
        self._chunks = aiter(chunks)
        self._most = most
        self._hash = hashlib.sha256()
        self._ahead: list[bytes] = []
        self.size = 0
        """Number of bytes that have been read."""

    @property
    def sha256(self) -> bytes:
        """SHA-256 hash of the bytes that have been read."""
        return self._hash.digest()

    async def read_head(self) -> bytes:
        """Return the first `HEAD_BYTES` bytes of the content. Iterating over the stream still yields these bytes.

        Raises:
            TooLarge: the content is too large. Exceptions of the chunks are passed on.
        """
        size = 0
        while size < HEAD_BYTES:
            try:
                self._ahead.append(await self._read_next())
            except StopAsyncIteration:
                break
            size += len(self._ahead[-1])
        return b"".join(chunk[:HEAD_BYTES] for chunk in self._ahead)[:HEAD_BYTES]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._ahead:
            yield self._ahead.pop(0)
        while True:
            try:
                chunk = await self._read_next()
            except StopAsyncIteration:
                return
            yield chunk

    async def _read_next(self) -> bytes:
        chunk = await anext(self._chunks)
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise InvalidRequest(f"a content consists of bytes, not {type(chunk).__name__}", param="data")
        chunk = bytes(chunk)
        self.size += len(chunk)
        if self.size > self._most:
            raise TooLarge(f"the artifact is larger than {self._most} bytes, storage.artifacts.max_bytes", param="data")
        self._hash.update(chunk)
        return chunk
