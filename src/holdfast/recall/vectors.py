"""Convert vectors, and compare many of them: with NumPy if it is installed, otherwise in plain Python.

A `Vector` is a sequence of little-endian float32 numbers, which any engine can read. It has unit length, so the inner product of
two vectors is their cosine.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import mul
from types import ModuleType
from typing import Any, Final

from holdfast.errors import EmbeddingFailed, MissingExtra
from holdfast.limits import VECTOR_NUMBERS

Vector = bytes
"""One vector, as 4 bytes per number."""

_SIZE: Final = 4
_SWAPPED: Final = sys.byteorder == "big"


def to_vector(numbers: Any, dimension: int | None = None) -> Vector:
    """Convert numbers to a vector of unit length.

    Args:
        numbers: a sequence of numbers, a NumPy array, or bytes in the form of a `Vector`.
        dimension: the required dimension; None: any dimension from 1 to `VECTOR_NUMBERS`.

    Raises:
        EmbeddingFailed: the dimension is wrong, all numbers are 0, or one of them is not finite.
    """
    values = _to_floats(numbers)
    _check_dimension(len(values), dimension)
    try:
        length = math.sqrt(sum(map(mul, values, values)))
    except OverflowError:
        length = math.inf
    if not math.isfinite(length):
        raise EmbeddingFailed("the embedder returned a vector with numbers that are not finite")
    if length == 0:
        raise EmbeddingFailed("the embedder returned a vector of zeros only, which has no direction")
    return _to_bytes(array("f", [value / length for value in values]))


def _to_floats(numbers: Any) -> list[float]:
    if isinstance(numbers, bytes | bytearray | memoryview):
        if len(numbers) % _SIZE:
            raise EmbeddingFailed(
                f"the embedder returned a vector of {len(numbers):,} bytes, which is not a multiple of 4 (float32)"
            )
        return _to_array(bytes(numbers)).tolist()
    flat = numbers.tolist() if hasattr(numbers, "tolist") else numbers
    try:
        # float() would also convert text, and bool is a subclass of int.
        if isinstance(flat, str) or not all(type(value) in (float, int) for value in flat):
            flat = [_to_float(value) for value in flat]
        return list(map(float, flat))
    except (TypeError, ValueError, OverflowError) as exc:
        raise EmbeddingFailed(f"the embedder returned a {type(numbers).__name__} instead of a vector") from exc


def _to_float(value: Any) -> float:
    if isinstance(value, str | bytes | bool):
        raise TypeError(type(value).__name__)
    return float(value)


def _check_dimension(size: int, dimension: int | None) -> None:
    if dimension is not None and size != dimension:
        raise EmbeddingFailed(
            f"the embedder returned a vector of {size:,} numbers, expected {dimension:,}: the model has changed, or `dimension` is wrong"
        )
    if not 0 < size <= VECTOR_NUMBERS:
        raise EmbeddingFailed(
            f"the embedder returned a vector of {size:,} numbers; allowed are 1 to {VECTOR_NUMBERS:,}"
        )


# -- many vectors ------------------------------------------------------------


def compute_similarities(query: Vector, block: bytes | Sequence[Vector], dimension: int) -> list[float]:
    """Return the inner product of `query` with each vector of `block`, in order.

    The speed is about 5 million numbers per millisecond with NumPy, and 30,000 without.

    Args:
        query: a vector.
        block: vectors, either concatenated or as a sequence.
        dimension: the dimension of the vectors.

    Raises:
        EmbeddingFailed: `query` or a vector of `block` has another dimension.
    """
    size = _SIZE * dimension
    _check_size(query, size)
    if isinstance(block, bytes | bytearray | memoryview):
        if len(block) % size:
            raise EmbeddingFailed(f"{len(block):,} bytes are not vectors of {dimension:,} numbers: rebuild the index")
        joined = bytes(block)
    else:
        for one in block:
            _check_size(one, size)
        joined = b"".join(block)
    fast = import_arrays()
    if fast is not None:
        found: list[float] = fast.compute_similarities(query, joined, dimension)
        return found
    wanted, rows = _to_array(query), _to_array(joined)
    starts = range(0, len(rows), dimension)
    return [_dot(wanted, rows[start : start + dimension]) for start in starts]


def get_engine() -> str:
    """Return the library that compares vectors: `numpy` or `python`."""
    return "python" if import_arrays() is None else "numpy"


def pack(vectors: bytes) -> bytes:
    """Compress vectors to little-endian float16, which has half the size. Similarities change by less than 0.001."""
    fast = import_arrays()
    if fast is not None:
        half: bytes = fast.pack(vectors)
        return half
    values = _to_array(vectors)
    return struct.pack(f"<{len(values)}e", *values)


def unpack(halves: bytes) -> bytes:
    """Expand vectors that `pack` compressed. Their length may differ slightly from 1."""
    fast = import_arrays()
    if fast is not None:
        whole: bytes = fast.unpack(halves)
        return whole
    return _to_bytes(array("f", struct.unpack(f"<{len(halves) // 2}e", halves)))


def _check_size(vector: bytes, size: int) -> None:
    if len(vector) != size:
        raise EmbeddingFailed(
            f"a vector has {len(vector) // _SIZE:,} numbers, expected {size // _SIZE:,}: if the model has changed, rebuild the index"
        )


if sys.version_info >= (3, 12):

    def _dot(one: Iterable[float], other: Iterable[float]) -> float:
        return float(math.sumprod(one, other))

else:

    def _dot(one: Iterable[float], other: Iterable[float]) -> float:
        return float(sum(map(mul, one, other)))


def _to_array(data: bytes) -> array[float]:
    values = array("f", data)
    if _SWAPPED:
        values.byteswap()
    return values


def _to_bytes(values: array[float]) -> bytes:
    if _SWAPPED:
        values.byteswap()
    return values.tobytes()


@lru_cache(maxsize=1)
def import_arrays() -> ModuleType | None:
    """Return the module `arrays`, whose functions need NumPy, or None if NumPy is not installed."""
    try:
        from holdfast.recall import arrays
    except MissingExtra:
        return None
    return arrays
