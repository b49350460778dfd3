"""List the recorded model calls of a session.

A call is identified by its turn and its number in the turn, both counted from 0: `12.0` is the first call of turn 12. A turn has several
calls if the model called tools, or if several agents answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder, Roster
from holdfast.context.parts import PromptRecord, decode_record
from holdfast.domain.session import ModelCall, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import CallNotFound, InvalidRequest
from holdfast.limits import PAGE
from holdfast.numbers import check_whole
from holdfast.stores.base import Store

_ID: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?")


class CallId(NamedTuple):
    """The position of a model call: its turn, and its number in the turn. Both are counted from 0."""

    turn_id: int
    number: int

    def __str__(self) -> str:
        return f"{self.turn_id}.{self.number}"


class NumberedCall(NamedTuple):
    """A recorded model call with its position."""

    id: CallId
    call: ModelCall


class CallSummary(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A recorded model call of a session."""

    id: str
    """`turn.number`, both counted from 0."""
    object: Literal["model_call"] = "model_call"
    turn_id: int
    number: int
    """Number of the call in its turn."""
    timestamp: int
    """Time of the call, in milliseconds since the epoch."""
    model: str
    agent: str | None
    """The agent that made the call; null if there was none."""
    strategy: str | None
    """Strategy of the prompt; null if it was not recorded."""
    prompt_tokens: int
    """Tokens of the prompt, as the provider reported them; 0 if it did not."""
    completion_tokens: int
    cached_tokens: int
    """Tokens of the prompt that the provider read from its cache."""
    budget: int | None
    """Maximum tokens of the conversation; null if the prompt was not recorded."""
    messages: int | None
    """Number of messages of the prompt; null if the prompt was not recorded."""
    common: int | None
    """Number of messages at the beginning that equal those of the previous prompt; null if that prompt was not known."""
    frontier: int | None
    """`seq` of the first message that was sent because it was recent; null if the prompt was not recorded."""
    through: int | None
    """`seq` of the newest message in the prompt; null if the prompt was not recorded."""
    hash: str | None
    """Hash of the prompt; null if it was not recorded."""


class CallPage(NamedTuple):
    """A page of model calls."""

    calls: Sequence[CallSummary]
    has_more: bool


def parse_call_id(text: str, param: str = "call_id") -> tuple[int, int | None]:
    """Return the turn and the number in `12.0`, or the turn and None for `12`.

    Raises:
        InvalidRequest: the text has another form.
    """
    found = _ID.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"{param} must be a turn or turn.number, such as 12 or 12.0, not {text[:40]!r}", param=param
        )
    return int(found[1]), None if found[2] is None else int(found[2])


async def find_call(
    store: Store, ref: SessionRef, text: str, param: str = "call_id"
) -> tuple[Sequence[NumberedCall], NumberedCall]:
    """Return all calls of a turn, and the call that `text` means: the last one if it names only the turn.

    Raises:
        InvalidRequest: the text has another form than those of `parse_call_id`.
        CallNotFound: the turn has no such call.
    """
    turn_id, number = parse_call_id(text, param)
    of_turn = await read_turn(store, ref, turn_id)
    at = len(of_turn) - 1 if number is None else number
    if not 0 <= at < len(of_turn):
        raise CallNotFound(ref.id, turn_id, number)
    return of_turn, of_turn[at]


def locate_call(of_turn: Sequence[NumberedCall], call: ModelCall) -> CallId | None:
    """Return the position of a recorded call among the calls of its turn; None if it is not recorded any more."""
    return next((one.id for one in reversed(of_turn) if one.call == call), None)


async def list_calls(
    engine: Engine,
    session: Session,
    *,
    limit: int,
    after: CallId | None = None,
    descending: bool = True,
) -> CallPage:
    """Return a page of a session's model calls.

    Args:
        engine: the tenant's engine.
        session: the session.
        limit: maximum number of calls.
        after: the last call of the previous page.
        descending: True: newest first.
    """
    check_whole(limit, "limit", 1, PAGE)
    store, ref, found = engine.store, session.ref, list[NumberedCall]()
    start: int = 0
    stop: int | None = None
    if after is not None:
        rest = await read_turn(store, ref, after.turn_id)
        found = rest[: after.number][::-1] if descending else rest[after.number + 1 :]
        if descending:
            stop = after.turn_id
        else:
            start = after.turn_id + 1
    wanted = limit + 1 - len(found)
    if wanted > 0:
        rows = await store.calls(ref, start=start, stop=stop, limit=wanted, descending=descending)
        if rows and len(rows) == wanted:  # the last turn may go on after the last row
            last = await read_turn(store, ref, rows[-1].turn_id)
            rows = tuple(row for row in rows if row.turn_id != rows[-1].turn_id)
            found += [*_number(rows, descending=descending), *(reversed(last) if descending else last)]
        else:
            found += _number(rows, descending=descending)
    summaries = await run_cpu(lambda: [summarize_call(one) for one in found[:limit]])
    return CallPage(tuple(summaries), has_more=len(found) > limit)


async def read_turn(store: Store, ref: SessionRef, turn_id: int) -> list[NumberedCall]:
    """Return the calls of a turn, oldest first."""
    rows = await store.calls(ref, limit=PAGE, turn_id=turn_id)
    return list(_number(rows[::-1], descending=False))


def _number(rows: Sequence[ModelCall], *, descending: bool) -> Iterator[NumberedCall]:
    """Yield the calls of complete turns with their positions, in the same order."""
    counts = dict[int, int]()
    numbered = []
    for call in reversed(rows) if descending else rows:
        number = counts.get(call.turn_id, 0)
        counts[call.turn_id] = number + 1
        numbered.append(NumberedCall(CallId(call.turn_id, number), call))
    yield from reversed(numbered) if descending else numbered


def summarize_call(one: NumberedCall) -> CallSummary:
    """Return a recorded call in the form in which it is listed."""
    call = one.call
    record = decode_record(call.build) if call.through >= 0 else None
    return CallSummary(
        id=str(one.id),
        turn_id=call.turn_id,
        number=one.id.number,
        timestamp=call.timestamp,
        model=call.model,
        agent=record.agent if record else None,
        strategy=record.strategy if record else None,
        prompt_tokens=call.prompt_tokens,
        completion_tokens=call.completion_tokens,
        cached_tokens=call.cached_tokens,
        budget=record.limit if record else None,
        messages=record.messages if record else None,
        common=record.common if record and record.common >= 0 else None,
        frontier=record.frontier if record else None,
        through=call.through if record else None,
        hash=call.hash.hex() if call.hash else None,
    )


def find_sender(roster: Roster, session: Session, record: PromptRecord) -> Responder | None:
    """Return the agent and model that made a call, with the recorded settings; None if the configuration does not have them."""
    try:
        found = roster.find_responder(agent=record.agent, model=record.llm or None, root=session.agent)
    except (InvalidRequest, KeyError):
        return None
    settings = record.settings
    return found if settings is None else roster.with_context(found, settings)
