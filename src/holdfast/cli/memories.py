"""`holdfast memories`: remember, recall, list, show, review, forget and consolidate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import json_option, limit_option, run_with_store, store_options
from holdfast.cli.terminal import (
    Column,
    format_line,
    format_time,
    sanitize,
    show_json,
    show_progress,
    show_table,
)
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.consolidation.sweeps import SweepResult
    from holdfast.domain.memory import Memory, Owner
    from holdfast.holdfast import Holdfast
    from holdfast.memory.lookup import RecalledMemories
    from holdfast.memory.memories import Remembered
    from holdfast.wire.memories import MemoryObject

_CONTENT_CHARACTERS = 100
"""Maximum characters of a memory's content in a table."""
_TYPES = ("semantic", "episodic", "procedural", "user", "feedback", "project", "reference")
_type_option = click.option("--type", "kind", type=click.Choice(_TYPES), help="Kind of memory.")
_tag_option = click.option(
    "--tag", "tags", metavar="WORD", multiple=True, help="Tag of the memory; can be given several times."
)


F = TypeVar("F", bound=Callable[..., Any])
_SETTLE_SECONDS: Final = 10.0
"""Maximum seconds that a command waits for the vectors of the memories that it wrote."""
NAME_CHARACTERS: Final = 100
"""Maximum characters of a name that are printed."""
_MAX_AGENTS: Final = 10
"""Maximum number of agents that are listed if no name is similar to the value of `--agent`."""


def owner_options(command: F) -> F:
    """Add the options `--user`, `--agent` and `--app`, which name the owner of memories."""
    user = click.option("--user", metavar="ID", help="Memories of this user.  [default: the user `default`]")
    agent = click.option(
        "--agent", metavar="NAME", help="Memories of this agent; with --user, those it made for the user."
    )
    app = click.option("--app", is_flag=True, help="Memories that all users share.")
    return user(agent(app(command)))


def output_options(command: F) -> F:
    """Add the options `--store`, `--config` and `--json`."""
    return store_options(json_option(command))


def parse_owner(options: Mapping[str, Any]) -> Owner:
    """Return the owner that the options of `owner_options` name."""
    from holdfast.memory.checks import choose_owner

    if options["app"] and options["user"] is not None:
        raise Misuse("--app and --user exclude each other: --app means memories that all users share")
    return choose_owner(options["user"], options["agent"], app=options["app"])


def format_owner(owner: Owner) -> str:
    """Format an owner for messages."""
    return "the app" if owner.kind == "app" else f"{owner.kind} {format_line(owner.id, NAME_CHARACTERS)}"


def warn_unknown_agent(agent: str | None, config: str | None) -> None:
    """Warn if the configuration has agents, but none with this name. The name may be a typo.

    Args:
        agent: value of `--agent`; None: the option is not given.
        config: value of `--config`.
    """
    if agent is None:
        return
    from holdfast.config import load_settings
    from holdfast.config.convert import find_nearest

    known = list(load_settings({"config": config}, os.environ).config.agents)
    if not known or agent in known:
        return
    near = find_nearest(agent, known)
    more = ", …" if len(known) > _MAX_AGENTS else ""
    hint = f"did you mean {near}?" if near else f"its agents are {format_line(', '.join(known[:_MAX_AGENTS]))}{more}"
    click.echo(f"The configuration has no agent {format_line(agent, NAME_CHARACTERS)}; {hint}", err=True)


async def wait_for_vectors(hf: Holdfast) -> None:
    """Wait at most `_SETTLE_SECONDS` until all indexed texts have vectors. Without a server, no process would create the vectors later."""
    import anyio

    if hf.index is not None and hf.index.embedder is not None:
        with anyio.move_on_after(_SETTLE_SECONDS):
            await hf.index.settled()


# -- remember, recall, change ---------------------------------------------------


@click.group
def memories() -> None:
    """Manage memories: facts that are kept across sessions.

    A memory belongs to a user, an agent, or all users.
    """


