"""Find stored responses and items of the Responses API in the logs of sessions.

A response is a note in a log, and the messages next to it; see `holdfast.models.codecs.responses.notes`. Its id contains its place, so it is found
without a search.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple

from holdfast.domain.log import to_sent_message
from holdfast.domain.session import Entry, ModelCall, Session
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.holdfast import Holdfast
from holdfast.limits import PAGE
from holdfast.media.outgoing import restore_entries
from holdfast.models.codecs.responses.encoder import (
    CUT,
    FIRST_SYSTEM,
    ResponseHead,
    Status,
    find_status,
    make_compaction_item,
    make_items,
    make_response,
)
from holdfast.models.codecs.responses.ids import Place, parse_conversation_id, parse_place
from holdfast.models.codecs.responses.items import Item
from holdfast.models.codecs.responses.notes import ResponseNote, parse_note
from holdfast.models.codecs.responses.tools import ToolNames
from holdfast.numbers import is_whole
from holdfast.server.http import get_session_by_id
from holdfast.server.permissions import Refused
from holdfast.stores.session_changes import is_claimed
from holdfast.stores.walk import ENTRIES, read_entries_until
from holdfast.turns.respond import COMPACTION, FINISH_REASON
from holdfast.turns.turn import INPUT_COUNT, MARK, OPENED_BY
from holdfast.turns.turn_start import find_note

_NO_NAMES: Final[ToolNames] = {}


class StoredResponse(NamedTuple):
    """A response in a log."""

    session: Session
    entry: Entry
    """The entry of the response's note."""
    note: ResponseNote
    replies: Sequence[Entry]
    """Entries of the reply, with the calls and results of Holdfast's own tools."""
    is_last: bool
    """True if no later message follows in the log."""
    is_cancelled: bool = False
    """True if a client cancelled the response."""

    @property
    def place(self) -> Place:
        """Place of the response."""
        return Place(self.session.id, self.entry.seq, self.note.secret)

    @property
    def reply(self) -> Entry | None:
        """The message that ends the reply; None if there is none yet."""
        last = next((entry for entry in reversed(self.replies) if entry.message.role == "assistant"), None)
        return last if _is_shown(last) else None

    @property
    def end(self) -> int:
        """The `seq` after the last entry of the response."""
        return (self.replies[-1] if self.replies else self.entry).seq + 1


def _is_shown(entry: Entry | None) -> bool:
    """Return True if the client receives an assistant's message, because it has no calls or some that the client runs."""
    if entry is None or not entry.message.tool_calls:
        return entry is not None
    returned = (entry.metadata or {}).get("returned")
    return returned is None or bool(returned)


# -- conversations -----------------------------------------------------------------


async def _find_session(hf: Holdfast, session_id: str | None, user_id: str | None) -> Session | None:
    """Return the session with the id that another id contains, or None if the user has no such session."""
    try:
        return None if session_id is None else await get_session_by_id(hf, session_id, user_id)
    except (SessionNotFound, InvalidRequest):
        return None


async def get_conversation(hf: Holdfast, conversation_id: str, user_id: str | None) -> Session:
    """Return the session of a conversation.

    Raises:
        Refused: no conversation of the user has this id.
    """
    session = await _find_session(hf, parse_conversation_id(conversation_id), user_id)
    if session is None:
        raise Refused(404, "conversation_not_found", f"Conversation with id '{conversation_id:.200}' not found.")
    return session


# -- responses ---------------------------------------------------------------------


async def find_response(hf: Holdfast, response_id: str, user_id: str | None) -> StoredResponse | None:
    """Return the response with an id, or None if the user has no such response."""
    place = parse_place(response_id)
    if place is None or not place.is_response:
        return None
    session = await _find_session(hf, place.session_id, user_id)
    return None if session is None else await _read_response(hf, session, place)


