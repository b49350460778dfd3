"""REST API for stored responses of the Responses API, and the ids in requests that create them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple

import anyio
import msgspec

from holdfast.accounting import run_cpu
from holdfast.config.gateway import Gateway
from holdfast.domain.compaction import add_summarized
from holdfast.domain.messages import GENESIS, NOTE, Message
from holdfast.domain.objects import Answer, Count, JsonObject, Page, json_schema
from holdfast.domain.origins import find_copies, find_origin, get_ranges
from holdfast.domain.session import Session
from holdfast.engine.entries import make_entries
from holdfast.engine.erasure import erase_everywhere
from holdfast.errors import InvalidRequest, SessionNotFound, TooLarge
from holdfast.holdfast import Holdfast
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.log.align import is_same_message
from holdfast.models.codecs.responses.encoder import encode_events, repeat_events
from holdfast.models.codecs.responses.ids import NOWHERE, parse_place
from holdfast.models.codecs.responses.items import make_input_items
from holdfast.models.codecs.responses.notes import ResponseNote, make_note
from holdfast.models.codecs.responses.requests import ResponsesRequest, is_reference, parse_input
from holdfast.server.apis.api_format import ParsedRequest, Predecessor
from holdfast.server.apis.responses import RecordedRequest, make_secret
from holdfast.server.chat_objects import ResponseEvent, ResponseObject
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.server.requester import Requester, continue_session, identify_requester, name_session
from holdfast.server.resumption import find_item, resume
from holdfast.server.routes import JSON, Routes, SessionQuery
from holdfast.server.stored_responses import (
    StoredResponse,
    find_message_items,
    find_response,
    get_conversation,
    get_response,
    iterate_input,
    make_cancellation,
    to_response,
)
from holdfast.stores.log import Append
from holdfast.stores.walk import read_entries_until
from holdfast.turns.place import count_known_messages, read_branch
from holdfast.turns.turn_start import has_continuation
from holdfast.wire.openai import split_system

routes = Routes("responses")
ONE: Final = "/v1/responses/{response_id}"
ITEMS: Final = 100
"""Maximum number of items on a page."""
_PAUSE: Final = 0.5
"""Seconds between two reads of a response that another server makes."""
_OVERLAP: Final = 200
"""Maximum number of messages at the beginning of a request that are compared with the end of the log."""

ItemLimit = Annotated[int, json_schema(description="maximum number of items; default 20", minimum=1, maximum=ITEMS)]


class ResponseQuery(SessionQuery, kw_only=True):
    """Query parameters of a response."""

    include: str | None = None
    """Accepted as in OpenAI's API. It has no effect."""


class RetrieveQuery(ResponseQuery, kw_only=True):
    """Query parameters of `GET /v1/responses/{response_id}`."""

    stream: bool = False
    """True: send the events of the response. Those that a running response makes later are sent as they are made."""
    starting_after: Count | None = None
    """With `stream`: `sequence_number` of the last event that the client has received."""
    include_obfuscation: bool = False
    """Accepted as in OpenAI's API. It has no effect."""


class ItemsQuery(ResponseQuery, kw_only=True):
    """Query parameters of a list of items."""

    limit: ItemLimit = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    """`last_id` of the previous page, after which this page begins."""


class ItemList(Page[JsonObject, str]):
    """A page of items."""


