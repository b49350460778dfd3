"""Compactions of a session: each next to the messages that it replaces, with the facts that were kept and lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from holdfast.domain.objects import Count
from holdfast.domain.session import Session, StoredCompaction
from holdfast.errors import CompactionNotFound, HoldfastError
from holdfast.server.http import Call
from holdfast.server.inspector.frame import Values
from holdfast.server.inspector.session import SESSION, SessionPageQuery, SessionPages
from holdfast.sessions.compaction_views import CompactionView, iter_facts, view_block, view_stored_compaction
from holdfast.sessions.prompt_views import NEXT, PromptQuery, PromptView, SourceMessage, view_prompt

routes = SessionPages()
_STORED: Final = 50
"""Stored compactions on one page."""
_SOURCES: Final = 40
"""Messages of a range on one page."""


class CompactionsQuery(SessionPageQuery, kw_only=True):
    """Query parameters of the page."""

    id: Count | None = None
    """The stored compaction to show."""
    block: Literal["facts", "summary", "digest"] | None = None
    """The block of a prompt to show."""
    call: str = NEXT
    """The prompt of which the block is shown."""
    after: int | None = None
    """Show messages of the range after this one."""
    before: Count | None = None
    """List stored compactions before this one."""


class FactPiece(NamedTuple):
    """A part of a message, and whether it is a fact that was kept or lost."""

    text: str
    state: str
    """`kept`, `lost`, or empty."""


@routes.page(f"{SESSION}/compactions", "read", "compactions.html", "Compactions", tab="compactions")
async def show_compactions(call: Call, query: CompactionsQuery, session: Session) -> Values:
    """Return the list of compactions, or one of them next to the messages that it replaces."""
    stored = await call.hf.store.compactions(session.ref)
    if query.id is None and query.block is None:
        older = [one for one in reversed(stored) if query.before is None or one.id < query.before]
        return {
            "prompt": await _view_next(call, session),
            "stored": older[:_STORED],
            "more": {"before": older[_STORED - 1].id} if len(older) > _STORED else None,
        }
    one, view = await _find(call, session, query, stored)
    return {
        "template": "compaction.html",
        "title": "Compaction",
        "one": one,
        "view": view,
        "split_facts": lambda message: list(split_facts(message, view)) if view else [],
    }


async def _view_next(call: Call, session: Session) -> PromptView | None:
    """Return the next prompt; None if it cannot be built."""
    try:
        return await view_prompt(call.hf.engine, session.ref, call.hf.handle(session).responder, PromptQuery())
    except HoldfastError:
        return None


async def _find(
    call: Call, session: Session, query: CompactionsQuery, stored: Sequence[StoredCompaction]
) -> tuple[StoredCompaction | None, CompactionView | None]:
    """Return the stored compaction that a page shows, if it is stored, and its comparison with its messages."""
    engine, ref = call.hf.engine, session.ref
    if query.block is not None:
        responder = call.hf.handle(session).responder
        return None, await view_block(
            engine, ref, responder, query.call, query.block, after=query.after, limit=_SOURCES
        )
    one = next((found for found in stored if found.id == query.id), None)
    if one is None:
        raise CompactionNotFound(session.id, query.id or 0, such="")
    return one, await view_stored_compaction(engine, ref, one, after=query.after, limit=_SOURCES)


def split_facts(message: SourceMessage, view: CompactionView) -> Iterator[FactPiece]:
    """Yield the text of a message in parts: its facts, with whether the compaction kept them, and all other words."""
    within, kept = view.text.casefold(), {fact.text.casefold() for fact in view.kept}
    words = sorted({found for found, _ in iter_facts(message.text)}, key=len, reverse=True)
    end = 0
    if words:
        for found in re.finditer("|".join(map(re.escape, words)), message.text):
            if found.start() > end:
                yield FactPiece(message.text[end : found.start()], "")
            word = found[0].casefold()
            yield FactPiece(found[0], "kept" if word in within or word in kept else "lost")
            end = found.end()
    if end < len(message.text):
        yield FactPiece(message.text[end:], "")
