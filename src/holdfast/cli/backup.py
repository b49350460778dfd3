"""`holdfast backup` and `restore`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.stores import json_option, store_options
from holdfast.cli.terminal import ProgressBar, format_line, show_json, show_progress
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.config import ServerSettings
    from holdfast.stores.backup import BackupResult


@click.command
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@store_options
@json_option
def backup(file: str, store: str | None, config: str | None, *, force: bool, as_json: bool) -> None:
    """Copy an SQLite database to FILE. Servers can keep writing to it.

    The copy contains every write that was acknowledged before the start, and is checked before it gets its name. Other
    databases have their own backup tools. Artifacts and transcripts are folders that you copy yourself.
    """
    from holdfast.stores.backup import backup

    url = _load_settings(store, config).store
    with show_progress(None) as bar:
        copied = backup(url, file, force=force, progress=partial(_update, bar))
    _report(f"Copied to {format_line(copied.path)}", copied, as_json=as_json)


@click.command
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--force",
    is_flag=True,
    help="Replace the database even if it cannot be opened. First make sure that no process uses it.",
)
@store_options
@json_option
def restore(file: str, store: str | None, config: str | None, *, force: bool, as_json: bool) -> None:
    """Replace an SQLite database with a backup.

    FILE is a copy that `backup` made. No process may use the database. The old database is kept next to it under a name that ends with
    .before-restore. Data that was deleted or erased after the backup exists again. The search index no longer matches, so its file is
    deleted; the next server builds a new one.
    """
    from holdfast.stores.backup import restore

    settings = _load_settings(store, config)
    with show_progress(None) as bar:
        copied = restore(settings.store, file, force=force, progress=partial(_update, bar))
    index = _drop_index(settings, Path(copied.path))
    _report(f"Restored {format_line(copied.path)}", copied, as_json=as_json)
    if copied.kept is not None and not as_json:
        click.echo(f"The old database is now {format_line(copied.kept)}.")
    if index is not None:
        click.echo(index, err=True)


def _update(bar: ProgressBar, done: int, total: int) -> None:
    """Show how many pages are copied. After the last one, the whole copy is checked."""
    bar.describe("copying" if done < total else "checking the copy")
    bar.update(done, total)


def _load_settings(store: str | None, config: str | None) -> ServerSettings:
    from holdfast.config import load_settings

    return load_settings({"store": store, "config": config}, os.environ)


def _drop_index(settings: ServerSettings, restored: Path) -> str | None:
    """Delete the file of the search index, because the index does not match the restored database.

    Returns:
        A message with the next step for the user; None if there is nothing to do.
    """
    from holdfast.config.build import build_index_settings
    from holdfast.indexes.settings import get_index_file, resolve_index_url

    index = build_index_settings(settings.config)
    file = None if index is None else get_index_file(resolve_index_url(index, settings.store))
    if file is None or (file.exists() and file.samefile(restored)):
        return None
    try:
        for ending in ("", "-wal", "-shm", "-journal"):
            Path(f"{file}{ending}").unlink(missing_ok=True)
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        return f"{format_line(str(file))} no longer matches and could not be removed ({why}): run `holdfast index rebuild`."
    return None


def _report(verb: str, copied: BackupResult, *, as_json: bool) -> None:
    if as_json:
        show_json(copied._asdict())
        return
    size = f"{copied.size / 1_000_000:,.1f} MB"
    contents = f"{format_count(copied.sessions, 'session')}, {format_count(copied.messages, 'message')}"
    click.echo(f"{verb}: {contents}, {size}, schema {copied.schema}; every page was checked.")
