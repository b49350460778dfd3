"""The page for forgotten sentences: find one, see when it left the prompt and what is left of it, and bring it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.domain.objects import Count
from holdfast.domain.session import Session
from holdfast.limits import EXPLAIN_QUERY_CHARS, PROMPT_LOG
from holdfast.server.http import Call
from holdfast.server.inspector.frame import Values, check_content
from holdfast.server.inspector.session import SESSION, SessionPageQuery, SessionPages
from holdfast.sessions.explanation import Explanation, MessageMark
from holdfast.sessions.handle import SessionHandle
from holdfast.sessions.prompt_views import NEXT, find_last_sender

routes = SessionPages()
_SUGGESTED: Final = 12
"""Messages that left the prompt recently and are suggested if nothing is searched for."""


class ForgottenQuery(SessionPageQuery, kw_only=True):
    """Query parameters of the page."""

    q: str | None = None
    """The text to find."""
    seq: Count | None = None
    """The message to explain."""
    turn: Count | None = None
    """Explain the last prompt of this turn; default: the next prompt."""
    before: Count | None = None
    """Only messages before this one."""


@routes.page(f"{SESSION}/forgotten", "read", "forgotten.html", "Why forgotten", tab="forgotten")
async def show_forgotten(call: Call, query: ForgottenQuery, session: Session) -> Values:
    """Return the page that explains why a message is not in the prompt."""
    turn = query.turn if query.turn is None or query.turn < session.turns else None
    words = (query.q or "").strip()[:EXPLAIN_QUERY_CHARS]
    if words:
        check_content(call)  # searching for words would reveal them
    responder = await find_last_sender(call.hf.engine, session, call.hf.handle(session).responder, turn)
    explanation: Explanation | None = None
    suggested: Sequence[MessageMark] = ()
    if words or query.seq is not None:
        explanation = await SessionHandle(call.hf.engine, session.ref, responder).explain(
            seq=None if words else query.seq,
            text=words or None,
            turn=turn,
            before=query.before if words else None,
        )
    else:
        suggested = await _suggest(call, session, turn)
    found = explanation.messages if explanation else ()
    return {
        "words": words,
        "turn": turn,
        "explanation": explanation,
        "found": [(one, {remedy.kind: remedy for remedy in one.remedies}) for one in found],
        "suggested": suggested,
        "max_chars": EXPLAIN_QUERY_CHARS,
    }


async def _suggest(call: Call, session: Session, turn: int | None) -> list[MessageMark]:
    """Return messages of the user that are near the beginning of the prompt's tail and no longer in the prompt as a whole, newest first."""
    call_id = NEXT
    if turn is not None and await call.hf.store.calls(session.ref, turn_id=turn, limit=1):
        call_id = str(turn)
    view = await call.hf.handle(session).prompt(call_id, log_limit=PROMPT_LOG // 2)
    gone = [mark for mark in view.log if mark.role == "user" and mark.decision in ("evicted", "compacted", "cut")]
    return gone[::-1][:_SUGGESTED]
