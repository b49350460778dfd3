"""`holdfast memories`: remember, recall, list, show, review, forget and consolidate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from holdfast.cli.command import Call, Note, Output, command, limit_option
from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.terminal import format_line, format_time, sanitize, show_progress
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.consolidation.sweeps import SweepResult
    from holdfast.domain.memory import Memory, Owner
    from holdfast.holdfast import Holdfast

F = TypeVar("F", bound=Callable[..., Any])
NAME_CHARACTERS: Final = 100
"""Maximum characters of a name that are printed."""
_CONTENT_CHARACTERS: Final = 100
"""Maximum characters of a memory's content in a table."""
_SETTLE_SECONDS: Final = 10.0
"""Maximum seconds that a command waits for the vectors of the memories that it wrote."""
_MAX_AGENTS: Final = 10
"""Maximum number of agents that are listed if no name is similar to the value of `--agent`."""
_TYPES: Final = ("semantic", "episodic", "procedural", "user", "feedback", "project", "reference")
_type_option = click.option("--type", "kind", type=click.Choice(_TYPES), help="Kind of memory.")
_tag_option = click.option(
    "--tag", "tags", metavar="WORD", multiple=True, help="Tag of the memory; can be given several times."
)


def _owner_options(function: F) -> F:
    """Add the options `--user`, `--agent` and `--app`, which name the owner of memories."""
    user = click.option("--user", metavar="ID", help="Memories of this user.  [default: the user `default`]")
    agent = click.option(
        "--agent", metavar="NAME", help="Memories of this agent; with --user, those it made for the user."
    )
    app = click.option("--app", is_flag=True, help="Memories that all users share.")
    return user(agent(app(function)))


def _choose_owner(*, user: str | None, agent: str | None, app: bool) -> Owner:
    """Return the owner that the options of `_owner_options` name."""
    from holdfast.memory.checks import choose_owner

    if app and user is not None:
        raise Misuse("--app and --user exclude each other: --app means memories that all users share")
    return choose_owner(user, agent, app=app)


def _format_owner(owner: Owner) -> str:
    return "the app" if owner.kind == "app" else f"{owner.kind} {format_line(owner.id, NAME_CHARACTERS)}"


def check_agent(call: Call, agent: str | None) -> list[Note]:
    """Return a note if the configuration has agents, but none with the name in `--agent`. The name may be a typo."""
    if agent is None:
        return []
    from holdfast.config.convert import find_nearest

    known = list(Call(config=call.config).load_settings().agents)
    if not known or agent in known:
        return []
    near = find_nearest(agent, known)
    more = ", …" if len(known) > _MAX_AGENTS else ""
    hint = f"did you mean {near}?" if near else f"its agents are {format_line(', '.join(known[:_MAX_AGENTS]))}{more}"
    return [Note(f"The configuration has no agent {format_line(agent, NAME_CHARACTERS)}; {hint}")]


async def _wait_for_vectors(hf: Holdfast) -> None:
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


@command(memories)
@click.argument("text", metavar="TEXT...", nargs=-1, required=True)
@_type_option
@_tag_option
@click.option("--importance", metavar="N", type=click.FloatRange(0, 1), default=0.5, help="0 to 1.  [default: 0.5]")
@click.option("--until", metavar="TIME", help="When the fact expires: a date, or date and time (RFC 3339).")
@_owner_options
def remember(
    call: Call,
    text: Sequence[str],
    *,
    kind: Any,
    tags: Sequence[str],
    importance: float,
    until: str | None,
    **owner: Any,
) -> Output:
    """Remember TEXT, one fact. An equal memory is merged with it; an older value of the same fact is replaced."""
    _choose_owner(**owner)  # report conflicting flags before anything is opened

    async def do(hf: Holdfast) -> Any:
        from holdfast.wire.strict_json import parse_time

        remembered = await hf.memories.remember(
            " ".join(text),
            user_id=owner["user"],
            agent=owner["agent"],
            app=owner["app"],
            type=kind or "semantic",
            tags=tags,
            importance=importance,
            valid_until=None if until is None else parse_time(until, "until"),
        )
        await _wait_for_vectors(hf)
        return remembered

    remembered = call.run(do, create=True, writes=True, keep_sessions=True)
    from holdfast.wire.memories import RememberedMemory

    one, others = remembered.memory, remembered.others
    if one.status == "rejected" and not call.as_json:
        raise Failure(f"{one.id} was rejected in a review, so it was not stored again")
    words = {"new": "Remembered", "merged": "Merged into", "superseded": f"Replaced {', '.join(one.supersedes)} by"}
    lines = [f"{words[remembered.outcome]} {one.id}."]
    if one.valid_until is not None and one.valid_until <= time.time() * 1000:
        lines.append(Note(f"It expired at {format_time(one.valid_until)}, so recall does not return it."))
    lines += [f"Similar: {other.id}  {format_line(other.content, _CONTENT_CHARACTERS)}" for other in others]
    similar = [_to_object(other) for other in others]
    data = RememberedMemory.from_memory(one, outcome=remembered.outcome, similar=similar)
    return Output(data, lines, check_agent(call, owner["agent"]))


