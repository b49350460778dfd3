"""`holdfast transcripts`: list, show, search and import. Only import opens a store."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import (
    config_option,
    json_option,
    limit_option,
    run_with_store,
    session_user_option,
    store_options,
    user_option,
)
from holdfast.cli.terminal import Column, format_line, show_busy, show_json, show_progress, show_table
from holdfast.errors import HoldfastError, SessionNotFound
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.cli.transcript_files import TextMatch
    from holdfast.holdfast import Holdfast
    from holdfast.hooks.transcript_files import ParsedTranscript

MAX_LISTED = 1000
MAX_MATCHES = 500


@click.group
def transcripts() -> None:
    """List, show, search and import transcripts: the files to which a server writes its sessions."""


def folder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--dir` and `--config`, which name the folder of the transcripts."""
    folder = click.option(
        "--dir",
        "folder",
        metavar="PATH",
        type=click.Path(file_okay=False),
        help="Folder of the transcripts.  [default: hooks.transcripts_dir of the configuration]",
    )
    return folder(config_option(command))


def _find_folder(given: str | None, config: str | None) -> Path:
    if given is None:
        from holdfast.config import load_settings

        given = load_settings({"config": config}, os.environ).config.hooks.transcripts_dir
    if given is None:
        raise Misuse("no transcript folder: name it with --dir, or as hooks.transcripts_dir in the configuration")
    folder = Path(given)
    if not folder.is_dir():
        raise Failure(f"{folder}: no such folder")
    return folder


def list_files(folder: Path) -> list[Path]:
    """Return the transcripts in a folder, most recently changed first."""
    from holdfast.hooks.transcript_files import SUFFIX

    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            found.append((-path.stat().st_mtime_ns, path.name, path))
        except FileNotFoundError:  # deleted since it was listed
            continue
    return [path for *_, path in sorted(found)]


