"""Memories recalled by meaning, with the real weights if they are installed: recall, isolation, deletion, and the
cost for a turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.embedders import EmbedderSettings, embedder_of, weights
from holdfast.errors import EmbeddingFailed
from holdfast.holdfast import Holdfast
from holdfast.indexes.settings import IndexSettings
from holdfast.recall.base import Lookup, Space

pytest.importorskip("numpy", reason="NumPy is not installed")
FACTS = {
    "dog": "Ada adopted a golden retriever called Bruno",
    "job": "Ada works as a nurse in a children's hospital",
    "food": "Ada gets sick from milk and cheese",
    "town": "Ada grew up on an island in the Azores",
}


@pytest.fixture
def embedder() -> Any:
    try:
        weights.find()
    except EmbeddingFailed:
        pytest.skip("the weights of the local embedder are not installed")
    return embedder_of(EmbedderSettings(provider="local"))


@pytest.fixture
async def hf(embedder: Any, tmp_path: Path) -> AsyncIterator[Holdfast]:
    settings = IndexSettings(mode="hybrid", embedder=embedder)
    async with Holdfast(f"sqlite:///{tmp_path}/chat.db", index=settings) as made:
        yield made


async def wait_for_index(hf: Holdfast) -> None:
    assert hf.engine.index is not None
    await hf.engine.index.settled()


async def remember_facts(hf: Holdfast, user: str = "ada") -> dict[str, str]:
    made = {name: (await hf.memories.remember(text, user_id=user)).memory.id for name, text in FACTS.items()}
    await wait_for_index(hf)
    return made


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_forgetting_deletes_vector_and_words_from_the_index_and_its_files(
    hf: Holdfast, tmp_path: Path, embedder: Any
) -> None:
    known = await remember_facts(hf)
    (vector,) = await embedder.embed([FACTS["dog"]])
    assert any(vector in stored for stored in read_files(tmp_path).values())
    await hf.memories.forget(known["dog"])
    await wait_for_index(hf)
    assert hf.engine.index is not None
    lookup = Lookup(space=Space("user", "ada"), limit=100)
    index = hf.engine.index.index
    assert {one.candidate.seq for one in await index.similar(lookup, embedder.name, vector)} == {2, 3, 4}
    left = read_files(tmp_path)
    assert [name for name, stored in left.items() if vector in stored or b"retriever" in stored] == []
