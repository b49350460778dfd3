"""`holdfast sessions export`."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import click

from holdfast.cli.frame import Failure
from holdfast.cli.stores import all_found, place_options, work
from holdfast.cli.terminal import counted, json_line, line, progress
from holdfast.errors import SessionNotFound, StoreCorrupt

if TYPE_CHECKING:
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