@command(memories)
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@limit_option("memories", most=100, default=5)
@click.option("--mode", type=click.Choice(["keyword", "vector", "hybrid"]), help="Kind of search.")
@_type_option
@_tag_option
@_owner_options
def recall(
    call: Call, query: Sequence[str], *, limit: int, mode: Any, kind: Any, tags: Sequence[str], **owner: Any
) -> Output:
    """Find memories that answer QUERY.

    Searches the memories of the user, the agent and all users. Consolidation does not count this recall.
    """
    from holdfast.memory.checks import find_owners

    first = _choose_owner(**owner)
    owners = (first,) if owner["app"] else find_owners(first.id if first.kind == "user" else None, owner["agent"])

    async def do(hf: Holdfast) -> Any:
        await _wait_for_vectors(hf)
        types = [kind] if kind else ()
        return await hf.memories.recall(
            " ".join(query), owners=owners, mode=mode, limit=limit, types=types, tags=tags, signal=False
        )

    recalled = call.run(do, keep_sessions=True)
    from holdfast.wire.memories import FoundMemory

    lines: list[str] = []
    if recalled.note:
        lines.append(Note(f"Keyword search only: {format_line(recalled.note)}."))
    if not recalled.found:
        lines.append(Note(f"No memory of {' or '.join(_format_owner(one) for one in owners)} matches."))
        lines += [] if call.as_json else check_agent(call, owner["agent"])
    for one in recalled.found:
        review_note = "  held for review" if one.memory.status == "quarantined" else ""
        lines.append(f"{one.score:.2f}  {one.memory.id}  {one.memory.origin}{review_note}")
        lines.append(f"      {format_line(one.memory.content)}")
    data = [FoundMemory.from_memory(one.memory, score=one.score, parts=dict(one.parts)) for one in recalled.found]
    return Output(data, lines)


@command(memories)
@click.option(
    "--status",
    type=click.Choice(["active", "quarantined", "rejected", "superseded"]),
    help="Only memories with this status. quarantined: held for review.",
)
@_type_option
@_tag_option
@limit_option("memories", most=1000, default=100)
@click.option("--after", metavar="ID", help="Continue after this memory.")
@_owner_options
def list_(call: Call, *, kind: str | None, **options: Any) -> Output:
    """List memories, oldest first."""
    return _list_page(call, "status", types=[kind] if kind else (), **options)


@command(memories, keep_sessions=True)
@click.argument("memory_id", metavar="ID")
async def show(hf: Holdfast, *, memory_id: str) -> Output:
    """Show a memory, its sources, and the memories it replaces."""
    one = await hf.memories.get(memory_id)
    fields: dict[str, Any] = {
        "id": one.id,
        "owner": _format_owner(one.owner),
        "status": one.status,
        "type": one.type,
        "tags": ", ".join(one.tags),
        "origin": f"{one.origin}, trust {one.trust:g}",
        "importance": f"{one.importance:g}",
        "from": _format_sources(one),
        "remembered": one.created_at,
        "valid until": one.valid_until,
        "replaces": ", ".join(one.supersedes),
        "replaced by": one.superseded_by,
        "promoted": one.promoted_at,
        "reviewed": one.reviewed_at,
    }
    shown = {name: format_time(value) if isinstance(value, int) else value for name, value in fields.items()}
    lines = [f"{name:<12} {format_line(value)}" for name, value in shown.items() if value]
    return Output(_to_object(one), [sanitize(one.content), "", *lines])


@command(memories)
@click.argument("memory_id", metavar="ID", required=False)
@click.option("--session", metavar="ID", help="Instead of an ID: memories whose only source is this session.")
@click.option("--user", metavar="ID", default="default", show_default=True, help="With --session: user of the session.")
def forget(call: Call, memory_id: str | None, *, session: str | None, user: str) -> Output:
    """Delete a memory with its history, or all memories of a session.

    With --session, deletes all memories whose only source is that session.
    """
    if (memory_id is None) == (session is None):
        raise Misuse("give either a memory ID or --session ID")

    async def do(hf: Holdfast) -> tuple[str, ...]:
        if memory_id is not None:
            return await hf.memories.forget(memory_id)
        return await hf.memories.forget_source(user, str(session))

    forgotten = call.run(do, writes=True, keep_sessions=True)
    notes = []
    if session is not None and not forgotten:
        who = f"session {format_line(session, _CONTENT_CHARACTERS)} of user {format_line(user, _CONTENT_CHARACTERS)}"
        notes.append(f"No memory has {who} as its only source.")
    text = f"Forgot {format_count(len(forgotten), 'memory', 'memories')}."
    return Output({"forgotten": list(forgotten)}, [text], notes)


