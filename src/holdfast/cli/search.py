"""`holdfast search`: what was said in a user's sessions, with the words that were looked for marked on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.memories import doubt
from holdfast.cli.stores import json_option, place_options, work
from holdfast.cli.terminal import line, moment, plain, show_json

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.search.queries import SearchHit, SearchNeighbour, SearchResults

_NAME = 60
"""Characters of a name that are shown."""
_WALK_SECONDS = 10.0
"""How long a command looks for what was written while nobody indexed, before it searches."""


@click.command
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@click.option("--user", metavar="ID", default="default", show_default=True, help="Whose sessions.")
@click.option("--session", metavar="ID", help="Only this one.")
@click.option("--agent", metavar="NAME", help="Only what this agent said.")
@click.option(
    "--role", type=click.Choice(["user", "assistant", "tool"]), help="Only this role's; results of tools: tool."
)
@click.option("--since", metavar="TIME", help="Only from then on: a date, or date and time (RFC 3339).")
@click.option("--until", metavar="TIME", help="Only before then.")
@click.option(
    "--time",
    type=click.Choice(["auto", "filter", "off"]),
    default="auto",
    help="filter: only what was said at the time that QUERY asks for; off: times are words like others.",
)
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, help="Where days begin, like Europe/Berlin.")
@click.option("--mode", type=click.Choice(["keyword", "vector", "hybrid"]), help="What is searched by.")
@click.option("--limit", metavar="N", type=click.IntRange(1, 100), default=10, show_default=True, help="Most hits.")
@click.option("--after", metavar="CURSOR", help="Go on behind the page before, as its end says.")
@click.option(
    "--neighbours", metavar="N", type=click.IntRange(0, 10), default=0, help="Messages before and behind each hit."
)
@click.option("--sessions", is_flag=True, help="Only the best hit of each session.")
@click.option("--no-rerank", is_flag=True, help="Do not ask the reranker.")
@place_options
@json_option
def search(query: tuple[str, ...], store: str | None, config: str | None, *, as_json: bool, **asked: Any) -> None:
    """Search what was said in a user's sessions. QUERY is plain words: "what did I ask about yesterday" asks for yesterday."""
    found = work(lambda hf: _found(hf, " ".join(query), asked), store=store, config=config)
    if not found.hits:
        doubt(asked["agent"], config)
    if as_json:
        show_json(_told(found))
        return
    for text in _shown(found, asked["user"]):
        click.echo(text)
    for note in (*_times(found, asked["tz"]), *found.notes):
        click.echo(note, err=True)


async def _found(hf: Holdfast, query: str, asked: dict[str, Any]) -> SearchResults:
    import anyio
    import msgspec

    from holdfast.search.queries import zone_named
    from holdfast.wire.parsing import moment_of

    zone = zone_named(asked["tz"])
    since, until = (None if asked[name] is None else moment_of(asked[name], name, zone) for name in ("since", "until"))
    behind: tuple[str, ...] = ()
    if hf.index is not None:
        with anyio.move_on_after(_WALK_SECONDS) as looking:
            await hf.index.walk()
            await hf.index.settled()
        if looking.cancelled_caught:
            behind = ("not everything is in the index yet: a server, or `holdfast index rebuild`, takes in the rest",)
    found = await hf.search(
        query,
        asked["user"],
        mode=asked["mode"],
        limit=asked["limit"],
        after=asked["after"],
        session_id=asked["session"],
        agent=asked["agent"],
        role=asked["role"],
        since=since,
        until=until,
        time=asked["time"],
        tz=asked["tz"],
        neighbours=asked["neighbours"],
        session_level=asked["sessions"],
        rerank=not asked["no_rerank"],
    )
    return msgspec.structs.replace(found, notes=(*behind, *found.notes))


def _times(found: SearchResults, zone: str) -> Iterator[str]:
    """Which time was searched, where not all was: what "yesterday" in a query was taken for."""
    from zoneinfo import ZoneInfo

    ends = zip(("from", "until"), found.range, strict=True)
    words = [f"{word} {moment(at, ZoneInfo(zone))}" for word, at in ends if at is not None]
    if words:
        yield f"only what was said {' '.join(words)} ({zone})"


def _told(found: SearchResults) -> dict[str, Any]:
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(found)
    since, until = found.range
    return {**told, "range": {"since": since, "until": until}}


def _shown(found: SearchResults, user: str) -> Iterator[str]:
    """The hits for people; no text of a message can pass for a heading, or control the terminal."""
    if not found.hits:
        yield f"Nothing was found in the sessions of user {line(user, _NAME)}."
    for hit in found.hits:
        yield from (*([""] if hit.position > found.hits[0].position else []), _heading(hit))
        yield from (_neighbour(one) for one in hit.before)
        yield f"      {_marked(hit)}"
        yield from (_neighbour(one) for one in hit.after)
    if found.cursor is not None:
        yield ""
        yield f"More: --after {found.cursor}"


def _heading(hit: SearchHit) -> str:
    from holdfast.cli.sessions import role_shown

    who = hit.name or hit.agent
    spoke = role_shown(hit.role) + (f" {line(who, _NAME)}" if who and who != hit.role else "")
    place = click.style(f"{line(hit.session_id, _NAME)} #{hit.seq}", bold=True)
    return f"{hit.position:>3}.  {place}  {spoke}  {moment(hit.timestamp)}"


def _neighbour(one: SearchNeighbour) -> str:
    return click.style(f"      {one.role}: {line(one.text)}", dim=True)


def _marked(hit: SearchHit) -> str:
    """The snippet with what was looked for in bold; each piece is cleaned by itself, so that no escape stands within another."""
    pieces, end = [], 0
    for start, stop in hit.highlights:
        pieces.append(_clean(hit.snippet[end:start]))
        pieces.append(click.style(_clean(hit.snippet[start:stop]), bold=True, fg="yellow"))
        end = stop
    return "".join([*pieces, _clean(hit.snippet[end:])])


def _clean(text: str) -> str:
    return plain(text).replace("\n", " ").replace("\t", " ")