@memories.command
@click.argument("text", metavar="TEXT...", nargs=-1, required=True)
@_type_option
@_tag_option
@click.option("--importance", metavar="N", type=click.FloatRange(0, 1), default=0.5, help="0 to 1.  [default: 0.5]")
@click.option("--until", metavar="TIME", help="When the fact expires: a date, or date and time (RFC 3339).")
@owner_options
@output_options
def remember(text: Sequence[str], *, store: str | None, config: str | None, as_json: bool, **options: Any) -> None:
    """Remember TEXT, one fact. An equal memory is merged with it; an older value of the same fact is replaced."""
    parse_owner(options)  # report conflicting flags before anything is opened

    async def run(hf: Holdfast) -> Remembered:
        from holdfast.wire.strict_json import parse_time

        remembered = await hf.memories.remember(
            " ".join(text),
            user_id=options["user"],
            agent=options["agent"],
            app=options["app"],
            type=options["kind"] or "semantic",
            tags=options["tags"],
            importance=options["importance"],
            valid_until=None if options["until"] is None else parse_time(options["until"], "until"),
        )
        await wait_for_vectors(hf)
        return remembered

    _show_remembered(
        run_with_store(run, store=store, config=config, create=True, writes=True, keep_sessions=True), as_json=as_json
    )
    warn_unknown_agent(options["agent"], config)


@memories.command
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@limit_option("memories", most=100, default=5)
@click.option("--mode", type=click.Choice(["keyword", "vector", "hybrid"]), help="Kind of search.")
@_type_option
@_tag_option
@owner_options
@output_options
def recall(query: Sequence[str], *, store: str | None, config: str | None, as_json: bool, **options: Any) -> None:
    """Find memories that answer QUERY.

    Searches the memories of the user, the agent and all users. Consolidation does not count this recall.
    """
    from holdfast.memory.checks import find_owners

    first = parse_owner(options)
    owners = (first,) if options["app"] else find_owners(first.id if first.kind == "user" else None, options["agent"])

    async def run(hf: Holdfast) -> RecalledMemories:
        await wait_for_vectors(hf)
        return await hf.memories.recall(
            " ".join(query),
            owners=owners,
            mode=options["mode"],
            limit=options["limit"],
            types=[options["kind"]] if options["kind"] else (),
            tags=options["tags"],
            signal=False,
        )

    found = run_with_store(run, store=store, config=config, keep_sessions=True)
    if as_json:
        from holdfast.wire.memories import FoundMemory

        show_json([FoundMemory.from_memory(one.memory, score=one.score, parts=dict(one.parts)) for one in found.found])
        return
    if found.note:
        click.echo(f"Keyword search only: {format_line(found.note)}.", err=True)
    if not found.found:
        click.echo(f"No memory of {' or '.join(format_owner(one) for one in owners)} matches.", err=True)
        warn_unknown_agent(options["agent"], config)
    for one in found.found:
        review_note = "  held for review" if one.memory.status == "quarantined" else ""
        click.echo(f"{one.score:.2f}  {one.memory.id}  {one.memory.origin}{review_note}")
        click.echo(f"      {format_line(one.memory.content)}")


@memories.command(name="list")
@click.option(
    "--status",
    type=click.Choice(["active", "quarantined", "rejected", "superseded"]),
    help="Only memories with this status. quarantined: held for review.",
)
@_type_option
@_tag_option
@limit_option("memories", most=1000, default=100)
@click.option("--after", metavar="ID", help="Continue after this memory.")
@owner_options
@output_options
def list_(*, store: str | None, config: str | None, as_json: bool, **options: Any) -> None:
    """List memories, oldest first."""
    page = run_with_store(lambda hf: _load_page(hf, options), store=store, config=config, keep_sessions=True)
    _show_list(page.memories, options, config, as_json=as_json)
    if page.has_more and not as_json:
        click.echo(f"There are more: continue with --after {page.memories[-1].id}", err=True)


async def _load_page(hf: Holdfast, options: dict[str, Any]) -> Any:
    return await hf.memories.page(
        parse_owner(options),
        status=options["status"],
        types=[options["kind"]] if options["kind"] else (),
        tags=options["tags"],
        agent=options["agent"],
        after=options["after"],
        limit=options["limit"],
    )


@memories.command
@click.argument("memory_id", metavar="ID")
@output_options
def show(memory_id: str, *, store: str | None, config: str | None, as_json: bool) -> None:
    """Show a memory, its sources, and the memories it replaces."""
    one = run_with_store(lambda hf: hf.memories.get(memory_id), store=store, config=config, keep_sessions=True)
    if as_json:
        show_json(_to_json(one))
        return
    click.echo(sanitize(one.content))
    click.echo()
    for name, value in _describe(one):
        click.echo(f"{name:<12} {format_line(value)}")


