"""The REST API over a session's compactions: make one now or only look at it, list them, take one away."""

from __future__ import annotations

from typing import Any

from holdfast import errors
from holdfast.domain.session import NewCompaction, StoredCompaction
from holdfast.limits import PAGE as MAX_PAGE
from holdfast.server.fields import PAGE, check_fields, number_in_path, optional
from holdfast.server.http import Call
from holdfast.server.replies import Reply, error_body, listed
from holdfast.sessions.handle import SessionHandle

OPTIONS = ("strategy", "budget", "threshold", "target", "summarizer_llm", "prompt")
"""Keys of `summary_buffer` that may hold for one compaction."""
_NAMED = "a compaction is named by its id"
_NOTHING = "there is nothing to compact: what is not recent, pinned or the task is too little, or summarized already"


async def compact(call: Call) -> Reply:
    """Summarize the older part of a session now, whether or not a summary is due.

    The compaction is laid over the view that turns with this `agent` and `model` use; keys of `summary_buffer` hold for this one
    alone. `preview` stores nothing. With `wait` false the answer is `pending`, and the compaction is found in the list when it is
    made. An attempt that failed is answered as one, with its `error`; when there is nothing to compact, that is a 409.
    """
    body = await call.body()
    check_fields(body, "preview", "wait", "agent", "model", *OPTIONS)
    preview = optional(body, "preview", bool, "true or false") or False
    wait = optional(body, "wait", bool, "true or false")
    agent, model = (optional(body, name, str, "a string") for name in ("agent", "model"))
    options = {name: body[name] for name in OPTIONS if body.get(name) is not None}
    session = await call.session()
    handle = call.hf.handle(session, agent=agent, model=model)
    if wait is False and not preview:
        await handle.compact(wait=False, **options)
        return Reply(_pending(handle))
    made = await handle.compact(preview=preview, **options)
    if made is None:
        return Reply(error_body(_NOTHING, kind="invalid_request_error", code="nothing_to_compact"), 409)
    return Reply(shown(session.id, made))


async def page(call: Call) -> Reply:
    """A page of a session's compactions: those in use, those that were, and attempts that failed."""
    session = await call.session()
    limit = call.number("limit", PAGE, 1, MAX_PAGE)
    descending = call.descending()
    after = call.number_or_none("after")
    found = list(await call.hf.store.compactions(session.ref))
    if descending:
        found.reverse()
    if after is not None:
        found = [one for one in found if (one.id < after if descending else one.id > after)]
    items = [shown(session.id, one) for one in found[:limit]]
    return Reply(listed(items, has_more=len(found) > limit))


async def get(call: Call) -> Reply:
    """One compaction."""
    session, wanted = await call.session(), number_in_path(call, "compaction_id", _NAMED)
    for one in await call.hf.store.compactions(session.ref):
        if one.id == wanted:
            return Reply(shown(session.id, one))
    raise errors.CompactionNotFound(session.id, wanted, such="")


async def drop(call: Call) -> Reply:
    """Undo a compaction: its range is verbatim again, or under the one that it had superseded, which is live again.

    No summary of that range is made by itself until a call could not hold it.
    """
    session = await call.session()
    dropped = await call.hf.handle(session).drop_compaction(number_in_path(call, "compaction_id", _NAMED))
    return Reply({**shown(session.id, dropped), "deleted": True})


def shown(session_id: str, one: StoredCompaction | NewCompaction) -> dict[str, Any]:
    """A compaction as the API shows it; one that was not stored has no id."""
    report = one.report or {}
    fresh = "preview" if one.error is None else "failed"
    return {
        "id": one.id if isinstance(one, StoredCompaction) else None,
        "object": "compaction",
        "session_id": session_id,
        "status": one.status if isinstance(one, StoredCompaction) else fresh,
        "kind": one.kind,
        "first": one.first,
        "last": one.last,
        "text": one.text,
        "tokens": one.tokens,
        "source_tokens": one.source_tokens,
        "model": one.model,
        "created_at": one.created_at,
        "lost_identifiers": report.get("lost_identifiers", []),
        "lost": report.get("lost", 0),
        "error": one.error,
        "usage": {"prompt_tokens": one.prompt_tokens, "completion_tokens": one.completion_tokens},
    }


def _pending(handle: SessionHandle) -> dict[str, Any]:
    return {"id": None, "object": "compaction", "session_id": handle.id, "status": "pending"}
