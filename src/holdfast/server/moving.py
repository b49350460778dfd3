"""The REST API over sessions that move or go: exported, imported, forked, taken back, deleted."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.server.fields import check_fields, if_match, optional
from holdfast.server.http import Call
from holdfast.server.replies import Reply, tagged
from holdfast.sessions.forking import forked, rewound
from holdfast.stores.checks import check_id
from holdfast.wire.exports import session_to


async def export(call: Call) -> Reply:
    """A session whole.

    With `retired` also the messages that left the live path, so that the copy has the same places; with `calls` (and `retired`)
    the model calls; with `digests` what stands for erased messages, by which a guess of one can be confirmed. Of artifacts the
    export lists what there is: their contents stay where they are.
    """
    session = await call.session(shared=True)
    asked = {name: call.flag(name) for name in ("retired", "calls", "digests")}
    return Reply(await call.hf.export(session.ref, **asked))


async def install(call: Call) -> Reply:
    """Import a session under the id of the path, in place of one that is there; all of it or nothing.

    Importing what is there already, just so, changes nothing: `imported` is false then. Else its version goes on from that of
    the one it replaces, whose artifacts go with it.
    """
    body, user = await call.body(), call.owner(call.text("user_id"))
    if isinstance(named := body.get("user_id"), str):
        check_id(named, "user_id")
        user = call.owner(named) if call.text("user_id") is None else user
    arrival = await call.hf.import_(body, session_id=call.path["session_id"], user_id=user, replace=True)
    return Reply({**session_to(arrival.session), "imported": arrival.changed})


async def fork(call: Call) -> Reply:
    """Make a new session with the live path up to and with a turn.

    The state is copied without the keys that were written after that turn. `metadata` says where it came from, as `forked_from`.
    Artifacts, compactions, usage and what had left the live path stay with the original, which is unchanged.
    """
    body = await call.body()
    check_fields(body, "at_turn", "id")
    session = await call.session()
    new_id = optional(body, "id", str, "a string")
    made = await forked(call.hf.engine, session.ref, at_turn=body.get("at_turn"), new_id=new_id)
    return Reply(session_to(made), 201)


async def move(call: Call) -> Reply:
    """Make a session another user's, or another agent's, or give it another id, with all that belongs to it.

    Nothing stays under the old name. What its user's sessions share (`user:`) stays with that user. A move that was interrupted
    is finished by the same one.
    """
    body = await call.body()
    check_fields(body, "user_id", "agent", "id")
    if not body:
        raise InvalidRequest("nothing says where to: give user_id, agent or id", param="user_id")
    named = {name: optional(body, name, str, "a string") for name in ("user_id", "id")}
    agent = optional(body, "agent", str, "a string") if "agent" in body else UNSET
    owner = None if named["user_id"] is None else call.owner(named["user_id"])
    session = await call.session()
    handle = await call.hf.move(session.ref, user_id=owner, id=named["id"], agent=agent)
    return Reply(session_to(await handle.info()))


async def rewind(call: Call) -> Reply:
    """Go back to a turn in place: what came after it leaves the live path, and stays in the log.

    The state stays as it is. Where nothing came after it, nothing changes.
    """
    body = await call.body()
    check_fields(body, "at_turn")
    if body.get("at_turn") is None:
        raise InvalidRequest("at_turn is missing: the turn to go back to", param="at_turn")
    session = await call.session()
    after, gone = await rewound(call.hf.engine, session.ref, body["at_turn"], expect=if_match(call))
    return Reply({**session_to(after), "retired": gone}, headers=tagged(after.version))


async def delete(call: Call) -> Reply:
    """Remove a session and all that belongs to it. One that is not there is a 404, unless its transcript still was."""
    session_id = call.path["session_id"]
    try:
        ref = (await call.session()).ref
    except SessionNotFound:  # time may have taken it, and left what is kept elsewhere
        ref = SessionRef(call.owner_or_default(call.text("user_id")), session_id)
    receipt = await call.hf.remove(ref)
    if receipt is None:
        raise SessionNotFound(session_id)
    return Reply({"id": session_id, "object": "session", **_gone(receipt.to_wire())})


async def delete_user(call: Call) -> Reply:
    """Remove all sessions of a user, what they share, and all that belongs to them. Of nobody, that is nothing."""
    user_id = call.path["user_id"]
    call.owner(user_id)
    receipt = await call.hf.delete_user(user_id)
    return Reply({"id": user_id, "object": "user", **_gone(receipt.to_wire())})


def _gone(receipt: dict[str, Any]) -> dict[str, Any]:
    return {"deleted": True, "receipt": receipt}
