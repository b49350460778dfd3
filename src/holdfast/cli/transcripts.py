"""`holdfast transcripts`: list, show, search, import. All but the last look at files alone."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import config_option, json_option, place_options, user_option, work
from holdfast.cli.terminal import Column, counted, line, progress, show_json, show_table
from holdfast.errors import HoldfastError, SessionNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.cli.transcript_files import Found
    from holdfast.holdfast import Holdfast
    from holdfast.hooks.transcript_files import Read

MAX_LISTED = 1000
MAX_FOUND = 500


@click.group
def transcripts() -> None:
    """Look at the transcripts that a server writes, search them, make sessions of them again."""


def folder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--dir` and `--config`: where transcripts are."""
    folder = click.option(
        "--dir",
        "folder",
        metavar="PATH",
        type=click.Path(file_okay=False),
        help="Where they are.  [default: hooks.transcripts_dir of the configuration]",
    )
    return folder(config_option(command))


def _folder(given: str | None, config: str | None) -> Path:
    if given is None:
        from holdfast.config import load_settings

        given = load_settings({"config": config}, os.environ).config.hooks.transcripts_dir
    if given is None:
        raise Misuse("where are they? Name the folder with --dir, or in the configuration as hooks.transcripts_dir")
    folder = Path(given)
    if not folder.is_dir():
        raise Failure(f"{folder}: there is no such folder")
    return folder


def files_in(folder: Path) -> list[Path]:
    """The transcripts in a folder, the last changed first."""
    from holdfast.hooks.transcript_files import SUFFIX

    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            found.append((-path.stat().st_mtime_ns, path.name, path))
        except FileNotFoundError:  # its session was deleted since it was listed
            continue
    return [path for *_, path in sorted(found)]


class Heading(NamedTuple):
    """Whose a transcript is."""

    path: Path
    session_id: str
    user_id: str | None
    agent_id: str | None
    source_plugin: str | None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**self._asdict(), "path": str(self.path)}


def heading_of(path: Path) -> Heading:
    """Whose the transcript at `path` is, by its first line; named after its file where that does not say."""
    from holdfast.hooks.transcript_files import line_from, lines_of

    with path.open("rb") as file:
        data = line_from(next(lines_of(file), b"")) or {}
    told = {name: data[name] if isinstance(data.get(name), str) else None for name in _TOLD}
    return Heading(path, told["id"] or path.stem, told["user_id"], told["agent_id"] or None, told["source_plugin"])


_TOLD = ("id", "user_id", "agent_id", "source_plugin")


# -- list ----------------------------------------------------------------------


@transcripts.command(name="list")
@user_option
@click.option("--limit", type=click.IntRange(1, MAX_LISTED), default=50, show_default=True, help="How many.")
@folder_options
@json_option
def list_(user: str | None, limit: int, folder: str | None, config: str | None, *, as_json: bool) -> None:
    """List transcripts, the last changed first."""
    headings = (heading_of(path) for path in files_in(_folder(folder, config)))
    wanted = (heading for heading in headings if user is None or heading.user_id == user)
    listed = [_summary(heading) for heading, _ in zip(wanted, range(limit), strict=False)]
    if as_json:
        show_json(listed)
        return
    if not listed:
        click.echo("There are no such transcripts.", err=True)
        return
    columns = [Column("id"), Column("user"), Column("agent"), Column("from"), Column("entries", number=True)]
    rows = [
        [
            one["session_id"],
            one["user_id"] or "-",
            one["agent_id"] or "-",
            one["source_plugin"] or "-",
            f"{one['entry_count']:,}",
            str(one["first_timestamp"] or "-"),
            str(one["last_timestamp"] or "-"),
        ]
        for one in listed
    ]
    show_table([*columns, Column("first"), Column("last")], rows)


def _summary(heading: Heading) -> dict[str, Any]:
    from holdfast.cli.transcript_files import entries_in

    count, first, last = 0, None, None
    for entry in entries_in(heading.path):
        first = entry.time if first is None else first
        count, last = count + 1, entry.time
    return {**heading.as_json(), "entry_count": count, "first_timestamp": first, "last_timestamp": last}


