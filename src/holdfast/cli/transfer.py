"""`holdfast sessions export`, `import` and `verify`."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from holdfast.cli.command import CONFIG, STORE, Call, Output, command, find_sessions, user_option
from holdfast.cli.errors import Failure
from holdfast.cli.terminal import format_line, json_line, sanitize, show_progress
from holdfast.errors import Conflict, InvalidRequest, SessionNotFound, StoreCorrupt, StoreError, UsageError
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.cli.jsonl import ImportFile, SessionRecord
    from holdfast.domain.session import Session, SessionRef
    from holdfast.holdfast import Holdfast

STDIO = "-"


@command(shared=(STORE, CONFIG))
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions, or those selected by --user and --status.")
@click.option("--user", metavar="ID", help="Only sessions of this user.")
@click.option("--status", type=click.Choice(["active", "closed"]), help="With --all: only sessions with this status.")
@click.option("--retired", is_flag=True, help="Include messages that were edited away.")
@click.option("--calls", is_flag=True, help="Include the model calls; needs --retired.")
@click.option(
    "--digests",
    is_flag=True,
    help="Include the hashes of erased messages. With a hash, a guess of an erased text can be confirmed.",
)
@click.option("--no-records", is_flag=True, help="Leave out the records that the sessions own.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write to FILE instead of standard output; compressed if the name ends with .gz.",
)
def export(
    call: Call,
    *,
    ids: Sequence[str],
    user: str | None,
    output: str | None,
    status: str | None,
    everything: bool,
    retired: bool,
    calls: bool,
    digests: bool,
    no_records: bool,
) -> Output:
    """Export complete sessions as JSON lines, one session per line.

    `sessions import` and the server's PUT read this format. FILE is replaced only when all sessions are written.
    """
    _require_choice(ids, everything=everything)
    if status and not everything:
        raise click.UsageError("--status needs --all.")
    if calls and not retired:
        raise click.UsageError("--calls needs --retired: model calls refer to messages by their number in the log.")

    included = {"retired": retired, "calls": calls, "digests": digests, "records": not no_records}
    damaged: list[SessionRef] = []

    async def do(hf: Holdfast) -> int:
        count = 0
        with _open_output(output) as file, show_progress(len(ids) or None) as bar:
            async for session in _iterate_sessions(hf, ids, user, status):
                bar.describe(session.id)
                try:
                    session.require_intact()
                    count += await _write_session(hf, session.ref, file, **included)
                except StoreCorrupt as exc:
                    if not everything:
                        raise
                    damaged.append(session.ref)
                    click.echo(f"Skipped: {format_line(str(exc))}", err=True)
                bar.advance()
        return count

    count = call.run(do, keep_sessions=True)
    notes = [f"Exported {format_count(count, 'session')} to {output}."] if output not in (None, STDIO) else []
    left = f"{format_count(len(damaged), 'session')} could not be read and is missing from the export: see above"
    return Output(None, (), notes, left if damaged else None)


def _require_choice(ids: Sequence[str], *, everything: bool) -> None:
    if everything == bool(ids):
        raise click.UsageError("Name sessions by ID, or all with --all.")


async def _write_session(hf: Holdfast, ref: SessionRef, file: IO[bytes], **options: Any) -> bool:
    """Write one session to the file. Return False if the session was deleted meanwhile."""
    from holdfast.limits import IMPORT_LINE_BYTES

    try:
        text = json_line(await hf.export(ref, **options))
    except SessionNotFound:
        return False
    if len(text) > IMPORT_LINE_BYTES:
        message = f"{format_line(ref.id)} has {len(text):,} bytes; an import accepts at most {IMPORT_LINE_BYTES:,}"
        click.echo(f"Warning: {message}", err=True)
    file.write(text)
    return True


async def _iterate_sessions(
    hf: Holdfast, ids: Sequence[str], user: str | None, status: str | None = None
) -> AsyncIterator[Session]:
    """Yield sessions. Without ids, yield each session once, least recently used first, even if sessions are used meanwhile.

    Only one page of sessions is loaded at a time.

    Args:
        hf: the open store.
        ids: the sessions; empty: all sessions.
        user: yield only sessions of this user; None: sessions of all users.
        status: without ids: yield only sessions with this status; None: with any status.

    Raises:
        SessionNotFound: a session does not exist. No session was yielded.
        Failure: several users have a session with one of the ids.
    """
    from holdfast.stores.walk import SessionDeduplicator, iterate_session_pages

    for session in await find_sessions(hf, ids, user):
        yield session
    if ids:
        return
    seen = SessionDeduplicator()
    async for page in iterate_session_pages(hf.store, user_id=user, status=status):
        for session in page:
            if seen.add(session.ref):
                yield session


@contextmanager
def _open_output(name: str | None) -> Iterator[IO[bytes]]:
    """Open the output of an export for the duration of the block.

    An existing file is replaced only at the end. So if the export fails, the old file is unchanged.

    Args:
        name: path of the file; None or `-`: standard output.
    """
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
        with os.fdopen(descriptor, "wb") as file, _compress(file, path) as written:
            yield written
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


@contextmanager
def _compress(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Yield the file to write to. If `path` ends with .gz, the data is compressed.

    The compressed data contains no time and no name, so the same sessions always give the same bytes.
    """
    if path.suffix != ".gz":
        yield file
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        yield cast("IO[bytes]", packed)