async def get_response(hf: Holdfast, response_id: str, user_id: str | None) -> StoredResponse:
    """Return the response with an id. Raise `Refused` with status 404 if the user has no such response."""
    found = await find_response(hf, response_id, user_id)
    if found is None:
        raise Refused(404, "response_not_found", f"Response with id '{response_id:.200}' not found.")
    return found


async def _read_response(hf: Holdfast, session: Session, place: Place) -> StoredResponse | None:
    found = await hf.store.entries(session.ref, start=place.seq, limit=1, notes=True)
    entry = found[0] if found and found[0].seq == place.seq and found[0].is_note else None
    note = None if entry is None else parse_note(entry.message.origin)
    if entry is None or note is None or note.secret != place.secret:
        return None
    own, is_last = await _read_replies(hf, session, entry)
    stored = StoredResponse(session, entry, note, own, is_last)
    if not note.echo.get("background"):
        return stored
    later = await hf.store.entries(session.ref, start=stored.end, limit=_LATER, notes=True, retired=True)
    return stored._replace(is_cancelled=any(is_cancellation(entry, note) for entry in later))


async def _read_replies(hf: Holdfast, session: Session, note: Entry) -> tuple[list[Entry], bool]:
    """Return the entries of the reply of a turn that began with a note, and True if no later message follows in the log."""
    replies, following = await read_entries_until(
        hf.store, session.ref, partial(_is_of_another_turn, note), start=note.seq + 1
    )
    own = _drop_client_results(replies)
    if own or following is None:
        return own, following is None and len(own) == len(replies)
    retired, _ = await read_entries_until(  # of a reply that was made again
        hf.store,
        session.ref,
        lambda entry: not entry.is_note and _is_of_another_turn(note, entry),
        keep=lambda entry: not entry.is_note,
        start=note.seq + 1,
        retired=True,
    )
    return _drop_client_results(retired), False


_LATER: Final = 8
"""Number of entries after a response that are searched for its cancellation."""
_CANCELLED: Final = "response_cancelled"


def make_cancellation(note: ResponseNote) -> dict[str, Any]:
    """Return the origin of the note that cancels a response."""
    return {_CANCELLED: note.secret}


def is_cancellation(entry: Entry, note: ResponseNote) -> bool:
    """Return True if an entry is the note that cancels a response."""
    origin = entry.message.origin
    return entry.is_note and isinstance(origin, Mapping) and origin.get(_CANCELLED) == note.secret


def _is_of_another_turn(note: Entry, entry: Entry) -> bool:
    """Return True for a message that the turn which began with `note` did not write."""
    if entry.message.role == "assistant":
        return (entry.metadata or {}).get(OPENED_BY) != (note.metadata or {}).get(MARK)
    return entry.message.role != "tool"


def _drop_client_results(replies: list[Entry]) -> list[Entry]:
    """Return the entries of a reply up to the calls that the client runs. Results of these calls belong to the next request."""
    for at, entry in enumerate(replies):
        if entry.message.role == "assistant" and entry.message.tool_calls and _is_shown(entry):
            own = takewhile(partial(_is_own_result, entry), replies[at + 1 :])
            return [*replies[: at + 1], *own]
    return replies


def _is_own_result(reply: Entry, entry: Entry) -> bool:
    """Return True for the result of a call in a reply that Holdfast ran, so that it belongs to the reply."""
    returned = (reply.metadata or {}).get("returned")
    if entry.message.role != "tool" or not isinstance(returned, list):
        return False
    ours = {call.id for at, call in enumerate(reply.message.tool_calls) if at not in returned}
    return entry.message.tool_call_id in ours


