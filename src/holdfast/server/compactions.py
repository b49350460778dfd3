"""The REST API over a session's compactions: make one now or only look at it, list them, drop one."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast import errors
from holdfast.context.settings import STRATEGIES
from holdfast.domain.session import CompactionKind, NewCompaction, StoredCompaction
from holdfast.server.context import describe_key
from holdfast.server.http import Call
from holdfast.server.permissions import Refused
from holdfast.server.routes import BODY, OF_SESSION, Routes, SeqPageQuery, SessionQuery
from holdfast.wire.objects import Answer, Count, Id, Page, Request, Time, json_schema

routes = Routes("compactions")
_COMPACTIONS: Final = "/v1/sessions/{session_id}/compactions"
_COMPACTION: Final = f"{_COMPACTIONS}/{{compaction_id}}"
_NAMED: Final = "a compaction is named by its id"
_NOTHING: Final = (
    "there is nothing to compact: what is not recent, pinned or the task is too little, or summarized already"
)
_KEYS: Final = STRATEGIES["summary_buffer"].keys


class CompactionRequest(Request, kw_only=True):
    """How to make it; unset: as the session's agent would. The keys hold for this one alone."""

    preview: bool | None = None
    """Store nothing."""
    wait: bool | None = None
    """False: answer at once; it is made in the background."""
    agent: str | None = None
    """An agent of the configuration: whose view it is laid over."""
    model: str | None = None
    """The same, for a model."""
    strategy: Annotated[Any, json_schema(type=["string", "null"], enum=["summary_buffer", None])] = None
    budget: Annotated[Any, describe_key(_KEYS["budget"])] = None
    threshold: Annotated[Any, describe_key(_KEYS["threshold"])] = None
    target: Annotated[Any, describe_key(_KEYS["target"])] = None
    summarizer_llm: Annotated[Any, describe_key(_KEYS["summarizer_llm"])] = None
    prompt: Annotated[Any, describe_key(_KEYS["prompt"])] = None


class CompactionUsage(Answer):
    """What writing it took."""

    prompt_tokens: Count
    completion_tokens: Count


class CompactionObject(Answer, kw_only=True):
    """A summary, or an attempt at one."""

    id: Annotated[int, json_schema(minimum=1)] | None
    """Null of what was not stored."""
    object: Literal["compaction"] = "compaction"
    session_id: Id
    status: Literal["live", "superseded", "dropped", "dead", "failed", "preview"]
    """`live`: it is sent; `superseded`: a later one includes it; `dropped`: it was taken away; `dead`: an entry of its range was retired
    or erased; `failed`: nothing came of it; `preview`: it was not stored."""
    kind: CompactionKind
    first: Count
    """Seq of the first message it stands for."""
    last: Count
    """Seq of the last."""
    text: str
    """The summary; empty of a failed one, and when a message of the range was erased."""
    tokens: Count
    """Of the message it is sent as, by the model's count."""
    source_tokens: Count
    """Of what it was made from, o200k, the summary before included."""
    model: str | None
    """Who wrote it."""
    created_at: Time
    lost_identifiers: list[str]
    """Identifiers of its range that are nowhere any more: the first 50."""
    lost: Count
    """How many there are."""
    error: str | None
    """Why it failed."""
    usage: CompactionUsage


class PendingCompaction(Answer, kw_only=True):
    """One that is being made."""

    id: None = None
    object: Literal["compaction"] = "compaction"
    session_id: Id
    status: Literal["pending"] = "pending"


class DroppedCompaction(CompactionObject, kw_only=True):
    """One that was taken away."""

    deleted: Literal[True] = True


class CompactionList(Page[CompactionObject, Count]):
    """A page."""


@routes.add("POST", _COMPACTIONS, "write", fails=(*BODY, *OF_SESSION), answer=(CompactionObject, PendingCompaction))
async def compact(call: Call, query: SessionQuery, body: CompactionRequest) -> CompactionObject | PendingCompaction:
    """Summarize the older part of a session now, whether or not a summary is due.

    The compaction is laid over the view that turns with this `agent` and `model` use; keys of `summary_buffer` hold for this one
    alone. `preview` stores nothing. With `wait` false the answer is `pending`, and the compaction is found in the list when it is
    made. An attempt that failed is answered as one, with its `error`; when there is nothing to compact, that is a 409.
    """
    given = msgspec.structs.asdict(body)
    options = {name: given[name] for name in ("strategy", *_KEYS) if given.get(name) is not None}
    session = await call.session()
    handle = call.hf.handle(session, agent=body.agent, model=body.model)
    if body.wait is False and not body.preview:
        await handle.compact(wait=False, **options)
        return PendingCompaction(session_id=handle.id)
    made = await handle.compact(preview=bool(body.preview), **options)
    if made is None:
        raise Refused(409, "nothing_to_compact", _NOTHING)
    return _show(session.id, made)


@routes.add("GET", _COMPACTIONS, "read", fails=OF_SESSION)
async def list_compactions(call: Call, query: SeqPageQuery) -> CompactionList:
    """A page of a session's compactions: those in use, those that were, and attempts that failed."""
    session = await call.session()
    descending = query.order == "desc"
    found = list(await call.hf.store.compactions(session.ref))
    if descending:
        found.reverse()
    if query.after is not None:
        found = [one for one in found if (one.id < query.after if descending else one.id > query.after)]
    items = [_show(session.id, one) for one in found[: query.limit]]
    return CompactionList.of(items, has_more=len(found) > query.limit)


@routes.add("GET", _COMPACTION, "read", fails=OF_SESSION)
async def get(call: Call, query: SessionQuery) -> CompactionObject:
    """One compaction."""
    session, wanted = await call.session(), call.path_number("compaction_id", _NAMED)
    for one in await call.hf.store.compactions(session.ref):
        if one.id == wanted:
            return _show(session.id, one)
    raise errors.CompactionNotFound(session.id, wanted, such="")


@routes.add("DELETE", _COMPACTION, "write", fails=OF_SESSION)
async def drop(call: Call, query: SessionQuery) -> DroppedCompaction:
    """Undo a compaction: its range is verbatim again, or under the one that it had superseded, which is live again.

    No summary of that range is made by itself until a call could not hold it.
    """
    session = await call.session()
    dropped = await call.hf.handle(session).drop_compaction(call.path_number("compaction_id", _NAMED))
    return DroppedCompaction.from_fields(_show(session.id, dropped))


def _show(session_id: str, one: StoredCompaction | NewCompaction) -> CompactionObject:
    """Show a compaction; one that was not stored has no id."""
    report = one.report or {}
    stored = one if isinstance(one, StoredCompaction) else None
    return CompactionObject.from_fields(
        one,
        id=stored.id if stored else None,
        session_id=session_id,
        status=stored.status if stored else "preview" if one.error is None else "failed",
        lost_identifiers=report.get("lost_identifiers", []),
        lost=report.get("lost", 0),
        usage=CompactionUsage.from_fields(one),
    )
