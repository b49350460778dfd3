"""REST API for recorded model calls of a session: list them, and show the prompt of each."""

from __future__ import annotations

from typing import Annotated, Final

from holdfast.context.dialects import Dialect
from holdfast.domain.objects import NonEmpty, Page, json_schema
from holdfast.domain.session import Session
from holdfast.errors import CompactionNotFound
from holdfast.limits import COMPACTION_SOURCES, PROMPT_LOG
from holdfast.server.http import Call
from holdfast.server.permissions import Refused
from holdfast.server.routes import PageQuery, PromptOptions, Routes
from holdfast.sessions.compaction_views import CompactionView, view_block
from holdfast.sessions.model_calls import CallSummary
from holdfast.sessions.prompt_views import PromptQuery, PromptView, view_prompt

routes = Routes("messages")
_CALLS: Final = "/v1/sessions/{session_id}/calls"


class CallsQuery(PageQuery, kw_only=True):
    """Query parameters of the list of model calls."""

    after: NonEmpty | None = None
    """`last_id` of the previous page, after which this page begins."""


class CallList(Page[CallSummary, NonEmpty]):
    """A page of model calls."""


@routes.add("GET", _CALLS, "read")
async def list_model_calls(call: Call, query: CallsQuery, session: Session) -> CallList:
    """List the recorded model calls of a session."""
    handle = call.hf.handle(session)
    page = await handle.calls(query.limit, after=query.after, descending=query.order == "desc")
    return CallList.of(page.calls, has_more=page.has_more)


class PromptViewQuery(PromptOptions, kw_only=True):
    """Query parameters of the view of a prompt."""

    dialect: Dialect | None = None
    """Also return the prompt as a request in the format of this provider."""
    log_after: Annotated[int | None, json_schema(minimum=-1)] = None
    """Mark the messages of the log after this seq; default: those around the frontier of the prompt."""
    log_limit: Annotated[
        int, json_schema(description="number of messages of the log to mark; default 0", minimum=0, maximum=PROMPT_LOG)
    ] = 0
    rebuild: bool = False
    """True: rebuild the prompt also in a session that is too long for it. This reads the whole log."""
    block: NonEmpty | None = None
    """Instead of the prompt, compare this digest, summary or block of standing facts with the messages that it replaces."""
    after: Annotated[int | None, json_schema(minimum=-1)] = None
    """With `block`: return messages of the range after this seq; default: from its beginning."""
    limit: Annotated[
        int, json_schema(description="with `block`: maximum number of messages", minimum=1, maximum=COMPACTION_SOURCES)
    ] = 20


@routes.add("GET", f"{_CALLS}/{{call_id}}", "read", answer=(PromptView, CompactionView))
async def show_prompt(call: Call, query: PromptViewQuery, session: Session) -> PromptView | CompactionView:
    """Show the prompt of a model call: its sections, its messages, and the difference from the prompt before.

    `call_id` is `12.0` for the first call of turn 12, `12` for the last one, or `next` for the prompt that would be built now. No model is
    called. With `log_limit`, the response says for messages of the log whether the prompt contains them completely, in part or not at all.

    `agent`, `model`, `strategy` and `budget` show the prompt that other settings would give. With `block`, the response says which names,
    identifiers, numbers and dates of the replaced messages the text has, and which it has not.
    """
    if query.block is not None:
        responder = call.hf.handle(session).responder
        found = await view_block(
            call.hf.engine,
            session.ref,
            responder,
            call.path["call_id"],
            query.block,
            after=query.after,
            limit=query.limit,
        )
        if found is None:
            raise Refused(404, CompactionNotFound.code, f"this prompt has no block {query.block!r}")
        return found
    handle = call.hf.handle(session, agent=query.agent, model=query.model)
    wanted = PromptQuery(
        id=call.path["call_id"],
        strategy=query.strategy,
        budget=query.budget,
        other=query.agent is not None or query.model is not None,
        dialect=query.dialect,
        rebuild=query.rebuild,
        log_after=query.log_after,
        log_limit=query.log_limit,
    )
    return await view_prompt(call.hf.engine, session.ref, handle.responder, wanted)
