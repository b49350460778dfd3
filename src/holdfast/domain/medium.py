"""Find media in message parts of all supported formats, and detach their data from the parts.

The formats are the parts of both OpenAI APIs, Anthropic's blocks, data URLs and bare base64. Pure functions: they read
only the fields of a part and fetch nothing. Data are decoded only to detach them, and to compare contents.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from holdfast.domain.images import Size, read_size
from holdfast.limits import MEDIA_INLINE

Kind = Literal["image", "audio", "video", "file"]
Path = tuple[str | int, ...]
"""A position in a part: keys of objects, and indexes of lists."""

KINDS: Final[dict[str, Kind]] = {
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
"""Types of parts that contain media, with the kind of the medium."""
_MIME_BY_NAME: Final = {
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
"""MIME types by file suffix. The table of the standard library is not used, because it depends on files of the machine."""
DATA_URL: Final = re.compile(r"data:([^;,]{0,200})((?:;[^;,]{0,200}){0,16}),", re.IGNORECASE)
DATA_FIELDS: Final = frozenset({"data", "file_data", "b64_json"})
"""Names of fields that contain only data."""
_HEAD: Final = re.compile(r"[A-Za-z0-9+/_\-\r\n]*={0,2}\s*")
_HEAD_CHARS: Final = 64
_URL_ALPHABET: Final = str.maketrans("-_", "+/")
_SPACE: Final = re.compile(r"\s+")


class DetachedData(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A reference to data that were removed from a text in a part, and are stored separately.

    To restore the original text, the data are appended to the text that is left in the part.
    """

    path: Path
    sha256: str
    """SHA-256 of the stored content, hexadecimal."""
    size: int
    """Bytes of the stored content."""
    chars: int
    """Characters of the original text."""
    text: bool = False
    """True if the content is the whole original text in UTF-8; False if it is the decoded base64."""
    says: str | None = None
    """The value of `Medium.identity`, if it differs from `sha256`."""
    length: int | None = None
    """Bytes of the medium, if their number differs from `size`."""
    mime: str | None = None
    width: int | None = None
    height: int | None = None
    """Width and height of an image in pixels, according to its header."""

    @property
    def hash(self) -> bytes:
        """SHA-256 of the stored content."""
        return bytes.fromhex(self.sha256)

    @property
    def pixels(self) -> Size | None:
        """Width and height of an image; None if they are unknown."""
        return Size(self.width, self.height) if self.width and self.height else None