class DeletedResponse(Answer):
    """A response that was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


@routes.add("GET", ONE, "read", answer={JSON: ResponseObject, "text/event-stream": ResponseEvent})
async def get_one(call: Call, query: RetrieveQuery) -> Any:
    """Return a stored response, or send its events.

    The server that makes a background response keeps its events for some time. Later, and on other servers, the events are made from the
    log. Then a request with `starting_after` gets only the last event, which contains the whole response.
    """
    stored = await _get(call, query)
    if not query.stream:
        return await to_response(call.hf, stored)
    recording = call.request.app.state.recordings.find(stored.place.make_id("resp"), stored.session.reshaped)
    start = 0 if query.starting_after is None else query.starting_after + 1
    events = _repeat_events(call, stored, start) if recording is None else recording.read(start)
    return Reply(events, 200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})


async def _repeat_events(call: Call, stored: StoredResponse, start: int) -> AsyncGenerator[bytes, None]:
    """Yield events of a response from the log, as soon as the response is finished, beginning with the number `start`."""
    place, response = stored.place, await to_response(call.hf, stored)
    while response["status"] in ("in_progress", "queued"):
        yield b": waiting\n\n"
        await anyio.sleep(_PAUSE)
        stored = await get_response(call.hf, place.make_id("resp"), stored.session.user_id)
        response = await to_response(call.hf, stored)
    yield encode_events(repeat_events(response, start))


@routes.add("POST", f"{ONE}/cancel", "write", answer={JSON: ResponseObject})
async def cancel(call: Call, query: ResponseQuery) -> Any:
    """Cancel a background response. The part of the reply that was received stays in the log. A finished response does not change."""
    stored = await _get(call, query)
    if not stored.note.echo.get("background"):
        raise Refused(400, "invalid_request", "Only responses with background: true can be cancelled.")
    response = await to_response(call.hf, stored)
    if response["status"] != "in_progress":
        return response
    engine, ref = call.hf.engine, stored.session.ref
    (entry,) = await make_entries(
        [Message(role=NOTE, origin=make_cancellation(stored.note))], [{}], timestamp=call.hf.clock()
    )
    async with engine.locks.make_brief_lock(ref, "interrupt") as lock:
        await lock.open(lambda: engine.store.get(ref))
        await lock.append(engine.store, Append(entries=[entry], timestamp=call.hf.clock()), last=True)
    engine.warm.forget(ref)
    return await to_response(call.hf, await _get(call, query))


@routes.add("DELETE", ONE, "write")
async def delete(call: Call, query: ResponseQuery) -> DeletedResponse:
    """Delete a response. Its id is no longer found. Its messages stay in the log of the session."""
    stored = await _get(call, query)
    await erase_everywhere(call.hf.engine, stored.session.ref, stored.entry.seq)
    return DeletedResponse(stored.place.make_id("resp"))


@routes.add("GET", f"{ONE}/input_items", "read")
async def list_input_items(call: Call, query: ItemsQuery) -> ItemList:
    """List the items that were sent with the request of a response."""
    stored = await _get(call, query)
    items = iterate_input(call.hf, stored, after=query.after, descending=query.order == "desc")
    return await take_page(items, query.limit)


async def take_page(items: AsyncIterator[JsonObject], limit: int) -> ItemList:
    """Return the first items as a page."""
    taken: list[JsonObject] = []
    async for item in items:
        taken.append(item)
        if len(taken) > limit:
            break
    return ItemList.of(taken[:limit], has_more=len(taken) > limit)


async def _get(call: Call, query: SessionQuery) -> StoredResponse:
    return await get_response(call.hf, call.path["response_id"], call.get_owner(query.user_id))


# -- requests --------------------------------------------------------------------------


async def resolve_request(call: Call, parsed: ParsedRequest, gateway: Gateway) -> ParsedRequest:
    """Replace the ids in a request: name the session that `conversation` or `previous_response_id` means.

    Messages that the session already has are left out of the request.

    Raises:
        Refused: the conversation, the response or an item does not exist.
        InvalidRequest: the request also names another session.
    """
    request: ResponsesRequest = parsed.context
    if request.background:
        call.request.app.state.recordings.check_room()
    place = await find_place(call, parsed, gateway, follows_name=False)
    parsed, session = place.parsed, place.session
    body, context = parsed.body, parsed.context
    if session is not None:
        if request.previous is None and request.conversation is None:
            body = {**body, "session_mode": None}  # the compaction item is part of a whole conversation
        body = continue_session(body, session, place.requester.user_id)
    note = _make_note(call, parsed)
    if request.background:
        context = RecordedRequest(context, call.request.app.state.recordings)
    return parsed._replace(
        body=body,
        note=note,
        given=parsed.given if parsed.messages else [],
        context=context,
        background=request.background and not body.get("stream"),
        predecessor=place.predecessor,
    )


def _make_note(call: Call, parsed: ParsedRequest) -> Any:
    """Return the payload of the note that makes the response a stored one; None if it is not stored."""
    request: ResponsesRequest = parsed.context
    if not request.store or request.compacts_now:  # a response that is only a compaction has no reply in the log
        return None
    system = () if parsed.logs_system else split_system(parsed.messages)[0][parsed.instructions :]
    items = [item for message in system for item in make_input_items(message, NOWHERE)]
    made = ResponseNote(
        secret=make_secret(),
        created_at=call.hf.clock() // 1000,
        model=str(parsed.body.get("model") or ""),
        echo=request.echo,
        names=request.tools.names,
        conversation=request.conversation,
        system=[{name: value for name, value in item.items() if name != "id"} for item in items],
    )
    return make_note(made).to_origin()


class RequestPlace(NamedTuple):
    """The session that a request continues."""

    session: Session | None
    """None: the request begins a session, or is matched by its messages."""
    requester: Requester
    predecessor: Predecessor | None
    """The message that the request continues after; None: it continues at the end of the log."""
    parsed: ParsedRequest
    """The request with the items that it refers to, and without messages that the session has already."""

    @property
    def user_id(self) -> str:
        """The user of the session."""
        return self.requester.owner if self.session is None else self.session.user_id

    @property
    def stop(self) -> int | None:
        """The `seq` before which the request continues the log; None: at its end."""
        return _get_stop(self.predecessor)


async def find_place(call: Call, parsed: ParsedRequest, gateway: Gateway, *, follows_name: bool = True) -> RequestPlace:
    """Find the session that a request continues, and its place in the log. Nothing is written.

    Args:
        call: the request.
        parsed: the parsed request.
        gateway: settings of the gateway.
        follows_name: False if another step finds the session that only `session_id` or a header names.

    Raises:
        Refused: the conversation, the response or an item does not exist.
    """
    request: ResponsesRequest = parsed.context
    requester = identify_requester(call, parsed.body, gateway, parsed.api)
    named = name_session(call, parsed.body, gateway)
    session, predecessor = None, None
    if request.conversation is not None:
        session = await get_conversation(call.hf, request.conversation, requester.user_id)
    elif request.previous is not None:
        predecessor = await _find_predecessor(call.hf, request.previous, requester.user_id)
        session = predecessor.session
    parsed = await _resolve_references(call, parsed, requester.user_id, session, _get_stop(predecessor))
    system, incoming = split_system(parsed.messages)
    if (compacted := parsed.context.compacted) is not None:
        item = await find_item(call.hf, compacted.reference, requester.owner, compacted.where)
        if session is None:
            covered = max(0, len(incoming) - compacted.added)
            found = await resume(call.hf, item, incoming, covered, named=named)
            session, incoming, predecessor = found.session, [*found.messages], found.predecessor
            parsed = parsed._replace(compaction=add_summarized(parsed.compaction, found.summarized))
    if session is None and named is not None and follows_name:
        with suppress(SessionNotFound):
            session = await get_session_by_id(call.hf, named, requester.user_id)
    if session is not None:
        incoming = incoming[await _count_known(call.hf, session, incoming, _get_stop(predecessor)) :]
    return RequestPlace(session, requester, predecessor, parsed._replace(messages=[*system, *incoming]))


async def _find_predecessor(
    hf: Holdfast, response_id: str, user_id: str | None, *, may_repeat: bool = True
) -> Predecessor:
    """Return the response that a request continues after. If later messages follow it, the request gets a fork, unless it may repeat them.

    Args:
        hf: the `Holdfast` of the tenant.
        response_id: id of the response.
        user_id: the user of the request.
        may_repeat: False if the request is known not to repeat an earlier one.

    Raises:
        Refused: the user has no such response.
    """
    stored = await find_response(hf, response_id, user_id)
    if stored is None:
        message = f"Previous response with id '{response_id:.200}' not found."
        raise Refused(400, "previous_response_not_found", message)
    find_again = partial(_find_predecessor, hf, response_id, user_id, may_repeat=False)
    if stored.replies and stored.replies[-1].retired_by is not None:
        branch, _ = await read_branch(hf.store, stored.session.ref, stored.end - 1)
        kept = [entry for entry in branch if entry.seq < stored.end]
        at = (stored.session, stored.end - 1, stored.entry.turn_id)
        return Predecessor(*at, find_again, is_forked=True, branch=kept)
    is_forked = not stored.is_last and not (
        may_repeat and not await has_continuation(hf.store, stored.session.ref, stored.end - 1)
    )
    return Predecessor(stored.session, stored.end - 1, stored.entry.turn_id, find_again, is_forked=is_forked)


def _get_stop(predecessor: Predecessor | None) -> int | None:
    """Return the `seq` before which a request continues the log; None: at its end."""
    if predecessor is None or predecessor.session.tail.last_seq <= predecessor.seq:
        return None
    return predecessor.seq + 1


async def _count_known(hf: Holdfast, session: Session, incoming: Sequence[Message], stop: int | None) -> int:
    """Return how many messages at the beginning of a request are at the end of the log, or before `stop`.

    Some clients send the whole conversation with each request, and some send the call before each result again.
    """
    if not any(message.role == "assistant" for message in incoming):
        return 0
    last = await hf.store.entries(session.ref, stop=stop, limit=min(len(incoming), _OVERLAP), descending=True)
    digest = session.tail.digest if stop is None else await _read_digest(hf, session, stop)
    whole = count_known_messages(digest, incoming)
    entries = last[::-1]
    for count in range(len(entries), 0, -1):
        if all(is_same_message(entry, sent) for entry, sent in zip(entries[-count:], incoming, strict=False)):
            return count
    return whole or 0


async def _read_digest(hf: Holdfast, session: Session, stop: int) -> bytes:
    """Return the digest of the log up to its last visible message before `stop`."""
    _, found = await read_entries_until(
        hf.store, session.ref, lambda entry: entry.message.visible, keep=lambda _: False, stop=stop, descending=True
    )
    return GENESIS if found is None else found.digest


async def _resolve_references(
    call: Call, parsed: ParsedRequest, user_id: str | None, session: Session | None, stop: int | None
) -> ParsedRequest:
    """Return a request with the items that its input refers to; unchanged if it refers to none.

    Args:
        call: the request.
        parsed: the parsed request.
        user_id: the user of the items.
        session: the session of the request. Items that it has already are left out. None: the session is not known.
        stop: the `seq` before which the request continues the log of the session; None: at its end.
    """
    request: ResponsesRequest = parsed.context
    if not request.references:
        return parsed
    given: list[Any] = []
    reader = _ItemReader(call, user_id, session, stop)
    for item in request.references:
        found = await reader.read(item.get("id")) if is_reference(item) else item
        if found is not None:
            given.append(found)
    is_long = call.body_size + reader.bytes > INLINE_BODY_BYTES
    messages, compacted = await run_cpu(parse_input, given, long=is_long)
    return parsed._replace(messages=[*parsed.messages, *messages], context=request._replace(compacted=compacted))


class _ItemReader:
    """Reads the items that a request refers to. Together they may have as many bytes as a body, because each one becomes part of the request.

    Args:
        call: the request.
        user_id: the user of the items.
        session: the session of the request, or None.
        stop: the `seq` before which the request continues the log of the session; None: at its end.
    """

    def __init__(self, call: Call, user_id: str | None, session: Session | None, stop: int | None) -> None:
        self._call = call
        self._user_id = user_id if session is None else session.user_id
        self._session = session
        self._stop = stop
        self._items: dict[str, dict[str, Any] | None] = {}
        """Items that were read, by their ids. None: the session of the request has the item already."""
        self.bytes = 0
        """Bytes of the items that were read, as JSON."""

    async def read(self, item_id: Any) -> dict[str, Any] | None:
        """Return the item with an id, or None if the session of the request has it already.

        Raises:
            InvalidRequest: the user has no such item.
            TooLarge: the items that were read are too large together.
        """
        if not isinstance(item_id, str):
            raise InvalidRequest("an item_reference in input must have an id, which is a string", param="input")
        if item_id not in self._items:
            await self._read_message(item_id)
        elif (again := self._items[item_id]) is not None:
            self._count([again])
        if item_id not in self._items:
            raise InvalidRequest(f"Item with id '{item_id:.200}' not found.", param="input")
        return self._items[item_id]

    async def _read_message(self, item_id: str) -> None:
        """Read the message with an item. All its items are kept, because a request usually refers to all of them."""
        place = parse_place(item_id)
        found = None if place is None else await find_message_items(self._call.hf, place, self._user_id)
        if found is None:
            return
        is_known = await self._is_known(found.session, found.seq)
        self._items |= {item["id"]: None if is_known else item for item in found.items}
        self._count([] if is_known else found.items)

    async def _is_known(self, home: Session, seq: int) -> bool:
        """Return True if the session of the request has a message of the session `home`, or a copy of it, before the place of the request."""
        session, store = self._session, self._call.hf.store
        if session is None:
            return False
        if home.ref == session.ref:
            return self._stop is None or seq < self._stop
        origins = await store.origins(session.user_id, [session.id, home.id])
        ranges = get_ranges(origins.get(session.id, ()), session.identity)
        origin = find_origin(get_ranges(origins.get(home.id, ()), home.identity), seq)
        for copy in find_copies(ranges, origin):
            live = await store.entries(session.ref, start=copy, limit=1, stop=self._stop)
            if live and live[0].seq == copy:
                return True
        return False

    def _count(self, items: Sequence[dict[str, Any]]) -> None:
        self.bytes += sum(len(msgspec.json.encode(item)) for item in items)
        most, what = self._call.most_body
        if self.bytes > most:
            message = f"the items that input refers to have more than {most} bytes together, {what}"
            raise TooLarge(message, param="input")
