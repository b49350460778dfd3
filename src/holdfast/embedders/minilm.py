"""Embed texts with the local model all-MiniLM-L6-v2, in a thread and in small steps, so that no caller waits long."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from holdfast.embedders import weights
from holdfast.embedders.base import check_texts
from holdfast.embedders.settings import LOCAL, MINILM_FLOOR, MINILM_MODEL
from holdfast.embedders.wordpiece import WordPiece, read_vocabulary
from holdfast.errors import EmbeddingFailed
from holdfast.recall.vectors import Vector

if TYPE_CHECKING:
    from holdfast.embedders.network import Network

DIMENSION: Final = 384
PIECES: Final = 256
"""Maximum word pieces of a text that are read, as in the model's training. The rest of the text is ignored."""
STEP: Final = 256
"""Maximum word pieces of all texts in a step. Larger steps are not faster, but the next caller would wait longer."""


class MiniLM:
    """An embedder with the local model all-MiniLM-L6-v2.

    It needs the extra `embeddings` (NumPy) and the files that `holdfast embeddings install` installs. The first call maps the weights
    into memory without copying them, so several processes share them.

    Args:
        path: the folder of `model.safetensors` and `vocab.txt`; None: the folder of the installed package.
        min_similarity: the cosine below which texts are unrelated.
        name: the name that is stored with each vector.
    """

    dimension: Final = DIMENSION

    languages = frozenset({"english"})

    def __init__(
        self,
        path: str | None = None,
        min_similarity: float = MINILM_FLOOR,
        *,
        name: str = f"{LOCAL}/{MINILM_MODEL}",
    ) -> None:
        self._path = path
        self.name = name
        self.min_similarity = min_similarity
        self._loaded: tuple[WordPiece, Network] | None = None
        self._limiter: anyio.CapacityLimiter | None = None
        self._closed = False
        self._loading = threading.Lock()

    def __repr__(self) -> str:
        return f"MiniLM({self._path!r})"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text, in order.

        Raises:
            MissingExtra: NumPy is not installed.
        """
        wanted = check_texts(texts)
        if not wanted:
            return []
        pieces = await anyio.to_thread.run_sync(self._tokenize, wanted)
        # One step at a time for all callers, first come, first served.
        self._limiter = self._limiter or anyio.CapacityLimiter(1)
        found = [b""] * len(wanted)
        for step in _iter_steps(pieces):
            made = await anyio.to_thread.run_sync(self._embed_step, [pieces[at] for at in step], limiter=self._limiter)
            for at, vector in zip(step, made, strict=True):
                found[at] = vector
        return found

    async def close(self) -> None:
        """Release the weights."""
        self._closed = True
        self._loaded = None

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        tokenizer, _ = self._get_model()
        return [tokenizer.encode(text, PIECES) for text in texts]

    def _embed_step(self, texts: Sequence[Sequence[int]]) -> list[Vector]:
        _, network = self._get_model()
        return network.embed(texts)

    def _get_model(self) -> tuple[WordPiece, Network]:
        with self._loading:
            if self._closed:
                raise EmbeddingFailed("the local model was closed")
            self._loaded = self._loaded or self._load()
            return self._loaded

    def _load(self) -> tuple[WordPiece, Network]:
        from holdfast.embedders.network import Network

        files = weights.find(self._path)
        try:
            with files.vocabulary.open(encoding="utf-8") as lines:
                tokenizer = WordPiece(read_vocabulary(lines))
        except (OSError, UnicodeDecodeError) as exc:
            raise EmbeddingFailed(f"{files.vocabulary} cannot be read: {type(exc).__name__}") from exc
        return tokenizer, Network(files.weights, len(tokenizer))


def _iter_steps(pieces: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Group texts of similar length into steps of at most `STEP` pieces, and yield the positions of each step's texts.

    A longer text is a step of its own.
    """
    step: list[int] = []
    size = 0
    for at in sorted(range(len(pieces)), key=lambda at: len(pieces[at])):
        if step and size + len(pieces[at]) > STEP:
            yield step
            step, size = [], 0
        step.append(at)
        size += len(pieces[at])
    yield step