# -- show ----------------------------------------------------------------------


@transcripts.command
@click.argument("session_id", metavar="ID")
@user_option
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last N entries.")
@click.option("--retired", is_flag=True, help="What was edited away, too.")
@click.option("--full", is_flag=True, help="Show long texts, calls and results whole.")
@folder_options
@json_option
def show(
    session_id: str,
    user: str | None,
    last: int | None,
    folder: str | None,
    config: str | None,
    *,
    retired: bool,
    full: bool,
    as_json: bool,
) -> None:
    """Show what was said in a session. ID is the session's, or the name of a file in the folder."""
    from holdfast.cli.sessions import role_shown, said
    from holdfast.cli.transcript_files import entries_in

    heading = _meant(_folder(folder, config), session_id, user)
    entries: Iterator[Any] | deque[Any] = entries_in(heading.path, retired=retired)
    if last is not None:
        entries = deque(entries, maxlen=last)
    if as_json:
        show_json({**heading.as_json(), "entries": [entry.data for entry in entries]})
        return
    click.echo(click.style(f"session {line(heading.session_id)}", bold=True) + f"  {line(str(heading.path))}")
    for entry in entries:
        notes = [line(str(entry.time or ""), 40)] + ["edited away"] * entry.retired
        click.echo(f"  {entry.at:>4}  {role_shown(entry.role)}  {', '.join(notes)}".rstrip())
        for shown in said(entry.message, full=full) if entry.message else [f"        {line(entry.content)}"]:
            click.echo(shown.rstrip())


def _meant(folder: Path, session_id: str, user: str | None) -> Heading:
    named = [path for path in files_in(folder) if session_id in (path.name, path.stem)]
    found = [heading_of(path) for path in named] or [
        heading for heading in map(heading_of, files_in(folder)) if heading.session_id == session_id
    ]
    found = [heading for heading in found if user is None or heading.user_id == user]
    if not found:
        raise Failure(f"no transcript of a session {session_id!r} in {folder}")
    if len(found) > 1:
        names = ", ".join(heading.path.name for heading in found[:5])
        raise Failure(f"there are several of a session {session_id!r}: name one of {names}")
    return found[0]


# -- search --------------------------------------------------------------------


@transcripts.command
@click.argument("query")
@user_option
@click.option("--limit", type=click.IntRange(1, MAX_FOUND), default=20, show_default=True, help="How many.")
@click.option("--retired", is_flag=True, help="In what was edited away, too.")
@folder_options
@json_option
def search(
    query: str, user: str | None, limit: int, folder: str | None, config: str | None, *, retired: bool, as_json: bool
) -> None:
    """Find a word or a phrase in what was said, the last changed transcripts first.

    Case, accents and white space do not count. Everything else is taken as it stands: there are no operators.
    """
    from holdfast.cli.transcript_files import Needle, found_in

    needle = Needle(query)
    if not needle.folded:
        raise Misuse("there is nothing to look for in the query")
    hits: list[tuple[Heading, Found]] = []
    for path in files_in(_folder(folder, config)):
        heading = heading_of(path)
        if user is None or heading.user_id == user:
            room = limit + 1 - len(hits)
            hits += [
                (heading, hit) for hit, _ in zip(found_in(path, needle, retired=retired), range(room), strict=False)
            ]
        if len(hits) > limit:
            break
    _show_hits(hits[:limit], as_json=as_json)
    if len(hits) > limit:
        click.echo(f"These are the first {limit}; there are more, see --limit.", err=True)


def _show_hits(hits: Sequence[tuple[Heading, Found]], *, as_json: bool) -> None:
    if as_json:
        show_json([{**heading.as_json(), **hit._asdict()} for heading, hit in hits])
        return
    from holdfast.cli.sessions import role_shown

    if not hits:
        click.echo("Nothing was found.", err=True)
    for heading, hit in hits:
        place = f"{line(heading.session_id)}  {hit.at}"
        click.echo(f"{click.style(place, bold=True)}  {role_shown(hit.role)}  {line(str(hit.timestamp or ''), 40)}")
        click.echo(f"    {line(hit.snippet)}")


