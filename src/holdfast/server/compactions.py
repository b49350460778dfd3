"""REST API for compactions of a session: create, preview, list, get and drop them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast import errors
from holdfast.context.settings import STRATEGIES
from holdfast.domain.objects import Answer, Count, Id, Page, Request, json_schema, make_object
from holdfast.domain.session import NewCompaction, Session, ShownCompaction, StoredCompaction
from holdfast.server.context import describe_key
from holdfast.server.http import Call
from holdfast.server.permissions import Refused
from holdfast.server.routes import Routes, SeqPageQuery

routes = Routes("compactions")
_COMPACTIONS: Final = "/v1/sessions/{session_id}/compactions"
_COMPACTION: Final = f"{_COMPACTIONS}/{{compaction_id}}"
_NAMED: Final = "compaction_id must be a number"
_NOTHING: Final = (
    "nothing to compact: too few messages are left that are neither recent, pinned, the task nor already summarized"
)
_KEYS: Final = STRATEGIES["summary_buffer"].keys


class CompactionRequest(Request, kw_only=True):
    """Options for summarizing the older messages of a session once. The defaults are the options of the session's agent."""

    preview: bool | None = None
    """True: return the result without storing it."""
    wait: bool | None = None
    """False: return at once, and compact in the background."""
    agent: str | None = None
    """Agent whose prompts will contain the summary."""
    model: str | None = None
    """Model whose prompts will contain the summary."""
    strategy: Annotated[Any, json_schema(type=["string", "null"], enum=["summary_buffer", None])] = None
    budget: Annotated[Any, describe_key(_KEYS["budget"])] = None
    threshold: Annotated[Any, describe_key(_KEYS["threshold"])] = None
    target: Annotated[Any, describe_key(_KEYS["target"])] = None
    summarizer_llm: Annotated[Any, describe_key(_KEYS["summarizer_llm"])] = None
    prompt: Annotated[Any, describe_key(_KEYS["prompt"])] = None


class CompactionUsage(Answer):
    """Token usage of the model that wrote the summary."""

    prompt_tokens: Count
    completion_tokens: Count


class CompactionObject(ShownCompaction, frozen=True, kw_only=True):
    """A summary of a range of messages, or a failed attempt to write one."""

    id: Annotated[int, json_schema(minimum=1)] | None
    """Id of the compaction; null if it was not stored."""
    object: Literal["compaction"] = "compaction"
    session_id: Id
    status: Literal["live", "superseded", "dropped", "dead", "failed", "preview"]
    """`live`: the summary is in use; `superseded`: a later summary includes it; `dropped`: it was dropped by request; `dead`: a message of
    its range was erased, or replaced by an edit; `failed`: the attempt failed; `preview`: it is not stored."""
    lost_identifiers: list[str]
    """Identifiers, such as names and numbers of things, that the prompt lost: they were in the summarized text, but are neither in the
    summary nor in the remaining messages. At most the first 50."""
    lost: Count
    """Total number of identifiers that the prompt lost."""
    usage: CompactionUsage


class PendingCompaction(Answer, kw_only=True):
    """A compaction that runs in the background."""

    id: None = None
    object: Literal["compaction"] = "compaction"
    session_id: Id
    status: Literal["pending"] = "pending"


class DroppedCompaction(CompactionObject, frozen=True, kw_only=True):
    """Result of dropping a compaction."""

    deleted: Literal[True] = True


class CompactionList(Page[CompactionObject, Count]):
    """A page of compactions."""


@routes.add("POST", _COMPACTIONS, "write", answer=(CompactionObject, PendingCompaction))
async def compact(call: Call, session: Session, body: CompactionRequest) -> CompactionObject | PendingCompaction:
    """Summarize the older part of a session now, even if no summary is due.

    The summary is used in prompts for `agent` and `model`. `preview` returns the result without storing it. If `wait` is false, the
    response has the status `pending`, and the result appears in the list later. All other fields are options of the strategy
    `summary_buffer` for this compaction.

    A failed attempt is returned with its `error`. If there is nothing to compact, the HTTP status is 409.
    """
    given = msgspec.structs.asdict(body)
    options = {name: given[name] for name in ("strategy", *_KEYS) if given.get(name) is not None}
    handle = call.hf.handle(session, agent=body.agent, model=body.model)
    if body.wait is False and not body.preview:
        await handle.compact(wait=False, **options)
        return PendingCompaction(session_id=handle.id)
    made = await handle.compact(preview=bool(body.preview), **options)
    if made is None:
        raise Refused(409, "nothing_to_compact", _NOTHING)
    return _show(session.id, made)


@routes.add("GET", _COMPACTIONS, "read")
async def list_compactions(call: Call, query: SeqPageQuery, session: Session) -> CompactionList:
    """List all compactions of a session, whatever their status."""
    descending = query.order == "desc"
    found = list(await call.hf.store.compactions(session.ref))
    if descending:
        found.reverse()
    if query.after is not None:
        found = [one for one in found if (one.id < query.after if descending else one.id > query.after)]
    items = [_show(session.id, one) for one in found[: query.limit]]
    return CompactionList.of(items, has_more=len(found) > query.limit)


@routes.add("GET", _COMPACTION, "read")
async def get(call: Call, session: Session) -> CompactionObject:
    """Return one compaction."""
    wanted = call.get_path_number("compaction_id", _NAMED)
    found = next((one for one in await call.hf.store.compactions(session.ref) if one.id == wanted), None)
    if found is None:
        raise errors.CompactionNotFound(session.id, wanted, such="")
    return _show(session.id, found)


@routes.add("DELETE", _COMPACTION, "write")
async def drop(call: Call, session: Session) -> DroppedCompaction:
    """Drop a compaction. Its messages are sent verbatim again or, if it had replaced an earlier compaction, that one is used again.

    The messages are not summarized again automatically, unless a prompt does not fit without a summary.
    """
    dropped = await call.hf.handle(session).drop_compaction(call.get_path_number("compaction_id", _NAMED))
    return make_object(DroppedCompaction, _show(session.id, dropped))


def _show(session_id: str, one: StoredCompaction | NewCompaction) -> CompactionObject:
    """Convert a compaction to its JSON object. A compaction that was not stored has no id."""
    report = one.report or {}
    stored = one if isinstance(one, StoredCompaction) else None
    return make_object(
        CompactionObject,
        one,
        id=stored.id if stored else None,
        session_id=session_id,
        status=stored.status if stored else "preview" if one.error is None else "failed",
        lost_identifiers=report.get("lost_identifiers", []),
        lost=report.get("lost", 0),
        usage=make_object(CompactionUsage, one),
    )
