"""Build the prompt that a request would get, without storing the request or calling a model."""

from __future__ import annotations

from msgspec.structs import replace as evolve

from holdfast.accounting import run_cpu
from holdfast.context.build import WorkingSet, draft
from holdfast.domain.history import to_new_entry
from holdfast.domain.log import extend
from holdfast.domain.session import Session, Tail
from holdfast.engine.engine import Engine
from holdfast.engine.entries import is_long, make_entries
from holdfast.overlays.session_cache import ReadView, is_heavy, read_view
from holdfast.stores.session_changes import make_session
from holdfast.stores.sessions import NewSession
from holdfast.turns.prompt import add_recall, build_instruction, introduce_memories, make_request
from holdfast.turns.turn import TurnRequest


def make_unsaved_session(engine: Engine, user_id: str, agent: str | None = None) -> Session:
    """Return a new session that is not stored anywhere."""
    new = NewSession(id=engine.new_id(), user_id=user_id, timestamp=engine.clock(), agent=agent)
    return make_session(engine.store.tenant, new)


async def build_next_prompt(
    engine: Engine, session: Session, request: TurnRequest, *, is_stored: bool, stop: int | None = None
) -> WorkingSet:
    """Return the working set of the first model call that a request would lead to. Nothing is stored.

    Memories and passages of other sessions that the turn would search for are left out.

    Args:
        engine: the tenant's engine.
        session: the session that the request continues.
        request: the request, with only those messages that the session does not have yet.
        is_stored: False for a session from `make_unsaved_session`.
        stop: the `seq` before which the request continues the log; None: the request continues it at its end.

    Raises:
        MissingState: the agent's instruction needs state, or an artifact, that does not exist.
        BudgetTooSmall: no valid working set fits into the budget.
    """
    responder = request.responder
    made = make_request(
        request,
        session,
        await build_instruction(engine, session, responder),
        marker=await engine.markers.derive(session),
        learned=await engine.learning.get(responder.llm),
        introduction=await introduce_memories(engine, session, responder),
    )
    read = await _read(engine, session, responder.view_key, is_stored=is_stored, stop=stop)
    incoming = request.incoming
    new = await make_entries(incoming, [{}] * len(incoming), timestamp=engine.clock())
    added, tail = extend(read.session.tail, new)
    entries = (*read.entries, *added)
    heavy = is_heavy(read.entries) or is_long(incoming)
    drafted = await run_cpu(
        lambda: draft(made, read.state, read.head, entries, live=read.live, anchor=tail.anchor), long=heavy
    )
    return await add_recall(engine, session, drafted) if is_stored else drafted.finish()


async def _read(engine: Engine, session: Session, key: str, *, is_stored: bool, stop: int | None) -> ReadView:
    """Return the stored part of the prompt. For a part of the log, the entries are numbered from 0, as in a fork."""
    if is_stored and stop is None:
        return await read_view(engine.store, session.ref, key)
    stored = await engine.store.entries(session.ref, stop=stop) if is_stored else ()
    entries, tail = extend(Tail(), [to_new_entry(entry) for entry in stored])
    session = evolve(session, tail=tail)
    return ReadView(session=session, state=None, head=(), entries=tuple(entries), live=None, saved=0)