async def to_response(hf: Holdfast, stored: StoredResponse) -> dict[str, Any]:
    """Return the Response object of a stored response."""
    note, reply = stored.note, stored.reply
    head = ResponseHead(stored.place, note.created_at, note.echo, note.names, note.conversation)
    own = await _read_calls(hf, stored.session, stored.entry, stored.end)
    model = own[0].model if own else note.model
    if reply is None:
        return make_response(head, model=model, **_describe_unfinished(hf, stored))
    status, reason = ("cancelled", None) if stored.is_cancelled else _get_status(reply)
    return make_response(
        head,
        model=model,
        output=await _read_output(hf, stored, reply),
        status=status,
        usage=_sum_usage(own),
        reason=reason,
        completed_at=reply.timestamp // 1000 if status == "completed" else None,
    )


def _get_status(reply: Entry) -> tuple[Status, str | None]:
    """Return the status of a reply, and the reason if it is incomplete."""
    metadata = reply.metadata or {}
    return ("incomplete", CUT) if metadata.get("interrupted") else find_status(metadata.get(FINISH_REASON))


async def _read_calls(hf: Holdfast, session: Session, note: Entry, end: int) -> list[ModelCall]:
    """Return the model calls of a turn that began with a note, newest first.

    Args:
        hf: the `Holdfast` of the tenant.
        session: the session.
        note: the note.
        end: the `seq` after the last entry of the turn's reply.
    """
    calls = await hf.store.calls(session.ref, limit=PAGE, turn_id=note.turn_id)
    return [call for call in calls if note.seq - 1 <= call.through < end]


def _describe_unfinished(hf: Holdfast, stored: StoredResponse) -> dict[str, Any]:
    """Return status and error of a response without a reply: it is in progress, or its server stopped or its model failed."""
    status: Status = "in_progress"
    if stored.is_cancelled:
        return {"status": "cancelled"}
    if stored.is_last and is_in_use(hf, stored.session):
        return {"status": status}
    message = "the reply was not finished; send the request again"
    return {"status": "failed", "error": {"code": "server_error", "message": message}}


def is_in_use(hf: Holdfast, session: Session) -> bool:
    """Return True if a turn of the session is running in this process or another one."""
    return is_claimed(session, hf.clock()) or hf.engine.is_busy(session.ref)


def _sum_usage(calls: Sequence[ModelCall]) -> dict[str, Any]:
    return {
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "completion_tokens": sum(call.completion_tokens for call in calls),
        "prompt_tokens_details": {"cached_tokens": sum(call.cached_tokens for call in calls)},
    }


async def _read_output(hf: Holdfast, stored: StoredResponse, reply: Entry) -> list[Item]:
    (entry,) = await restore_entries(hf.store, stored.session.ref, [reply])
    output = _make_reply_items(entry, stored.place, stored.note)
    reference = (reply.metadata or {}).get(COMPACTION)
    return [make_compaction_item(stored.place, reference), *output] if isinstance(reference, str) else output


def _make_reply_items(reply: Entry, place: Place, note: ResponseNote) -> list[Item]:
    message, (status, _) = to_sent_message(reply.message, reply.metadata), _get_status(reply)
    return make_items(message, place, note.names, status)


def _make_system_items(stored: StoredResponse) -> list[Item]:
    """Return the items of the input that are the session's system prompt, which is not in its log."""
    given = stored.note.system or ()
    return [
        {**item, "id": stored.place._replace(number=FIRST_SYSTEM + at).make_id("msg")} for at, item in enumerate(given)
    ]


async def iterate_input(
    hf: Holdfast, stored: StoredResponse, *, after: str | None = None, descending: bool = False
) -> AsyncIterator[Item]:
    """Yield the items that were sent with the request of a response in order, beginning after an item. Only what is needed is read.

    Args:
        hf: the `Holdfast` of the tenant.
        stored: the response.
        after: id of the item after which to begin; None: from the beginning, or with `descending` from the end.
        descending: True to yield the newest item first.

    Raises:
        Refused: the response has no input item `after`.
    """
    session, note = stored.session, await _find_first_note(hf, stored)
    system, stop, count = _make_system_items(stored), note.seq, (note.metadata or {}).get(INPUT_COUNT)
    start = max(0, stop - count) if is_whole(count) else stop
    names = [item["id"] for item in system]
    place = None if after is None else parse_place(after)
    if after is not None and after not in names and (place is None or not start <= place.seq < stop):
        raise Refused(404, "item_not_found", "the response has no such input item")
    at = names.index(after) if after in names else None
    if not descending and (after is None or at is not None):
        for item in system[0 if at is None else at + 1 :]:
            yield item
    if at is None or not descending:
        begin = None if at is not None or place is None else place.seq
        pages = _Pages(session, start, stop, stored.note.names, retired=True)
        async for item in _iterate(hf, pages, after=after, begin=begin, descending=descending):
            yield item
    if descending:
        for item in reversed(system[:at]):
            yield item


