"""Token costs of images: sizes read from headers, and the providers' published examples."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.images import (
    UNKNOWN,
    Area,
    Crops,
    Flat,
    Patches,
    Picture,
    Size,
    Tiles,
    find_pricing,
    parse_picture,
    read_size,
)
from holdfast.domain.messages import Message, Part
from holdfast.tokens import IMAGE, MESSAGE_OVERHEAD, STORED, get_counter


def png(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + b"rest"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\xf7\0\0"


def bmp(width: int, height: int) -> bytes:
    return b"BM" + bytes(12) + struct.pack("<Iii", 40, width, -height) + b"pixels"


def jpeg(width: int, height: int, *, exif: int = 0, kind: int = 0xC0) -> bytes:
    segments = [b"\xff\xe0" + struct.pack(">H", 16) + bytes(14)]
    segments += [b"\xff\xe1" + struct.pack(">H", 65_535) + bytes(65_533)] * exif
    segments += [b"\xff\xc4" + struct.pack(">H", 4) + bytes(2), b"\xff"]
    frame = b"\xff" + bytes([kind]) + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + b"".join(segments) + frame


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + struct.pack("<I", len(body)) + body


def webp_extended(width: int, height: int) -> bytes:
    return webp(b"VP8X", bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))


def webp_lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little"))


def webp_lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height))


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


FORMATS = [png, gif, bmp, jpeg, webp_extended, webp_lossless, webp_lossy]
sides = st.integers(1, 16_383)

# -- sizes ----------------------------------------------------------------------


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
@given(width=sides, height=sides)
def test_the_size_is_read_from_the_header(make: Any, width: int, height: int) -> None:
    assert read_size(data_url(make(width, height))) == (width, height)
    assert read_size(base64.b64encode(make(width, height)).decode()) == (width, height)


@pytest.mark.parametrize("kind", [0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xCF])
def test_the_size_of_any_kind_of_jpeg_is_read_after_exif_data(kind: int) -> None:
    assert read_size(data_url(jpeg(4_032, 3_024, exif=9, kind=kind), "jpeg")) == (4_032, 3_024)


def test_only_the_header_is_read() -> None:
    broken_after_header = data_url(png(640, 480))[:80] + "!" * 10_000_000
    assert read_size(broken_after_header) == (640, 480)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "https://example.com/cat.png",
        "file-abc123",
        "data:image/svg+xml;utf8,<svg/>",
        "data:image/png;base64,",
        "data:image/png;base64,not base64 at all!",
        data_url(png(640, 480))[:40],
        data_url(png(0, 480)),
        data_url(png(1 << 31, 480)),
        data_url(b"\x89PNG\r\n\x1a\n" + bytes(30)),
        data_url(b"\xff\xd8\xff\xe0" + bytes(200)),
        data_url(jpeg(10, 10)[:-12]),
        data_url(webp(b"VP8 ", bytes(20))),
        data_url(webp(b"ANIM", bytes(20))),
        data_url(b"%PDF-1.7" + bytes(40)),
        data_url(b"\xff\xd8" + b"\xff\xe1\x00\x02" * 5_000),
    ],
)
def test_a_broken_header_has_no_size(data: str) -> None:
    assert read_size(data) is None


@given(st.sampled_from(FORMATS), st.binary(max_size=60), st.integers(0, 60))
def test_broken_headers_never_raise(make: Any, noise: bytes, at: int) -> None:
    data = make(100, 100)
    read_size(data_url(data[:at] + noise + data[at + len(noise) :]))
    read_size(noise.decode("latin-1"))


# -- formulas ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "size", "detail", "tokens"),
    [
        # OpenAI, "Images and vision": the examples of the page
        ("gpt-4o", (1_024, 1_024), "high", 765),
        ("gpt-4o", (2_048, 4_096), "high", 1_105),
        ("gpt-4o", (4_096, 8_192), "low", 85),
        ("gpt-4.1", (512, 512), "auto", 255),
        ("gpt-4o-mini", (1_024, 1_024), "auto", 2_833 + 4 * 5_667),
        ("gpt-4o-mini", (1_024, 1_024), "low", 2_833),
        ("gpt-4.1-mini", (1_024, 1_024), "auto", 1_659),
        ("gpt-4.1-mini", (1_800, 2_400), "auto", 2_353),
        ("gpt-4.1-nano", (1_024, 1_024), "low", 2_520),
        ("o4-mini", (1_024, 1_024), "auto", 1_762),
        ("o3", (1_024, 1_024), "auto", 75 + 4 * 150),
        ("gpt-5", (1_024, 1_024), "auto", 70 + 4 * 140),
        ("gpt-5.4", (4_000, 4_000), "original", 12_000),
        ("gpt-5.4", (4_000, 4_000), "high", 3_000),
        # Anthropic, "Vision"
        ("claude-sonnet-4-5", (200, 200), "auto", 64),
        ("claude-sonnet-4-5", (1_000, 1_000), "auto", 1_334),
        ("claude-3-5-sonnet", (1_092, 1_092), "auto", 1_590),
        ("claude-sonnet-4-6", (8_000, 8_000), "auto", 1_600),
        ("claude-opus-4-7", (2_000, 1_500), "auto", 4_000),
        ("claude-opus-4-7", (8_000, 8_000), "auto", 4_784),
        # Google
        ("gemini-2.5-flash", (384, 384), "auto", 258),
        ("gemini-2.5-flash", (960, 540), "auto", 6 * 258),
        ("gemini-2.5-flash", (4_032, 3_024), "auto", 24 * 258),
        ("gemini-1.5-pro", (4_032, 3_024), "auto", 258),
        ("gemini-3-pro-preview", (4_032, 3_024), "auto", 1_120),
    ],
)
def test_costs_match_the_published_formulas(model: str, size: tuple[int, int], detail: str, tokens: int) -> None:
    assert find_pricing(model).count_tokens(Picture(Size(*size), detail)) == tokens


PRICINGS = [
    Flat(258, 258),
    Tiles(85, 170),
    Tiles(2_833, 5_667),
    Patches(1.62),
    Patches(1.2, 2_500, 10_000),
    Area(1_568, 1_600),
    Area(2_576, 4_784),
    UNKNOWN,
]


@given(st.sampled_from(PRICINGS), sides, sides)
def test_no_size_costs_more_than_the_unknown_one(pricing: Any, width: int, height: int) -> None:
    assert 0 < pricing.count_tokens(Picture(Size(width, height))) <= pricing.count_tokens(Picture(None))


@given(sides, sides)
def test_patches_never_exceed_their_maximum(width: int, height: int) -> None:
    assert 1 <= Patches(1.0).count_tokens(Picture(Size(width, height))) <= 1_536


@given(sides, sides)
def test_crops_cover_the_picture(width: int, height: int) -> None:
    assert Crops().count_tokens(Picture(Size(width, height))) >= 258 * -(-width // 768) * -(-height // 768)


@pytest.mark.parametrize(
    ("model", "like"),
    [
        ("claude-opus-4-20250514", "claude-3-opus"),
        ("claude-sonnet-4.5", "claude-3-opus"),
        ("claude-opus-4-8", "claude-opus-5"),
        ("claude-opus-4-10", "claude-opus-5"),
        ("gpt-5.1-codex", "gpt-5"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("gpt-5.2", "gpt-5.4"),
        ("gpt-4-turbo", "gpt-4o"),
        ("gemini-2.0-flash", "gemini-2.5-pro"),
    ],
)
def test_models_of_a_family_share_the_pricing(model: str, like: str) -> None:
    assert find_pricing(model) is find_pricing(like)


# -- parts ------------------------------------------------------------------------

URL = data_url(png(1_024, 1_024))


@pytest.mark.parametrize(
    ("fields", "picture"),
    [
        ({"image_url": {"url": URL, "detail": "low"}}, Picture(Size(1_024, 1_024), "low")),
        ({"image_url": URL, "detail": "high"}, Picture(Size(1_024, 1_024), "high")),
        ({"source": {"type": "base64", "data": URL.partition(",")[2]}}, Picture(Size(1_024, 1_024))),
        ({"source": {"type": "url", "url": "https://example.com"}}, Picture(None)),
        ({"image_url": {"url": "https://example.com/cat.png"}}, Picture(None)),
        ({"image_url": 7, "detail": 7}, Picture(None)),
        ({"file_id": "file-1"}, Picture(None)),
    ],
)
def test_every_form_of_image_part_is_parsed(fields: dict[str, Any], picture: Picture) -> None:
    assert parse_picture(fields) == picture


def test_counters_of_models_price_pictures_and_the_stored_counter_does_not() -> None:
    message = Message(role="user", content=(Part("image_url", extra={"image_url": {"url": URL}}),))
    stored = MESSAGE_OVERHEAD + IMAGE
    assert STORED.message(message) == stored
    assert get_counter("gpt-4o").message(message) == MESSAGE_OVERHEAD + 765
    assert get_counter("gpt-4o-mini").message(message) == MESSAGE_OVERHEAD + 25_501
    assert get_counter("us.anthropic.claude-sonnet-4-5").message(message) == MESSAGE_OVERHEAD + 1_399
    assert get_counter("openai/gpt-4o") is get_counter("gpt-4o")
