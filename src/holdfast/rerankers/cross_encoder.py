"""Score texts with a local cross-encoder (an ONNX file and its tokenizer), in a thread and a few texts at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import anyio.to_thread

from holdfast.errors import MissingExtra, RerankFailed
from holdfast.rerankers.base import check_scores

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Encoding, Tokenizer

EXTRA: Final = "rerank"
PIECES: Final = 512
"""Maximum pieces of question and text together: the usual limit of BERT and RoBERTa models. The longer of the two is cut at its
end."""
STEP: Final = 8
"""Number of texts that are computed in one step. Another search may wait until the step ends."""
MODELS: Final = ("model.onnx", "onnx/model.onnx")
"""Possible paths of the model in its folder. Most models are published with the second one."""
TOKENIZER: Final = "tokenizer.json"
_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
_PADS: Final = ("[PAD]", "<pad>", "<|pad|>")


class _Loaded(NamedTuple):
    tokenizer: Tokenizer
    session: InferenceSession
    inputs: tuple[str, ...]
    pad: int
    """Id of the piece with which shorter texts are padded."""


class CrossEncoder:
    """A reranker with a local cross-encoder.

    The model must return one number for each text, like `cross-encoder/ms-marco-MiniLM-L6-v2` and `BAAI/bge-reranker-base`. It is
    loaded by the first call. The extra `rerank` (ONNX Runtime, tokenizers, NumPy) is needed.

    Args:
        path: the folder of `model.onnx` (or `onnx/model.onnx`) and `tokenizer.json`.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._loaded: _Loaded | None = None
        self._loading = threading.Lock()
        self._limiter: anyio.CapacityLimiter | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"CrossEncoder({str(self._path)!r})"

    @property
    def name(self) -> str:
        """The name of the model's folder, with the prefix `local/`."""
        return f"local/{self._path.name}"

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, in order.

        Raises:
            MissingExtra: a library of the extra `rerank` is not installed.
        """
        self._limiter = self._limiter or anyio.CapacityLimiter(1)  # one step at a time for all searches
        encoded = await anyio.to_thread.run_sync(self._encode, query, texts, limiter=self._limiter)
        found = [0.0] * len(texts)
        for step in _iter_steps(encoded):
            scores = await anyio.to_thread.run_sync(self._score, [encoded[at] for at in step], limiter=self._limiter)
            for at, score in zip(step, scores, strict=True):
                found[at] = score
        return found

    async def close(self) -> None:
        """Release the model."""
        self._closed = True
        self._loaded = None

    def _encode(self, query: str, texts: Sequence[str]) -> list[Encoding]:
        try:
            found: list[Encoding] = self._get_model().tokenizer.encode_batch([(query, text) for text in texts])
        except (TypeError, ValueError, OverflowError) as exc:
            raise RerankFailed(f"{self.name} could not split the texts: {type(exc).__name__}") from None
        return found

    def _score(self, texts: Sequence[Encoding]) -> list[float]:
        from holdfast.recall.arrays import np

        loaded = self._get_model()
        rows = {name: [_get_row(text, name) for text in texts] for name in loaded.inputs}
        longest = max(len(text) for text in texts)
        fed: dict[str, Any] = {}
        for name, some in rows.items():
            block = np.full((len(some), longest), loaded.pad if name == "input_ids" else 0, dtype=np.int64)
            for at, row in enumerate(some):
                block[at, : len(row)] = row
            fed[name] = block
        try:
            output = np.asarray(loaded.session.run(None, fed)[0])
        except Exception as exc:  # noqa: BLE001 - ONNX Runtime raises subclasses of the bare `Exception` for each status
            kind = type(exc).__name__
        else:
            if output.shape not in ((len(texts),), (len(texts), 1)):
                raise RerankFailed(f"{self.name} is not a cross-encoder with one score: its output is {output.shape}")
            return check_scores(output.reshape(-1).tolist(), len(texts), self.name)
        raise RerankFailed(f"{self.name} failed: {kind}")

    def _get_model(self) -> _Loaded:
        with self._loading:
            if self._closed:
                raise RerankFailed("the local reranker was closed")
            self._loaded = self._loaded or self._load()
            return self._loaded

    def _load(self) -> _Loaded:
        model = next((file for name in MODELS if (file := self._path / name).is_file()), None)
        if model is None or not (self._path / TOKENIZER).is_file():
            raise RerankFailed(f"{self._path} needs {' or '.join(MODELS)}, and {TOKENIZER}")
        try:
            from onnxruntime import InferenceSession, SessionOptions
            from tokenizers import Tokenizer

            from holdfast.recall.arrays import THREADS
        except ImportError as exc:
            raise MissingExtra("the local reranker", EXTRA) from exc
        options = SessionOptions()
        options.intra_op_num_threads = THREADS
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads must not occupy cores
        options.log_severity_level = 4  # its warnings would go to stderr, bypassing the log handlers
        try:
            tokenizer = Tokenizer.from_file(str(self._path / TOKENIZER))
            session = InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as exc:
            raise RerankFailed(f"{self._path} cannot be loaded: {exc}"[:500]) from exc
        inputs = tuple(one.name for one in session.get_inputs())
        if unknown := [name for name in inputs if name not in _INPUTS]:
            raise RerankFailed(f"{model} is not a cross-encoder: its input {unknown[0]!r} is not known")
        return _Loaded(tokenizer, session, inputs, _prepare(tokenizer))


def _prepare(tokenizer: Tokenizer) -> int:
    """Make a tokenizer cut long texts and not pad short ones, and return the id of its padding piece."""
    padding = tokenizer.padding
    tokenizer.no_padding()
    tokenizer.enable_truncation(PIECES, strategy="longest_first")
    if padding is not None:
        return int(padding["pad_id"])
    return next((id_ for name in _PADS if (id_ := tokenizer.token_to_id(name)) is not None), 0)


def _get_row(text: Encoding, name: str) -> list[int]:
    rows = {"input_ids": text.ids, "attention_mask": text.attention_mask, "token_type_ids": text.type_ids}
    row: list[int] = rows[name]
    return row


def _iter_steps(texts: Sequence[Encoding]) -> Iterator[list[int]]:
    """Group texts of similar length into steps of at most `STEP` texts, and yield the positions of each step's texts."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    for at in range(0, len(order), STEP):
        yield order[at : at + STEP]
