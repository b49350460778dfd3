"""`holdfast sessions verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli.exporting import each_session
from holdfast.cli.frame import Failure
from holdfast.cli.stores import all_found, json_option, place_options, user_option, work
from holdfast.cli.terminal import counted, line, progress, show_json
from holdfast.errors import SessionNotFound, StoreCorrupt

if TYPE_CHECKING:
    from holdfast.domain.session import Session
    from holdfast.holdfast import Holdfast


@click.command
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions, of --user if that is given.")
@user_option
@place_options
@json_option
def verify(
    ids: Sequence[str],
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """Re-derive the logs of sessions from their messages: order, totals, units and the digest chain.

    Ends with 1, naming the first place that does not fit, when what is stored is not what was written.
    """
    if everything == bool(ids):
        raise click.UsageError("Name sessions by ID, or all with --all.")

    async def do(hf: Holdfast) -> list[Verified]:
        if everything:
            return await _verified(hf, [session async for session in each_session(hf, user)])
        return await _verified(hf, await all_found(hf, ids, user))

    told = work(do, store=store, config=config)
    if as_json:
        show_json([one._asdict() for one in told])
    else:
        _show(told)
    corrupt = [one for one in told if one.error is not None]
    if corrupt:
        more = f" ({counted(len(corrupt), 'session')} in all)" if len(corrupt) > 1 else ""
        raise Failure(f"corrupt: {corrupt[0].error}{more}")


class Verified(NamedTuple):
    """One session, and what was found."""

    id: str
    user_id: str
    entries: int
    """That were checked; 0 where something did not fit."""
    error: str | None
    """What does not fit, and where."""


async def _verified(hf: Holdfast, sessions: Sequence[Session]) -> list[Verified]:
    from holdfast.stores.verify import verify as derived

    told = []
    with progress(len(sessions)) as bar:
        for session in sessions:
            ref = session.ref
            bar.about(ref.id)
            try:
                session.require_intact()
                told.append(Verified(ref.id, ref.user_id, await derived(hf.store, ref), None))
            except StoreCorrupt as exc:
                name = f"session {ref.id!r}"
                said = str(exc)
                told.append(Verified(ref.id, ref.user_id, 0, said if name in said else f"{name}: {said}"))
            except SessionNotFound:  # deleted by somebody since it was listed
                pass
            bar.step()
    return told


def _show(told: Sequence[Verified]) -> None:
    for one in told:
        if one.error is not None:
            click.echo(f"session {line(one.id)} of user {line(one.user_id)}: corrupt")
    good = [one for one in told if one.error is None]
    if good or not told:
        entries = sum(one.entries for one in good)
        click.echo(f"Sound: {counted(len(good), 'session')}, {counted(entries, 'entry', 'entries')} checked.")
