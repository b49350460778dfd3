"""`holdfast backup` and `restore`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.command import Call, Note, Output, command
from holdfast.cli.terminal import ProgressBar, format_line, show_progress
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.config.model import Config
    from holdfast.stores.backup import BackupResult


@command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def backup(call: Call, file: str, *, force: bool) -> Output:
    """Copy an SQLite database to FILE. Servers can keep writing to it.

    The copy contains every write that was acknowledged before the start, and is checked before it gets its name. Other
    databases have their own backup tools. Artifacts and transcripts are folders that you copy yourself.
    """
    from holdfast.stores.backup import backup

    url = call.load_settings().store
    with show_progress(None) as bar:
        copied = backup(url, file, force=force, progress=partial(_update, bar))
    return Output(copied._asdict(), [_describe("Copied to", copied)])


@command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--force",
    is_flag=True,
    help="Replace the database even if it cannot be opened. First make sure that no process uses it.",
)
def restore(call: Call, file: str, *, force: bool) -> Output:
    """Replace an SQLite database with a backup.

    FILE is a copy that `backup` made. No process may use the database. The old database is kept next to it under a name that ends with
    .before-restore. Data that was deleted or erased after the backup exists again. The search index no longer matches, so its file is
    deleted; the next server builds a new one.
    """
    from holdfast.stores.backup import restore

    config = call.load_settings()
    with show_progress(None) as bar:
        copied = restore(config.store, file, force=force, progress=partial(_update, bar))
    kept = [] if copied.kept is None else [f"The old database is now {format_line(copied.kept)}."]
    return Output(copied._asdict(), [_describe("Restored", copied), *kept], _drop_index(config, Path(copied.path)))


def _update(bar: ProgressBar, done: int, total: int) -> None:
    """Show how many pages are copied. After the last one, the whole copy is checked."""
    bar.describe("copying" if done < total else "checking the copy")
    bar.update(done, total)


def _drop_index(config: Config, restored: Path) -> list[Note]:
    """Delete the file of the search index, because the index does not match the restored database.

    Returns:
        A note with the next step for the user; empty if there is nothing to do.
    """
    from holdfast.config.build import build_index_settings
    from holdfast.indexes.settings import get_index_file, resolve_index_url

    index = build_index_settings(config)
    file = None if index is None else get_index_file(resolve_index_url(index, config.store))
    if file is None or (file.exists() and file.samefile(restored)):
        return []
    try:
        for ending in ("", "-wal", "-shm", "-journal"):
            Path(f"{file}{ending}").unlink(missing_ok=True)
    except OSError as exc:
        why = f"no longer matches and could not be removed ({exc.strerror or type(exc).__name__})"
        return [Note(f"{format_line(str(file))} {why}: run `holdfast index rebuild`.")]
    return []


def _describe(verb: str, copied: BackupResult) -> str:
    size = f"{copied.size / 1_000_000:,.1f} MB"
    contents = f"{format_count(copied.sessions, 'session')}, {format_count(copied.messages, 'message')}"
    return f"{verb} {format_line(copied.path)}: {contents}, {size}, schema {copied.schema}; every page was checked."
