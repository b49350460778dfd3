"""`holdfast memories`: remember, recall, list, show, update, review, forget."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.dreams import diary, dream
from holdfast.cli.frame import Failure, Misuse
from holdfast.cli.owners import doubt, named, owner_of_flags, place, settled, whose
from holdfast.cli.stores import work
from holdfast.cli.terminal import Column, counted, line, moment, plain, show_json, show_table

if TYPE_CHECKING:
    from holdfast.domain.memory import Memory
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


@click.group
def memories() -> None:
    """What is remembered across sessions: of a user, of an agent, of all."""


for further in (dream, diary):
    memories.add_command(further)


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


# -- how it is told --------------------------------------------------------------


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
