"""`holdfast sessions export` and `import`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from holdfast.cli.frame import Failure
from holdfast.cli.stores import all_found, json_option, place_options, work
from holdfast.cli.terminal import counted, json_line, progress, show_json
from holdfast.errors import HoldfastError, InvalidRequest, SessionNotFound

if TYPE_CHECKING:
    from holdfast.cli.lines import Sent
    from holdfast.holdfast import Holdfast
    from holdfast.session import SessionRef

STDIO = "-"


# -- export ------------------------------------------------------------------


@click.command
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions, of --user if that is given.")
@click.option("--user", metavar="ID", help="Whose sessions.")
@click.option(
    "--output", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True), help="Instead of the standard output."
)
@place_options
def export(
    ids: Sequence[str], user: str | None, output: str | None, store: str | None, config: str | None, *, everything: bool
) -> None:
    """Write sessions as JSON lines, one a line, whole.

    `sessions import` and the server's PUT take them again. A FILE is replaced when all of them are written.
    """
    if everything == bool(ids):
        raise click.UsageError("Name sessions by ID, or all with --all.")

    async def do(hf: Holdfast) -> int:
        count = 0
        refs = await all_refs(hf, user) if everything else [found.ref for found in await all_found(hf, ids, user)]
        with _output(output) as file:
            async for line in _exported(hf, refs):
                file.write(line)
                count += 1
        return count

    count = work(do, store=store, config=config)
    if output not in (None, STDIO):
        click.echo(f"Exported {counted(count, 'session')} to {output}.", err=True)


async def _exported(hf: Holdfast, refs: Sequence[SessionRef]) -> AsyncIterator[bytes]:
    from holdfast.wire.exports import export_to

    for ref in refs:
        try:
            rows = await hf.store.window(ref, None)  # session and live path, seen at one moment
        except SessionNotFound:  # deleted by somebody since it was listed
            continue
        yield json_line(export_to(rows.session, rows.entries))


async def all_refs(hf: Holdfast, user: str | None) -> list[SessionRef]:
    """Every session, the last used ones last; also while they are written to: those move to the front, which is read again."""
    from holdfast.stores.base import MAX_PAGE

    refs: dict[SessionRef, None] = {}
    for first in (True, False):
        after = None
        while True:
            try:
                page = await hf.sessions(user_id=user, limit=MAX_PAGE, after=after)
            except SessionNotFound:  # the place to go on at was deleted
                after = None
                continue
            fresh = [session.ref for session in page.sessions if session.ref not in refs]
            refs.update(dict.fromkeys(fresh))
            if not page.has_more or not (first or fresh):
                break
            after = page.sessions[-1].ref
    return list(reversed(refs))


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
        with os.fdopen(descriptor, "wb") as file:
            yield file
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


# -- import ------------------------------------------------------------------


@click.command(name="import")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option("--user", metavar="ID", help="Whose sessions they become, whatever the file says.")
@click.option("--replace", is_flag=True, help="Replace sessions that are there already.")
@place_options
@json_option
def import_(
    files: Sequence[str], user: str | None, store: str | None, config: str | None, *, replace: bool, as_json: bool
) -> None:
    """Read sessions from JSON lines: exports, recordings, lists of messages, or single messages with a session_id.

    Each session is imported whole or not at all; a bad line or an id that is taken stops everything before anything is
    written. "-" is the standard input.
    """
    sent = [item for name in files for item in _sent(name)]
    if not sent:
        raise Failure(f"no sessions in {', '.join(files)}")

    async def do(hf: Holdfast) -> list[dict[str, Any]]:
        refs = _refs(sent, user)
        taken = await _taken(hf, sent, refs)
        if taken and not replace:
            names = ", ".join(repr(ref.id) for ref in list(taken)[:5]) + ", …" * (len(taken) > 5)
            raise Failure(f"already there: {names}; --replace puts the file's in their place")
        with progress(len(sent)) as bar:
            done: list[dict[str, Any]] = []
            for item, ref in zip(sent, refs, strict=True):
                done.append({**await _install(hf, item, ref, len(done)), "replaced": ref in taken})
                bar.step()
        return done

    done = work(do, store=store, config=config, makes=True)
    if as_json:
        show_json(done)
    else:
        click.echo(
            f"Imported {counted(len(done), 'session')}, {counted(sum(one['messages'] for one in done), 'message')}."
        )


def _sent(name: str) -> list[Sent]:
    from holdfast.cli.lines import sessions_in

    with click.open_file(name, "rb") as file:
        return list(sessions_in(file, "stdin" if name == STDIO else Path(name).name))


def _refs(sent: Sequence[Sent], user: str | None) -> list[SessionRef]:
    """Whose session each becomes; one that stands there twice is a mistake, because only one of them could stay."""
    from holdfast.holdfast import DEFAULT_USER
    from holdfast.session import SessionRef

    places: dict[SessionRef, str] = {}
    for item in sent:
        ref = SessionRef(user or item.session.user_id or DEFAULT_USER, item.id)
        if ref in places:
            raise Failure(f"{item.place}: session {ref.id!r} of user {ref.user_id!r} stands in {places[ref]} already")
        places[ref] = item.place
    return list(places)


async def _taken(hf: Holdfast, sent: Sequence[Sent], refs: Sequence[SessionRef]) -> dict[SessionRef, None]:
    """Those that are in the store already, in order; ids that cannot be one are found out here too."""
    taken: dict[SessionRef, None] = {}
    for item, ref in zip(sent, refs, strict=True):
        try:
            await hf.store.get(ref)
        except SessionNotFound:
            continue
        except InvalidRequest as exc:
            raise Failure(f"{item.place}: {exc}") from exc
        taken[ref] = None
    return taken


async def _install(hf: Holdfast, item: Sent, ref: SessionRef, before: int) -> dict[str, Any]:
    from holdfast.stores.base import NewSession

    session = item.session
    new = NewSession(
        id=ref.id,
        user_id=ref.user_id,
        timestamp=hf.clock(),
        agent=session.agent,
        system_messages=session.system_messages,
        state=session.state,
        metadata=session.metadata,
        ttl=session.ttl,
    )
    try:
        await hf.install(new, await hf.new_entries(session.messages, session.fields))
    except HoldfastError as exc:
        raise Failure(f"{item.place}: {exc}\n{counted(before, 'session')} before it were imported") from exc
    return {"id": ref.id, "user_id": ref.user_id, "messages": len(session.messages)}
