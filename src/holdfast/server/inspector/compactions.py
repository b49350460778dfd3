"""Compactions of a session: those of the next prompt, and stored summaries."""

from __future__ import annotations

from typing import Final

from holdfast.domain.objects import Count
from holdfast.domain.session import Session
from holdfast.errors import CompactionNotFound, HoldfastError
from holdfast.server.http import Call
from holdfast.server.inspector.frame import Values
from holdfast.server.inspector.session import SESSION, SessionPageQuery, SessionPages
from holdfast.sessions.prompt_views import PromptView

routes = SessionPages()
_STORED: Final = 50
"""Stored compactions on one page."""


class CompactionsQuery(SessionPageQuery, kw_only=True):
    """Query parameters of the page."""

    id: Count | None = None
    """The stored compaction to show."""
    before: Count | None = None
    """List stored compactions before this one."""


@routes.page(f"{SESSION}/compactions", "read", "compactions.html", "Compactions", tab="compactions")
async def show_compactions(call: Call, query: CompactionsQuery, session: Session) -> Values:
    """Return the list of compactions, or a stored one."""
    stored = await call.hf.store.compactions(session.ref)
    if query.id is None:
        older = [one for one in reversed(stored) if query.before is None or one.id < query.before]
        return {
            "prompt": await _view_next(call, session),
            "stored": older[:_STORED],
            "more": {"before": older[_STORED - 1].id} if len(older) > _STORED else None,
        }
    one = next((found for found in stored if found.id == query.id), None)
    if one is None:
        raise CompactionNotFound(session.id, query.id, such="")
    return {"template": "compaction.html", "title": "Compaction", "one": one}


async def _view_next(call: Call, session: Session) -> PromptView | None:
    """Return the next prompt; None if it cannot be built."""
    try:
        return await call.hf.handle(session).prompt()
    except HoldfastError:
        return None
