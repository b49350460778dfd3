"""Reads a `.safetensors` file: the names, shapes and places of its tensors, bounds checked, the numbers left where they are on disk.

The form is that of https://github.com/huggingface/safetensors: eight bytes with the header's length, the header as JSON, the
numbers. Nothing in it is ever executed.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.errors import EmbeddingFailed

HEADER_BYTES: Final = 4 * 1024 * 1024
"""Longest header that is read."""
_FLOAT: Final = "F32"


class Tensor(NamedTuple):
    """Where a tensor's numbers are."""

    shape: tuple[int, ...]
    start: int
    """In bytes, from the file's beginning."""
    numbers: int
    """How many, 4 bytes each."""


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read(path: Path) -> tuple[mmap.mmap, dict[str, Tensor]]:
    """The file, mapped into memory, and its tensors of float32; others are left out.

    Processes that read the same file share its pages.

    Raises:
        EmbeddingFailed: it cannot be read, or is damaged.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as exc:  # ValueError: it is empty
        raise EmbeddingFailed(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    size = int.from_bytes(mapped[:8], "little")
    if not 2 <= size <= min(HEADER_BYTES, len(mapped) - 8):
        raise _damaged(path, f"its header would have {size:,} bytes")
    begin = 8 + size
    try:
        raw = msgspec.json.decode(mapped[8:begin], type=dict[str, msgspec.Raw])
        entries = {
            name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items() if name != "__metadata__"
        }
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _damaged(path, "its header is none") from exc
    return mapped, {
        name: _placed(path, name, entry, begin, len(mapped)) for name, entry in entries.items() if entry.dtype == _FLOAT
    }


def _placed(path: Path, name: str, entry: _Entry, begin: int, size: int) -> Tensor:
    first, last = entry.data_offsets
    count = math.prod(entry.shape)
    if min(entry.shape, default=1) < 0 or not 0 <= first <= last <= size - begin or last - first != 4 * count:
        raise _damaged(path, f"tensor {name[:80]!r} lies outside of it, or is of another size than it says")
    return Tensor(entry.shape, begin + first, count)


def _damaged(path: Path, what: str) -> EmbeddingFailed:
    return EmbeddingFailed(f"{path} is damaged: {what}. Install the weights again: holdfast embeddings install --again")
