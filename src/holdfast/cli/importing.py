"""`holdfast sessions import`: everything is read and checked first, and then written, session by session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.frame import Failure
from holdfast.cli.stores import json_option, place_options, work
from holdfast.cli.terminal import counted, progress, show_json
from holdfast.errors import Conflict, InvalidRequest, StoreError, UsageError

if TYPE_CHECKING:
    from holdfast.cli.lines import Sent, Source
    from holdfast.domain.session import SessionRef
    from holdfast.holdfast import Holdfast

NAMED = 5
"""Sessions that are named where there are many."""


@click.command(name="import")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option("--user", metavar="ID", help="Whose sessions they become, whatever the file says.")
@click.option("--replace", is_flag=True, help="Replace sessions that are there already, and differ.")
@click.option("--dry-run", is_flag=True, help="Check everything, say what would be done, and write nothing.")
@place_options
@json_option
def import_(
    files: tuple[str, ...],
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    replace: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Read sessions from JSON lines: exports, recordings, lists of messages, or single messages with a session_id.

    Each session is imported whole or not at all; a bad line or an id that is taken stops everything before anything is
    written. What is there already, just so, is left alone: an import that was broken off goes on when it is run again.
    "-" is the standard input; files may be compressed with gzip.
    """
    from holdfast.cli.lines import sources

    async def do(hf: Holdfast) -> Told:
        with sources(files) as opened:
            plan = await _checked(hf, opened, user)
            if not plan.count:
                raise Failure(f"no sessions in {', '.join(files)}")
            if plan.taken and not replace:
                names = ", ".join(repr(ref.id) for ref in [*plan.taken][:NAMED]) + ", …" * (len(plan.taken) > NAMED)
                raise Failure(f"already there: {names}; --replace puts the file's in their place")
            return _planned(plan) if dry_run else await _imported(hf, opened, user, plan, keep=as_json)

    told = work(do, store=store, config=config, makes=True, ends=not dry_run, still=True)
    if as_json:
        show_json(_summary(told) if dry_run else told.sessions)
    else:
        click.echo(_sentence(told, "Would import" if dry_run else "Imported"))
    if told.failed:
        raise Failure(f"{counted(told.failed, 'session')} could not be imported")


@dataclass
class Told:
    """What an import did, or would do."""

    imported: int = 0
    replaced: int = 0
    messages: int = 0
    unchanged: int = 0
    failed: int = 0
    sessions: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Plan:
    """What stands in the files, against what is there."""

    count: int = 0
    messages: int = 0
    """Of those that are to be imported."""
    unchanged: set[int] = field(default_factory=set)
    """Numbers of the sessions that are there already, just so."""
    taken: dict[SessionRef, None] = field(default_factory=dict)
    """Those that are there, and differ, in order."""


async def _checked(hf: Holdfast, opened: Sequence[Source], user: str | None) -> Plan:
    """Read everything; a mistake is told with its place, and nothing has been written yet."""
    from holdfast.sessions.exporting import check_import, existing

    plan = Plan()
    places: dict[SessionRef, str] = {}
    with progress(None) as bar:
        for number, item in enumerate(_all(hf, opened)):
            ref = _ref(item, user)
            if ref in places:
                what = f"session {ref.id!r} of user {ref.user_id!r}"
                raise Failure(f"{item.place}: {what} stands in {places[ref]} already")
            places[ref] = item.place
            bar.about(f"checking {item.place}")
            try:
                check_import(ref, item.session)
                found = await existing(hf.store, ref, item.session)
            except InvalidRequest as exc:
                raise Failure(f"{item.place}: {exc}") from exc
            plan.count += 1
            if found is not None and not found[1]:
                plan.unchanged.add(number)
                continue
            plan.messages += len(item.session.messages)
            if found is not None:
                plan.taken[ref] = None
    return plan


async def _imported(hf: Holdfast, opened: Sequence[Source], user: str | None, plan: Plan, *, keep: bool) -> Told:
    """Write what is to be written; one session that cannot be does not keep the others from it."""
    from holdfast.sessions.exporting import imported

    told = Told()
    with progress(plan.count) as bar:
        for number, item in enumerate(_all(hf, opened)):
            bar.step()
            ref = _ref(item, user)
            one = {"id": ref.id, "user_id": ref.user_id, "messages": len(item.session.messages)}
            if number in plan.unchanged:
                told.unchanged += 1
                told.sessions += [{**one, "imported": False, "replaced": False}] if keep else []
                continue
            try:
                arrival = await imported(hf.engine, ref, item.session, fresh=ref not in plan.taken)
            except (UsageError, Conflict) as exc:
                told.failed += 1
                click.echo(f"{item.place}: {exc}", err=True)
                continue
            except StoreError as exc:
                raise Failure(
                    f"{item.place}: {exc}\n{counted(told.imported, 'session')} before it were imported"
                ) from exc
            told.imported += 1
            told.replaced += arrival.replaced
            told.messages += len(item.session.messages)
            told.sessions += [{**one, "imported": True, "replaced": arrival.replaced}] if keep else []
    return told


def _all(hf: Holdfast, opened: Sequence[Source]) -> Any:
    for source in opened:
        yield from source.sessions(hf.clock())


def _ref(item: Sent, user: str | None) -> SessionRef:
    """Whose session it becomes, and what it is called."""
    from holdfast.domain.session import DEFAULT_USER, SessionRef

    said = DEFAULT_USER if item.session.user_id is None else item.session.user_id
    return SessionRef(said if user is None else user, item.id)


def _planned(plan: Plan) -> Told:
    fresh = plan.count - len(plan.unchanged)
    return Told(imported=fresh, replaced=len(plan.taken), messages=plan.messages, unchanged=len(plan.unchanged))


def _summary(told: Told) -> dict[str, int]:
    return {name: getattr(told, name) for name in ("imported", "replaced", "messages", "unchanged")}


def _sentence(told: Told, verb: str) -> str:
    there = f"; {told.unchanged:,} {'was' if told.unchanged == 1 else 'were'} there already" if told.unchanged else ""
    return f"{verb} {counted(told.imported, 'session')}, {counted(told.messages, 'message')}{there}."