# -- import --------------------------------------------------------------------


class _Done(NamedTuple):
    """What became of a file."""

    file: str
    id: str
    user_id: str
    outcome: str
    """`imported`, `replaced`, `unchanged` (it is there just so), `newer` (what is there is), `other tenant`."""
    messages: int
    retired: int
    unreadable: int
    blank: int


@transcripts.command(name="import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--user", metavar="ID", help="Whose sessions they become, whatever the file says.")
@place_options
@json_option
def import_(paths: Sequence[str], user: str | None, store: str | None, config: str | None, *, as_json: bool) -> None:
    """Make sessions of transcripts again. PATH is a file, or a folder of them.

    A session that is there already is replaced, unless what is there is newer. Importing a file twice changes nothing. Lines
    that cannot be read are left out, and counted.
    """
    files = [file for path in paths for file in (files_in(Path(path)) if Path(path).is_dir() else [Path(path)])]
    if not files:
        raise Failure(f"no transcripts in {', '.join(paths)}")

    async def do(hf: Holdfast) -> list[_Done]:
        done: list[_Done] = []
        with progress(len(files)) as bar:
            for file in files:
                bar.about(file.name)
                done.append(await _imported(hf, file, user, len(done)))
                bar.step()
        return done

    done = work(do, store=store, config=config, makes=True, ends=True, still=True)
    if as_json:
        show_json([one._asdict() for one in done])
    else:
        _tell(done)


def _tell(done: Sequence[_Done]) -> None:
    taken = [one for one in done if one.outcome in ("imported", "replaced")]
    click.echo(f"Imported {counted(len(taken), 'session')}, {counted(sum(one.messages for one in taken), 'message')}.")
    for outcome, why in _LEFT.items():
        count = sum(one.outcome == outcome for one in done)
        if count:
            click.echo(f"Left {counted(count, 'session')}: {why}.", err=True)
    for one in done:
        if one.unreadable or one.blank:
            unreadable = f"{counted(one.unreadable, 'line')} could not be read, {one.blank:,} blank"
            click.echo(f"{line(one.file)}: {unreadable}.", err=True)


_LEFT = {
    "unchanged": "there already, just so",
    "newer": "what is there is newer",
    "other tenant": "of another tenant",
}


async def _imported(hf: Holdfast, file: Path, user: str | None, before: int) -> _Done:
    from holdfast.domain.session import DEFAULT_USER, SessionRef
    from holdfast.hooks.transcript_files import earlier_id, lines_of, session_from
    from holdfast.sessions.exporting import import_session

    try:
        with file.open("rb") as opened:
            read = session_from(lines_of(opened), file.stem, now=hf.clock())
        session = read.session
        owner = user or session.user_id or DEFAULT_USER
        ref = SessionRef(owner, earlier_id(file.name, session.id or file.stem))
        outcome = "other tenant" if read.tenant not in ("", hf.tenant) else await _newer(hf, ref, read)
        if outcome is None:
            arrival = await import_session(hf.engine, ref, session)
            outcome = "unchanged" if not arrival.changed else "replaced" if arrival.replaced else "imported"
    except HoldfastError as exc:
        raise Failure(f"{file}: {exc}\n{counted(before, 'file')} before it were read") from exc
    messages = len(session.messages)
    return _Done(str(file), ref.id, ref.user_id, outcome, messages, read.retired, read.unreadable, read.blank)


async def _newer(hf: Holdfast, ref: Any, read: Read) -> str | None:
    """`newer` where what is there goes further than the file does."""
    try:
        session = await hf.store.get(ref)
    except SessionNotFound:
        return None
    last = await hf.store.entries(ref, limit=1, descending=True)
    if not last:
        return None
    live = len(read.session.messages) - (read.retired if read.session.retired else 0)
    there = (last[0].timestamp, session.messages)
    return "newer" if there > (read.last, live) else None
