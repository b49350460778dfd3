"""The REST API over a session's standing facts: list them, pin or drop one."""

from __future__ import annotations

from typing import get_args

from holdfast.context.settings import parse
from holdfast.domain.fact_choices import Choice
from holdfast.errors import InvalidRequest
from holdfast.server.fields import check_fields, optional
from holdfast.server.http import Call
from holdfast.server.replies import Reply, listed
from holdfast.sessions.facts import choose, fact_to, list_facts


async def page(call: Call) -> Reply:
    """List what a session's user said that may still hold, and whether the prompt has it.

    It is the prompt of this `agent` and `model`, by this `strategy` and `budget`; without them the session's own.
    """
    session = await call.session()
    handle = call.hf.handle(session, agent=call.text("agent"), model=call.text("model"))
    options = {name: value for name in ("strategy", "budget") if (value := _option(call, name)) is not None}
    settings = parse(options, where="", base=handle.voice.context) if options else handle.voice.context
    facts = await list_facts(call.hf.engine, session.ref, handle.voice, settings)
    return Reply(listed([fact_to(session.id, one) for one in facts], has_more=False, version=session.version))


def _option(call: Call, name: str) -> str | int | None:
    return call.number_or_none(name) if name == "budget" else call.text(name)


async def change(call: Call) -> Reply:
    """Pin a statement, so that it is in the prompt before all others; or drop it, so that it is not in the block.

    False undoes it. A choice holds for every view of the session, from its next prompt on.
    """
    body = await call.body()
    check_fields(body, "pinned", "dropped")
    given = {name: optional(body, name, bool, "true or false") for name in get_args(Choice)}
    change = {name: value for name, value in given.items() if value is not None}
    if not change or all(given.values()):
        raise InvalidRequest("give one of pinned and dropped: true, or false to undo it", param="pinned")
    session = await call.session()
    one = await choose(call.hf.store, session.ref, call.path["fact_id"], change)
    chosen = {"pinned": one.choice == "pinned", "dropped": one.choice == "dropped"}
    named = {"object": "fact", "session_id": session.id, "id": one.id, "seq": one.seq}
    return Reply({**named, "text": one.text, "at": one.at, **chosen})
