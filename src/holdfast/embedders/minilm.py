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
from holdfast.errors import EmbeddingFailed, MissingExtra
from holdfast.recall.vectors import Vector

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

    from holdfast.embedders.network import Network

DIMENSION: Final = 384
PIECES: Final = 256
"""Maximum word pieces of a text that are read, as in the model's training. The rest of the text is ignored."""
_CHARS: Final = 32_768
"""Characters of a text that are split. Only a text of blanks has fewer than `PIECES` in them."""
_SPECIAL: Final = ("[CLS]", "[SEP]", "[UNK]")
STEP: Final = 256
"""Maximum word pieces of all texts in a step. Larger steps are not faster, but the next caller would wait longer."""


class MiniLM:
    """An embedder with the local model all-MiniLM-L6-v2.

    It needs the extra `embeddings` (NumPy, tokenizers) and the files that `holdfast embeddings install` installs. The first call maps the weights
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
        self._loaded: tuple[Tokenizer, Network] | None = None
        self._limiter: anyio.CapacityLimiter | None = None
        self._closed = False
        self._loading = threading.Lock()

    def __repr__(self) -> str:
        return f"MiniLM({self._path!r})"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text, in order.

        Raises:
            MissingExtra: NumPy or tokenizers is not installed.
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
        # One after another: a batch would start threads on every core.
        return [tokenizer.encode(text[:_CHARS]).ids for text in texts]

    def _embed_step(self, texts: Sequence[Sequence[int]]) -> list[Vector]:
        _, network = self._get_model()
        return network.embed(texts)

    def _get_model(self) -> tuple[Tokenizer, Network]:
        with self._loading:
            if self._closed:
                raise EmbeddingFailed("the local model was closed")
            self._loaded = self._loaded or self._load()
            return self._loaded

    def _load(self) -> tuple[Tokenizer, Network]:
        from holdfast.embedders.network import Network

        files = weights.find(self._path)
        tokenizer = load_tokenizer(files.vocabulary)
        return tokenizer, Network(files.weights, tokenizer.get_vocab_size())


def load_tokenizer(vocabulary: Path) -> Tokenizer:
    """Return BERT's uncased tokenizer (Devlin et al. 2018), for at most `PIECES` of a text. Special tokens in a text are plain text.

    Args:
        vocabulary: the file with the pieces, one a line.

    Raises:
        EmbeddingFailed: the file cannot be read, or lacks a piece that every text needs.
        MissingExtra: tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    except ImportError as exc:
        raise MissingExtra("the local model", "embeddings") from exc
    try:
        pieces = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise EmbeddingFailed(f"{vocabulary} cannot be read: {type(exc).__name__}") from exc
    known = {piece.rstrip("\r"): at for at, piece in enumerate(pieces)}
    if missing := [name for name in _SPECIAL if name not in known]:
        raise EmbeddingFailed(f"the vocabulary has no {missing[0]}: it is not one of BERT's")
    tokenizer = Tokenizer(models.WordPiece(known, unk_token=_SPECIAL[2], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", known["[SEP]"]), ("[CLS]", known["[CLS]"]))
    tokenizer.enable_truncation(PIECES)
    return tokenizer


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
