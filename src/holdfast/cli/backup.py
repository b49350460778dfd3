"""`holdfast backup`, `restore` and `migrate`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.stores import json_option, require_database, store_options
from holdfast.cli.terminal import ProgressBar, format_line, show_busy, show_json, show_progress
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.config import ServerSettings
    from holdfast.stores import SchemaStep
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
    from holdfast.indexes.settings import get_index_file, is_lasting, resolve_index_url

    index = build_index_settings(settings.config)
    place = None if index is None else resolve_index_url(index, settings.store)
    if place is None or not is_lasting(place):
        return None
    file = get_index_file(place)
    if file is None:
        return "The search index is stored elsewhere and no longer matches: rebuild it with `holdfast index rebuild`."
    if file.exists() and file.samefile(restored):
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


# -- migrate ---------------------------------------------------------------------


@click.command
@click.option("--show", is_flag=True, help="Only list the pending changes.")
@click.option("--keep-old", is_flag=True, help="Redis: keep the keys of Holdfast 0.1 after their conversion.")
@store_options
@json_option
def migrate(store: str | None, config: str | None, *, show: bool, keep_old: bool, as_json: bool) -> None:
    """Upgrade the schema of the database and list the changes.

    Every command that opens a database upgrades it by itself. Run this command to do it earlier, with a database user that may
    change the schema or at a time you choose. It is safe to run while servers are running, and to run more than once.

    Only this command converts Redis data of Holdfast 0.1. Stop all servers first. It compares what it wrote with what it
    read before it deletes anything. If it is interrupted, run it again.
    """
    import anyio

    from holdfast.config import load_settings
    from holdfast.settings import mask_url

    url = load_settings({"store": store, "config": config}, os.environ).store
    require_database(url)
    with show_busy():
        steps, conversion = anyio.run(_migrate, url, show, keep_old)
    if as_json:
        report = {"store": mask_url(url), "migrations": [step._asdict() for step in steps]}
        show_json(report if conversion is None else {**report, "conversion": conversion})
        return
    for step in steps:
        click.echo(f"{step.number:>4}  {step.name:<24}  {step.status}")
    if conversion is not None:
        click.echo(("to convert: " if show else "converted: ") + _format_conversion(conversion))


class MigrationStep(NamedTuple):
    """A schema change, and its status."""

    number: int
    name: str
    status: str
    """`applied` (by an earlier command), `applied now` or `pending`."""


async def _migrate(url: str, show: bool, keep_old: bool) -> tuple[list[MigrationStep], dict[str, int] | None]:  # noqa: FBT001  # the caller passes positions on
    import msgspec

    from holdfast.stores import load_opener, open_store, read_schema

    before = await read_schema(url)
    conversion: dict[str, int] | None = None
    if convert := getattr(load_opener(url), "convert", None):
        done = await convert(url, dry_run=show, keep_old=keep_old, progress=_show_progress)
        conversion = msgspec.to_builtins(done) if done.sessions or done.removed else None
    if not show:
        # Opening the store applies missing changes, as for every other command.
        await (await open_store(url, tenant="default")).close()
    return [_describe_step(step, show=show) for step in before], conversion


def _show_progress(done: Any) -> None:
    if done.sessions:
        click.echo(f"{done.sessions} sessions, {done.entries} messages", err=True)


def _format_conversion(conversion: dict[str, int]) -> str:
    words = {
        "sessions": "sessions",
        "entries": "messages",
        "compactions": "compactions",
        "damaged": "damaged sessions, kept unchanged",
        "kept": "sessions converted before",
        "removed": "old keys deleted",
    }
    return ", ".join(
        f"{conversion[name]} {word}" for name, word in words.items() if conversion[name] or name == "sessions"
    )


def _describe_step(step: SchemaStep, *, show: bool) -> MigrationStep:
    missing = "pending" if show else "applied now"
    return MigrationStep(step.number, step.name, "applied" if step.applied else missing)
