"""The local cross-encoder: a tiny model written by the test, invalid models and folders, and a search that uses it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from holdfast.errors import MissingExtra, RerankFailed
from holdfast.indexes.settings import IndexSettings
from holdfast.rerankers import RerankSettings, make_reranker
from holdfast.rerankers.cross_encoder import CrossEncoder
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


async def test_concurrent_searches_get_their_own_scores(tmp_path: Path) -> None:
    reranker = CrossEncoder(str(kit.write_folder(tmp_path)))
    found = await asyncio.gather(*(reranker.rerank("kelp", TEXTS[at % 5 :]) for at in range(10)))
    assert found == [SCORES[at % 5 :] for at in range(10)]


async def test_long_texts_are_cut(tmp_path: Path) -> None:
    reranker = CrossEncoder(str(kit.write_folder(tmp_path)))
    cut, whole = await reranker.rerank("kelp", ["kelp " * 5000, "kelp " * 20])
    assert whole == 20
    assert 400 < cut < 512


@pytest.mark.parametrize("labels", [0, 1])
async def test_scores_may_have_a_second_dimension(tmp_path: Path, labels: int) -> None:
    kit.write_folder(tmp_path, data=kit.model(labels=labels))
    assert await CrossEncoder(str(tmp_path)).rerank("kelp", TEXTS) == SCORES


async def test_model_without_token_types_gets_none(tmp_path: Path) -> None:
    kit.write_folder(tmp_path, data=kit.model(("input_ids", "attention_mask")))
    first, second = await CrossEncoder(str(tmp_path)).rerank("kelp", ["soup", "soup soup kelp salt"])
    assert second - first == -1.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (kit.model(labels=2), "one score"),
        (kit.model(("input_ids", "pixel_values")), "pixel_values"),
        (b"no model", "cannot be loaded"),
        (b"", "cannot be loaded"),
    ],
)
async def test_unsupported_model_is_rejected(tmp_path: Path, data: bytes, message: str) -> None:
    kit.write_folder(tmp_path, data=data)
    with pytest.raises(RerankFailed, match=message):
        await CrossEncoder(str(tmp_path)).rerank("kelp", TEXTS)


async def test_incomplete_model_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RerankFailed, match=r"needs model\.onnx"):
        await CrossEncoder(str(tmp_path / "none")).rerank("kelp", TEXTS)
    kit.write_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RerankFailed, match="cannot be loaded"):
        await CrossEncoder(str(tmp_path)).rerank("kelp", TEXTS)


@pytest.mark.parametrize("library", ["onnxruntime", "tokenizers"])
async def test_missing_library_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=r"local reranker.*rerank"):
        await CrossEncoder(str(write_folder_with_libraries(tmp_path, monkeypatch, library))).rerank("kelp", TEXTS)


def write_folder_with_libraries(folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> Path:
    """Write a folder with both files while no library is missing."""
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, missing)
        return kit.write_folder(folder)


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
