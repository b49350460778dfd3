"""Voice records on their way to a model: what an upstream of `vendor: custom` is sent beside Chat Completions' own fields.

Any other upstream is sent none of it. What a prompt's hash covers is the messages without these fields, for every vendor alike:
they are put on when a request leaves, and cost nothing where they are not wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from holdfast.agents import Llm
from holdfast.context.build import WorkingSet
from holdfast.domain.session import Entry
from holdfast.errors import InvalidRequest
from holdfast.wire.voice import INTERRUPTABLE, metadata_of

REQUEST_FIELDS: Final = frozenset({"turn_id", "timestamp", INTERRUPTABLE})
"""Fields of a request that only such an upstream knows: another one would refuse the request for their sake."""


def check_interruptable(body: Mapping[str, Any]) -> None:
    """Refuse an `interruptable` that is neither true nor false. Raises `InvalidRequest`."""
    value = body.get(INTERRUPTABLE)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{INTERRUPTABLE} must be true or false, not {value!r}"[:300], param=INTERRUPTABLE)


def addressed(
    body: dict[str, Any], llm: Llm, built: WorkingSet, *, turn_id: int, now: Callable[[], int]
) -> dict[str, Any]:
    """A request as its model takes it: with voice records, or without a trace of them.

    Args:
        body: the Chat Completions request; its `messages` are those of `built`, in their order.
        llm: who is asked.
        built: the working set.
        turn_id: the turn that the reply belongs to.
        now: milliseconds since the epoch; asked only where they are told.
    """
    plain = {name: value for name, value in body.items() if name not in REQUEST_FIELDS}
    if not llm.records:
        return plain
    sources = built.sources()
    messages = [
        message if entry is None else {**message, **_fields(entry, sent.role)}
        for message, entry, sent in zip(body["messages"], sources, built.messages, strict=True)
    ]
    told = {"turn_id": turn_id, "timestamp": now(), INTERRUPTABLE: _interruptable(body, sources)}
    return {**plain, "messages": messages, **told}


def _fields(entry: Entry, role: str) -> dict[str, Any]:
    """What a record has beside the message itself. What another agent said is sent as told, and has no source of its own."""
    told = entry.message.role == "assistant" and role != "assistant"
    metadata = {"agent": entry.agent} if told else metadata_of(entry)
    return {"turn_id": entry.turn_id, "timestamp": entry.timestamp, "metadata": metadata}


def _interruptable(body: Mapping[str, Any], sources: Iterable[Entry | None]) -> bool:
    """False where the request says so, or the last reply that is sent was not to be interrupted."""
    said = body.get(INTERRUPTABLE)
    if said is not None:
        return said is not False
    spoken = [entry for entry in sources if entry is not None and entry.message.role == "assistant"]
    return not spoken or (spoken[-1].metadata or {}).get(INTERRUPTABLE) is not False
