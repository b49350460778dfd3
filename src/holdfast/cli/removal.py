"""`holdfast sessions delete` and `prune`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.frame import Failure
from holdfast.cli.stores import all_found, json_option, place_options, user_option, work
from holdfast.cli.terminal import attended, counted, line, moment, progress, show_json
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    from holdfast.domain.session import Session
    from holdfast.holdfast import Holdfast
    from holdfast.lifecycle.removal import Receipt


# -- delete ------------------------------------------------------------------


@click.command
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--user", metavar="ID", help="Whose sessions; without an ID all of them, and what they share.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@json_option
def delete(
    ids: Sequence[str], user: str | None, store: str | None, config: str | None, *, yes: bool, as_json: bool
) -> None:
    """Delete sessions and all that belongs to them, or with --user alone everything of a user. There is no way back.

    Nothing is deleted when one of them is not there.
    """
    if ids:
        _delete_sessions(ids, user, store, config, yes=yes, as_json=as_json)
    elif user is not None:
        _delete_user(user, store, config, yes=yes, as_json=as_json)
    else:
        raise click.UsageError("Name sessions by ID, or a user with --user.")


def _delete_sessions(
    ids: Sequence[str], user: str | None, store: str | None, config: str | None, *, yes: bool, as_json: bool
) -> None:
    async def look(hf: Holdfast) -> list[Session]:
        return await all_found(hf, ids, user)

    meant = work(look, store=store, config=config)
    if not yes:
        told = [f"{line(one.id)} of user {line(one.user_id)}, {counted(one.messages, 'message')}" for one in meant]
        _confirm(told, counted(len(meant), "session"))

    async def do(hf: Holdfast) -> list[tuple[Session, Receipt]]:
        gone = [(session, await hf.remove(session.ref)) for session in meant]
        return [(session, receipt) for session, receipt in gone if receipt is not None]

    gone = work(do, store=store, config=config, ends=True)
    if as_json:
        show_json([_row(session, receipt) for session, receipt in gone])
    else:
        click.echo(f"Deleted {_sum([receipt for _, receipt in gone])}.")


def _delete_user(user: str, store: str | None, config: str | None, *, yes: bool, as_json: bool) -> None:
    async def look(hf: Holdfast) -> int:
        from holdfast.stores.walk import pages

        return sum([len(page) async for page in pages(hf.store, user_id=user)])

    if not yes:
        count = work(look, store=store, config=config)
        _confirm(
            [f"{counted(count, 'session')}, and the artifacts that they share"], f"everything of user {line(user)}"
        )

    async def do(hf: Holdfast) -> Receipt:
        return await hf.delete_user(user)

    receipt = work(do, store=store, config=config, ends=True)
    if as_json:
        show_json({"user_id": user, "receipt": receipt})
    else:
        click.echo(f"Deleted {_sum([receipt])}.")


def _confirm(told: Sequence[str], what: str) -> None:
    """Ask whoever sits there; the store is not open meanwhile."""
    if not attended():
        raise click.UsageError("There is nobody to ask: --yes deletes without asking.")
    for one in told:
        click.echo(f"  {one}", err=True)
    if not click.confirm(f"Delete {what}?", err=True):
        raise Failure("nothing was deleted")


# -- prune -------------------------------------------------------------------


def _age(_: click.Context, __: click.Parameter, value: str) -> int:
    """Milliseconds of an age like `30d`."""
    from holdfast.durations import milliseconds_of

    try:
        return milliseconds_of(value, "--older-than")
    except InvalidRequest as exc:
        raise click.BadParameter(str(exc).removeprefix("--older-than ")) from exc


@click.command
@click.option("--older-than", metavar="AGE", required=True, callback=_age, help="Like 30d, 12h or 90m.")
@click.option(
    "--status",
    type=click.Choice(["closed", "active", "any"]),
    default="closed",
    show_default=True,
    help="Which sessions.",
)
@user_option
@click.option("--dry-run", is_flag=True, help="Only say which sessions those are.")
@place_options
@json_option
def prune(
    older_than: int,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    status: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete sessions that ended, or were used last, before a certain time, and were not changed since.

    There is no way back: a --dry-run first says which ones it would be.
    """

    async def do(hf: Holdfast) -> list[tuple[Session, Receipt]]:
        gone = []
        found = hf.prune(older_than, status=None if status == "any" else status, user_id=user, dry_run=dry_run)
        with progress(None) as bar:
            async with aclosing(found):
                async for session, receipt in found:
                    bar.about(session.id)
                    gone.append((session, receipt))
                    bar.step()
        return gone

    gone = work(do, store=store, config=config, ends=not dry_run)
    if as_json:
        show_json([_pruned(session, receipt, dry_run=dry_run) for session, receipt in gone])
    elif dry_run:
        for session, _ in gone:
            when = moment(session.updated_at)
            click.echo(f"{line(session.id)} of user {line(session.user_id)}, {session.status}, changed last {when}")
        messages = sum(session.messages for session, _ in gone)
        click.echo(f"Would delete {counted(len(gone), 'session')}, {counted(messages, 'message')}.", err=True)
    else:
        click.echo(f"Deleted {_sum([receipt for _, receipt in gone])}.")


def _pruned(session: Session, receipt: Receipt, *, dry_run: bool) -> dict[str, Any]:
    row = {"status": session.status, "updated_at": session.updated_at, "messages": session.messages}
    return {**({"id": session.id, "user_id": session.user_id} if dry_run else _row(session, receipt)), **row}


# -- receipts ----------------------------------------------------------------


def _row(session: Session, receipt: Receipt) -> dict[str, Any]:
    return {"id": session.id, "user_id": session.user_id, "receipt": receipt}


def _sum(receipts: Sequence[Receipt]) -> str:
    """Receipts in words: what there is always, and what else there was."""
    from holdfast.lifecycle.removal import Receipt

    total = sum(receipts, start=Receipt())
    said = [counted(total.sessions, "session"), counted(total.messages + total.retired, "message")]
    if total.artifacts:
        said.append(f"{counted(total.artifacts, 'version')} of artifacts with {counted(total.artifact_bytes, 'byte')}")
    if total.memories:
        said.append(counted(total.memories, "memory", "memories"))
    if total.transcripts:
        said.append(counted(total.transcripts, "transcript"))
    if total.pending_deliveries:
        said.append(f"of which {total.pending_deliveries:,} will go when hooks were told")
    return ", ".join(said)