# -- import ----------------------------------------------------------------------

MAX_NAMES = 5
"""Maximum number of sessions that are named in an error message."""


@command()
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option("--user", metavar="ID", help="User of the imported sessions, instead of the user in the file.")
@click.option("--replace", is_flag=True, help="Replace stored sessions that differ.")
@click.option("--dry-run", is_flag=True, help="Check the files and report what would be imported. Write nothing.")
def import_(call: Call, *, files: tuple[str, ...], user: str | None, replace: bool, dry_run: bool) -> Output:
    """Import sessions from JSON lines.

    A line is an export, a recording, a list of messages, a line of a transcript, or a single message with a session_id.

    Each session is imported completely or not at all. An invalid line or an ID that exists stops the import before anything
    is written. Identical stored sessions are skipped, so an interrupted import can be repeated. "-" is standard input;
    files may be compressed with gzip.
    """
    from holdfast.cli.jsonl import open_sources

    async def do(hf: Holdfast) -> Output:
        with open_sources(files) as opened:
            plan = await _check_sessions(hf, opened, user)
            if not plan.count:
                raise Failure(f"no sessions in {', '.join(files)}")
            if plan.taken and not replace:
                names = ", ".join(repr(ref.id) for ref in [*plan.taken][:MAX_NAMES])
                more = ", …" if len(plan.taken) > MAX_NAMES else ""
                raise Failure(f"already stored: {names}{more}; replace them with --replace")
            if not dry_run:
                return await _import_sessions(hf, opened, user, plan, keep=call.as_json)
            fresh, kept = plan.count - len(plan.unchanged), len(plan.unchanged)
            data = {"imported": fresh, "replaced": len(plan.taken), "messages": plan.messages, "unchanged": kept}
            return Output(data, [_format_result("Would import", fresh, plan.messages, kept)])

    return call.run(do, create=True, writes=not dry_run, keep_sessions=True)


@dataclass
class ImportPlan:
    """The result of comparing the sessions in the files with the store, before the import."""

    count: int = 0
    """Number of sessions in the files."""
    messages: int = 0
    """Number of messages in the sessions that will be imported."""
    unchanged: set[int] = field(default_factory=set)
    """Positions, in the files, of sessions that are already stored and identical."""
    taken: dict[SessionRef, None] = field(default_factory=dict)
    """Sessions that are stored already with other data, in the order of the files."""


async def _check_sessions(hf: Holdfast, opened: Sequence[ImportFile], user: str | None) -> ImportPlan:
    """Check all sessions before anything is written, and compare them with the store. Errors name file and line."""
    from holdfast.sessions.transfer import check_import, find_existing

    plan = ImportPlan()
    places: dict[SessionRef, str] = {}
    with show_progress(None) as bar:
        for number, item in enumerate(_read_all(hf, opened)):
            ref = _make_ref(item, user)
            if ref in places:
                what = f"session {ref.id!r} of user {ref.user_id!r}"
                raise Failure(f"{item.place}: {what} is already in {places[ref]}")
            places[ref] = item.place
            bar.describe(f"checking {item.place}")
            try:
                check_import(ref, item.session)
                found = await find_existing(hf.store, ref, item.session)
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


