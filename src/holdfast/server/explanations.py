"""The REST API that explains messages: whether a prompt has them, and why."""

from __future__ import annotations

from holdfast.errors import InvalidRequest
from holdfast.limits import EXPLAIN_MATCHES
from holdfast.server.http import Call
from holdfast.server.replies import Reply
from holdfast.sessions.message_explanations import MATCHES


async def explain(call: Call) -> Reply:
    """Explain whether messages are in the prompt: whole, in part or not, where, why, since when, and what would bring them back.

    `seq` names a message, `q` a text that messages contain; without both the prompt alone is described. With `turn` it is the prompt of
    that turn's last model call, else the one that would be built now.
    """
    agent, model, text = call.text("agent"), call.text("model"), call.text("q")
    session = await call.session()
    handle = call.hf.handle(session, agent=agent, model=model)
    try:
        explanation = await handle.explain(
            seq=call.number_or_none("seq"),
            text=text,
            turn=call.number_or_none("turn"),
            before=call.number_or_none("before"),
            limit=call.number("limit", MATCHES, 1, EXPLAIN_MATCHES),
        )
    except InvalidRequest as exc:
        if exc.param == "text":
            raise InvalidRequest(str(exc), param="q") from exc
        raise
    return Reply(explanation.to_wire())
