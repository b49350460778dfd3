"""`holdfast index`: status, rebuild."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.frame import Failure
from holdfast.cli.owners import NAMED
from holdfast.cli.stores import json_option, place_options, user_option, work
from holdfast.cli.terminal import counted, line, moment, progress, show_json

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.indexes.rebuild import IndexReport, Rebuilt
    from holdfast.indexes.service import IndexService


@click.group
def index() -> None:
    """Look at the index that search uses, and make it anew. It is made of the sessions: nothing is lost with it."""


@index.command
@place_options
@json_option
def status(store: str | None, config: str | None, *, as_json: bool) -> None:
    """Show what the index has, and how far it is behind the sessions."""

    async def do(hf: Holdfast) -> IndexReport:
        return await _service(hf).status()

    report = work(do, store=store, config=config, looks=True)
    if as_json:
        show_json(report)
        return
    for text in _told(report):
        click.echo(line(text))


def _told(report: IndexReport) -> list[str]:
    told = [
        f"{_held(report)}, searched by {report.mode}",
    ]
    for model, number in report.vectors.items():
        told.append(f"{counted(number, 'vector')} of {model}, searched by {report.vector_engine}")
    if report.pending:
        waiting = f"{report.pending:,}{'+' if report.pending >= 1000 else ''} wait for a vector"
        told.append(f"{waiting}: a server makes them; `holdfast embeddings check` tries whether that works")
    if report.unembedded:
        told.append(f"{counted(report.unembedded, 'text')} cannot be embedded, and are found by their words alone")
    if report.behind:
        behind = f"{counted(report.behind, 'session')} behind, by {counted(report.entries_behind, 'message')}"
        told.append(f"{behind}; the oldest has waited for {report.lag / 1000:,.1f} s")
    else:
        told.append("nothing is behind")
    if report.last_error is not None:
        failed = f"{report.last_error.doing} failed at {moment(report.last_error.at)}"
        told.append(f"{failed} ({report.last_error.error}); it is tried again")
    if report.rebuilding is not None:
        told.append("a rebuild was begun and is not over: `holdfast index rebuild` goes on with it")
    told.append("never looked over" if report.walked_at is None else f"looked over at {moment(report.walked_at)}")
    return told


def _held(report: IndexReport) -> str:
    """What it has. A memory is a text, too, and its owner a source; messages without words are none."""
    return f"{counted(report.documents, 'text')} of {counted(report.sources, 'source')}"


@index.command
@user_option
@click.option("--session", metavar="ID", help="Of this session only.")
@place_options
@json_option
def rebuild(user: str | None, session: str | None, store: str | None, config: str | None, *, as_json: bool) -> None:
    """Make the index anew from the sessions; it answers meanwhile. One that was cut off goes on where it was."""

    async def do(hf: Holdfast) -> tuple[Rebuilt, int]:
        service = _service(hf)
        with progress(None) as bar:
            rebuilt = await service.rebuild(user=user, session=session, progress=bar.at)
        await service.settled()
        return rebuilt, (await service.status()).pending

    rebuilt, pending = work(do, store=store, config=config)
    if as_json:
        told: dict[str, Any] = {name: getattr(rebuilt, name) for name in rebuilt.__struct_fields__}
        damaged = [name._asdict() for name in rebuilt.damaged]
        show_json({**told, "damaged": damaged, "pending": pending})
        return
    went_on = "; went on with one that had been cut off" if rebuilt.resumed else ""
    click.echo(f"Rebuilt {counted(rebuilt.sessions, 'session')}, {counted(rebuilt.entries, 'message')}{went_on}.")
    if user is not None and not rebuilt.sessions:
        click.echo(f"User {line(user, NAMED)} has no sessions.", err=True)
    if rebuilt.dropped:
        click.echo(f"Dropped {counted(rebuilt.dropped, 'source')} whose session is gone.")
    for name in rebuilt.damaged:
        click.echo(
            f"Warning: session {line(name.id)} of user {line(name.user_id)} is damaged and was skipped.", err=True
        )
    if pending:
        click.echo(f"{pending:,}{'+' if pending >= 1000 else ''} wait for a vector: a server makes them behind.")


def _service(hf: Holdfast) -> IndexService:
    if hf.index is None:
        raise Failure("there is no index: the configuration has `storage.index.enabled: false`")
    return hf.index
