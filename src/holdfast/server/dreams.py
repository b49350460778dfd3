"""The REST API over dreams: sweep over an owner's memories now, or only see what a sweep would do; and the diary of those that were."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from holdfast.consolidation.promotion import Verdict
from holdfast.consolidation.proposals import Status
from holdfast.consolidation.sweeps import shown
from holdfast.domain.memory import Owner
from holdfast.limits import DIARY_PAGE
from holdfast.server.http import Call
from holdfast.server.memories import check_writes, owner_in
from holdfast.server.routes import BODY, STORE, Routes
from holdfast.wire.memories import MemoryId, MemoryScope
from holdfast.wire.objects import Answer, Count, Id, JsonObject, Page, Request, Share, Time, json_schema, same_as

routes = Routes("memories")
_MODEL: Final = ("status", "code", "memories", "prompt_tokens", "completion_tokens")
"""What is shown of asking a model."""


class DreamCandidate(Answer):
    """What a sweep makes of a memory."""

    memory_id: MemoryId
    content: str | None
    """What it says; null: it is forgotten."""
    verdict: Verdict
    """What became of it."""
    score: Share
    gates: list[str]
    """Why it is not promoted: what it has, and what it needs."""
    recalls: Count
    """Those that count."""
    queries: Count
    """Really distinct questions among them."""
    days: Count
    """Distinct days (UTC) among them."""
    frequency: Share
    relevance: Share
    recency: Share
    diversity: Share
    consolidation: Share


class DreamTheme(Answer):
    """Memories that were recalled and are about the same."""

    terms: list[str]
    """Words that they share, of those that are not forgotten."""
    memory_ids: list[MemoryId]
    size: Count
    """How many they were."""
    recalls: Count
    """Of all of them."""


class DreamProposal(Answer):
    """A merge that a model proposes."""

    memory_id: MemoryId
    merges: list[MemoryId]
    """In whose place it would be."""
    content: str | None
    """What it would say; null: it is forgotten."""
    status: str | None
    """`quarantined`: it waits for a review; null: it is forgotten."""


class DreamModel(Answer):
    """What came of asking a model for merges."""

    status: Status
    """See docs/dreams.md."""
    code: str | None
    """Why it failed."""
    memories: Count
    """How many it was asked about."""
    prompt_tokens: Count
    """As the model reported them."""
    completion_tokens: Count
    """As the model reported them."""


class _Sweep(Answer, kw_only=True):
    object: Literal["dream"] = "dream"
    scope: MemoryScope
    user_id: str | None
    """Whose, of a user's."""
    agent: str | None
    """Whose, of an agent's."""
    verdicts: dict[str, Count]
    """How many of each."""
    candidates: list[Annotated[Any, same_as(DreamCandidate)]]
    """The best first, at most 200."""
    themes: list[Annotated[Any, same_as(DreamTheme)]]
    """What was recalled the day before."""
    proposals: list[Annotated[Any, same_as(DreamProposal)]]
    """Merges that wait for a review."""
    model: Annotated[JsonObject, same_as(DreamModel)] | None


class Dream(_Sweep, kw_only=True):
    """A sweep."""

    dry_run: bool
    """Nothing was written, because that was asked for."""
    written: bool
    """Whether anything was."""
    promotions: Count
    """How many it promoted, or would have."""


class DiaryEntry(_Sweep, kw_only=True):
    """A sweep that was."""

    id: Id
    at: Time


class Diary(Page[DiaryEntry, str]):
    """A page."""


class DreamRequest(Request, kw_only=True):
    """Whose memories."""

    user_id: str | None = None
    """Whose; unset: the key's user, else the agent, else the user `default`."""
    agent: str | None = None
    """An agent's own memories."""
    scope: MemoryScope | None = None
    dry_run: bool | None = None
    """Write nothing."""


class DiaryQuery(Request, kw_only=True):
    """Parameters of a diary."""

    user_id: Id | None = None
    """Whose; without it the key's user, else the agent, else `default`."""
    agent: Id | None = None
    """An agent's own."""
    scope: MemoryScope | None = None
    """The user's, the agent's, or the app's."""
    limit: Annotated[int, json_schema(description="most sweeps, 20 unless given", minimum=1, maximum=DIARY_PAGE)] = 20


@routes.add("POST", "/v1/memories/dream", "write", fails=(*BODY, 404, 412, 503))
async def dream(call: Call, body: DreamRequest) -> Dream:
    """Sweep over an owner's memories now: those that were recalled often, well and differently enough are promoted.

    With `dry_run` nothing is written, and the answer is what would be. Of an agent's memories or the app's it takes an API key that is of
    no user, or an admin's.
    """
    owner = owner_in(call, body.scope, body.user_id, body.agent)
    check_writes(call, owner)
    dry_run = bool(body.dry_run)
    dreamt = await call.hf.dreams.dream(owner, dry_run=dry_run)
    report = _show(shown(dreamt.report, dreamt.memories))
    return Dream(dry_run=dry_run, written=dreamt.written, promotions=dreamt.promotions, **report)


@routes.add("GET", "/v1/memories/diary", "read", fails=(*STORE, 404))
async def diary(call: Call, query: DiaryQuery) -> Diary:
    """The newest sweeps over an owner's memories that wrote something, newest first: what was decided, and why.

    What memories say is looked up now: of one that is forgotten, `content` is null.
    """
    owner = owner_in(call, query.scope, query.user_id, query.agent)
    found = await call.hf.dreams.diary(owner, query.limit + 1)
    entries = [DiaryEntry(id=one["id"], at=one["at"], **_show(one)) for one in found[: query.limit]]
    return Diary.of(entries, has_more=len(found) > query.limit)


def _show(report: JsonObject) -> JsonObject:
    """Return the fields of a sweep: whose it is as memories say that."""
    owner = Owner(report["owner"]["kind"], report["owner"]["id"])
    return {
        "scope": owner.kind,
        "user_id": owner.id if owner.kind == "user" else None,
        "agent": owner.id if owner.kind == "agent" else None,
        "verdicts": report["verdicts"],
        "candidates": report["candidates"],
        "themes": report["themes"],
        "proposals": report["proposals"],
        "model": None if report["model"] is None else {name: report["model"].get(name) for name in _MODEL},
    }