async def _find_first_note(hf: Holdfast, stored: StoredResponse) -> Entry:
    """Return the note after the input of a response: its own, or that of an earlier attempt if the request was sent again and added nothing."""
    note = stored.entry
    while (note.metadata or {}).get(INPUT_COUNT) == 0:
        page = await hf.store.entries(stored.session.ref, stop=note.seq, limit=ENTRIES, descending=True, notes=True)
        following = next((entry for entry in page if not _is_between_attempts(entry)), None)
        if following is None or not following.is_note:
            break
        note = following
    return note


def _is_between_attempts(entry: Entry) -> bool:
    """Return True for an entry that can be in the log between two attempts at a request: a result, calls that Holdfast ran, the note of a compaction."""
    if entry.is_note:
        return INPUT_COUNT not in (entry.metadata or {})
    return entry.message.role == "tool" or (entry.message.role == "assistant" and not _is_shown(entry))


# -- items -------------------------------------------------------------------------


class _Pages(NamedTuple):
    """A range of a log whose items are read."""

    session: Session
    start: int
    stop: int | None
    """The `seq` after the last message; None: the end of the log."""
    names: ToolNames
    """The client's tools by the names of their functions, for calls that the client sent."""
    retired: bool
    """True: the messages need not be in force."""


async def _iterate(
    hf: Holdfast, pages: _Pages, *, after: str | None, begin: int | None, descending: bool
) -> AsyncIterator[Item]:
    """Yield the items of messages that were not erased, in order.

    Args:
        hf: the `Holdfast` of the tenant.
        pages: the messages.
        after: id of the item after which to begin; None: from the beginning, or with `descending` from the end.
        begin: `seq` of the message that has this item. None: `after` has no effect.
        descending: True to yield the newest item first.
    """
    session, start, stop, names, retired = pages
    if begin is not None:
        start, stop = (start, begin + 1) if descending else (begin, stop)
    passed = begin is None
    notes: dict[str, Entry | None] = {}
    while stop is None or start < stop:
        page = await hf.store.entries(
            session.ref, start=start, stop=stop, limit=ENTRIES, descending=descending, retired=retired
        )
        kept = [entry for entry in page if not entry.erased]
        for entry in await restore_entries(hf.store, session.ref, kept):
            passed = passed or entry.seq != begin  # the item was deleted with its message
            items = await _make_entry_items(hf, session, entry, notes, names)
            for item in reversed(items) if descending else items:
                if passed:
                    yield item
                passed = passed or item["id"] == after
        if len(page) < ENTRIES:
            return
        start, stop = (start, page[-1].seq) if descending else (page[-1].seq + 1, stop)