class Medium(msgspec.Struct, frozen=True, gc=False):
    """A medium in a part: its data, or its `url`, or a reference to its detached data (`held`)."""

    kind: Kind
    mime: str | None = None
    url: str | None = None
    name: str | None = None
    path: Path = ()
    """Position of the data in the part."""
    whole: str = ""
    """The text that contains the data, such as a data URL."""
    start: int = 0
    """Offset in `whole` at which the data begin."""
    form: Literal["base64", "percent", "plain"] = "base64"
    held: DetachedData | None = None

    @property
    def data(self) -> str | None:
        """The data in base64, unchanged if they were sent as base64; None for a link and for detached data."""
        if self.url is not None or self.held is not None:
            return None
        if self.form == "base64":
            return self.whole[self.start :]
        return base64.b64encode(self.decode() or b"").decode()

    @property
    def words(self) -> str | None:
        """The text of a text file; None for other media, for a link and for detached data."""
        if self.url is not None or self.held is not None or not (self.mime or "").startswith("text/"):
            return None
        try:
            return base64.b64decode(self.data or "", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None

    @property
    def identity(self) -> str | None:
        """A value that is equal for equal media: the SHA-256 of the decoded data; None for a link.

        For data that cannot be decoded, the value is `raw:` and the SHA-256 of their text.
        """
        if self.held is not None:
            return self.held.says or self.held.sha256
        return None if self.url is not None else _hash_content(self.decode(), self.whole[self.start :])

    @property
    def length(self) -> int | None:
        """Bytes of the medium; None for a link."""
        if self.held is not None:
            return self.held.size if self.held.length is None else self.held.length
        if self.url is not None:
            return None
        content = self.decode()
        return len(self.whole) - self.start if content is None else len(content)

    @property
    def size(self) -> Size | None:
        """Width and height of an image in pixels; None if its header does not contain them."""
        if self.kind != "image" or self.url is not None:
            return None
        return read_size(self.whole) if self.held is None else self.held.pixels

    def decode(self) -> bytes | None:
        """Return a copy of the data, decoded; None if they cannot be decoded."""
        text = self.whole[self.start :] if self.start else self.whole
        if self.form == "plain":
            return text.encode(errors="surrogatepass")
        return _unquote(text) if self.form == "percent" else decode_base64(text)


def _unquote(text: str) -> bytes:
    return unquote_to_bytes(text.encode(errors="surrogatepass"))


def decode_base64(text: str) -> bytes | None:
    """Decode base64 of either alphabet, with or without line breaks and padding. Return None if the text is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    bare = _SPACE.sub("", text).translate(_URL_ALPHABET).rstrip("=")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


# -- finding the medium of a part --------------------------------------------


class _Text(NamedTuple):
    value: str
    path: Path
    held: DetachedData | None


class _Fields:
    """The fields of a part, or of an object in the part, with references to the data that were detached from the fields."""

    def __init__(self, values: Mapping[str, Any], held: Mapping[Path, DetachedData], path: Path = ()) -> None:
        self._values = values
        self._held = held
        self._path = path

    def get_text(self, key: str) -> _Text | None:
        """Return a text field. None if it is missing, or if it is empty and no data were detached from it."""
        value, path = self._values.get(key), (*self._path, key)
        held = self._held.get(path)
        return _Text(value, path, held) if isinstance(value, str) and (value or held) else None

    def get_word(self, key: str) -> str | None:
        found = self.get_text(key)
        return found.value if found else None

    def get_object(self, key: str) -> _Fields | None:
        value = self._values.get(key)
        return _Fields(value, self._held, (*self._path, key)) if isinstance(value, Mapping) else None


def find_medium(part_type: str, extra: Mapping[str, Any], held: Iterable[DetachedData] = ()) -> Medium | None:
    """Return the medium of a part; None if the part contains no medium that can be read.

    Args:
        part_type: the part's type.
        extra: the other fields of the part.
        held: references to data that were detached from these fields.
    """
    kind = KINDS.get(part_type)
    if kind is None:
        return None
    fields = _Fields(extra, {one.path: one for one in held})
    source = fields.get_object("source")
    if source is not None:
        return _from_source(kind, source, fields.get_word("title"))
    key = part_type.removeprefix("input_") if kind == "file" else part_type
    if (url := fields.get_text(key)) is not None:
        return _from_url(kind, url, None)
    return _from_fields(kind, fields.get_object(key) or fields)


def _from_fields(kind: Kind, fields: _Fields) -> Medium | None:
    name = fields.get_word("filename")
    for key in ("url", "image_url", "file_url", "file_data"):
        if (url := fields.get_text(key)) is not None:
            return _from_url(kind, url, name)
    if (data := fields.get_text("data")) is None:
        return None
    form = fields.get_word("format")
    mime = f"{kind}/{form}" if form and kind == "audio" else None
    return _from_data(kind, mime, data, name)


def _from_data(kind: Kind, mime: str | None, data: _Text, name: str | None) -> Medium:
    """Return the medium whose data are in a field for base64. Some clients put a whole data URL into such a field."""
    found = DATA_URL.match(data.value) if data.held is None else None
    start, form = (found.end(), _detect_form(found)) if found else (0, "base64")
    return Medium(kind, mime, None, name, data.path, data.value, start, form, data.held)


def _detect_form(url: re.Match[str]) -> Literal["base64", "percent"]:
    return "base64" if "base64" in url[2].lower() else "percent"


def _from_source(kind: Kind, source: _Fields, name: str | None) -> Medium | None:
    """Return the medium in the field `source` of Anthropic's images and documents; None if its type is unknown."""
    mime, data, url = source.get_word("media_type"), source.get_text("data"), source.get_word("url")
    match source.get_word("type"):
        case "base64" if data:
            return _from_data(kind, mime, data, name)
        case "text" if data:
            return Medium(kind, "text/plain", name=name, path=data.path, whole=data.value, form="plain")
        case "url" if url:
            return Medium(kind, _guess_mime(url), url, name)
    return None


def _from_url(kind: Kind, url: _Text, name: str | None) -> Medium | None:
    if url.held is not None:
        return Medium(kind, url.held.mime, name=name, path=url.path, whole=url.value, held=url.held)
    found = DATA_URL.match(url.value)
    if found is not None:
        mime = found[1].lower() or "text/plain"
        return Medium(kind, mime, None, name, url.path, url.value, found.end(), _detect_form(found))
    if url.value[:5].lower() == "data:":
        return None
    if "://" in url.value[:16]:
        return Medium(kind, _guess_mime(url.value) or _guess_mime(name or ""), url.value, name)
    mime = _guess_mime(name or "") or ("application/pdf" if kind == "file" else None)
    return Medium(kind, mime, None, name, url.path, url.value)


def _guess_mime(name: str) -> str | None:
    """Return the MIME type for the suffix of a file name or of a URL's path; None for an unknown suffix."""
    try:
        path = urlsplit(name).path
    except ValueError:
        return None
    return _MIME_BY_NAME.get(path.rpartition(".")[2].lower()) if "." in path else None


# -- detaching data ----------------------------------------------------------


def detach_data(
    part_type: str,
    extra: dict[str, Any],
    held: tuple[DetachedData, ...],
    contents: dict[bytes, bytes],
    *,
    plain: bool = True,
) -> tuple[dict[str, Any], tuple[DetachedData, ...]]:
    """Return the fields of a part without its data, and the references to all its detached data.

    If there are no data to detach, return `extra` and `held` unchanged.

    Args:
        part_type: the part's type.
        extra: the other fields of the part; not modified.
        held: references to data that were detached before.
        contents: receives the detached data by their SHA-256.
        plain: True to detach also data that are not in base64, or are in unusual fields. A search for secrets passes
            False, because it must read such data.
    """
    if part_type not in KINDS:
        return extra, held
    known = find_medium(part_type, extra, held)
    found = []
    for path, text in list(_iterate_long_texts(extra, ())):
        own = known if known is not None and known.path == path else None
        if own is not None and own.form == "plain":
            continue
        taken = _detach_text(path, text, own, contents, plain=plain)
        if taken is not None:
            left, one = taken
            found.append(one)
            extra = replace_at(extra, path, left)
    return extra, tuple(sorted((*held, *found), key=_make_sort_key)) if found else held


def _make_sort_key(held: DetachedData) -> list[str]:
    """Return a key that sorts references by their position, regardless of the order in which the data were detached."""
    return [f"{key:06}" if isinstance(key, int) else key for key in held.path]


def _iterate_long_texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        if len(value) >= MEDIA_INLINE:
            yield path, value
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from _iterate_long_texts(item, (*path, key))


def _detach_text(
    path: Path, text: str, own: Medium | None, contents: dict[bytes, bytes], *, plain: bool
) -> tuple[str, DetachedData] | None:
    """Detach the data from a text.

    Args:
        path: position of the text in its part.
        text: the text.
        own: the medium of the part, if the text contains its data.
        contents: receives the detached data by their SHA-256.
        plain: as for `detach_data`.

    Returns:
        The text that is left, and a reference to the data; None if the text contains no data to detach.
    """
    url, named = DATA_URL.match(text), (path[-1] in DATA_FIELDS or (len(path) > 1 and path[-2] == "frames"))
    if url is None and not ((named or (own and plain)) and _HEAD.fullmatch(text[:_HEAD_CHARS])):
        return None
    encoded = url is None or "base64" in url[2].lower()
    start = url.end() if url else 0
    content = _decode_canonical(text[start:]) if encoded else None
    size = read_size(text)
    about: dict[str, Any] = {"path": path, "chars": len(text)}
    about["mime"] = (url[1].lower() or "text/plain") if url else own.mime if own else None
    if size is not None:
        about |= {"width": size.width, "height": size.height}
    if content is not None:
        return text[:start], DetachedData(sha256=_store_content(content, contents), size=len(content), **about)
    if not plain:
        return None
    try:
        content = text.encode()
    except UnicodeEncodeError:
        return None
    raw = text[start:]
    medium_ = decode_base64(raw) if encoded else _unquote(raw)
    count = len(raw) if medium_ is None else len(medium_)
    sha256 = _store_content(content, contents)
    return "", DetachedData(
        sha256=sha256, size=len(content), text=True, says=_hash_content(medium_, raw), length=count, **about
    )


def _decode_canonical(text: str) -> bytes | None:
    """Decode base64; return None unless encoding the result again gives exactly `text`."""
    if len(text) % 4 or not text.isascii():
        return None
    try:
        content = binascii.a2b_base64(text, strict_mode=True)
        end = base64.b64encode(binascii.a2b_base64(text[-4:], strict_mode=True)).decode()
    except (binascii.Error, ValueError):
        return None
    # Strict decoding accepts only the alphabet and final padding, so only the last four characters can have variants.
    return content if end == text[-4:] and len(text) == -(-len(content) // 3) * 4 else None


def _store_content(content: bytes, contents: dict[bytes, bytes]) -> str:
    digest = hashlib.sha256(content)
    contents.setdefault(digest.digest(), content)
    return digest.hexdigest()


def _hash_content(content: bytes | None, raw: str) -> str:
    if content is None:
        return "raw:" + hashlib.sha256(raw.encode(errors="surrogatepass")).hexdigest()
    return hashlib.sha256(content).hexdigest()


def replace_at(value: Any, path: Path, text: str) -> Any:
    """Return `value` with `text` at the position `path`. Only the objects and lists along the path are copied."""
    if not path:
        return text
    key, *rest = path
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    copy[key] = replace_at(value[key], tuple(rest), text)
    return copy


# -- comparing parts ---------------------------------------------------------


def build_identity(part_type: str, extra: dict[str, Any], held: tuple[DetachedData, ...]) -> dict[str, Any] | None:
    """Return JSON that is equal for media parts of the same kind and content. Neither format nor detaching changes it.

    A link is compared by its URL. A media part that cannot be read is compared as a whole.

    Returns:
        The JSON; None for a part that contains no media.
    """
    kind = KINDS.get(part_type)
    if kind is None:
        return None
    found = find_medium(part_type, extra, held)
    if found is not None:
        return {"media": kind, "url": found.url} if found.url is not None else {"media": kind, "sha256": found.identity}
    extra, held = detach_data(part_type, extra, held, {})
    return {
        "media": kind,
        "type": part_type,
        "part": extra,
        "data": [[one.path, one.says or one.sha256] for one in held],
    }
