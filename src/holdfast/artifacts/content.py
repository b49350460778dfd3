"""Determine the media type of a content from its declaration, name and first bytes, and measure size and hash of a stream."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from fnmatch import fnmatchcase
from mimetypes import MimeTypes
from typing import Any, Final

from holdfast.errors import InvalidRequest, TooLarge, UnsupportedType

UNKNOWN: Final = "application/octet-stream"
HEAD_BYTES: Final = 1024
"""Number of first bytes that are examined."""
_TOKEN: Final = r"[A-Za-z0-9!#$&^_.+-]{1,127}"  # noqa: S105  # part of a grammar
_TYPE: Final = re.compile(rf'({_TOKEN}/{_TOKEN})((?: ?; ?{_TOKEN}=(?:{_TOKEN}|"[\x20\x21\x23-\x5b\x5d-\x7e]*"))*)')
_MAX_CHARS: Final = 255
_known = MimeTypes()
"""Python's own table, with the types that some Python versions lack. The system's files are not used, because they differ between machines."""
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
"""Text types whose name does not start with `text/`."""
_CHARSET: Final = re.compile(r';\s*charset="?([^";\s]+)', re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Characters that do not occur in text, except those of terminal escapes."""

_SIGNATURES: Final[tuple[tuple[str, re.Pattern[bytes]], ...]] = (
    ("image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ("image/gif", re.compile(rb"GIF8[79]a")),
    ("image/webp", re.compile(rb"RIFF.{4}WEBP", re.DOTALL)),
    ("application/zip", re.compile(rb"PK(?:\x03\x04|\x05\x06|\x07\x08)")),
    ("application/pdf", re.compile(rb".{0,1019}?%PDF-", re.DOTALL)),
)
"""Types with a fixed signature; a PDF may have other bytes before it."""
_SIGNATURE_TYPES: Final = frozenset(kind for kind, _ in _SIGNATURES)


def check_type(value: Any) -> str:
    """Check and normalize a media type: type and subtype in lower case. Raise `InvalidRequest`."""
    found = _TYPE.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= _MAX_CHARS else None
    if found is None:
        message = f"mime_type must be a media type like text/plain or image/png, not {value!r}"[:200]
        raise InvalidRequest(message, param="mime_type")
    return found[1].lower() + found[2]


def detect_type(name: str, head: bytes, declared: str | None) -> str:
    """Return the media type of a content: the declared type, or else the type of its name, unless the first bytes contradict it.

    Raises:
        InvalidRequest: the declared type is not a media type.
        UnsupportedType: the first bytes contradict the declared type.
    """
    found = detect_by_signature(head)
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


def detect_by_signature(head: bytes) -> str | None:
    """Return the type that the first bytes prove, or None."""
    return next((kind for kind, signature in _SIGNATURES if signature.match(head)), None)


def is_contradiction(found: str | None, declared: str) -> bool:
    """Return True if a content whose first bytes prove `found` cannot be of type `declared`."""
    if found == declared:
        return False
    # A ZIP may be one of many document types; texts and images never start with any of these signatures.
    return declared in _SIGNATURE_TYPES or (found is not None and declared.partition("/")[0] in ("text", "image"))


def check_allowed(mime_type: str, types: Sequence[str]) -> None:
    """Reject a type that is not allowed. Patterns are like `image/*`; an empty list allows all. Raise `UnsupportedType`."""
    if types and not any(fnmatchcase(_strip_parameters(mime_type), allowed.lower()) for allowed in types):
        message = (
            f"artifacts of type {_strip_parameters(mime_type)} are not accepted; accepted types: {', '.join(types)}"
        )
        raise UnsupportedType(message, param="mime_type")


def _strip_parameters(mime_type: str) -> str:
    return mime_type.partition(";")[0].strip()


# -- text --------------------------------------------------------------------


def decode_text(data: bytes, mime_type: str) -> str | None:
    """Decode a content, or return None if it is not text. A content of unknown type is text if it looks like text.

    Args:
        data: the content, or a part of it that does not split characters.
        mime_type: its type, with an optional `charset`; the default is UTF-8.
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
    """Return True if contents of a type are text: `text/…`, JSON, XML, YAML and similar."""
    bare = _strip_parameters(mime_type)
    return bare.startswith("text/") or bare in _TEXT_TYPES or bare.endswith(("+json", "+xml", "+yaml"))


def get_charset(mime_type: str) -> str:
    """Return the charset of a type if Python knows it, or else UTF-8."""
    found = _CHARSET.search(mime_type)
    try:
        known = codecs.lookup(found[1]) if found else None
    except LookupError:
        known = None
    return known.name if known is not None and _decodes_to_text(known.name) else "utf-8"


def _decodes_to_text(charset: str) -> bool:
    """Return True if a codec decodes bytes to text. Python has other codecs under similar names."""
    try:
        return isinstance(b"a ".decode(charset, "replace"), str)
    except (LookupError, ValueError):
        return False


# -- measuring -------------------------------------------------------------


class MeasuredStream:
    """Passes chunks on, and computes their size and hash.

    Args:
        chunks: the content.
        most: maximum bytes.
    """

    def __init__(self, chunks: AsyncIterable[bytes], most: int) -> None:
        self._chunks = aiter(chunks)
        self._most = most
        self._hash = hashlib.sha256()
        self._ahead: list[bytes] = []
        self.size = 0
        """Bytes that have been passed on."""

    @property
    def sha256(self) -> bytes:
        """Hash of the bytes that have been passed on."""
        return self._hash.digest()

    async def read_head(self) -> bytes:
        """Return the first bytes, which are still passed on later. Raise `TooLarge`, or what the chunks raise."""
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
