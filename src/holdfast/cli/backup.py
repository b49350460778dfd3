"""`holdfast backup`, `restore` and `migrate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.stores import json_option, place_options, require
from holdfast.cli.terminal import counted, line, progress, show_json

if TYPE_CHECKING:
    from holdfast.config import ServerSettings
    from holdfast.stores import SchemaStep
    from holdfast.stores.backup import Copied


@click.command
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace a FILE that is there.")
@place_options
@json_option
def backup(file: str, store: str | None, config: str | None, *, force: bool, as_json: bool) -> None:
    """Copy an SQLite database into FILE, beside servers that go on writing to it.

    What was acknowledged before is in the copy, which is checked before it gets its name. Other databases have tools of their
    own, and artifacts and transcripts are folders: see docs/operations.md.
    """
    from holdfast.stores.backup import backup

    url = _settings(store, config).store
    with progress(None) as bar:
        copied = backup(url, file, force=force, progress=bar.at)
    _told(f"Copied to {line(copied.path)}", copied, as_json=as_json)


@click.command
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--force", is_flag=True, help="Also when what is there cannot be opened: first make sure that nothing uses it."
)
@place_options
@json_option
def restore(file: str, store: str | None, config: str | None, *, force: bool, as_json: bool) -> None:
    """Put FILE, which `backup` made, in the place of an SQLite database that nothing uses.

    The database that was there is kept beside it, under a name that ends with .before-restore. What was deleted or erased since
    the backup is there again. The index is of another time then: its file goes, and is made anew by the next server.
    """
    from holdfast.stores.backup import restore

    settings = _settings(store, config)
    with progress(None) as bar:
        copied = restore(settings.store, file, force=force, progress=bar.at)
    index = _index_dropped(settings, Path(copied.path))
    _told(f"Restored {line(copied.path)}", copied, as_json=as_json)
    if copied.kept is not None and not as_json:
        click.echo(f"What was there is now {line(copied.kept)}.")
    if index is not None:
        click.echo(index, err=True)


def _settings(store: str | None, config: str | None) -> ServerSettings:
    from holdfast.config import load_settings

    return load_settings({"store": store, "config": config}, os.environ)


def _index_dropped(settings: ServerSettings, restored: Path) -> str | None:
    """Take away the file of an index that is of another time than what was restored; what is left to do."""
    from holdfast.config.build import build_index_settings
    from holdfast.indexes.settings import file_of, lasting, place_of

    index = build_index_settings(settings.config)
    place = None if index is None else place_of(index, settings.store)
    if place is None or not lasting(place):
        return None
    file = file_of(place)
    if file is None:
        return "The index lies elsewhere, and is of another time: make it anew with `holdfast index rebuild`."
    if file.exists() and file.samefile(restored):
        return None
    try:
        for ending in ("", "-wal", "-shm", "-journal"):
            Path(f"{file}{ending}").unlink(missing_ok=True)
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        return f"{line(str(file))} is of another time, and could not be removed ({why}): `holdfast index rebuild` makes it anew."
    return None


def _told(verb: str, copied: Copied, *, as_json: bool) -> None:
    if as_json:
        show_json(copied._asdict())
        return
    size = f"{copied.size / 1_000_000:,.1f} MB"
    held = f"{counted(copied.sessions, 'session')}, {counted(copied.messages, 'message')}"
    click.echo(f"{verb}: {held}, {size}, schema {copied.schema}; every page was checked.")


# -- migrate ---------------------------------------------------------------------


@click.command
@click.option("--show", is_flag=True, help="Only show what there is to do; nothing is changed.")
@click.option("--keep-old", is_flag=True, help="Redis: do not delete the keys of Holdfast 0.1 after their conversion.")
@place_options
@json_option
def migrate(store: str | None, config: str | None, *, show: bool, keep_old: bool, as_json: bool) -> None:
    """Bring the database's schema up to date, and say what was done.

    Every use of a database does that by itself. This is for doing it before, by a user who may change the schema, or at a
    time of your own: servers that come later find it done. It is safe beside running servers and beside itself.

    Data of Holdfast 0.1 in Redis is converted by this command alone. Stop all servers first. It compares what it wrote with what it
    read before it deletes anything. If it is interrupted, run it again.
    """
    import anyio

    from holdfast.config import load_settings
    from holdfast.settings import mask_url

    url = load_settings({"store": store, "config": config}, os.environ).store
    require(url)
    steps, conversion = anyio.run(_migrated, url, show, keep_old)
    if as_json:
        report = {"store": mask_url(url), "migrations": [step._asdict() for step in steps]}
        show_json(report if conversion is None else {**report, "conversion": conversion})
        return
    for step in steps:
        click.echo(f"{step.number:>4}  {step.name:<24}  {step.status}")
    if conversion is not None:
        click.echo(("to convert: " if show else "converted: ") + _counted(conversion))


class Told(NamedTuple):
    """One change of the schema."""

    number: int
    name: str
    status: str
    """`applied` before, `applied now` or `pending`."""


async def _migrated(url: str, show: bool, keep_old: bool) -> tuple[list[Told], dict[str, int] | None]:  # noqa: FBT001  # the caller passes positions on
    import msgspec

    from holdfast.stores import open_store, opener_of, schema_of

    before = await schema_of(url)
    conversion: dict[str, int] | None = None
    if convert := getattr(opener_of(url), "convert", None):
        done = await convert(url, dry_run=show, keep_old=keep_old, progress=_show_progress)
        conversion = msgspec.to_builtins(done) if done.sessions or done.removed else None
    if not show:
        # Opening applies what is missing, as every other command does.
        await (await open_store(url, tenant="default")).close()
    return [_describe_step(step, show=show) for step in before], conversion


def _show_progress(done: Any) -> None:
    if done.sessions:
        click.echo(f"{done.sessions} sessions, {done.entries} messages", err=True)


def _counted(conversion: dict[str, int]) -> str:
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


def _describe_step(step: SchemaStep, *, show: bool) -> Told:
    missing = "pending" if show else "applied now"
    return Told(step.number, step.name, "applied" if step.applied else missing)
