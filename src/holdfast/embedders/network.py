"""Compute sentence vectors with BERT's forward pass in NumPy, for texts of different lengths in one call, without padding.

The network is that of all-MiniLM-L6-v2 in sentence-transformers (Devlin et al. 2018; Reimers and Gurevych 2019; Wang et al. 2020). Each
layer has an attention step and a feed-forward step with the exact GELU. The result is the mean over all pieces of a text, scaled to
unit length. Operations on single pieces run on the pieces of all texts at once. Only attention is computed for each text, where
texts of the same length are computed together. The module is imported only if NumPy is needed.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.errors import EmbeddingFailed
from holdfast.recall.arrays import np

HEADER_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of the header of a weights file."""
_FLOAT: Final = "F32"


class Tensor(NamedTuple):
    """The shape of a tensor and its location in the weights file."""

    shape: tuple[int, ...]
    start: int
    """Offset in bytes from the beginning of the file."""
    numbers: int
    """Number of values, 4 bytes each."""


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_tensors(path: Path) -> tuple[mmap.mmap, dict[str, Tensor]]:
    """Map a weights file into memory. Return the mapped file, and its float32 tensors by name.

    Tensors of other types are left out. Processes that map the same file share its pages.

    Raises:
        EmbeddingFailed: the file cannot be read, or is damaged.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as exc:  # ValueError: the file is empty
        raise EmbeddingFailed(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    size = int.from_bytes(mapped[:8], "little")
    if not 2 <= size <= min(HEADER_BYTES, len(mapped) - 8):
        raise _make_damage_error(path, f"its header claims {size:,} bytes")
    begin = 8 + size
    try:
        raw = msgspec.json.decode(mapped[8:begin], type=dict[str, msgspec.Raw])
        entries = {
            name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items() if name != "__metadata__"
        }
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _make_damage_error(path, "its header is not valid") from exc
    return mapped, {
        name: _locate_tensor(path, name, entry, begin, len(mapped))
        for name, entry in entries.items()
        if entry.dtype == _FLOAT
    }


def _locate_tensor(path: Path, name: str, entry: _Entry, begin: int, size: int) -> Tensor:
    first, last = entry.data_offsets
    count = math.prod(entry.shape)
    if min(entry.shape, default=1) < 0 or not 0 <= first <= last <= size - begin or last - first != 4 * count:
        raise _make_damage_error(path, f"tensor {name[:80]!r} exceeds the file, or its size does not match its shape")
    return Tensor(entry.shape, begin + first, count)


def _make_damage_error(path: Path, what: str) -> EmbeddingFailed:
    return EmbeddingFailed(f"{path} is damaged: {what}. Install the weights again: holdfast embeddings install --again")


LAYERS: Final = 6
HEADS: Final = 12
WIDTH: Final = 384
INNER: Final = 1536
POSITIONS: Final = 512
_EPSILON: Final = 1e-12
_ROWS: Final = 32
"""Number of pieces whose GELU is computed at once. With this number, intermediate values stay in the processor's cache."""

Array = Any
"""A `numpy.ndarray` of float32."""
_LAYER: Final = {
    "attention.self.query": (WIDTH, WIDTH),
    "attention.self.key": (WIDTH, WIDTH),
    "attention.self.value": (WIDTH, WIDTH),
    "attention.output.dense": (WIDTH, WIDTH),
    "attention.output.LayerNorm": (WIDTH,),
    "intermediate.dense": (INNER, WIDTH),
    "output.dense": (WIDTH, INNER),
    "output.LayerNorm": (WIDTH,),
}


