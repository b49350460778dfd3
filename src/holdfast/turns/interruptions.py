"""Cut the last reply of a log if the user heard only a part of it.

A chat request reports an interruption in one of two ways: it repeats the reply as a voice record with `interrupted`, or
it has the field `interrupt`. The reply is then corrected in the same write that adds the user's new message.

A *voice record* is a message with additional fields of voice agents: turn, time and metadata. Only upstreams of
`vendor: custom` receive voice records. The hash of a prompt never includes these fields, because they are added when
the request is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace as evolve

from holdfast.agents import Llm
from holdfast.context.build import WorkingSet
from holdfast.domain.interruptions import (
    Cut,
    HeardReport,
    ReplyRound,
    count_heard_chars,
    cut_reply,
    join_reply_text,
    split_rounds,
)
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, Session
from holdfast.engine.entries import count_tokens
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import HeardMismatch, InvalidRequest, NoReply
from holdfast.limits import INTERRUPTED_BEHIND
from holdfast.log.align import Mode, Plan
from holdfast.models.base import ModelRequest
from holdfast.stores.base import Store
from holdfast.stores.walk import ENTRIES
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.voice import INTERRUPTABLE, make_metadata


class LastReply(msgspec.Struct, frozen=True):
    """The last reply of a log, and the entries after this reply, in order."""

    rounds: Sequence[ReplyRound]
    later: Sequence[Entry]


async def find_last_reply(
    store: Store, session: Session, *, unsaid: bool = False, stop: int | None = None
) -> LastReply:
    """Return the last reply of a log. Only this reply and the entries after it are read.

    Args:
        store: the store.
        session: the session as last read.
        unsaid: True if a turn was stopped. If the stopped turn has not said anything, the result contains no reply.
        stop: `seq` before which the reply is searched; None: search from the end of the log.

    Raises:
        NoReply: there are too many entries after the last reply.
    """
    if session.messages == 0 or (unsaid and session.tail.last_kind in ("user", "system")):
        return LastReply((), ())
    later: list[Entry] = []
    reply: list[Entry] = []
    while True:
        page = await store.entries(session.ref, stop=stop, limit=ENTRIES, descending=True)
        for entry in page:
            if not reply and entry.kind in ("user", "system"):
                later.append(entry)
            elif not reply or (entry.turn_id == reply[-1].turn_id and entry.kind in ("calls", "result")):
                reply.append(entry)
            else:
                return LastReply(split_rounds(reply[::-1]), later[::-1])
        if len(page) < ENTRIES:
            return LastReply(split_rounds(reply[::-1]), later[::-1])
        if len(later) > INTERRUPTED_BEHIND:
            raise NoReply(f"the last {INTERRUPTED_BEHIND} messages of session {session.id!r} contain no reply")
        stop = page[-1].seq


def find_cut(session: Session, last_reply: LastReply, heard: HeardReport, now: int) -> Cut | None:
    """Return the change that cuts the last reply to its heard part; None if there is no reply, or the reply stays unchanged.

    Raises:
        NoReply: the content of the reply was erased, so the heard part cannot be determined.
        HeardMismatch: the reply does not begin with the reported content.
    """
    if not last_reply.rounds:
        return None
    text = join_reply_text(last_reply.rounds)
    if last_reply.rounds[-1].head.erased and not heard.is_everything:
        raise NoReply(f"the last reply of session {session.id!r} is erased, so the heard part cannot be determined")
    return cut_reply(
        last_reply.rounds, count_heard_chars(text, heard), now if heard.timestamp is None else heard.timestamp
    )


# -- interruptions reported by chat requests ----------------------------------------


class SentMessages(msgspec.Struct, frozen=True):
    """The messages of a request in the form in which they are compared with the log."""

    messages: tuple[Message, ...]
    """The messages. Interrupted replies contain their whole generated text, because the log may still contain that
    text.
    Replies of which the user heard nothing are left out.
    """
    own: tuple[Mapping[str, object], ...]
    heard: Mapping[int, Message]
    """The heard part of each interrupted reply, by the reply's index in `messages`. The heard part is written if the
    log does not contain the reply.
    """
    mode: Mode
    interruption: HeardReport | None = None
    """The request's report of how much was heard of the last reply, if `messages` does not contain that reply; None: no
    such report.
    """


def separate_heard(
    messages: Sequence[Message],
    own: Sequence[Mapping[str, object]],
    mode: Mode,
    interruption: HeardReport | None = None,
) -> SentMessages:
    """Return a request's messages with the heard part of interrupted replies separated from their whole generated text.

    Args:
        messages: the messages of a request, without leading system messages.
        own: the fields of Holdfast in each message, such as `metadata`; empty if no message has any.
        mode: the `session_mode` of the request.
        interruption: the value of the request's field `interrupt`: how much of the last reply was heard; None: no such
            field.
    """
    if interruption is not None and mode == "auto" and not any(message.role == "assistant" for message in messages):
        mode = "delta"  # it refers to a reply that it does not send, so its messages follow that reply
    if not any(own) or not any(_is_cut(fields) for fields in own):
        return SentMessages(tuple(messages), tuple(own), {}, mode, interruption)
    kept: list[tuple[Message, Mapping[str, object]]] = []
    heard: dict[int, Message] = {}
    silent = None
    for message, fields in zip(messages, own, strict=True):
        cut = _is_cut(fields) and message.role == "assistant" and not message.tool_calls
        if cut and not message.text.strip():
            silent = len(kept)  # nothing of it was heard, so to the user it does not exist
            continue
        original = _get_metadata(fields).get("original")
        if cut and isinstance(original, str) and original != message.text and original.startswith(message.text):
            heard[len(kept)] = message
            message = message.evolve(content=original)  # noqa: PLW2901 - as the log may have it
        kept.append((message, fields))
    if silent is not None and mode == "auto" and not any(message.role == "assistant" for message, _ in kept):
        if silent:
            mode = "transcript"  # it was a transcript before its only reply was left out
        elif interruption is None:
            interruption = HeardReport(chars=0)
    return SentMessages(tuple(m for m, _ in kept), tuple(f for _, f in kept), heard, mode, interruption)


def _get_metadata(fields: Mapping[str, object]) -> Mapping[str, object]:
    metadata = fields.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _is_cut(fields: Mapping[str, object]) -> bool:
    return _get_metadata(fields).get("interrupted") is True


def is_interrupting(request: TurnRequest) -> bool:
    """Return True if a request reports how much of the last reply was heard."""
    return request.interruption is not None or (bool(request.heard) and _find_last_reply_in(request) in request.heard)


def _find_last_reply_in(request: TurnRequest) -> int:
    """Return the index of the last assistant message in a request; -1 if there is none."""
    places = (at for at in range(len(request.incoming) - 1, -1, -1) if request.incoming[at].role == "assistant")
    return next(places, -1)


async def apply_interruption(turn: Turn, session: Session, plan: Plan) -> Plan:
    """Return the plan, with a cut of the last reply added if the request reports how much of that reply was heard.

    Args:
        turn: the turn of the request.
        session: the session for which the plan was made.
        plan: the changes that the request's messages make to the log.

    Raises:
        NoReply: the field `interrupt` refers to a reply that is not the last one, or there is no reply.
        HeardMismatch: the reply does not begin with the `content` in the field `interrupt`.
    """
    request = turn.request
    heard = request.interruption or _find_heard(request, plan)
    if heard is None or plan.restore:
        return plan
    if heard.content is not None:
        (masked,) = await mask_messages(turn.engine.guard, [Message(role="assistant", content=heard.content)])
        heard = evolve(heard, content=masked.text)
    last_reply = await find_last_reply(turn.engine.store, session, stop=plan.retire_from)
    try:
        _check_reply(last_reply, heard, session)
        cut = find_cut(session, last_reply, heard, turn.engine.clock())
    except (HeardMismatch, NoReply):
        if request.interruption is None or request.interruption.chars == 0:
            return plan  # a record is a report, not a command, so the log is not changed
        raise
    if cut is None:
        return plan
    entries = [*cut.results, *last_reply.later]
    if cut.message is not None:
        (tokens,) = await count_tokens([cut.message])
        entries.insert(0, evolve(cut.head, message=cut.message, metadata=cut.metadata, tokens=tokens))
    return Plan(plan.relation, plan.append, retire_from=cut.head.seq, restore=tuple(entries), renamed=plan.renamed)


def _find_heard(request: TurnRequest, plan: Plan) -> HeardReport | None:
    """Return the heard part of the last reply, as reported by a voice record.

    Return None if no voice record reports it, or if the log does not contain the reply.
    """
    if not request.heard:  # the usual case, and a request may have 100,000 messages
        return None
    at = _find_last_reply_in(request)
    if at not in request.heard or at >= len(request.incoming) - len(plan.append):
        return None
    when = _get_metadata(request.own[at]).get("interrupt_timestamp")
    return HeardReport(content=request.heard[at].text, timestamp=when if isinstance(when, int) else None)


def _check_reply(last_reply: LastReply, heard: HeardReport, session: Session) -> None:
    """Check that `last_reply` contains a reply, and that the reply belongs to the reported turn.

    Raises:
        NoReply: there is no reply, or it belongs to another turn.
    """
    if not last_reply.rounds:
        raise NoReply(f"session {session.id!r} has no reply to interrupt")
    turn_id = last_reply.rounds[-1].head.turn_id
    if heard.turn_id is not None and heard.turn_id != turn_id:
        raise NoReply(f"the last reply of session {session.id!r} is of turn {turn_id}, not of {heard.turn_id}")


REQUEST_FIELDS: Final = frozenset({"turn_id", "timestamp", INTERRUPTABLE})
"""Fields of a request that only upstreams of `vendor: custom` know. Other upstreams would refuse a request with them."""


def check_interruptable(body: Mapping[str, Any]) -> None:
    """Check that `interruptable` in a request is true or false, if it is present.

    Raises:
        InvalidRequest: `interruptable` has another value.
    """
    value = body.get(INTERRUPTABLE)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{INTERRUPTABLE} must be true or false, not {value!r}"[:300], param=INTERRUPTABLE)


def address_model(
    request: ModelRequest, llm: Llm, built: WorkingSet, *, turn_id: int, now: Callable[[], int]
) -> ModelRequest:
    """Return a request in the form that its model accepts, with or without the fields of voice records.

    Args:
        request: the request. Its messages are those of `built`, in order.
        llm: the model.
        built: the working set.
        turn_id: the turn that the reply belongs to.
        now: function that returns milliseconds since the epoch. It is called only if the model receives voice records.
    """
    fields = {name: value for name, value in request.fields.items() if name not in REQUEST_FIELDS}
    if not llm.records:
        return request._replace(fields=fields)
    sources = built.list_sources()
    messages = [
        message if entry is None else message.evolve(extra={**message.extra, **_make_record_fields(entry, sent.role)})
        for message, entry, sent in zip(request.messages, sources, built.messages, strict=True)
    ]
    voice_fields = {INTERRUPTABLE: _is_interruptable(request.fields, sources)}
    fields = {**fields, "turn_id": turn_id, "timestamp": now(), **voice_fields}
    return request._replace(messages=messages, fields=fields)


def _make_record_fields(entry: Entry, role: str) -> dict[str, Any]:
    """Return the fields that turn an entry's message into a voice record.

    If a message of another agent is shown in the user's role, its metadata name only that agent, and no source.
    """
    is_other_agent = entry.message.role == "assistant" and role != "assistant"
    metadata = {"agent": entry.agent} if is_other_agent else make_metadata(entry)
    return {"turn_id": entry.turn_id, "timestamp": entry.timestamp, "metadata": metadata}


def _is_interruptable(fields: Mapping[str, Any], sources: Iterable[Entry | None]) -> bool:
    """Return the request's own value for `interruptable`.

    If the request has no value, return False if the last reply in the prompt must not be interrupted, else True.
    """
    requested = fields.get(INTERRUPTABLE)
    if requested is not None:
        return requested is not False
    replies = [entry for entry in sources if entry is not None and entry.message.role == "assistant"]
    return not replies or (replies[-1].metadata or {}).get(INTERRUPTABLE) is not False
