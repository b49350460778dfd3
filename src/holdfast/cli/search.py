"""`holdfast search`: search the messages of a user. On a terminal, matching words are highlighted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command import Call, Note, Output, command, limit_option
from holdfast.cli.memories import check_agent
from holdfast.cli.session_text import format_role
from holdfast.cli.terminal import format_line, format_time, sanitize

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.search.queries import SearchHit, SearchNeighbour, SearchResults

_NAME = 60
"""Maximum characters of a name that are printed."""
_WALK_SECONDS = 10.0
"""Maximum seconds for indexing messages that no server has indexed yet. The command does this before the search."""


@command()
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@click.option("--user", metavar="ID", default="default", show_default=True, help="User whose sessions are searched.")
@click.option("--session", metavar="ID", help="Only this session.")
@click.option("--agent", metavar="NAME", help="Only messages of this agent.")
@click.option(
    "--role", type=click.Choice(["user", "assistant", "tool"]), help="Only messages of this role; tool: tool results."
)
@click.option("--since", metavar="TIME", help="Only messages from this time on: a date, or date and time (RFC 3339).")
@click.option("--until", metavar="TIME", help="Only messages before this time.")
@click.option(
    "--time",
    type=click.Choice(["auto", "filter", "off"]),
    default="auto",
    help="filter: only messages from the time that QUERY names; off: times are ordinary words; auto: Holdfast decides.",
)
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, help="Time zone, like Europe/Berlin.")
@click.option("--mode", type=click.Choice(["keyword", "vector", "hybrid"]), help="Kind of search.")
@limit_option("hits", most=100, default=10)
@click.option("--after", metavar="CURSOR", help="Show the next page; the end of a page prints its cursor.")
@click.option(
    "--neighbours",
    metavar="N",
    type=click.IntRange(0, 10),
    default=0,
    help="Messages to show before and after each hit.",
)
@click.option("--sessions", is_flag=True, help="Only the best hit of each session.")
@click.option("--no-rerank", is_flag=True, help="Do not use the reranker.")
def search(call: Call, query: Sequence[str], **options: Any) -> Output:
    """Search the messages of a user. QUERY is plain words and may name a time: "what did I ask about yesterday"."""
    import msgspec

    found = call.run(lambda hf: _search(hf, " ".join(query), **options))
    since, until = found.range
    data = {**msgspec.to_builtins(found), "range": {"since": since, "until": until}}
    notes = map(Note, (*_describe_range(found, options["tz"]), *found.notes))
    unknown = [] if found.hits else check_agent(call, options["agent"])
    return Output(data, [*_format_results(found, options["user"]), *notes], unknown)


async def _search(
    hf: Holdfast,
    query: str,
    *,
    user: str,
    session: str | None,
    since: str | None,
    until: str | None,
    tz: str,
    sessions: bool,
    no_rerank: bool,
    **options: Any,
) -> SearchResults:
    """Index the messages that are not indexed yet, and search. `options` are further arguments of `Holdfast.search`."""
    import anyio
    import msgspec

    from holdfast.search.queries import parse_search_zone
    from holdfast.wire.strict_json import parse_time

    zone = parse_search_zone(tz)
    limits = {"since": since, "until": until}
    times = {name: None if text is None else parse_time(text, name, zone) for name, text in limits.items()}
    notes: tuple[str, ...] = ()
    if hf.index is not None:
        with anyio.move_on_after(_WALK_SECONDS) as looking:
            await hf.index.walk()
            await hf.index.settled()
        if looking.cancelled_caught:
            notes = ("the index is not complete yet; a running server or `holdfast index rebuild` completes it",)
    options |= {"session_id": session, "tz": tz, "session_level": sessions, "rerank": not no_rerank, **times}
    found = await hf.search(query, user, **options)
    return msgspec.structs.replace(found, notes=(*notes, *found.notes))


def _describe_range(found: SearchResults, zone: str) -> Iterator[str]:
    """Yield a line with the time range of the search, if there was one. It shows the user how a word such as "yesterday" was understood."""
    from zoneinfo import ZoneInfo

    ends = zip(("from", "until"), found.range, strict=True)
    words = [f"{word} {format_time(at, ZoneInfo(zone))}" for word, at in ends if at is not None]
    if words:
        yield f"only messages {' '.join(words)} ({zone})"


def _format_results(found: SearchResults, user: str) -> Iterator[str]:
    """Yield the lines that show the hits. They are formatted so that a message can neither look like a heading nor control the terminal."""
    if not found.hits:
        yield f"No matches in the sessions of user {format_line(user, _NAME)}."
    for hit in found.hits:
        yield from (*([""] if hit.position > found.hits[0].position else []), _format_heading(hit))
        yield from (_format_neighbour(one) for one in hit.before)
        yield f"      {_format_snippet(hit)}"
        yield from (_format_neighbour(one) for one in hit.after)
    if found.cursor is not None:
        yield ""
        yield f"Next page: --after {found.cursor}"


def _format_heading(hit: SearchHit) -> str:
    who = hit.name or hit.agent
    spoke = format_role(hit.role) + (f" {format_line(who, _NAME)}" if who and who != hit.role else "")
    place = click.style(f"{format_line(hit.session_id, _NAME)} #{hit.seq}", bold=True)
    return f"{hit.position:>3}.  {place}  {spoke}  {format_time(hit.timestamp)}"


def _format_neighbour(one: SearchNeighbour) -> str:
    return click.style(f"      {one.role}: {format_line(one.text)}", dim=True)


def _format_snippet(hit: SearchHit) -> str:
    """Return a snippet with its matches highlighted.

    The text inside and outside of matches is sanitized separately, so that no highlight begins or ends inside an escape.
    """
    pieces, end = [], 0
    for start, stop in hit.highlights:
        pieces.append(_clean(hit.snippet[end:start]))
        pieces.append(click.style(_clean(hit.snippet[start:stop]), bold=True, fg="yellow"))
        end = stop
    return "".join([*pieces, _clean(hit.snippet[end:])])


def _clean(text: str) -> str:
    return sanitize(text).replace("\n", " ").replace("\t", " ")
