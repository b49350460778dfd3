"""The local cross-encoder: a tiny model written by the test, invalid models and folders, and a search that uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import RerankFailed
from holdfast.indexes.settings import IndexSettings
from holdfast.rerankers import RerankSettings, make_reranker
from tests.service import cross_encoder_kit as kit
from tests.service.search_kit import open_talks

pytest.importorskip("onnxruntime", reason="the extra `rerank` is not installed")
pytest.importorskip("tokenizers", reason="the extra `rerank` is not installed")

TEXTS = ["salt", "kelp", "kelp soup", "harbour soup salt kelp", "nothing that it knows"]
SCORES = [-4.0, 1.0, 3.0, 7.0, 0.0]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("padded", [False, True])
async def test_texts_get_the_scores_of_the_model(tmp_path: Path, nested: bool, padded: bool) -> None:
    """In order, whatever their lengths. Neither the question nor padding counts."""
    kit.write_folder(tmp_path, nested=nested, padded=padded)
    reranker = make_reranker(RerankSettings(path=str(tmp_path)))
    assert await reranker.rerank("kelp harbour", TEXTS) == SCORES
    assert await reranker.rerank("kelp", TEXTS * 11) == SCORES * 11
    assert reranker.name == f"local/{tmp_path.name}"
    await reranker.close()
    with pytest.raises(RerankFailed, match="closed"):
        await reranker.rerank("kelp", TEXTS)


async def test_search_is_ordered_by_the_cross_encoder(tmp_path: Path) -> None:
    rerank = RerankSettings(path=str(kit.write_folder(tmp_path)))
    async with open_talks(index=IndexSettings(rerank=rerank)) as at:
        await at.add_messages(
            "a", ("user", "kelp salt"), ("user", "kelp kelp kelp"), ("user", "kelp harbour"), ("user", "kelp")
        )
        results = await at.hf.search("kelp", "ada")
        assert [hit.seq for hit in results.hits] == [2, 1, 3, 0]
        assert [hit.parts["rerank"] for hit in results.hits] == [9.0, 3.0, 1.0, -3.0]
        assert results.notes == ()
