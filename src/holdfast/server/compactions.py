"""REST API for compactions of a session: create, preview, list, get, drop."""

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
_NAMED: Final = "compaction_id must be a number"
_NOTHING: Final = (
    "nothing to compact: too few messages are left that are neither recent, pinned, the task nor already summarized"
)
_KEYS: Final = STRATEGIES["summary_buffer"].keys


class CompactionRequest(Request, kw_only=True):
    """Options of one compaction; default: those of the session's agent."""

    preview: bool | None = None
    """Do not store the result."""
    wait: bool | None = None
    """False: return at once and compact in the background."""
    agent: str | None = None
    """Agent whose view is compacted."""
    model: str | None = None
    """Model whose view is compacted."""
    strategy: Annotated[Any, json_schema(type=["string", "null"], enum=["summary_buffer", None])] = None
    budget: Annotated[Any, describe_key(_KEYS["budget"])] = None
    threshold: Annotated[Any, describe_key(_KEYS["threshold"])] = None
    target: Annotated[Any, describe_key(_KEYS["target"])] = None
    summarizer_llm: Annotated[Any, describe_key(_KEYS["summarizer_llm"])] = None
    prompt: Annotated[Any, describe_key(_KEYS["prompt"])] = None


class CompactionUsage(Answer):
    """Token usage of the summarizer."""

    prompt_tokens: Count
    completion_tokens: Count


class CompactionObject(Answer, kw_only=True):
    """A summary, or a failed attempt."""

    id: Annotated[int, json_schema(minimum=1)] | None
    """Id of the compaction; null if it was not stored."""
    object: Literal["compaction"] = "compaction"
    session_id: Id
    status: Literal["live", "superseded", "dropped", "dead", "failed", "preview"]
    """`live`: in use; `superseded`: included in a later one; `dropped`: removed; `dead`: an entry of its range was retired
    or erased; `failed`: the attempt failed; `preview`: not stored."""
    kind: CompactionKind
    first: Count
    """Seq of the first message of the range."""
    last: Count
    """Seq of the last message of the range."""
    text: str
    """The summary; empty if it failed or a message of the range was erased."""
    tokens: Count
    """Tokens of the summary, counted as for the model."""
    source_tokens: Count
    """Tokens of the summarized text (o200k), including the previous summary."""
    model: str | None
    """Model that wrote it."""
    created_at: Time
    lost_identifiers: list[str]
    """The first 50 identifiers of the range that no remaining text contains."""
    lost: Count
    """Number of lost identifiers."""
    error: str | None
    """Error message of a failed attempt."""
    usage: CompactionUsage


class PendingCompaction(Answer, kw_only=True):
    """A compaction in progress."""

    id: None = None
    object: Literal["compaction"] = "compaction"
    session_id: Id
    status: Literal["pending"] = "pending"


class DroppedCompaction(CompactionObject, kw_only=True):
    """A dropped compaction."""

    deleted: Literal[True] = True


class CompactionList(Page[CompactionObject, Count]):
    """A page of compactions."""


@routes.add(
    "POST", _COMPACTIONS, "write", error_statuses=(*BODY, *OF_SESSION), answer=(CompactionObject, PendingCompaction)
)
async def compact(call: Call, query: SessionQuery, body: CompactionRequest) -> CompactionObject | PendingCompaction:
    """Summarize the older part of a session now, whether or not a summary is due.

    The compaction applies to the view of this `agent` and `model`; other fields are options of `summary_buffer` for this compaction
    only. `preview` stores nothing. If `wait` is false, the answer is `pending` and the result appears in the list later. A failed
    attempt is returned with its `error`. If there is nothing to compact, the status is 409.
    """
    given = msgspec.structs.asdict(body)
    options = {name: given[name] for name in ("strategy", *_KEYS) if given.get(name) is not None}
    session = await call.get_session()
    handle = call.hf.handle(session, agent=body.agent, model=body.model)
    if body.wait is False and not body.preview:
        await handle.compact(wait=False, **options)
        return PendingCompaction(session_id=handle.id)
    made = await handle.compact(preview=bool(body.preview), **options)
    if made is None:
        raise Refused(409, "nothing_to_compact", _NOTHING)
    return _show(session.id, made)


@routes.add("GET", _COMPACTIONS, "read", error_statuses=OF_SESSION)
async def list_compactions(call: Call, query: SeqPageQuery) -> CompactionList:
    """List a session's compactions: live, superseded, dropped and failed ones."""
    session = await call.get_session()
    descending = query.order == "desc"
    found = list(await call.hf.store.compactions(session.ref))
    if descending:
        found.reverse()
    if query.after is not None:
        found = [one for one in found if (one.id < query.after if descending else one.id > query.after)]
    items = [_show(session.id, one) for one in found[: query.limit]]
    return CompactionList.of(items, has_more=len(found) > query.limit)


@routes.add("GET", _COMPACTION, "read", error_statuses=OF_SESSION)
async def get(call: Call, query: SessionQuery) -> CompactionObject:
    """Return one compaction."""
    session, wanted = await call.get_session(), call.get_path_number("compaction_id", _NAMED)
    for one in await call.hf.store.compactions(session.ref):
        if one.id == wanted:
            return _show(session.id, one)
    raise errors.CompactionNotFound(session.id, wanted, such="")


@routes.add("DELETE", _COMPACTION, "write", error_statuses=OF_SESSION)
async def drop(call: Call, query: SessionQuery) -> DroppedCompaction:
    """Drop a compaction. Its messages are sent verbatim again, or the compaction that it had superseded is live again.

    The range is not summarized again automatically unless a prompt would not fit otherwise.
    """
    session = await call.get_session()
    dropped = await call.hf.handle(session).drop_compaction(call.get_path_number("compaction_id", _NAMED))
    return DroppedCompaction.from_fields(_show(session.id, dropped))


def _show(session_id: str, one: StoredCompaction | NewCompaction) -> CompactionObject:
    """Convert a compaction to its object. One that was not stored has no id."""
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
