"""`holdfast sessions export`, `import` and `verify`."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import click

from holdfast.cli.errors import Failure
from holdfast.cli.stores import all_found, json_option, place_options, user_option, work
from holdfast.cli.terminal import counted, json_line, line, progress, show_json
from holdfast.errors import Conflict, InvalidRequest, SessionNotFound, StoreCorrupt, StoreError, UsageError

if TYPE_CHECKING:
    from holdfast.cli.jsonl import Sent, Source
    from holdfast.domain.session import Session, SessionRef
    from holdfast.holdfast import Holdfast

STDIO = "-"


@click.command
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions: of --user, with --status, if those are given.")
@click.option("--user", metavar="ID", help="Whose sessions.")
@click.option("--status", type=click.Choice(["active", "closed"]), help="With --all, only these.")
@click.option("--retired", is_flag=True, help="With the messages that were edited away.")
@click.option("--calls", is_flag=True, help="With the model calls too; needs --retired.")
@click.option(
    "--digests", is_flag=True, help="With what stands for erased messages: lets somebody confirm a guess of one."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Instead of the standard output; compressed if its name ends with .gz.",
)
@place_options
def export(
    ids: Sequence[str],
    user: str | None,
    output: str | None,
    store: str | None,
    config: str | None,
    *,
    status: str | None,
    everything: bool,
    retired: bool,
    calls: bool,
    digests: bool,
) -> None:
    """Write sessions as JSON lines, one a line, whole.

    `sessions import` and the server's PUT take them again. A FILE is replaced when all of them are written.
    """
    if everything == bool(ids):
        raise click.UsageError("Name sessions by ID, or all with --all.")
    if status and not everything:
        raise click.UsageError("--status goes with --all.")
    if calls and not retired:
        raise click.UsageError("--calls needs --retired: a call names messages by their place in the log.")

    async def do(hf: Holdfast) -> int:
        named = None if everything else await all_found(hf, ids, user)
        sessions = each_session(hf, user, status) if named is None else _each(named)
        count = 0
        with _output(output) as file, progress(None if named is None else len(named)) as bar:
            async for session in sessions:
                bar.about(session.id)
                try:
                    session.require_intact()
                    count += await _written(hf, session.ref, file, retired=retired, calls=calls, digests=digests)
                except StoreCorrupt as exc:
                    if not everything:
                        raise
                    damaged.append(session.ref)
                    click.echo(f"Skipped: {line(str(exc))}", err=True)
                bar.step()
        return count

    damaged: list[SessionRef] = []
    count = work(do, store=store, config=config, still=True)
    if output not in (None, STDIO):
        click.echo(f"Exported {counted(count, 'session')} to {output}.", err=True)
    if damaged:
        raise Failure(f"{counted(len(damaged), 'session')} could not be read and is not in the export: see above")


async def _written(hf: Holdfast, ref: SessionRef, file: IO[bytes], **asked: bool) -> bool:
    """Whether a session was written: not, if somebody deleted it since it was listed."""
    from holdfast.limits import IMPORT_LINE_BYTES

    try:
        text = json_line(await hf.export(ref, **asked))
    except SessionNotFound:
        return False
    if len(text) > IMPORT_LINE_BYTES:
        said = f"{line(ref.id)}: its {len(text):,} bytes are more than an import takes, {IMPORT_LINE_BYTES:,}"
        click.echo(f"Warning: {said}", err=True)
    file.write(text)
    return True


async def each_session(hf: Holdfast, user: str | None, status: str | None = None) -> AsyncIterator[Session]:
    """Every session once, the last used ones last; also while they are written to. Holds a page of them at a time."""
    from holdfast.stores.walk import Seen, pages

    seen = Seen()
    async for page in pages(hf.store, user_id=user, status=status):
        for session in page:
            if seen.fresh(session.ref):
                yield session


async def _each(sessions: Sequence[Session]) -> AsyncIterator[Session]:
    for session in sessions:
        yield session


@contextmanager
def _output(name: str | None) -> Iterator[IO[bytes]]:
    """Where an export goes. A file is replaced as a whole at the end: a failed export leaves the old one as it was."""
    if name is None or name == STDIO:
        with click.open_file(STDIO, "wb") as stdout:
            yield stdout
            stdout.flush()
        return
    path = Path(name).resolve()
    if path.exists() and not path.is_file():  # a pipe or a device
        with path.open("wb") as file:
            yield file
        return
    try:
        descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=".holdfast-export-")
    except OSError as exc:
        raise Failure(f"{name}: {exc.strerror}") from exc
    try:
        with os.fdopen(descriptor, "wb") as file, _packed(file, path) as written:
            yield written
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


@contextmanager
def _packed(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """`file`, compressed if its name says so. The same sessions make the same bytes."""
    if path.suffix != ".gz":
        yield file
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        yield cast("IO[bytes]", packed)


# -- import ----------------------------------------------------------------------

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
    from holdfast.cli.jsonl import sources

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
    from holdfast.sessions.exporting import import_session

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
                arrival = await import_session(hf.engine, ref, item.session, fresh=ref not in plan.taken)
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


# -- verify ----------------------------------------------------------------------


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
