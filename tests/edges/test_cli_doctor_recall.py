"""`holdfast doctor` on what search and workspaces stand on beside the index: the embedder, and git."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from holdfast.cli.doctor import index
from tests.edges.test_cli_doctor import KEY, found, only
from tests.service.embeddings_stub import make_error, serving

pytestmark = pytest.mark.usefixtures("in_empty_folder")


async def test_an_embedder_is_asked_for_a_vector_and_gets_nothing_of_anybodys() -> None:
    """One that fails is no more than a warning: words are searched. Where the index has none, nothing is asked."""
    async with serving() as stub:
        configured = f"embedders: {{mine: {{base_url: {stub.url}, model: m, api_key: {KEY}}}}}\n"
        file = anyio.Path("holdfast.yaml")
        await file.write_text(configured, encoding="utf-8")
        assert "embedder" not in await to_thread.run_sync(found)
        await file.write_text(f"{configured}storage: {{index: {{type: hybrid, embedder: mine}}}}\n", encoding="utf-8")
        told = await to_thread.run_sync(found)
        assert only(told["embedder"]) == ("ok", "openai/m: vectors of 8 dimensions")
        assert stub.inputs == [["holdfast"]]
        stub.troubles.append(lambda _: make_error(401, "no such key"))
        level, message = only((await to_thread.run_sync(found))["embedder"])
    assert (level, KEY in message) == ("warn", False)


def test_an_embedder_that_takes_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(_: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr(index, "try_embedder", late)
    Path("holdfast.yaml").write_text("storage: {index: {type: hybrid, embedder: default}}\n", encoding="utf-8")
    assert only(found()["embedder"]) == ("warn", "no vector within 10 s")


def test_workspaces_are_told_with_the_git_that_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is made for it; where there is no git that is broken, and where they are off nothing is said."""
    assert "workspaces" not in found()
    Path("holdfast.yaml").write_text("hooks: {workspace_git: {path: kept}}\n", encoding="utf-8")
    level, message = only(found()["workspaces"])
    assert (level, message.startswith("kept: git 2.")) == ("ok", True)
    assert not Path("kept").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    level, message = only(found()["workspaces"])
    assert (level, "install git 2.25 or later" in message) == ("fail", True)
