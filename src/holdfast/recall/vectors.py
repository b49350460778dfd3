"""What a vector is, and arithmetic on many of them: with NumPy where it is installed, in plain Python where not.

A `Vector` is little-endian float32 of unit length, so that an inner product is the cosine, and any engine can read it.
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
"""One vector; 4 bytes a number."""

_SIZE: Final = 4
_SWAPPED: Final = sys.byteorder == "big"


def vector_of(numbers: Any, dimension: int | None = None) -> Vector:
    """A vector of unit length with the direction of `numbers`.

    Args:
        numbers: floats, a NumPy array, or bytes as a `Vector` has them.
        dimension: how many there must be; None: any, up to `VECTOR_NUMBERS`.

    Raises:
        EmbeddingFailed: another dimension, only zeros, something that is no finite number.
    """
    values = _floats(numbers)
    _fitting(len(values), dimension)
    try:
        length = math.sqrt(sum(map(mul, values, values)))
    except OverflowError:
        length = math.inf
    if not math.isfinite(length):
        raise EmbeddingFailed("a vector came back with numbers in it that are not finite")
    if length == 0:
        raise EmbeddingFailed("a vector came back that has only zeros: it points nowhere")
    return _bytes(array("f", [value / length for value in values]))


def _floats(numbers: Any) -> list[float]:
    if isinstance(numbers, bytes | bytearray | memoryview):
        if len(numbers) % _SIZE:
            raise EmbeddingFailed(f"a vector came back with {len(numbers):,} bytes, which is no number of float32")
        return _array(bytes(numbers)).tolist()
    flat = numbers.tolist() if hasattr(numbers, "tolist") else numbers
    try:
        # The float of a text would be a number too, and a bool is one by accident.
        if isinstance(flat, str) or not all(type(value) in (float, int) for value in flat):
            flat = [_float(value) for value in flat]
        return list(map(float, flat))
    except (TypeError, ValueError, OverflowError) as exc:
        raise EmbeddingFailed(f"a {type(numbers).__name__} came back where a vector was expected") from exc


def _float(value: Any) -> float:
    if isinstance(value, str | bytes | bool):
        raise TypeError(type(value).__name__)
    return float(value)


def _fitting(size: int, dimension: int | None) -> None:
    if dimension is not None and size != dimension:
        raise EmbeddingFailed(
            f"a vector came back with {size:,} numbers, expected {dimension:,}: the model is another one, or `dimension` is wrong"
        )
    if not 0 < size <= VECTOR_NUMBERS:
        raise EmbeddingFailed(f"a vector came back with {size:,} numbers; 1 to {VECTOR_NUMBERS:,} are taken")


# -- many of them ------------------------------------------------------------


def similarities(query: Vector, block: bytes | Sequence[Vector], dimension: int) -> list[float]:
    """The inner product of `query` with each vector of `block`, in its order.

    An exact scan: about 5 million numbers a millisecond with NumPy, 30,000 without.

    Args:
        query: a vector.
        block: vectors, one behind the other or one by one.
        dimension: numbers in each.

    Raises:
        EmbeddingFailed: `query`, or what is in `block`, has another dimension.
    """
    size = _SIZE * dimension
    _same(query, size)
    if isinstance(block, bytes | bytearray | memoryview):
        if len(block) % size:
            raise EmbeddingFailed(f"{len(block):,} bytes are no vectors of {dimension:,} numbers: rebuild the index")
        joined = bytes(block)
    else:
        for one in block:
            _same(one, size)
        joined = b"".join(block)
    fast = import_arrays()
    if fast is not None:
        found: list[float] = fast.similarities(query, joined, dimension)
        return found
    wanted, rows = _array(query), _array(joined)
    starts = range(0, len(rows), dimension)
    return [_inner(wanted, rows[start : start + dimension]) for start in starts]


def engine() -> str:
    """What compares vectors here: `numpy`, or `python`."""
    return "python" if import_arrays() is None else "numpy"


def packed(vectors: bytes) -> bytes:
    """One vector or many in half the bytes, as little-endian float16; similarities change by less than 0.001."""
    fast = import_arrays()
    if fast is not None:
        half: bytes = fast.packed(vectors)
        return half
    values = _array(vectors)
    return struct.pack(f"<{len(values)}e", *values)


def unpacked(halves: bytes) -> bytes:
    """What `packed` packed. Not of unit length to the last digit any more."""
    fast = import_arrays()
    if fast is not None:
        whole: bytes = fast.unpacked(halves)
        return whole
    return _bytes(array("f", struct.unpack(f"<{len(halves) // 2}e", halves)))


def _same(vector: bytes, size: int) -> None:
    if len(vector) != size:
        raise EmbeddingFailed(
            f"a vector has {len(vector) // _SIZE:,} numbers, expected {size // _SIZE:,}: where the model has changed, rebuild the index"
        )


if sys.version_info >= (3, 12):

    def _inner(one: Iterable[float], other: Iterable[float]) -> float:
        return float(math.sumprod(one, other))

else:

    def _inner(one: Iterable[float], other: Iterable[float]) -> float:
        return float(sum(map(mul, one, other)))


def _array(data: bytes) -> array[float]:
    values = array("f", data)
    if _SWAPPED:
        values.byteswap()
    return values


def _bytes(values: array[float]) -> bytes:
    if _SWAPPED:
        values.byteswap()
    return values.tobytes()


@lru_cache(maxsize=1)
def import_arrays() -> ModuleType | None:
    """Return the functions that need NumPy; None if it is not installed."""
    try:
        from holdfast.recall import arrays
    except MissingExtra:
        return None
    return arrays
