"""Functions on vectors that need NumPy, and sketches that find likely neighbours among very many vectors in milliseconds.

Only code that needs NumPy imports this module; `holdfast.recall.vectors` works without NumPy.

A sketch is a short bit string that represents one vector. All sketches are kept in memory. To make a sketch, the mean is
subtracted from the vector and the result is rotated randomly; the bits are the signs of the rotated components. The number of
bits in which two sketches differ is proportional to the angle between the vectors (Charikar 2002, SimHash). Some models
concentrate information in a few components; the rotation spreads it over all bits. The rotation is done block by block, which is
cheap. The sketches only select candidates. The caller then compares the candidates' vectors exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.errors import MissingExtra
from holdfast.recall.threads import THREADS, limit_threads

EXTRA: Final = "embeddings"

try:
    with limit_threads():
        import numpy as np
except ImportError as exc:
    raise MissingExtra("NumPy", EXTRA) from exc

__all__ = ["EXTRA", "THREADS", "compute_similarities", "np", "pack", "unpack"]


def compute_similarities(query: bytes, block: bytes, dimension: int) -> list[float]:
    """Return the inner product of the query with each vector of a block. The caller must have checked the sizes."""
    wanted = np.frombuffer(query, "<f4")
    rows = np.frombuffer(block, "<f4").reshape(-1, dimension)
    found: list[float] = (rows @ wanted).tolist()
    return found


def pack(vectors: bytes) -> bytes:
    """Convert float32 vectors to float16."""
    return np.frombuffer(vectors, "<f4").astype("<f2").tobytes()


def unpack(halves: bytes) -> bytes:
    """Convert float16 vectors to float32."""
    return np.frombuffer(halves, "<f2").astype("<f4").tobytes()


_BLOCK: Final = 64
"""Number of components that are rotated together. It equals the number of bits of the integers in which sketches are stored."""
_SEED: Final = 20261126
ROTATIONS: Final = 2
"""Number of rotations. Each rotation gives one bit per component of a vector."""
_ROWS: Final = 4096
"""Number of vectors that are rotated at once."""
SPARE: Final = 1024
"""Minimum number of free rows after the arrays grow."""


class Sketches:
    """The sketches of a set of vectors, by id. Vectors can be added, replaced and removed.

    Args:
        dimension: the number of components of a vector.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._words = -(-dimension // _BLOCK)
        chance = np.random.default_rng(_SEED)
        self._orders = [chance.permutation(self._words * _BLOCK) for _ in range(ROTATIONS)]
        blocks = chance.normal(size=(ROTATIONS, self._words, _BLOCK, _BLOCK))
        self._rotations = np.linalg.qr(blocks)[0].astype("<f4")
        self._mean: Any = None
        self._ids = np.zeros(0, np.int64)
        self._bits = np.zeros((ROTATIONS * self._words, 0), np.uint64)
        self._used = 0

    def __len__(self) -> int:
        """Return the number of vectors."""
        return int(np.count_nonzero(self._ids[: self._used] >= 0))

    def put(self, ids: Sequence[int], vectors: bytes) -> None:
        """Add vectors, replacing those with the same ids.

        The mean of the first call's vectors is subtracted from all vectors, including those of later calls.

        Args:
            ids: the ids, distinct and not negative.
            vectors: the concatenated vectors, in the order of the ids.
        """
        rows = np.frombuffer(vectors, "<f4").reshape(-1, self._dimension)
        if self._mean is None and len(rows):
            self._mean = rows.mean(axis=0)
        self.drop(ids)
        if self._used + len(ids) > len(self._ids):
            self._grow(len(ids))
        stop = self._used + len(ids)
        for start in range(0, len(rows), _ROWS):
            part = self._sketch(rows[start : start + _ROWS])
            self._bits[:, self._used + start : self._used + start + part.shape[1]] = part
        self._ids[self._used : stop] = np.asarray(ids, np.int64)
        self._used = stop

    def drop(self, ids: Sequence[int]) -> None:
        """Remove vectors; unknown ids are ignored."""
        gone = np.isin(self._ids[: self._used], np.asarray(ids, np.int64))
        if gone.any():
            self._ids[: self._used][gone] = -1
            self._bits[:, : self._used][:, gone] = 0

    def find_nearest(self, vector: bytes, count: int) -> list[int]:
        """Return the ids of about `count` vectors that are likely to be nearest, in any order."""
        used = self._ids[: self._used]
        if self._mean is None:
            return []
        sought = self._sketch(np.frombuffer(vector, "<f4")[None])[:, 0]
        apart = np.zeros(self._used, np.uint16)
        for word, bits in zip(self._bits[:, : self._used], sought, strict=True):
            apart += np.bitwise_count(word ^ bits)
        apart[used < 0] = np.iinfo(np.uint16).max
        if len(used) > count:
            used = used[np.argpartition(apart, count)[:count]]
        found: list[int] = used[used >= 0].tolist()
        return found

    def _sketch(self, rows: Any) -> Any:
        """Return the sketches of some vectors as 64-bit integers: one column for each vector, one row for each integer of a sketch."""
        spread = np.zeros((len(rows), self._words * _BLOCK), "<f4")
        spread[:, : self._dimension] = rows - self._mean
        words = []
        for order, rotations in zip(self._orders, self._rotations, strict=True):
            blocks = spread[:, order].reshape(len(rows), self._words, _BLOCK).transpose(1, 0, 2)
            words.append(np.packbits(blocks @ rotations > 0, axis=-1).view(np.uint64)[:, :, 0])
        return np.concatenate(words)

    def _grow(self, rows: int) -> None:
        """Move all sketches except the removed ones to new arrays with space for at least `rows` more."""
        kept = self._ids[: self._used] >= 0
        ids, bits = self._ids[: self._used][kept], self._bits[:, : self._used][:, kept]
        room = len(ids) + rows + max(SPARE, len(ids) // 8)
        self._ids, self._bits = np.full(room, -1, np.int64), np.zeros((len(bits), room), np.uint64)
        self._ids[: len(ids)], self._bits[:, : len(ids)] = ids, bits
        self._used = len(ids)
