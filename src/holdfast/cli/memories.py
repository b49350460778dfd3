"""`holdfast memories`: remember, recall, list, show, update, review, forget."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import json_option, place_options, work
from holdfast.cli.terminal import Column, counted, line, moment, plain, show_json, show_table

if TYPE_CHECKING:
    from holdfast.consolidation.sweeps import Dreamt
    from holdfast.domain.memory import Memory, Owner
    from holdfast.holdfast import Holdfast
    from holdfast.memory.lookup import RecalledMemories
    from holdfast.memory.memories import Remembered
    from holdfast.wire.memories import MemoryObject

_SHOWN = 100
"""Characters of a content in a table."""
_TYPES = ("semantic", "episodic", "procedural", "user", "feedback", "project", "reference")
_type_option = click.option("--type", "kind", type=click.Choice(_TYPES), help="What kind of fact.")
_tag_option = click.option(
    "--tag", "tags", metavar="WORD", multiple=True, help="A word that it is found by; once for each."
)


F = TypeVar("F", bound=Callable[..., Any])
_SETTLE_SECONDS: Final = 10.0
"""How long a command waits for vectors of what it wrote."""
NAMED: Final = 100
"""Characters of a name that are shown."""
_KNOWN: Final = 10
"""Agents that are named where none is like the one that was asked for."""


def whose(command: F) -> F:
    """Options that say whose memories."""
    user = click.option("--user", metavar="ID", help="A user's.  [default: the user default's]")
    agent = click.option("--agent", metavar="NAME", help="An agent's; with --user, who remembers it for the user.")
    app = click.option("--app", is_flag=True, help="Everybody's.")
    return user(agent(app(command)))


def place(command: F) -> F:
    """Options that say in which store, and how it is told."""
    return place_options(json_option(command))


def owner_of_flags(asked: Mapping[str, Any]) -> Owner:
    """Whose memories the options of `whose` mean."""
    from holdfast.memory.checks import owner_of

    if asked["app"] and asked["user"] is not None:
        raise Misuse("--app is everybody's: leave out --user")
    return owner_of(asked["user"], asked["agent"], app=asked["app"])


def named(owner: Owner) -> str:
    """An owner as people are told of it."""
    return "the app" if owner.kind == "app" else f"{owner.kind} {line(owner.id, NAMED)}"


def doubt(agent: str | None, config: str | None) -> None:
    """Tell of an agent that the configuration does not have, where it has any: a program may have others, a typo has none.

    Args:
        agent: the flag.
        config: the flag.
    """
    if agent is None:
        return
    from holdfast.config import load_settings
    from holdfast.config.convert import find_nearest

    known = list(load_settings({"config": config}, os.environ).config.agents)
    if not known or agent in known:
        return
    near = find_nearest(agent, known)
    more = ", …" if len(known) > _KNOWN else ""
    hint = f"did you mean {near}?" if near else f"it has {line(', '.join(known[:_KNOWN]))}{more}"
    click.echo(f"The configuration has no agent {line(agent, NAMED)}; {hint}", err=True)


async def settled(hf: Holdfast) -> None:
    """Wait, for a while, until what waits for a vector has one: no server may be there to make it behind."""
    import anyio

    if hf.index is not None and hf.index.embedder is not None:
        with anyio.move_on_after(_SETTLE_SECONDS):
            await hf.index.settled()


# -- remember, recall, change ---------------------------------------------------


@click.group
def memories() -> None:
    """What is remembered across sessions: of a user, of an agent, of all."""


@memories.command
@click.argument("text", metavar="TEXT...", nargs=-1, required=True)
@_type_option
@_tag_option
@click.option("--importance", metavar="N", type=click.FloatRange(0, 1), default=0.5, help="0 to 1.  [default: 0.5]")
@click.option("--until", metavar="TIME", help="Until when it holds: a date, or date and time (RFC 3339).")
@whose
@place
def remember(text: Sequence[str], *, store: str | None, config: str | None, as_json: bool, **asked: Any) -> None:
    """Remember TEXT, one fact. What says the same is merged; a new value for the same supersedes the old one."""
    owner_of_flags(asked)  # flags that go not together are told before anything is opened

    async def done(hf: Holdfast) -> Remembered:
        from holdfast.wire.parsing import moment_of

        made = await hf.memories.remember(
            " ".join(text),
            user_id=asked["user"],
            agent=asked["agent"],
            app=asked["app"],
            type=asked["kind"] or "semantic",
            tags=asked["tags"],
            importance=asked["importance"],
            valid_until=None if asked["until"] is None else moment_of(asked["until"], "until"),
        )
        await settled(hf)
        return made

    _show_made(work(done, store=store, config=config, makes=True, ends=True, still=True), as_json=as_json)
    doubt(asked["agent"], config)


@memories.command
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@click.option("--limit", metavar="N", type=click.IntRange(1, 100), default=5, show_default=True, help="Most memories.")
@click.option("--mode", type=click.Choice(["keyword", "vector", "hybrid"]), help="What they are looked up by.")
@_type_option
@_tag_option
@whose
@place
def recall(query: Sequence[str], *, store: str | None, config: str | None, as_json: bool, **asked: Any) -> None:
    """Show what answers QUERY, plain words, of the user, the agent and everybody. Dreams do not count it as a recall."""
    from holdfast.memory.checks import seen_by

    first = owner_of_flags(asked)
    owners = (first,) if asked["app"] else seen_by(first.id if first.kind == "user" else None, asked["agent"])

    async def done(hf: Holdfast) -> RecalledMemories:
        await settled(hf)
        return await hf.memories.recall(
            " ".join(query),
            owners=owners,
            mode=asked["mode"],
            limit=asked["limit"],
            types=[asked["kind"]] if asked["kind"] else (),
            tags=asked["tags"],
            signal=False,
        )

    found = work(done, store=store, config=config, still=True)
    if as_json:
        from holdfast.wire.memories import FoundMemory

        show_json([FoundMemory.from_memory(one.memory, score=one.score, parts=dict(one.parts)) for one in found.found])
        return
    if found.note:
        click.echo(f"By words alone: {line(found.note)}.", err=True)
    if not found.found:
        click.echo(f"No memory of {' or '.join(named(one) for one in owners)} answers that.", err=True)
        doubt(asked["agent"], config)
    for one in found.found:
        held = "  held for review" if one.memory.status == "quarantined" else ""
        click.echo(f"{one.score:.2f}  {one.memory.id}  {one.memory.origin}{held}")
        click.echo(f"      {line(one.memory.content)}")


@memories.command(name="list")
@click.option("--status", type=click.Choice(["active", "quarantined", "rejected", "superseded"]), help="Only these.")
@_type_option
@_tag_option
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 1000), default=100, show_default=True, help="Most of them."
)
@click.option("--after", metavar="ID", help="Go on behind this one.")
@whose
@place
def list_(*, store: str | None, config: str | None, as_json: bool, **asked: Any) -> None:
    """List memories, oldest first."""
    page = work(lambda hf: _page(hf, asked), store=store, config=config, still=True)
    _show_list(page.memories, asked, config, as_json=as_json)
    if page.has_more and not as_json:
        click.echo(f"There are more: --after {page.memories[-1].id}", err=True)


async def _page(hf: Holdfast, asked: dict[str, Any]) -> Any:
    return await hf.memories.page(
        owner_of_flags(asked),
        status=asked["status"],
        types=[asked["kind"]] if asked["kind"] else (),
        tags=asked["tags"],
        agent=asked["agent"],
        after=asked["after"],
        limit=asked["limit"],
    )


@memories.command
@click.argument("memory_id", metavar="ID")
@place
def show(memory_id: str, *, store: str | None, config: str | None, as_json: bool) -> None:
    """Show a memory: what it says, where it comes from, and what it stands in place of."""
    one = work(lambda hf: hf.memories.get(memory_id), store=store, config=config, still=True)
    if as_json:
        show_json(_json(one))
        return
    click.echo(plain(one.content))
    click.echo()
    for name, value in _about(one):
        click.echo(f"{name:<12} {line(value)}")


@memories.command
@click.argument("memory_id", metavar="ID")
@click.option("--content", metavar="TEXT", help="What it says from now on; the old one stays as its history.")
@_type_option
@_tag_option
@click.option("--no-tags", is_flag=True, help="Without any tags.")
@click.option("--importance", metavar="N", type=click.FloatRange(0, 1), help="0 to 1.")
@place
def update(memory_id: str, *, store: str | None, config: str | None, as_json: bool, **asked: Any) -> None:
    """Change a memory; what is not named stays."""
    names = {"content": "content", "kind": "type", "importance": "importance"}
    changes = {names[name]: asked[name] for name in names if asked[name] is not None}
    if asked["tags"] or asked["no_tags"]:
        changes["tags"] = () if asked["no_tags"] else asked["tags"]
    if not changes:
        raise Misuse("say what is to change: --content, --type, --tag, --no-tags or --importance")

    async def done(hf: Holdfast) -> Remembered:
        made = await hf.memories.update(memory_id, **changes)
        await settled(hf)
        return made

    _show_made(work(done, store=store, config=config, ends=True, still=True), as_json=as_json)


@memories.command
@click.argument("memory_id", metavar="ID", required=False)
@click.option("--session", metavar="ID", help="Instead: what was remembered from this session of the user's alone.")
@click.option("--user", metavar="ID", default="default", show_default=True, help="With --session: whose it is.")
@place
def forget(
    memory_id: str | None, *, session: str | None, user: str, store: str | None, config: str | None, as_json: bool
) -> None:
    """Forget a memory with its history, or what came from a session."""
    if (memory_id is None) == (session is None):
        raise Misuse("say what is to be forgotten: an ID, or --session ID")

    async def done(hf: Holdfast) -> tuple[str, ...]:
        if memory_id is not None:
            return await hf.memories.forget(memory_id)
        return await hf.memories.forget_source(user, str(session))

    gone = work(done, store=store, config=config, ends=True, still=True)
    if as_json:
        show_json({"forgotten": list(gone)})
    else:
        click.echo(f"Forgot {counted(len(gone), 'memory', 'memories')}.")
    if session is not None and not gone:
        click.echo(f"Nothing comes from session {line(session, _SHOWN)} of user {line(user, _SHOWN)} alone.", err=True)


@memories.command
@click.argument("memory_id", metavar="[ID]", required=False)
@click.argument("decision", type=click.Choice(["accept", "reject"]), required=False)
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 1000), default=100, show_default=True, help="Most of a list."
)
@whose
@place
def review(
    memory_id: str | None, decision: Any, *, store: str | None, config: str | None, as_json: bool, **asked: Any
) -> None:
    """List what is held for review, with where it comes from; or decide: ID accept, ID reject."""
    if memory_id is None:
        asked |= {"status": "quarantined", "kind": None, "tags": (), "after": None}
        page = work(lambda hf: _page(hf, asked), store=store, config=config, still=True)
        _show_list(page.memories, asked, config, as_json=as_json, sources=True)
        return
    if decision is None:
        raise Misuse(f"say what becomes of {memory_id}: accept or reject")
    one = work(lambda hf: hf.memories.review(memory_id, decision), store=store, config=config, ends=True, still=True)
    if as_json:
        show_json(_json(one))
    else:
        click.echo(f"{one.id} is {one.status}.")


# -- what is shown ---------------------------------------------------------------


def _json(one: Memory) -> MemoryObject:
    from holdfast.wire.memories import MemoryObject

    return MemoryObject.from_memory(one)


def _show_made(made: Remembered, *, as_json: bool) -> None:
    one = made.memory
    if as_json:
        from holdfast.wire.memories import RememberedMemory

        similar = [_json(other) for other in made.others]
        show_json(RememberedMemory.from_memory(one, outcome=made.outcome, similar=similar))
        return
    if one.status == "rejected":
        raise Failure(f"{one.id}: a review has rejected it, and it is not kept")
    words = {"new": "Remembered", "merged": "It is there as", "superseded": f"In place of {', '.join(one.supersedes)}:"}
    click.echo(f"{words[made.outcome]} {one.id}.")
    if one.valid_until is not None and one.valid_until <= time.time() * 1000:
        click.echo(f"It held until {moment(one.valid_until)}: no recall has it.", err=True)
    for other in made.others:
        click.echo(f"Alike: {other.id}  {line(other.content, _SHOWN)}")


def _show_list(
    found: Sequence[Memory], asked: Mapping[str, Any], config: str | None, *, as_json: bool, sources: bool = False
) -> None:
    if not found:
        doubt(asked["agent"], config)
    if as_json:
        show_json([_json(one) for one in found])
    elif not found:
        click.echo(f"There are none of {named(owner_of_flags(asked))}.", err=True)
    else:
        told = [
            Column("id"),
            Column("type"),
            Column("origin"),
            Column("from" if sources else "status"),
            Column("content"),
        ]
        show_table(told, [_row(one, sources=sources) for one in found])


def _row(one: Memory, *, sources: bool) -> list[str]:
    told = _sources(one) if sources else one.status
    return [one.id, one.type, one.origin, line(told, _SHOWN), line(one.content, _SHOWN)]


def _sources(one: Memory) -> str:
    return ", ".join(
        f"{source.session_id} {','.join(f'#{seq}' for seq in source.seqs)}".strip() for source in one.sources
    )


def _about(one: Memory) -> list[tuple[str, str]]:
    told = {
        "id": one.id,
        "whose": named(one.owner),
        "status": one.status,
        "type": one.type,
        "tags": ", ".join(one.tags),
        "origin": f"{one.origin}, trust {one.trust:g}",
        "importance": f"{one.importance:g}",
        "from": _sources(one),
        "remembered": moment(one.created_at),
        "holds until": "" if one.valid_until is None else moment(one.valid_until),
        "in place of": ", ".join(one.supersedes),
        "replaced by": one.superseded_by or "",
        "promoted": "" if one.promoted_at is None else moment(one.promoted_at),
        "reviewed": "" if one.reviewed_at is None else moment(one.reviewed_at),
    }
    return [(name, value) for name, value in told.items() if value]


# -- dream and diary -------------------------------------------------------------

_IN_LINE: Final = 80
"""Characters of a memory in a line."""
_WORDS: Final = {
    "promoted": "promoted",
    "held": "held for review",
    "over": "good enough, for the next sweep",
    "gated": "not promoted",
    "already": "promoted before",
}


@memories.command
@click.option("--all", "everybody", is_flag=True, help="Everybody's for whom something was remembered.")
@click.option("--dry-run", is_flag=True, help="Only say what would be; nothing is written.")
@whose
@place
def dream(
    *, everybody: bool, dry_run: bool, store: str | None, config: str | None, as_json: bool, **asked: Any
) -> None:
    """Sweep over memories now: those that were recalled often, well and differently are promoted."""
    if everybody and (asked["user"] is not None or asked["agent"] is not None or asked["app"]):
        raise Misuse("--all is everybody's: leave out --user, --agent and --app")

    async def done(hf: Holdfast) -> list[Dreamt]:
        owners = [one async for one, _ in hf.dreams.owners()] if everybody else [owner_of_flags(asked)]
        return [await hf.dreams.dream(owner, dry_run=dry_run) for owner in owners]

    found = work(done, store=store, config=config, ends=True, still=True, models=True)
    if as_json:
        told = [_report(one) for one in found]
        show_json(told if everybody else told[0])
        return
    for one in found:
        if everybody:
            click.echo(f"{one.owner.kind} {line(one.owner.id)}".rstrip() + ":")
        _show_report(_report(one), dry_run=dry_run)
    if not any(one.report["candidates"] for one in found):
        doubt(asked["agent"], config)


@memories.command
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 100), default=5, show_default=True, help="Most sweeps, the newest."
)
@whose
@place
def diary(*, limit: int, store: str | None, config: str | None, as_json: bool, **asked: Any) -> None:
    """Show what sweeps decided, newest first, and why."""
    found = work(lambda hf: hf.dreams.diary(owner_of_flags(asked), limit), store=store, config=config, still=True)
    if as_json:
        show_json(found)
        return
    if not found:
        click.echo(
            f"There was no sweep over memories of {named(owner_of_flags(asked))} that wrote something.", err=True
        )
        doubt(asked["agent"], config)
    for at, one in enumerate(found):
        if at:
            click.echo()
        click.echo(moment(one["at"]))
        _show_report(one)


def _report(one: Dreamt) -> dict[str, Any]:
    from holdfast.consolidation.sweeps import shown

    return {"written": one.written, "promotions": one.promotions, **shown(one.report, one.memories)}


def _show_report(report: Mapping[str, Any], *, dry_run: bool = False) -> None:
    candidates: Sequence[Mapping[str, Any]] = report["candidates"]
    if not candidates:
        click.echo("Nothing was recalled.")
    for verdict, words in _WORDS.items():
        number = report["verdicts"].get(verdict, 0)
        if number:
            click.echo(f"{number} {'would be ' if dry_run and verdict == 'promoted' else ''}{words}")
        for one in candidates:
            if one["verdict"] == verdict and verdict != "already":
                _show_candidate(one)
    for theme in report["themes"]:
        click.echo(f"theme: {line(', '.join(theme['terms']))} ({theme['size']})")
    for one in report["proposals"]:
        _show_proposal(one)
    model = report["model"] or {}
    if model.get("status") == "failed":
        click.echo(f"model: failed ({line(model['code'])}); no merges are proposed")


def _show_proposal(one: Mapping[str, Any]) -> None:
    said = "(forgotten)" if one["content"] is None else line(one["content"], _IN_LINE)
    click.echo(f"proposed: {one['memory_id']}  {said}")
    waits = f"; `holdfast memories review {one['memory_id']} accept`, or reject" * (one["status"] == "quarantined")
    click.echo(f"        in place of {', '.join(one['merges'])}{waits}")


def _show_candidate(one: Mapping[str, Any]) -> None:
    from holdfast.consolidation.diary import figures_of

    said = "(forgotten)" if one["content"] is None else line(one["content"], _IN_LINE)
    click.echo(f"  {one['score']:.2f}  {one['memory_id']}  {said}")
    click.echo("        " + "; ".join([figures_of(one), *one["gates"]]))
