"""Arithmetic on vectors: the same with NumPy and without."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import EmbeddingFailed
from holdfast.limits import VECTOR_NUMBERS
from holdfast.recall import vectors
from holdfast.recall.vectors import compute_similarities, pack, to_vector, unpack

FINITE = st.floats(-1e6, 1e6).filter(lambda number: number == 0 or abs(number) > 1e-6)
NUMBERS = st.lists(FINITE, min_size=1, max_size=40).filter(any)


def values(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


@given(NUMBERS)
def test_vectors_are_normalized_to_unit_length(numbers: list[float]) -> None:
    vector = values(to_vector(numbers, len(numbers)))
    assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-6)
    length = math.hypot(*numbers)
    assert all(math.isclose(a, b / length, abs_tol=1e-6) for a, b in zip(vector, numbers, strict=True))


@pytest.mark.parametrize(
    ("numbers", "dimension", "words"),
    [
        ([1.0, 2.0], 3, "2 numbers, expected 3"),
        ([], None, "0 numbers"),
        ([1.0] * (VECTOR_NUMBERS + 1), None, "8,193 numbers"),
        ([0, 0], None, "zeros only"),
        ([1e-200], None, "zeros only"),
        ([1.0, math.nan], None, "not finite"),
        ([-math.inf], None, "not finite"),
        ([10**400], None, "instead of a vector"),
        ("12", None, "returned a str instead"),
        (None, None, "returned a NoneType instead"),
        ({"a": 1}, None, "returned a dict instead"),
        (b"\0\0\0", None, "3 bytes"),
    ],
)
def test_invalid_vectors_are_rejected(numbers: Any, dimension: int | None, words: str) -> None:
    with pytest.raises(EmbeddingFailed, match=words):
        to_vector(numbers, dimension)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[int, bytes, list[bytes]]:
    dimension = draw(st.integers(1, 24))
    one = (
        st.lists(st.floats(-10, 10), min_size=dimension, max_size=dimension)
        .filter(lambda row: math.hypot(*row) > 1e-3)
        .map(to_vector)
    )
    return dimension, draw(one), draw(st.lists(one, max_size=12))


@given(blocks())
def test_similarities_are_inner_products_with_every_engine(block: tuple[int, bytes, list[bytes]]) -> None:
    dimension, query, rows = block
    exact = [math.fsum(a * b for a, b in zip(values(query), values(row), strict=True)) for row in rows]
    for engine in engines():
        for form in (rows, b"".join(rows)):
            found = compute_similarities(query, form, dimension)
            assert len(found) == len(rows), engine
            assert all(
                type(one) is float and math.isclose(one, other, abs_tol=1e-5)
                for one, other in zip(found, exact, strict=True)
            )


def engines() -> Iterator[str]:
    """Each of the ways to compute, one after the other."""
    if find_spec("numpy") is not None:
        yield "numpy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "import_arrays", lambda: None)
        yield "python"


@given(NUMBERS)
def test_packed_vectors_take_half_the_bytes_with_little_error(numbers: list[float]) -> None:
    vector = to_vector(numbers)
    halves = {pack(vector) for _ in engines()}
    assert len(halves) == 1, "NumPy and Python round alike"
    (half,) = halves
    assert len(half) * 2 == len(vector)
    wholes = {unpack(half) for _ in engines()}
    assert len(wholes) == 1
    (whole,) = wholes
    assert pack(whole) == half
    (near,) = compute_similarities(vector, whole, len(numbers))
    assert math.isclose(near, 1, abs_tol=1e-3)