@memories.command
@click.argument("memory_id", metavar="ID", required=False)
@click.option("--session", metavar="ID", help="Instead of an ID: memories whose only source is this session.")
@click.option("--user", metavar="ID", default="default", show_default=True, help="With --session: user of the session.")
@output_options
def forget(
    memory_id: str | None, *, session: str | None, user: str, store: str | None, config: str | None, as_json: bool
) -> None:
    """Delete a memory with its history, or all memories of a session.

    With --session, deletes all memories whose only source is that session.
    """
    if (memory_id is None) == (session is None):
        raise Misuse("give either a memory ID or --session ID")

    async def run(hf: Holdfast) -> tuple[str, ...]:
        if memory_id is not None:
            return await hf.memories.forget(memory_id)
        return await hf.memories.forget_source(user, str(session))

    forgotten = run_with_store(run, store=store, config=config, writes=True, keep_sessions=True)
    if as_json:
        show_json({"forgotten": list(forgotten)})
    else:
        click.echo(f"Forgot {format_count(len(forgotten), 'memory', 'memories')}.")
    if session is not None and not forgotten:
        click.echo(
            f"No memory has session {format_line(session, _CONTENT_CHARACTERS)} of user {format_line(user, _CONTENT_CHARACTERS)} as its only source.",
            err=True,
        )


@memories.command
@click.argument("memory_id", metavar="[ID]", required=False)
@click.argument("decision", type=click.Choice(["accept", "reject"]), required=False)
@limit_option("memories", most=1000, default=100)
@owner_options
@output_options
def review(
    memory_id: str | None, decision: Any, *, store: str | None, config: str | None, as_json: bool, **options: Any
) -> None:
    """List memories that are held for review, or decide on one.

    To decide, write `ID accept` or `ID reject`. The list shows the sources of each memory.
    """
    if memory_id is None:
        options |= {"status": "quarantined", "kind": None, "tags": (), "after": None}
        page = run_with_store(lambda hf: _load_page(hf, options), store=store, config=config, keep_sessions=True)
        _show_list(page.memories, options, config, as_json=as_json, sources=True)
        return
    if decision is None:
        raise Misuse(f"give a decision for {memory_id}: accept or reject")
    one = run_with_store(
        lambda hf: hf.memories.review(memory_id, decision), store=store, config=config, writes=True, keep_sessions=True
    )
    if as_json:
        show_json(_to_json(one))
    else:
        click.echo(f"{one.id} is {one.status}.")


# -- output ----------------------------------------------------------------------


def _to_json(one: Memory) -> MemoryObject:
    from holdfast.wire.memories import MemoryObject

    return MemoryObject.from_memory(one)


def _show_remembered(remembered: Remembered, *, as_json: bool) -> None:
    one = remembered.memory
    if as_json:
        from holdfast.wire.memories import RememberedMemory

        similar = [_to_json(other) for other in remembered.others]
        show_json(RememberedMemory.from_memory(one, outcome=remembered.outcome, similar=similar))
        return
    if one.status == "rejected":
        raise Failure(f"{one.id} was rejected in a review, so it was not stored again")
    words = {"new": "Remembered", "merged": "Merged into", "superseded": f"Replaced {', '.join(one.supersedes)} by"}
    click.echo(f"{words[remembered.outcome]} {one.id}.")
    if one.valid_until is not None and one.valid_until <= time.time() * 1000:
        click.echo(f"It expired at {format_time(one.valid_until)}, so recall does not return it.", err=True)
    for other in remembered.others:
        click.echo(f"Similar: {other.id}  {format_line(other.content, _CONTENT_CHARACTERS)}")


def _show_list(
    found: Sequence[Memory], options: Mapping[str, Any], config: str | None, *, as_json: bool, sources: bool = False
) -> None:
    if not found:
        warn_unknown_agent(options["agent"], config)
    if as_json:
        show_json([_to_json(one) for one in found])
    elif not found:
        click.echo(f"No memories of {format_owner(parse_owner(options))}.", err=True)
    else:
        columns = [
            Column("id"),
            Column("type"),
            Column("origin"),
            Column("from" if sources else "status"),
            Column("content"),
        ]
        show_table(columns, [_to_row(one, sources=sources) for one in found])


