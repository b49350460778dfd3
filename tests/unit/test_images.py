"""Token costs of images: sizes read from headers, and the providers' published examples."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.images import (
    Patches,
    Picture,
    Size,
    read_size,
)


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


def test_only_the_header_is_read() -> None:
    broken_after_header = data_url(png(640, 480))[:80] + "!" * 10_000_000
    assert read_size(broken_after_header) == (640, 480)


@given(st.sampled_from(FORMATS), st.binary(max_size=60), st.integers(0, 60))
def test_broken_headers_never_raise(make: Any, noise: bytes, at: int) -> None:
    data = make(100, 100)
    read_size(data_url(data[:at] + noise + data[at + len(noise) :]))
    read_size(noise.decode("latin-1"))


# -- formulas ---------------------------------------------------------------------


@given(sides, sides)
def test_patches_never_exceed_their_maximum(width: int, height: int) -> None:
    assert 1 <= Patches(1.0).count_tokens(Picture(Size(width, height))) <= 1_536


# -- parts ------------------------------------------------------------------------