async def _import_sessions(
    hf: Holdfast, opened: Sequence[ImportFile], user: str | None, plan: ImportPlan, *, keep: bool
) -> Output:
    """Import the sessions in the files, except those that are unchanged according to the plan.

    If a session cannot be imported, it is reported, and the import continues with the next one. An error of the store ends the import.

    Args:
        hf: the open store.
        opened: the files.
        user: user of the imported sessions; None: the user in the file.
        plan: the result of `_check_sessions`.
        keep: also return a list of all sessions.
    """
    from holdfast.sessions.transfer import import_session

    rows: list[dict[str, Any]] = []
    imported = messages = failed = 0
    with show_progress(plan.count) as bar:
        for number, item in enumerate(_read_all(hf, opened)):
            bar.advance()
            ref, size = _make_ref(item, user), len(item.session.messages)
            row = {"id": ref.id, "user_id": ref.user_id, "messages": size, "imported": False, "replaced": False}
            if number not in plan.unchanged:
                try:
                    arrival = await import_session(hf.engine, ref, item.session, fresh=ref not in plan.taken)
                except (UsageError, Conflict) as exc:
                    failed += 1
                    click.echo(sanitize(f"{item.place}: {exc}"), err=True)
                    continue
                except StoreError as exc:
                    before = f"{format_count(imported, 'session')} imported before it"
                    raise Failure(f"{item.place}: {exc}\n{before}") from exc
                imported += 1
                messages += size
                row |= {"imported": True, "replaced": arrival.replaced}
            rows += [row] if keep else []
    text = _format_result("Imported", imported, messages, len(plan.unchanged))
    failure = f"{format_count(failed, 'session')} could not be imported" if failed else None
    return Output(rows, [text], failure=failure)


def _read_all(hf: Holdfast, opened: Sequence[ImportFile]) -> Any:
    for source in opened:
        yield from source.read(hf.clock())


def _make_ref(item: SessionRecord, user: str | None) -> SessionRef:
    from holdfast.domain.session import DEFAULT_USER, SessionRef

    stored_user = DEFAULT_USER if item.session.user_id is None else item.session.user_id
    return SessionRef(stored_user if user is None else user, item.id)


def _format_result(verb: str, sessions: int, messages: int, unchanged: int) -> str:
    kept = f"; {unchanged:,} already stored" if unchanged else ""
    return f"{verb} {format_count(sessions, 'session')}, {format_count(messages, 'message')}{kept}."


# -- verify ----------------------------------------------------------------------


@command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions, or those of --user.")
@user_option
def verify(call: Call, *, ids: Sequence[str], user: str | None, everything: bool) -> Output:
    """Verify stored sessions.

    Order, totals, units and the hash chain are computed again from the messages.

    The exit code is 1 if stored data differs from what was written. The error names the first difference.
    """
    _require_choice(ids, everything=everything)

    async def do(hf: Holdfast) -> list[dict[str, Any]]:
        sessions = [session async for session in _iterate_sessions(hf, ids, user)]
        rows = []
        with show_progress(len(sessions)) as bar:
            for session in sessions:
                bar.describe(session.id)
                with suppress(SessionNotFound):  # deleted since it was listed
                    rows.append({"id": session.id, "user_id": session.user_id, **await _verify_session(hf, session)})
                bar.advance()
        return rows

    rows = call.run(do)
    good, corrupt = [], list[str]()
    text = []
    for row in rows:
        if row["error"] is None:
            good.append(row["entries"])
        else:
            corrupt.append(row["error"])
            text.append(f"session {format_line(row['id'])} of user {format_line(row['user_id'])}: corrupt")
    if good or not rows:
        entries = format_count(sum(good), "entry", "entries")
        text.append(f"Verified {format_count(len(good), 'session')}, {entries}: no differences.")
    more = f" ({format_count(len(corrupt), 'session')} in total)" if len(corrupt) > 1 else ""
    return Output(rows, text, failure=f"corrupt: {corrupt[0]}{more}" if corrupt else None)


async def _verify_session(hf: Holdfast, session: Session) -> dict[str, Any]:
    """Return the number of entries that were verified, and the first difference that was found; None: the session is correct.

    Raises:
        SessionNotFound: the session no longer exists.
    """
    from holdfast.stores.verify import verify as verify_log

    try:
        session.require_intact()
        return {"entries": await verify_log(hf.store, session.ref), "error": None}
    except StoreCorrupt as exc:
        name, error = f"session {session.id!r}", str(exc)
        return {"entries": 0, "error": error if name in error else f"{name}: {error}"}