@command(memories)
@click.argument("memory_id", metavar="[ID]", required=False)
@click.argument("decision", type=click.Choice(["accept", "reject"]), required=False)
@limit_option("memories", most=1000, default=100)
@_owner_options
def review(call: Call, memory_id: str | None, decision: Any, **options: Any) -> Output:
    """List memories that are held for review, or decide on one.

    To decide, write `ID accept` or `ID reject`. The list shows the sources of each memory.
    """
    if memory_id is None:
        return _list_page(call, "from", status="quarantined", **options)
    if decision is None:
        raise Misuse(f"give a decision for {memory_id}: accept or reject")
    one = call.run(lambda hf: hf.memories.review(memory_id, decision), writes=True, keep_sessions=True)
    return Output(_to_object(one), [f"{one.id} is {one.status}."])


# -- output ----------------------------------------------------------------------


def _list_page(
    call: Call, column: Literal["status", "from"], *, user: str | None, agent: str | None, app: bool, **filters: Any
) -> Output:
    """List the memories of an owner.

    Args:
        call: the common options.
        column: what the table shows of each memory: its status, or the sessions it comes from.
        user: value of `--user`.
        agent: value of `--agent`.
        app: value of `--app`.
        filters: arguments of `Memories.page`.
    """
    owner = _choose_owner(user=user, agent=agent, app=app)
    page = call.run(lambda hf: hf.memories.page(owner, agent=agent, **filters), keep_sessions=True)
    rows = [
        {
            "id": one.id,
            "type": one.type,
            "origin": one.origin,
            column: format_line(one.status if column == "status" else _format_sources(one), _CONTENT_CHARACTERS),
            "content": format_line(one.content, _CONTENT_CHARACTERS),
        }
        for one in page.memories
    ]
    data = [_to_object(one) for one in page.memories]
    if not rows:
        return Output(data, [Note(f"No memories of {_format_owner(owner)}.")], check_agent(call, agent))
    more = [Note(f"There are more: continue with --after {page.memories[-1].id}")] if page.has_more else []
    return Output(data, [rows, *more])


def _to_object(one: Memory) -> Any:
    from holdfast.wire.memories import MemoryObject

    return MemoryObject.from_memory(one)


def _format_sources(one: Memory) -> str:
    return ", ".join(
        f"{source.session_id} {','.join(f'#{seq}' for seq in source.seqs)}".strip() for source in one.sources
    )


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


@command(memories)
@click.option("--all", "all_owners", is_flag=True, help="All owners of memories.")
@click.option("--dry-run", is_flag=True, help="Report the result without writing it.")
@_owner_options
def consolidate(call: Call, *, all_owners: bool, dry_run: bool, **given: Any) -> Output:
    """Consolidate memories now.

    Promotes the memories that were recalled often, with good scores and by different queries.
    """
    if all_owners and given != {"user": None, "agent": None, "app": False}:
        raise Misuse("--all means all owners: leave out --user, --agent and --app")

    chosen = None if all_owners else _choose_owner(**given)

    async def do(hf: Holdfast) -> list[SweepResult]:
        owners = [chosen] if chosen else [one async for one, _ in hf.consolidation.owners()]
        results = []
        with show_progress(len(owners), "consolidating") as bar:
            for owner in owners:
                results.append(await hf.consolidation.consolidate(owner, dry_run=dry_run))
                bar.advance()
        return results

    results = call.run(do, writes=True, keep_sessions=True)
    from holdfast.consolidation.sweeps import show_report

    reports, lines = [], list[str]()
    for one in results:
        report = {"written": one.written, "promotions": one.promotions, **show_report(one.report, one.memories)}
        reports.append(report)
        lines += [f"{one.owner.kind} {format_line(one.owner.id)}".rstrip() + ":"] if all_owners else []
        lines += _format_report(report, dry_run=dry_run)
    if not call.as_json and not any(report["candidates"] for report in reports):
        lines += check_agent(call, given["agent"])
    return Output(reports if all_owners else reports[0], lines)


def _format_report(report: Mapping[str, Any], *, dry_run: bool) -> Iterator[str]:
    """Yield the lines that show the report of one owner."""
    from holdfast.consolidation.diary import format_figures

    candidates: Sequence[Mapping[str, Any]] = report["candidates"]
    if not candidates:
        yield "No memory was recalled."
    for verdict, words in _WORDS.items():
        if number := report["verdicts"].get(verdict, 0):
            yield f"{number} {'would be ' if dry_run and verdict == 'promoted' else ''}{words}"
        for one in candidates:
            if one["verdict"] == verdict and verdict != "already":
                content = "(forgotten)" if one["content"] is None else format_line(one["content"], _LINE_CHARACTERS)
                yield f"  {one['score']:.2f}  {one['memory_id']}  {content}"
                yield "        " + "; ".join([format_figures(one), *one["gates"]])
    for theme in report["themes"]:
        yield f"theme: {format_line(', '.join(theme['terms']))} ({theme['size']})"
