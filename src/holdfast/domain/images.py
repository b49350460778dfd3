"""Compute the token costs of images from their sizes, with the formulas that the providers publish.

An image is never decoded or fetched. Its size is in its header, and only the few characters of a data URL that contain
the header are read. If the size is unknown (a link, a file id, a broken header), the model's maximum cost for an image
applies.

The formulas, by the titles of the pages that publish them:

- OpenAI, "Images and vision", section "Calculating costs": tiles of 512 px for the 4o and o families, patches of 32 px
  for the small models since 4.1 and for all models since 5.2.
- Anthropic, "Vision", section "Evaluate image size": width x height / 750. The page now describes patches of 28 px. The
  larger of both results is used.
- Google, "Understand and count tokens" and "Image understanding": tiles of 768 px. "Media resolution": Gemini 3.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

# -- size ---------------------------------------------------------------------

_SEGMENTS: Final = 256
"""Maximum number of segments of a JPEG that are skipped to find its size. EXIF, colour profile and thumbnail take a few
dozen."""
_LARGEST: Final = 1 << 20
"""Maximum width or height in pixels. A header with a larger value is not trusted."""
_DATA_URL: Final = re.compile(r"data:[^,]{0,200}?;base64,", re.IGNORECASE)


class Size(NamedTuple):
    """Width and height of an image in pixels, both at least 1."""

    width: int
    height: int


class _Base64Reader:
    """Reader for ranges of bytes in base64 text. It does not decode the rest of the text."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._start = start

    def read(self, at: int, length: int) -> bytes:
        """Return `length` bytes from the offset `at` on.

        Raises:
            ValueError: the text is too short, or is not base64. Line breaks and the URL alphabet are not accepted
                either.
        """
        first = at // 3 * 4
        last = -(-(at + length) // 3) * 4
        piece = base64.b64decode(self._text[self._start + first : self._start + last], validate=True)
        found = piece[at % 3 : at % 3 + length]
        if len(found) < length:
            raise ValueError("the data end in the header")
        return found


def read_size(data: str) -> Size | None:
    """Return the size of an image from its header; None if the size is unknown. Supports PNG, JPEG, GIF, WebP and BMP.

    Args:
        data: a data URL, or a file in base64.
    """
    url = _DATA_URL.match(data)
    if url is None and ":" in data[:16]:
        return None  # a link, or a data URL that is not base64
    source = _Base64Reader(data, url.end() if url else 0)
    try:
        size = _detect_size(source)
    except (ValueError, binascii.Error):
        return None
    return size if size and all(0 < side <= _LARGEST for side in size) else None


def _detect_size(source: _Base64Reader) -> Size | None:
    head = source.read(0, 12)
    if head.startswith(b"\xff\xd8\xff"):
        return _read_jpeg(source)
    if head.startswith(b"\x89PNG\r\n\x1a\n") and source.read(12, 4) == b"IHDR":
        return Size(_parse_big_endian(source.read(16, 4)), _parse_big_endian(source.read(20, 4)))
    if head.startswith((b"GIF87a", b"GIF89a")):
        return Size(_parse_little_endian(head[6:8]), _parse_little_endian(head[8:10]))
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _read_webp(source)
    return _read_bmp(source) if head.startswith(b"BM") else None


def _read_jpeg(source: _Base64Reader) -> Size | None:
    """Read the size of a JPEG (ITU T.81, B.2.2) from its frame header, which comes after any number of other segments."""
    at = 2
    for _ in range(_SEGMENTS):
        mark, kind, *length = source.read(at, 4)
        if mark != 0xFF:
            return None
        if kind == 0xFF:  # padding
            at += 1
        elif 0xC0 <= kind <= 0xCF and kind not in {0xC4, 0xC8, 0xCC}:
            frame = source.read(at + 5, 4)
            return Size(_parse_big_endian(frame[2:]), _parse_big_endian(frame[:2]))
        elif kind == 0x01 or 0xD0 <= kind <= 0xD9:  # a marker without a segment
            at += 2
        else:
            at += 2 + max(2, _parse_big_endian(bytes(length)))
    return None


def _read_webp(source: _Base64Reader) -> Size | None:
    """Read the size of a WebP (RFC 9649). Extended, lossless and lossy files store it at different positions."""
    kind = source.read(12, 4)
    if kind == b"VP8X":
        return Size(1 + _parse_little_endian(source.read(24, 3)), 1 + _parse_little_endian(source.read(27, 3)))
    if kind == b"VP8L" and source.read(20, 1) == b"\x2f":
        bits = _parse_little_endian(source.read(21, 4))
        return Size(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and source.read(23, 3) == b"\x9d\x01\x2a":
        return Size(
            _parse_little_endian(source.read(26, 2)) & 0x3FFF, _parse_little_endian(source.read(28, 2)) & 0x3FFF
        )
    return None


def _read_bmp(source: _Base64Reader) -> Size:
    if _parse_little_endian(source.read(14, 4)) == 12:  # OS/2
        return Size(_parse_little_endian(source.read(18, 2)), _parse_little_endian(source.read(20, 2)))
    width, height = source.read(18, 4), source.read(22, 4)
    # A negative height means that rows are stored from top to bottom.
    return Size(_parse_little_endian(width), abs(int.from_bytes(height, "little", signed=True)))


def _parse_big_endian(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _parse_little_endian(data: bytes) -> int:
    return int.from_bytes(data, "little")


# -- formulas -----------------------------------------------------------------


class Picture(NamedTuple):
    """The properties of an image that determine its cost."""

    size: Size | None
    detail: str = "auto"
    """OpenAI's parameter `detail`: `low`, `high`, `original` or `auto`."""


class Pricing(Protocol):
    """The formula for the token costs of images, for one family of models."""

    def count_tokens(self, picture: Picture) -> int:
        """Return the token cost of an image. If its size is unknown, return the maximum cost of an image."""


@dataclass(frozen=True, slots=True)
class Flat:
    """The same cost for every image, except that `detail: low` has its own cost."""

    each: int
    low: int

    def count_tokens(self, picture: Picture) -> int:
        """Return the token cost of an image."""
        return self.low if picture.detail == "low" else self.each


@dataclass(frozen=True, slots=True)
class Tiles:
    """OpenAI's tile formula: a base cost, plus a cost for each tile of 512 x 512 pixels.

    The image is first scaled down to fit into 2,048 x 2,048 pixels, and to a shortest side of at most 768 pixels.
    """

    base: int
    tile: int

    def count_tokens(self, picture: Picture) -> int:
        """Return the token cost of an image, which has at most eight tiles (4 x 2)."""
        if picture.detail == "low":
            return self.base
        if picture.size is None:
            return self.base + 8 * self.tile
        long, short = max(picture.size), min(picture.size)
        scale = min(1.0, 2048 / long, 768 / short)
        return self.base + self.tile * min(8, _count_cells(long * scale, 512) * _count_cells(short * scale, 512))


@dataclass(frozen=True, slots=True)
class Patches:
    """OpenAI's patch formula: the number of patches of 32 x 32 pixels, multiplied by a factor.

    An image with more patches than allowed is first scaled down.
    """

    factor: float
    most: int = 1_536
    original: int | None = None
    """Number of patches allowed with `detail: original`; None: `most`. `detail: low` does not change the cost."""

    def count_tokens(self, picture: Picture) -> int:
        """Return the token cost of an image."""
        most = self.original if self.original and picture.detail == "original" else self.most
        return math.ceil(self._count_patches(picture.size, most) * self.factor)

    def _count_patches(self, size: Size | None, most: int) -> int:
        if size is None:
            return most
        width, height = size
        whole = _count_cells(width, 32) * _count_cells(height, 32)
        if whole <= most:
            return whole
        shrink = math.sqrt(most * 32 * 32 / (width * height))
        across, down = width * shrink / 32, height * shrink / 32
        if across < 1 or down < 1:
            return most
        fit = min(math.floor(across) / across, math.floor(down) / down)
        return min(most, _count_cells(across * fit, 1) * _count_cells(down * fit, 1))


@dataclass(frozen=True, slots=True)
class Area:
    """Anthropic's formula: the cost depends on the area of the image, and is limited to `most` tokens.

    The image is first scaled down to a longest side of at most `edge` pixels.
    """

    edge: int
    """Longest side in pixels."""
    most: int

    def count_tokens(self, picture: Picture) -> int:
        """Return the token cost of an image. Anthropic has no `detail`."""
        if picture.size is None:
            return self.most
        scale = min(1.0, self.edge / max(picture.size))
        width, height = (side * scale for side in picture.size)
        return min(self.most, max(math.ceil(width * height / 750), _count_cells(width, 28) * _count_cells(height, 28)))


@dataclass(frozen=True, slots=True)
class Crops:
    """Gemini's formula since 2.0: `each` tokens if both sides are at most 384 pixels, else `each` tokens per square crop.

    The side of a crop is two thirds of the image's shorter side, but at least 256 and at most 768 pixels. So an image
    of 960 x 540 pixels has six crops, as on Google's page "Image understanding".
    """

    each: int = 258
    unknown: int = 24
    """Number of crops for an image of unknown size: as many as an image of 12 megapixels has."""

    def count_tokens(self, picture: Picture) -> int:
        """Return the token cost of an image."""
        if picture.size is None:
            return self.each * self.unknown
        if max(picture.size) <= 384:
            return self.each
        side = min(768, max(256, int(min(picture.size) / 1.5)))
        return self.each * _count_cells(picture.size.width, side) * _count_cells(picture.size.height, side)


@dataclass(frozen=True, slots=True)
class MostExpensive:
    """The highest cost according to several formulas. Used for unknown models."""

    of: tuple[Pricing, ...]

    def count_tokens(self, picture: Picture) -> int:
        """Return the token cost of an image."""
        return max(pricing.count_tokens(picture) for pricing in self.of)


def _count_cells(length: float, side: float) -> int:
    """Return the number of squares of side `side` that cover a length. A rounding error of floats does not add a square."""
    return max(1, math.ceil(length / side - 1e-9))


# -- models -------------------------------------------------------------------

_ANTHROPIC: Final = Area(1_568, 1_600)
_ANTHROPIC_LARGE: Final = Area(2_576, 4_784)
_SMALL_5: Final = Patches(1.62, 2_500)
_LARGE_5: Final = Patches(1.2, 2_500, 10_000)

UNKNOWN: Final[Pricing] = MostExpensive((Tiles(85, 170), _ANTHROPIC_LARGE))
"""The formula for a model that is not in the table."""

# The first match wins. Where OpenAI's page and its bills differ, the larger figures apply. The page gives the small 5th
# generation factors of 1.62 and 2.46, but bills use 1.2 and 1.5. The small models of 5.4 are billed for more patches.
_TABLE: Final[tuple[tuple[str, Pricing], ...]] = (
    (r"gpt-4o-mini", Tiles(2_833, 5_667)),
    (r"gpt-4\.1-mini", Patches(1.62)),
    (r"gpt-4\.1-nano|gpt-5-nano", Patches(2.46)),
    (r"o4-mini|codex-mini", Patches(1.72)),
    (r"gpt-5-mini", Patches(1.62)),
    (r"gpt-5(?:\.1)?(?![.\d])", Tiles(70, 140)),
    (r"gpt-5\.\d+-(?:mini|nano)", _SMALL_5),
    (r"gpt-5\.", _LARGE_5),
    (r"o1|o3", Tiles(75, 150)),
    (r"computer-use", Tiles(65, 129)),
    (r"gpt-4|chatgpt-4o|offline", Tiles(85, 170)),
    (r"claude-(?:2|3|instant)|claude-[a-z]+-4(?:[.-][0-6])?(?!\d|[.-]\d{1,2}(?!\d))", _ANTHROPIC),
    (r"claude", _ANTHROPIC_LARGE),
    (r"gemini-1", Flat(258, 258)),
    (r"gemini-2|gemini-(?:pro|flash)|gemma", Crops()),
    (r"gemini-", Flat(1_120, 1_120)),
)
_PATTERNS: Final = tuple((re.compile(pattern), pricing) for pattern, pricing in _TABLE)


def find_pricing(model: str) -> Pricing:
    """Return the formula for the image costs of a model; `UNKNOWN` for an unknown model.

    Args:
        model: name of the model in lower case, without its provider.
    """
    return next((pricing for pattern, pricing in _PATTERNS if pattern.match(model)), UNKNOWN)


# -- parts --------------------------------------------------------------------


def parse_picture(
    fields: Mapping[str, Any], known: Mapping[tuple[str | int, ...], Size | None] | None = None
) -> Picture:
    """Return the properties of an image part, in either of OpenAI's formats (`image_url`) or in Anthropic's (`source`).

    Args:
        fields: the fields of the part, except its type.
        known: sizes of images whose data were detached, by the position of the data in the part.
    """
    url: Any = fields.get("image_url")
    detail: Any = fields.get("detail")
    path: tuple[str, ...] = ("image_url",)
    if isinstance(url, Mapping):
        url, detail, path = url.get("url"), url.get("detail", detail), ("image_url", "url")
    source = fields.get("source")
    if isinstance(source, Mapping) and source.get("type") == "base64":
        url, path = source.get("data"), ("source", "data")
    read = url if isinstance(url, str) else ""
    size = known[path] if known is not None and path in known else read_size(read)
    return Picture(size, detail if isinstance(detail, str) else "auto")