class TranscriptHeading(NamedTuple):
    """The heading of a transcript: its session, user and agent."""

    path: Path
    session_id: str
    user_id: str | None
    agent_id: str | None
    source_plugin: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the heading as the JSON object that `--json` prints."""
        return {**self._asdict(), "path": str(self.path)}


def read_heading(path: Path) -> TranscriptHeading:
    """Read the heading from the first line of a transcript. If it contains no session id, the id is the file name without suffix."""
    from holdfast.hooks.transcript_files import parse_line, read_lines

    with path.open("rb") as file:
        data = parse_line(next(read_lines(file), b"")) or {}
    values = {name: data[name] if isinstance(data.get(name), str) else None for name in _HEADING_KEYS}
    return TranscriptHeading(
        path, values["id"] or path.stem, values["user_id"], values["agent_id"] or None, values["source_plugin"]
    )


_HEADING_KEYS = ("id", "user_id", "agent_id", "source_plugin")


# -- list ----------------------------------------------------------------------


@transcripts.command(name="list")
@user_option
@limit_option("transcripts", most=MAX_LISTED, default=50)
@folder_options
@json_option
def list_(user: str | None, limit: int, folder: str | None, config: str | None, *, as_json: bool) -> None:
    """List transcripts, most recently changed first."""
    headings = (read_heading(path) for path in list_files(_find_folder(folder, config)))
    wanted = (heading for heading in headings if user is None or heading.user_id == user)
    with show_busy():
        listed = [_summarize(heading) for heading, _ in zip(wanted, range(limit), strict=False)]
    if as_json:
        show_json(listed)
        return
    if not listed:
        click.echo("No transcripts found.", err=True)
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


def _summarize(heading: TranscriptHeading) -> dict[str, Any]:
    from holdfast.cli.transcript_files import read_entries

    count, first, last = 0, None, None
    for entry in read_entries(heading.path):
        first = entry.time if first is None else first
        count, last = count + 1, entry.time
    return {**heading.to_json(), "entry_count": count, "first_timestamp": first, "last_timestamp": last}


# -- show ----------------------------------------------------------------------


@transcripts.command
@click.argument("session_id", metavar="ID")
@session_user_option
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last N entries.")
@click.option("--retired", is_flag=True, help="Include messages that were edited away.")
@click.option("--full", is_flag=True, help="Do not shorten long texts, calls and results.")
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
    """Show the messages of a transcript. ID is a session ID or the name of a file in the folder."""
    from holdfast.cli.session_text import MAX_CHARACTERS, format_message, format_role
    from holdfast.cli.transcript_files import read_entries

    heading = _find_transcript(_find_folder(folder, config), session_id, user)
    entries: Iterator[Any] | deque[Any] = read_entries(heading.path, retired=retired)
    if last is not None:
        entries = deque(entries, maxlen=last)
    if as_json:
        show_json({**heading.to_json(), "entries": [entry.data for entry in entries]})
        return
    click.echo(
        click.style(f"session {format_line(heading.session_id)}", bold=True) + f"  {format_line(str(heading.path))}"
    )
    for entry in entries:
        notes = [format_line(str(entry.time or ""), 40)] + ["edited away"] * entry.retired
        click.echo(f"  {entry.at:>4}  {format_role(entry.role)}  {', '.join(notes)}".rstrip())
        for shown in (
            format_message(entry.message, full=full)
            if entry.message
            else [f"        {format_line(entry.content, None if full else MAX_CHARACTERS)}"]
        ):
            click.echo(shown.rstrip())


def _find_transcript(folder: Path, session_id: str, user: str | None) -> TranscriptHeading:
    matching = [path for path in list_files(folder) if session_id in (path.name, path.stem)]
    found = [read_heading(path) for path in matching] or [
        heading for heading in map(read_heading, list_files(folder)) if heading.session_id == session_id
    ]
    found = [heading for heading in found if user is None or heading.user_id == user]
    if not found:
        raise Failure(f"no transcript of session {session_id!r} in {folder}")
    if len(found) > 1:
        names = ", ".join(heading.path.name for heading in found[:5])
        raise Failure(f"several transcripts of session {session_id!r}: name one of {names}")
    return found[0]


# -- search --------------------------------------------------------------------


@transcripts.command
@click.argument("query")
@user_option
@limit_option("matches", most=MAX_MATCHES, default=20)
@click.option("--retired", is_flag=True, help="Also search messages that were edited away.")
@folder_options
@json_option
def search(
    query: str, user: str | None, limit: int, folder: str | None, config: str | None, *, retired: bool, as_json: bool
) -> None:
    """Search transcripts for a word or phrase.

    The most recently changed transcripts come first.

    Case, accents and the amount of white space are ignored. There are no search operators.
    """
    from holdfast.cli.transcript_files import TextQuery, find_text

    needle = TextQuery(query)
    if not needle.folded:
        raise Misuse("the query is empty")
    hits: list[tuple[TranscriptHeading, TextMatch]] = []
    files = list_files(_find_folder(folder, config))
    with show_progress(len(files), "searching") as bar:
        for path in files:
            heading = read_heading(path)
            if user is None or heading.user_id == user:
                found = ((heading, hit) for hit in find_text(path, needle, retired=retired))
                hits += islice(found, limit + 1 - len(hits))
            if len(hits) > limit:
                break
            bar.advance()
    _show_hits(hits[:limit], as_json=as_json)
    if len(hits) > limit:
        click.echo(f"Only the first {limit} are shown; show more with --limit.", err=True)


def _show_hits(hits: Sequence[tuple[TranscriptHeading, TextMatch]], *, as_json: bool) -> None:
    if as_json:
        show_json([{**heading.to_json(), **hit._asdict()} for heading, hit in hits])
        return
    from holdfast.cli.session_text import format_role

    if not hits:
        click.echo("No matches.", err=True)
    for heading, hit in hits:
        place = f"{format_line(heading.session_id)}  {hit.at}"
        click.echo(
            f"{click.style(place, bold=True)}  {format_role(hit.role)}  {format_line(str(hit.timestamp or ''), 40)}"
        )
        click.echo(f"    {format_line(hit.snippet)}")


# -- import --------------------------------------------------------------------


class _FileResult(NamedTuple):
    """The result of importing one file."""

    file: str
    id: str
    user_id: str
    outcome: str
    """`imported`, `replaced`, `unchanged` (already stored), `newer` (the stored session is newer than the file) or `other tenant`."""
    messages: int
    retired: int
    unreadable: int
    blank: int


@transcripts.command(name="import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--user", metavar="ID", help="User of the imported sessions, instead of the user in the file.")
@store_options
@json_option
def import_(paths: Sequence[str], user: str | None, store: str | None, config: str | None, *, as_json: bool) -> None:
    """Import transcripts as sessions. PATH is a file or a folder of transcripts.

    A stored session is replaced unless it is newer than the transcript. Importing a file twice changes nothing. Unreadable
    lines are skipped and counted.
    """
    files = [file for path in paths for file in (list_files(Path(path)) if Path(path).is_dir() else [Path(path)])]
    if not files:
        raise Failure(f"no transcripts in {', '.join(paths)}")

    async def do(hf: Holdfast) -> list[_FileResult]:
        done: list[_FileResult] = []
        with show_progress(len(files)) as bar:
            for file in files:
                bar.describe(file.name)
                done.append(await _import_file(hf, file, user, len(done)))
                bar.advance()
        return done

    done = run_with_store(do, store=store, config=config, create=True, writes=True, keep_sessions=True)
    if as_json:
        show_json([one._asdict() for one in done])
    else:
        _report(done)


def _report(done: Sequence[_FileResult]) -> None:
    taken = [one for one in done if one.outcome in ("imported", "replaced")]
    click.echo(
        f"Imported {format_count(len(taken), 'session')}, {format_count(sum(one.messages for one in taken), 'message')}."
    )
    for outcome, why in _SKIP_REASONS.items():
        count = sum(one.outcome == outcome for one in done)
        if count:
            click.echo(f"Skipped {format_count(count, 'session')}: {why}.", err=True)
    for one in done:
        if one.unreadable or one.blank:
            unreadable = f"{format_count(one.unreadable, 'unreadable line')}, {format_count(one.blank, 'blank line')}"
            click.echo(f"{format_line(one.file)}: {unreadable}.", err=True)


_SKIP_REASONS = {
    "unchanged": "already stored",
    "newer": "the stored session is newer",
    "other tenant": "it belongs to another tenant",
}


async def _import_file(hf: Holdfast, file: Path, user: str | None, before: int) -> _FileResult:
    from holdfast.domain.session import DEFAULT_USER, SessionRef
    from holdfast.hooks.transcript_files import derive_session_id, parse_transcript, read_lines
    from holdfast.sessions.transfer import import_session

    try:
        with file.open("rb") as opened:
            read = parse_transcript(read_lines(opened), file.stem, now=hf.clock())
        session = read.session
        owner = user or session.user_id or DEFAULT_USER
        ref = SessionRef(owner, derive_session_id(file.name, session.id or file.stem))
        outcome = "other tenant" if read.tenant not in ("", hf.tenant) else await _check_newer(hf, ref, read)
        if outcome is None:
            arrival = await import_session(hf.engine, ref, session)
            outcome = "unchanged" if not arrival.changed else "replaced" if arrival.replaced else "imported"
    except HoldfastError as exc:
        raise Failure(f"{file}: {exc}\n{format_count(before, 'file')} read before it") from exc
    messages = len(session.messages)
    return _FileResult(str(file), ref.id, ref.user_id, outcome, messages, read.retired, read.unreadable, read.blank)


async def _check_newer(hf: Holdfast, ref: Any, read: ParsedTranscript) -> str | None:
    """Return `newer` if the stored session is newer than the file, otherwise None."""
    try:
        session = await hf.store.get(ref)
    except SessionNotFound:
        return None
    last = await hf.store.entries(ref, limit=1, descending=True)
    if not last:
        return None
    live = len(read.session.messages) - (read.retired if read.session.has_retired else 0)
    there = (last[0].timestamp, session.messages)
    return "newer" if there > (read.last, live) else None
