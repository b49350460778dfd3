"""Pages about memories that need a decision, the memory files of Anthropic's memory tool, and the consolidation of memories."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from holdfast.accounting import run_cpu
from holdfast.domain.memory import MemoryId, Owner
from holdfast.domain.objects import Id, NonEmpty
from holdfast.limits import MEMORY_FILES
from holdfast.memory.files import FileVersion
from holdfast.server.http import Call
from holdfast.server.inspector.actions import declare_action
from holdfast.server.inspector.frame import HTML, render
from holdfast.server.inspector.memories import (
    OwnerQuery,
    Owners,
    can_change,
    find_owner,
    find_sessions,
    list_file_agents,
    list_source_refs,
)
from holdfast.server.memories import DiaryQuery, diary
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.sessions.memory_files import open_memory_files
from holdfast.wire.memories import MemoryObject

routes = Routes("inspector")
_LISTED: Final = 50
"""Held memories on a page."""
_OTHERS: Final = 20
"""Other owners that are looked through for held memories."""
_DIFFED: Final = 200_000
"""Characters of two versions of a file that are compared. Longer versions are shown whole."""

declare_action(
    "review_file_change", "POST", "/v1/users/{user_id}/memory_files/{change_id}/review", "The review was recorded."
)
declare_action(
    "consolidate", "POST", "/v1/memories/consolidate", "Consolidation", template="memory_sweep.html", dry_run="flag"
)


# -- held for review ---------------------------------------------------------------


class HeldQuery(OwnerQuery, kw_only=True):
    """Query parameters of the page with what is held."""

    after: MemoryId | None = None
    """Id of the last memory on the page before."""


@routes.add("GET", "/inspect/memories/held", "read", answer=HTML)
async def show_held(call: Call, query: HeldQuery) -> Reply:
    """Return the memories and the changes of memory files that wait for a review."""
    owners = await find_owner(call, query)
    page = await call.hf.memories.page(owners.owner, status="quarantined", after=query.after, limit=_LISTED)
    reader = call.principal.user_id
    last = page.memories[-1].id if page.has_more else None
    return await render(
        call,
        "memories_held.html",
        title="Held for review",
        owners=owners,
        held=[MemoryObject.from_memory(one, reader=reader) for one in page.memories],
        changes=owners.changes,
        next_url=owners.make_url("/inspect/memories/held", after=last) if last else "",
        first_url=owners.make_url("/inspect/memories/held") if query.after else None,
        others=await _find_others(call, owners),
        linked=await find_sessions(call, [ref for one in page.memories for ref in list_source_refs(one)]),
        can_change=can_change(call, owners.owner),
    )


async def _find_others(call: Call, owners: Owners) -> list[Owner]:
    """Return other owners with held memories, among those that changed last."""
    store = call.hf.memories.store
    return [
        owner
        for owner in owners.known[:_OTHERS]
        if owner != owners.owner and (await store.memories(owner, status="quarantined", limit=1)).memories
    ]


# -- memory files ------------------------------------------------------------------


class FilesQuery(OwnerQuery, kw_only=True):
    """Query parameters of the page of memory files."""

    agent: Id | None = None
    """Agent that has the files."""
    path: NonEmpty | None = None
    """File to show."""


@dataclass(frozen=True)
class ComparedVersion:
    """A version of a memory file with the lines that changed."""

    version: FileVersion
    lines: Sequence[str]
    """Lines of a difference to the version before, each with `+`, `-`, `@` or a space before it."""


@routes.add("GET", "/inspect/memories/files", "read", answer=HTML)
async def show_files(call: Call, query: FilesQuery) -> Reply:
    """Return the memory files of a user, and the versions of one of them."""
    owners = await find_owner(call, query)
    if owners.owner.kind != "user":  # only users have memory files
        owners = Owners(
            owner=Owner("user", call.get_owner_or_default(None)), known=owners.known, is_bound=owners.is_bound
        )
    files = open_memory_files(call.hf.engine, owners.owner.id, query.agent)
    versions = [] if query.path is None else await files.list_versions(query.path)
    return await render(
        call,
        "memory_files.html",
        title="Memory files",
        owners=owners,
        query=query,
        agents=await list_file_agents(call, owners.owner.id),
        paths=await files.list_paths(MEMORY_FILES),
        versions=await run_cpu(_compare_versions, versions),
    )


def _compare_versions(versions: Sequence[FileVersion]) -> list[ComparedVersion]:
    """Compare each version with the one before it. The versions are in order, newest first."""
    compared = []
    for new, old in pairwise([*versions, None]):
        assert new is not None
        before = "" if old is None else old.text
        lines: list[str] = []
        if len(before) + len(new.text) <= _DIFFED:
            lines = list(difflib.unified_diff(before.splitlines(), new.text.splitlines(), lineterm="", n=2))[2:]
        compared.append(ComparedVersion(new, lines))
    return compared


# -- consolidation -----------------------------------------------------------------


@routes.add("GET", "/inspect/memories/diary", "read", answer=HTML)
async def show_diary(call: Call, query: OwnerQuery) -> Reply:
    """Return the consolidations of an owner's memories, newest first."""
    owners = await find_owner(call, query)
    kind, owner_id = owners.owner
    found = await diary(
        call,
        DiaryQuery(
            scope=kind,
            user_id=owner_id if kind == "user" else None,
            agent=owner_id if kind == "agent" else None,
            limit=20,
        ),
    )
    return await render(
        call,
        "memory_diary.html",
        title="Consolidation",
        owners=owners,
        entries=found.data,
        has_more=found.has_more,
        can_change=can_change(call, owners.owner),
    )