class Network:
    """The network of all-MiniLM-L6-v2. Its weights are mapped from their file.

    Args:
        path: the file `model.safetensors`.
        vocabulary: the number of pieces in the vocabulary.

    Raises:
        EmbeddingFailed: the file cannot be read, is damaged, or belongs to another model.
    """

    def __init__(self, path: Path, vocabulary: int) -> None:
        mapped, tensors = read_tensors(path)
        shapes = dict(_iter_shapes(vocabulary))
        for name, shape in shapes.items():
            found = tensors.get(name)
            if found is None or found.shape != shape:
                has = f"{found.shape} where {shape} is expected" if found else "missing"
                raise EmbeddingFailed(f"{path} is not all-MiniLM-L6-v2: {name} is {has}")
        self._weights = {name: _make_view(mapped, tensors[name]) for name in shapes}
        # Every text is a first sentence, so the embedding of the sentence kind can be added to the positions.
        kinds = self._weights.pop("embeddings.token_type_embeddings.weight")
        self._positions = self._weights.pop("embeddings.position_embeddings.weight") + kinds[0]
        self._words = self._weights.pop("embeddings.word_embeddings.weight")

    def embed(self, texts: Sequence[Sequence[int]]) -> list[bytes]:
        """Return a vector of unit length for each text, in order.

        Args:
            texts: the ids of each text's pieces, 1 to `POSITIONS` of them. Texts of the same length are computed fastest.
        """
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        runs = [(size, len(list(same))) for size, same in groupby(len(texts[at]) for at in order)]
        ids = np.concatenate([np.asarray(texts[at], dtype=np.int64) for at in order])
        places = np.concatenate([np.arange(len(texts[at])) for at in order])
        state = self._normalize(self._words[ids] + self._positions[places], "embeddings.LayerNorm")
        for layer in range(LAYERS):
            state = self._apply_layer(state, runs, f"encoder.layer.{layer}")
        pooled = np.concatenate(
            [
                state[start:stop].reshape(count, size, WIDTH).mean(axis=1)
                for start, stop, count, size in _iter_spans(runs)
            ]
        )
        pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
        found = [b""] * len(texts)
        for at, vector in zip(order, pooled.astype("<f4", copy=False), strict=True):
            found[at] = vector.tobytes()
        return found

    def _apply_layer(self, state: Array, runs: Sequence[tuple[int, int]], name: str) -> Array:
        attended = self._attend(state, runs, f"{name}.attention.self")
        output = self._apply_linear(attended, f"{name}.attention.output.dense")
        output += state
        state = self._normalize(output, f"{name}.attention.output.LayerNorm")
        inner = _apply_gelu(self._apply_linear(state, f"{name}.intermediate.dense"))
        output = self._apply_linear(inner, f"{name}.output.dense")
        output += state
        return self._normalize(output, f"{name}.output.LayerNorm")

    def _attend(self, state: Array, runs: Sequence[tuple[int, int]], name: str) -> Array:
        query, key, value = (self._apply_linear(state, f"{name}.{part}") for part in ("query", "key", "value"))
        query *= np.float32((WIDTH // HEADS) ** -0.5)
        attended = np.empty_like(state)
        for start, stop, count, size in _iter_spans(runs):
            parts = (count, size, HEADS, WIDTH // HEADS)
            asked, keys, values = (
                whole[start:stop].reshape(parts).transpose(0, 2, 1, 3) for whole in (query, key, value)
            )
            shares = asked @ keys.transpose(0, 1, 3, 2)
            shares -= shares.max(axis=-1, keepdims=True)
            np.exp(shares, out=shares)
            shares /= shares.sum(axis=-1, keepdims=True)
            attended[start:stop] = (shares @ values).transpose(0, 2, 1, 3).reshape(stop - start, WIDTH)
        return attended

    def _apply_linear(self, state: Array, name: str) -> Array:
        product = state @ self._weights[f"{name}.weight"].T
        product += self._weights[f"{name}.bias"]
        return product

    def _normalize(self, state: Array, name: str) -> Array:
        state = state - state.mean(axis=-1, keepdims=True)
        variance = np.einsum("ij,ij->i", state, state)[:, None] / np.float32(WIDTH)
        state /= np.sqrt(variance + np.float32(_EPSILON))
        state *= self._weights[f"{name}.weight"]
        state += self._weights[f"{name}.bias"]
        return state


def _iter_shapes(vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "embeddings.word_embeddings.weight", (vocabulary, WIDTH)
    yield "embeddings.position_embeddings.weight", (POSITIONS, WIDTH)
    yield "embeddings.token_type_embeddings.weight", (2, WIDTH)
    yield from ((f"embeddings.LayerNorm.{part}", (WIDTH,)) for part in ("weight", "bias"))
    for layer in range(LAYERS):
        for name, shape in _LAYER.items():
            yield f"encoder.layer.{layer}.{name}.weight", shape
            yield f"encoder.layer.{layer}.{name}.bias", shape[:1]


def _make_view(mapped: mmap.mmap, tensor: Tensor) -> Array:
    return np.frombuffer(mapped, "<f4", tensor.numbers, tensor.start).reshape(tensor.shape)


def _iter_spans(runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """Yield, for each group of texts of the same length, its position among the pieces of all texts.

    Args:
        runs: for each group, the number of pieces per text and the number of texts.

    Yields:
        The first piece, the piece after the last one, the number of texts, and the number of pieces per text.
    """
    start = 0
    for size, count in runs:
        stop = start + size * count
        yield start, stop, count, size
        start = stop


# Abramowitz and Stegun 7.1.26: the error function within 1.5e-7, about the precision of float32.
_ERF: Final[Mapping[str, Any]] = {
    "p": np.float32(0.3275911 * 0.5**0.5),
    "a": [
        np.float32(0.5 * a) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    ],  # halved, for the factor x / 2
}


def _apply_gelu(state: Array) -> Array:
    """Replace each value `x` by `x / 2 · (1 + erf(x / √2))`, in place, and return the array."""
    for start in range(0, len(state), _ROWS):
        part = state[start : start + _ROWS]
        size = np.abs(part)
        t = size * _ERF["p"]
        t += np.float32(1)
        np.reciprocal(t, out=t)
        tail = t * _ERF["a"][0]
        for a in _ERF["a"][1:]:
            tail += a
            tail *= t
        # tail · exp(-x²/2) is half of the difference between 1 and erf, on the side of x's sign.
        np.multiply(part, part, out=t)
        t *= np.float32(-0.5)
        tail *= np.exp(t, out=t)
        tail *= size
        np.maximum(part, 0, out=part)
        part -= tail
    return state
