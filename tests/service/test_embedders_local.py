"""The local model: comparison with a plain computation, damaged files, and threads; with the real weights if they are installed."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from holdfast.embedders import weights
from holdfast.embedders.minilm import PIECES, MiniLM, load_tokenizer
from holdfast.embedders.network import read_tensors
from holdfast.errors import EmbeddingFailed

np: Any = pytest.importorskip("numpy", reason="NumPy is not installed")


@pytest.fixture(scope="session")
def files() -> weights.Files:
    try:
        return weights.find()
    except EmbeddingFailed:
        pytest.skip("the weights of the local embedder are not installed")


@pytest.fixture(scope="module")
def reference(files: weights.Files) -> Callable[[str], Any]:
    """Return a function that computes the vector of one text as the papers define it, in float64, one head and one position at a time."""
    raw = files.weights.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    tokenizer = load_tokenizer(files.vocabulary)

    def read_tensor(name: str) -> Any:
        entry = header[name]
        first, last = entry["data_offsets"]
        return np.frombuffer(raw[8 + size + first : 8 + size + last], "<f4").reshape(entry["shape"])

    @cache
    def weight(name: str) -> Any:
        return read_tensor(name).astype(float)

    def linear(state: Any, name: str) -> Any:
        return state @ weight(f"{name}.weight").T + weight(f"{name}.bias")

    def normalize(state: Any, name: str) -> Any:
        state = (state - state.mean(-1, keepdims=True)) / np.sqrt(state.var(-1, keepdims=True) + 1e-12)
        return state * weight(f"{name}.weight") + weight(f"{name}.bias")

    def compute(text: str) -> Any:
        ids = tokenizer.encode(text).ids
        state = read_tensor("embeddings.word_embeddings.weight")[ids].astype(float)
        state = state + weight("embeddings.position_embeddings.weight")[: len(ids)]
        state = normalize(state + weight("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
        for layer in range(6):
            name = f"encoder.layer.{layer}"
            query, key, value = (linear(state, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
            seen = np.zeros_like(state)
            for head in range(12):
                mine = slice(32 * head, 32 * head + 32)
                scores = np.exp(query[:, mine] @ key[:, mine].T / math.sqrt(32))
                seen[:, mine] = scores / scores.sum(-1, keepdims=True) @ value[:, mine]
            state = normalize(
                state + linear(seen, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
            )
            inner = linear(state, f"{name}.intermediate.dense")
            inner = inner / 2 * (1 + np.frompyfunc(math.erf, 1, 1)(inner / math.sqrt(2)).astype(float))
            state = normalize(state + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        pooled = state.mean(0)
        return pooled / np.linalg.norm(pooled)

    return compute


async def embed(texts: Sequence[str]) -> list[bytes]:
    embedder = MiniLM()
    try:
        return await embedder.embed(texts)
    finally:
        await embedder.close()


# -- vectors -------------------------------------------------------------------


async def test_vectors_match_a_plain_computation(files: weights.Files, reference: Callable[[str], Any]) -> None:
    texts = ["Where is my order?", "x", "東京で会議があります。", "Crème brûlée: 5 €, please!", "long " * 270]
    texts += [" ".join(["flight"] * n) for n in (1, 2, 3, 5, 8, 13, 19)]
    for text, vector in zip(texts, await embed(texts), strict=True):
        assert len(vector) == 4 * 384
        assert np.abs(np.frombuffer(vector, "<f4") - reference(text)).max() < 2e-6, text
        assert math.isclose(float(np.linalg.norm(np.frombuffer(vector, "<f4"))), 1, abs_tol=1e-6)


# -- execution -------------------------------------------------------------------


def test_without_numpy_the_local_model_names_the_extra_and_search_works() -> None:
    code = (
        "import asyncio, sys\nsys.modules['numpy'] = None\n"
        "from holdfast.embedders.minilm import MiniLM\nfrom holdfast.recall.vectors import compute_similarities, to_vector\n"
        "print(compute_similarities(to_vector([1, 0]), [to_vector([1, 0]), to_vector([0, 1])], 2))\n"
        "try:\n    asyncio.run(MiniLM().embed(['hello']))\nexcept Exception as exc:\n    print(type(exc).__name__, exc)"
    )
    told = run_python(code).splitlines()
    assert told[0] == "[1.0, 0.0]"
    assert told[1].startswith("MissingExtra NumPy needs the extra 'embeddings'")


def run_python(code: str) -> str:
    """Run code in a new Python process and return its output."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- invalid files ----------------------------------------------------------------


def write_tensors(path: Path, header: Any, data: bytes = b"", *, size: int | None = None) -> Path:
    """Write a file with that header, valid or not."""
    told = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(told) if size is None else size) + told + data)
    return path


BAD: list[tuple[Any, int | None]] = [
    (b"", 0),
    ({}, 2**63),
    ({}, 40),
    (b"[1, 2]", None),
    (b"{\xff}", None),
    (b"[" * 100_000, None),
    ({"a": 1}, None),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 40]}}, None),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, None),
    ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, None),
    ({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, None),
    ({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}, None),
    ({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}, None),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, None),
]


@pytest.mark.parametrize(("header", "size"), BAD)
def test_damaged_file_is_rejected(tmp_path: Path, header: Any, size: int | None) -> None:
    with pytest.raises(EmbeddingFailed, match=r"damaged.*holdfast embeddings install"):
        read_tensors(write_tensors(tmp_path / "t", header, b"\0" * 8, size=size))


PIECES_OF_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "creme", "\u6771", "!"]


def test_words_are_split_as_the_model_expects(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES_OF_WORDS) + "\n", encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    found = tokenizer.encode("CR\u00c8ME\u6771unaffable! x [SEP]").tokens
    assert found == ["[CLS]", "creme", "\u6771", "un", "##aff", "##able", "!", *4 * ["[UNK]"], "[SEP]"]
    ids = tokenizer.encode("un " * 300).ids
    assert (len(ids), ids[:2], ids[-1]) == (PIECES, [2, 4], 3)


def test_a_vocabulary_without_special_pieces_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[CLS]\n[UNK]\nun\n")
    with pytest.raises(EmbeddingFailed, match=r"no \[SEP\]"):
        load_tokenizer(tmp_path / "vocab.txt")