def _to_row(one: Memory, *, sources: bool) -> list[str]:
    status = _format_sources(one) if sources else one.status
    return [
        one.id,
        one.type,
        one.origin,
        format_line(status, _CONTENT_CHARACTERS),
        format_line(one.content, _CONTENT_CHARACTERS),
    ]


def _format_sources(one: Memory) -> str:
    return ", ".join(
        f"{source.session_id} {','.join(f'#{seq}' for seq in source.seqs)}".strip() for source in one.sources
    )


def _describe(one: Memory) -> list[tuple[str, str]]:
    fields = {
        "id": one.id,
        "owner": format_owner(one.owner),
        "status": one.status,
        "type": one.type,
        "tags": ", ".join(one.tags),
        "origin": f"{one.origin}, trust {one.trust:g}",
        "importance": f"{one.importance:g}",
        "from": _format_sources(one),
        "remembered": format_time(one.created_at),
        "valid until": "" if one.valid_until is None else format_time(one.valid_until),
        "replaces": ", ".join(one.supersedes),
        "replaced by": one.superseded_by or "",
        "promoted": "" if one.promoted_at is None else format_time(one.promoted_at),
        "reviewed": "" if one.reviewed_at is None else format_time(one.reviewed_at),
    }
    return [(name, value) for name, value in fields.items() if value]


# -- consolidate -------------------------------------------------------------

_LINE_CHARACTERS: Final = 80
"""Maximum characters of a memory's content on a line."""
_WORDS: Final = {
    "promoted": "promoted",
    "held": "held for review",
    "over": "qualified, left for the next run",
    "gated": "not promoted",
    "already": "promoted earlier",
}


@memories.command
@click.option("--all", "all_owners", is_flag=True, help="All owners of memories.")
@click.option("--dry-run", is_flag=True, help="Report the result without writing it.")
@owner_options
@output_options
def consolidate(
    *, all_owners: bool, dry_run: bool, store: str | None, config: str | None, as_json: bool, **options: Any
) -> None:
    """Consolidate memories now.

    Promotes the memories that were recalled often, with good scores and by different queries.
    """
    if all_owners and (options["user"] is not None or options["agent"] is not None or options["app"]):
        raise Misuse("--all means all owners: leave out --user, --agent and --app")

    async def run(hf: Holdfast) -> list[SweepResult]:
        owners = [one async for one, _ in hf.consolidation.owners()] if all_owners else [parse_owner(options)]
        results = []
        with show_progress(len(owners), "consolidating") as bar:
            for owner in owners:
                results.append(await hf.consolidation.consolidate(owner, dry_run=dry_run))
                bar.advance()
        return results

    found = run_with_store(run, store=store, config=config, writes=True, keep_sessions=True)
    if as_json:
        reports = [_build_report(one) for one in found]
        show_json(reports if all_owners else reports[0])
        return
    for one in found:
        if all_owners:
            click.echo(f"{one.owner.kind} {format_line(one.owner.id)}".rstrip() + ":")
        _show_report(_build_report(one), dry_run=dry_run)
    if not any(one.report["candidates"] for one in found):
        warn_unknown_agent(options["agent"], config)


def _build_report(one: SweepResult) -> dict[str, Any]:
    from holdfast.consolidation.sweeps import show_report

    return {"written": one.written, "promotions": one.promotions, **show_report(one.report, one.memories)}


def _show_report(report: Mapping[str, Any], *, dry_run: bool = False) -> None:
    candidates: Sequence[Mapping[str, Any]] = report["candidates"]
    if not candidates:
        click.echo("No memory was recalled.")
    for verdict, words in _WORDS.items():
        number = report["verdicts"].get(verdict, 0)
        if number:
            click.echo(f"{number} {'would be ' if dry_run and verdict == 'promoted' else ''}{words}")
        for one in candidates:
            if one["verdict"] == verdict and verdict != "already":
                _show_candidate(one)
    for theme in report["themes"]:
        click.echo(f"theme: {format_line(', '.join(theme['terms']))} ({theme['size']})")


def _show_candidate(one: Mapping[str, Any]) -> None:
    from holdfast.consolidation.diary import format_figures

    content = "(forgotten)" if one["content"] is None else format_line(one["content"], _LINE_CHARACTERS)
    click.echo(f"  {one['score']:.2f}  {one['memory_id']}  {content}")
    click.echo("        " + "; ".join([format_figures(one), *one["gates"]]))