async def iterate_items(
    hf: Holdfast, session: Session, *, after: str | None = None, descending: bool = False
) -> AsyncIterator[Item]:
    """Yield the items of a conversation's live messages in order, beginning after an item.

    Args:
        hf: the `Holdfast` of the tenant.
        session: the session of the conversation.
        after: id of the item after which to begin; None: from the beginning, or with `descending` from the end.
        descending: True to yield the newest item first.

    Raises:
        Refused: the conversation has no item `after`.
        InvalidRequest: `after` is not the id of an item.
    """
    place, begin = None if after is None else parse_place(after), None
    if after is not None and place is None:
        raise InvalidRequest("after must be the id of an item", param="after")
    if place is not None:
        is_message = place.session_id == session.id and not place.is_response
        reply = None if is_message else await _find_entry(hf, session, place)
        if reply is None and not is_message:
            raise Refused(404, "item_not_found", "the conversation has no such item")
        begin = place.seq if reply is None else reply.seq
    pages = _Pages(session, 0, None, _NO_NAMES, retired=False)
    async for item in _iterate(hf, pages, after=after, begin=begin, descending=descending):
        yield item


async def _make_entry_items(
    hf: Holdfast, session: Session, entry: Entry, notes: dict[str, Entry | None], names: ToolNames
) -> list[Item]:
    """Return the items of one message. `notes` collects the notes that were read."""
    mark = (entry.metadata or {}).get(OPENED_BY)
    if entry.message.role == "assistant" and mark is not None and _is_shown(entry):
        if mark not in notes:
            notes[mark] = await find_note(hf.store, session.ref, entry)
        opening = notes[mark]
        note = None if opening is None else parse_note(opening.message.origin)
        if opening is not None and note is not None:
            return _make_reply_items(entry, Place(session.id, opening.seq, note.secret), note)
    return make_items(entry.message, Place(session.id, entry.seq, ""), names)


async def make_log_items(hf: Holdfast, session: Session, entries: Sequence[Entry]) -> list[Item]:
    """Return the items of messages of a conversation, in order."""
    notes: dict[str, Entry | None] = {}
    restored = await restore_entries(hf.store, session.ref, entries)
    return [item for entry in restored for item in await _make_entry_items(hf, session, entry, notes, _NO_NAMES)]


async def _find_entry(hf: Holdfast, session: Session, place: Place) -> Entry | None:
    """Return the message of a session that has the item at a place; None if there is none."""
    if place.session_id != session.id:
        return None
    if place.is_response:
        stored = await _read_response(hf, session, place)
        return None if stored is None else stored.reply
    found = await hf.store.entries(session.ref, start=place.seq, limit=1)
    return found[0] if found and found[0].seq == place.seq else None


class LogItem(NamedTuple):
    """An item of a conversation."""

    item: Item
    seq: int
    """`seq` of its message."""
    others: list[Item]
    """The other items of the message."""


async def find_item(hf: Holdfast, session: Session, item_id: str) -> LogItem:
    """Return the item with an id.

    Raises:
        Refused: the conversation has no such item.
    """
    place = parse_place(item_id)
    entry = None if place is None else await _find_entry(hf, session, place)
    items = [] if entry is None or entry.erased else await make_log_items(hf, session, [entry])
    found = next((item for item in items if item["id"] == item_id), None)
    if entry is None or found is None:
        raise Refused(404, "item_not_found", f"Item with id '{item_id:.200}' not found in the conversation.")
    return LogItem(found, entry.seq, [item for item in items if item is not found])


class MessageItems(NamedTuple):
    """All items of a message or a response."""

    session: Session
    seq: int
    """`seq` of the message, or of the message that ends the response."""
    items: Sequence[Item]


async def find_message_items(hf: Holdfast, place: Place, user_id: str | None) -> MessageItems | None:
    """Return the items of the response or message at the place of one of its items, or None if the user has none there."""
    session = await _find_session(hf, place.session_id, user_id)
    stored = await _read_response(hf, session, place) if session is not None and place.is_response else None
    if stored is not None and stored.reply is not None and not stored.reply.erased:
        items = [*_make_system_items(stored), *await _read_output(hf, stored, stored.reply)]
        return MessageItems(stored.session, stored.reply.seq, items)
    entry = None if session is None or place.is_response else await _find_entry(hf, session, place)
    if session is None or entry is None or entry.erased:
        return None
    return MessageItems(session, entry.seq, await make_log_items(hf, session, [entry]))
