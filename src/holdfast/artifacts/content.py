"""What a content is: its type by word, name and first bytes, and its size and hash while it passes by."""

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
"""First bytes that are looked at."""
_TOKEN: Final = r"[A-Za-z0-9!#$&^_.+-]{1,127}"  # noqa: S105  # of a grammar
_TYPE: Final = re.compile(rf'({_TOKEN}/{_TOKEN})((?: ?; ?{_TOKEN}=(?:{_TOKEN}|"[\x20\x21\x23-\x5b\x5d-\x7e]*"))*)')
_LONGEST: Final = 255
_known = MimeTypes()
"""Python's own table, and what some of its versions lack: what a system's files add differs from machine to machine."""
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

_TEXTS: Final = frozenset(
    f"application/{name}"
    for name in ("json", "jsonl", "x-ndjson", "xml", "yaml", "x-yaml", "toml", "javascript", "sql", "x-sh", "x-tex")
)
"""Types that are text and do not say so."""
_CHARSET: Final = re.compile(r';\s*charset="?([^";\s]+)', re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Characters that no text has; a terminal's escapes are some."""

_SIGNATURES: Final[tuple[tuple[str, re.Pattern[bytes]], ...]] = (
    ("image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ("image/gif", re.compile(rb"GIF8[79]a")),
    ("image/webp", re.compile(rb"RIFF.{4}WEBP", re.DOTALL)),
    ("application/zip", re.compile(rb"PK(?:\x03\x04|\x05\x06|\x07\x08)")),
    ("application/pdf", re.compile(rb".{0,1019}?%PDF-", re.DOTALL)),
)
"""Types that begin alike, always; a PDF may have other bytes before it."""
_SIGNED: Final = frozenset(kind for kind, _ in _SIGNATURES)


def checked_type(value: Any) -> str:
    """A media type in the form it is stored in: type and subtype in lower case. Raises `InvalidRequest`."""
    found = _TYPE.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= _LONGEST else None
    if found is None:
        message = f"mime_type must be a media type like text/plain or image/png, not {value!r}"[:200]
        raise InvalidRequest(message, param="mime_type")
    return found[1].lower() + found[2]


def type_of(name: str, head: bytes, declared: str | None) -> str:
    """The type of a content: what is declared, else what its name says, unless its first bytes say otherwise.

    Raises:
        InvalidRequest: what is declared is no media type.
        UnsupportedType: the first bytes plainly contradict what is declared.
    """
    found = sniffed(head)
    if declared is not None:
        kind = checked_type(declared)
        if contradicts(found, _bare(kind)):
            shown = f"is {found}" if found else "does not begin like one"
            raise UnsupportedType(f"the content is declared {kind}, and {shown}", param="mime_type")
        return kind
    guess, encoding = _known.guess_type(name, strict=False)
    if encoding is not None:
        guess = {"gzip": "application/gzip", "bzip2": "application/x-bzip2"}.get(encoding)
    if guess is None or contradicts(found, guess):
        return found or UNKNOWN
    return guess


def sniffed(head: bytes) -> str | None:
    """The type that first bytes prove; None when they prove none."""
    return next((kind for kind, signature in _SIGNATURES if signature.match(head)), None)


def contradicts(found: str | None, declared: str) -> bool:
    """Whether a content whose first bytes prove `found` cannot be of the type `declared`."""
    if found == declared:
        return False
    # A ZIP may be a document, of whose type there are many; text and images begin with none of these.
    return declared in _SIGNED or (found is not None and declared.partition("/")[0] in ("text", "image"))


def check_allowed(mime_type: str, types: Sequence[str]) -> None:
    """Refuse a type that is not among those allowed, like `image/*`; none of them allows all. Raises `UnsupportedType`."""
    if types and not any(fnmatchcase(_bare(mime_type), allowed.lower()) for allowed in types):
        message = f"artifacts of type {_bare(mime_type)} are not taken; allowed are {', '.join(types)}"
        raise UnsupportedType(message, param="mime_type")


def _bare(mime_type: str) -> str:
    return mime_type.partition(";")[0].strip()


# -- text --------------------------------------------------------------------


def text_in(data: bytes, mime_type: str) -> str | None:
    """A content as text; None where it is none. One of an unknown type is text if it reads like some.

    Args:
        data: all of it, or a part that begins and ends between characters.
        mime_type: with its `charset`, if it has one; without one it is UTF-8.
    """
    bare = _bare(mime_type)
    if bare == UNKNOWN:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        return None if _CONTROL.search(text) else text
    if not is_text(mime_type):
        return None
    return data.decode(charset_of(mime_type), "replace")


def is_text(mime_type: str) -> bool:
    """Whether contents of a type are text: what says so, JSON, XML, YAML and their like."""
    bare = _bare(mime_type)
    return bare.startswith("text/") or bare in _TEXTS or bare.endswith(("+json", "+xml", "+yaml"))


def charset_of(mime_type: str) -> str:
    """The charset that a type says, if Python knows it; else UTF-8."""
    found = _CHARSET.search(mime_type)
    try:
        known = codecs.lookup(found[1]) if found else None
    except LookupError:
        known = None
    return known.name if known is not None and _reads_text(known.name) else "utf-8"


def _reads_text(charset: str) -> bool:
    """Whether it makes text of bytes: Python has others under names of the same kind."""
    try:
        return isinstance(b"a ".decode(charset, "replace"), str)
    except (LookupError, ValueError):
        return False


# -- passing by --------------------------------------------------------------


class Measured:
    """Chunks on their way, of which size and hash are taken.

    Args:
        chunks: the content.
        most: bytes it may have.
    """

    def __init__(self, chunks: AsyncIterable[bytes], most: int) -> None:
        self._chunks = aiter(chunks)
        self._most = most
        self._hash = hashlib.sha256()
        self._ahead: list[bytes] = []
        self.size = 0
        """Bytes that have passed."""

    @property
    def sha256(self) -> bytes:
        """Of what has passed."""
        return self._hash.digest()

    async def head(self) -> bytes:
        """The first bytes, which pass later all the same. Raises what the chunks do, and `TooLarge`."""
        size = 0
        while size < HEAD_BYTES:
            try:
                self._ahead.append(await self._next())
            except StopAsyncIteration:
                break
            size += len(self._ahead[-1])
        return b"".join(chunk[:HEAD_BYTES] for chunk in self._ahead)[:HEAD_BYTES]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._ahead:
            yield self._ahead.pop(0)
        while True:
            try:
                chunk = await self._next()
            except StopAsyncIteration:
                return
            yield chunk

    async def _next(self) -> bytes:
        chunk = await anext(self._chunks)
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise InvalidRequest(f"a content is made of bytes, not {type(chunk).__name__}", param="data")
        chunk = bytes(chunk)
        self.size += len(chunk)
        if self.size > self._most:
            raise TooLarge(f"the artifact is larger than {self._most} bytes, storage.artifacts.max_bytes", param="data")
        self._hash.update(chunk)
        return chunk
