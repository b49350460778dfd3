"""`holdfast doctor` on what search and workspaces need besides the index: the embedder and git."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from holdfast.cli.doctor import index
from holdfast.embedders import weights
from holdfast.errors import EmbeddingFailed
from tests.edges.test_cli_doctor import KEY, only_finding, run_checks
from tests.service.embeddings_stub import make_error, serving
from tests.service.workspace_kit import NEEDS_GIT

pytestmark = pytest.mark.usefixtures("in_empty_folder")


async def test_embedder_is_tried_without_user_data() -> None:
    """A failure is only a warning, since keyword search still works. Without an embedder nothing is called."""
    async with serving(width=3) as stub:
        configured = f"embedders: {{mine: {{base_url: {stub.url}, model: m, api_key: {KEY}}}}}\n"
        file = anyio.Path("holdfast.yaml")
        await file.write_text(configured, encoding="utf-8")
        assert "embedder" not in await to_thread.run_sync(run_checks)
        await file.write_text(f"{configured}storage: {{index: {{type: hybrid, embedder: mine}}}}\n", encoding="utf-8")
        told = await to_thread.run_sync(run_checks)
        assert only_finding(told["embedder"]) == ("ok", "openai/m: vectors of 3 dimensions")
        assert [len(texts) for texts in stub.inputs] == [3]
        stub.troubles.append(lambda _: make_error(401, "no such key"))
        level, message = only_finding((await to_thread.run_sync(run_checks))["embedder"])
    assert (level, KEY in message) == ("warn", False)


def test_local_model_is_checked_by_its_vectors() -> None:
    pytest.importorskip("numpy", reason="NumPy is not installed")
    try:
        weights.find()
    except EmbeddingFailed:
        pytest.skip("the weights of the local embedder are not installed")
    configure("provider: local")
    assert only_finding(run_checks()["embedder"]) == ("ok", "local/all-MiniLM-L6-v2: vectors of 384 dimensions")


def test_unpublished_weights_are_reported(tmp_path: Path) -> None:
    for name in ("model.safetensors", "vocab.txt"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    configure(f"provider: local, path: {tmp_path}")
    level, message = only_finding(run_checks()["embedder"])
    assert (level, "is not the published one" in message) == ("warn", True)


def configure(entry: str) -> None:
    embedder = f"embedders: {{mine: {{{entry}}}}}\n"
    Path("holdfast.yaml").write_text(
        f"{embedder}storage: {{index: {{type: hybrid, embedder: mine}}}}\n", encoding="utf-8"
    )


async def test_embedder_of_unrelated_vectors_is_reported() -> None:
    async with serving(width=8) as stub:
        configure(f"base_url: {stub.url}, model: m")
        level, message = only_finding((await to_thread.run_sync(run_checks))["embedder"])
    assert (level, "not more similar than unrelated ones" in message) == ("warn", True)


def test_slow_embedder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(_: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr(index, "try_embedder", late)
    configure("api_key: sk-x")
    assert only_finding(run_checks()["embedder"]) == ("warn", "no vector within 10 s")


@NEEDS_GIT
def test_workspaces_are_reported_with_the_git_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No workspace is created; missing git is a failure; disabled workspaces are not mentioned."""
    assert "workspaces" not in run_checks()
    Path("holdfast.yaml").write_text("hooks: {workspace_git: {path: kept}}\n", encoding="utf-8")
    level, message = only_finding(run_checks()["workspaces"])
    assert (level, message.startswith("kept: git 2.")) == ("ok", True)
    assert not Path("kept").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    level, message = only_finding(run_checks()["workspaces"])
    assert (level, "install git 2.25 or later" in message) == ("fail", True)
