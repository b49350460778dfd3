"""REST API for conversations, as in OpenAI's Conversations API. A conversation is a session, and each session is a conversation."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.accounting import run_cpu
from holdfast.domain.messages import Message
from holdfast.domain.objects import Answer, Count, Id, JsonObject, NonEmpty, OpenObject, Request, json_schema
from holdfast.domain.session import Session
from holdfast.engine.entries import make_entries
from holdfast.engine.erasure import erase_everywhere
from holdfast.errors import InvalidRequest
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.models.codecs.responses.ids import make_conversation_id
from holdfast.models.codecs.responses.items import parse_items
from holdfast.models.codecs.responses.requests import check_metadata
from holdfast.server.http import Call
from holdfast.server.responses import ItemList, ItemsQuery, ResponseQuery, take_page
from holdfast.server.routes import JSON, KEY, Routes, SessionQuery
from holdfast.server.stored_responses import find_item, get_conversation, iterate_items, make_log_items
from holdfast.sessions.log_writes import append_to_log, replace_entry
from holdfast.stores.log import Append
from holdfast.stores.sessions import SessionPatch

routes = Routes("conversations")
_ALL = "/v1/conversations"
_ONE = f"{_ALL}/{{conversation_id}}"
_ITEMS = f"{_ONE}/items"
_ITEM = f"{_ITEMS}/{{item_id}}"
MOST_NEW: int = 20
"""Maximum number of items in a request that adds items, as in OpenAI's API."""

Items = Annotated[Any, json_schema(description=f"items, at most {MOST_NEW}", type="array", items={"type": "object"})]


class ConversationObject(Answer):
    """A conversation."""

    id: Id
    created_at: Count
    """Seconds since the epoch."""
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"

    @classmethod
    def from_session(cls, session: Session) -> ConversationObject:
        """Convert a session to its conversation."""
        texts = {name: value for name, value in session.metadata.items() if isinstance(value, str)}
        return cls(make_conversation_id(session.id), session.created_at // 1000, texts)


class ConversationItem(OpenObject, kw_only=True):
    """An item of a conversation, in the form that its `type` has in OpenAI's API."""

    id: Id
    type: str
    status: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    """Author of a message."""
    content: list[JsonObject] | UnsetType = UNSET
    """Parts of a message, or of reasoning."""
    call_id: str | UnsetType = UNSET
    """Id by which a call and its output belong together."""
    name: str | UnsetType = UNSET
    """Name of the called tool."""
    arguments: str | UnsetType = UNSET
    output: str | list[JsonObject] | UnsetType = UNSET


class DeletedConversation(Answer):
    """A conversation that was deleted."""

    id: Id
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class NewConversation(Request, kw_only=True):
    """A conversation to create."""

    items: Items | None = None
    """First items."""
    metadata: dict[str, Any] | None = None
    """At most 16 texts by name."""
    user_id: NonEmpty | None = None
    """User of the conversation; default: the key's user, or `default`."""


class ConversationChanges(Request, kw_only=True):
    """The new metadata of a conversation."""

    metadata: dict[str, Any] | None


class NewItems(Request, kw_only=True):
    """Items to add."""

    items: Items


@routes.add("POST", _ALL, "write", error_statuses=(422,))
async def create(call: Call, body: NewConversation) -> ConversationObject:
    """Create a conversation."""
    check_metadata(body.metadata)
    _check_items([] if body.items is None else body.items)
    owner = call.get_owner_or_default(body.user_id)
    messages = await _parse(call, body.items) if body.items else []  # before anything is written
    session = await call.hf.create(f"conv_{uuid4().hex}", user_id=owner, metadata=body.metadata or {})
    if body.items:
        await _append(call, session, body.items, messages)
    return ConversationObject.from_session(session)


@routes.add("GET", _ONE, "read")
async def get_one(call: Call, query: SessionQuery) -> ConversationObject:
    """Return a conversation."""
    return ConversationObject.from_session(await _get(call, query))


@routes.add("POST", _ONE, "write")
async def update(call: Call, query: SessionQuery, body: ConversationChanges) -> ConversationObject:
    """Replace the metadata of a conversation."""
    check_metadata(body.metadata)
    session = await _get(call, query)
    others = {name: value for name, value in session.metadata.items() if not isinstance(value, str)}
    given = body.metadata or {}
    for name in given.keys() & others.keys():
        reason = f"metadata.{name} of this session is not a text: change it with PATCH /v1/sessions/{{id}}"
        raise InvalidRequest(reason, param=f"metadata.{name}")
    patch = SessionPatch(metadata={**others, **given})
    changed = await call.hf.store.update(session.ref, patch, timestamp=call.hf.clock(), expect=session.version)
    call.hf.engine.warm.apply_change(session, changed)
    return ConversationObject.from_session(changed)


@routes.add("DELETE", _ONE, "write")
async def delete(call: Call, query: SessionQuery) -> DeletedConversation:
    """Delete a conversation with its session and all items."""
    session = await _get(call, query)
    await call.hf.remove(session.ref)
    return DeletedConversation(make_conversation_id(session.id))


# -- items -----------------------------------------------------------------------------


@routes.add("GET", _ITEMS, "read")
async def list_items(call: Call, query: ItemsQuery) -> ItemList:
    """List the items of a conversation."""
    session = await _get(call, query)
    items = iterate_items(call.hf, session, after=query.after, descending=query.order == "desc")
    return await take_page(items, query.limit)


@routes.add("POST", _ITEMS, "write", error_statuses=(422,), request_headers=(KEY,))
async def add_items(call: Call, query: ResponseQuery, body: NewItems) -> ItemList:
    """Add items to a conversation."""
    _check_items(body.items)
    session = await _get(call, query)
    return ItemList.of(await _append(call, session, body.items, await _parse(call, body.items)), has_more=False)


@routes.add("GET", _ITEM, "read", answer={JSON: ConversationItem})
async def get_item(call: Call, query: ResponseQuery) -> Any:
    """Return an item of a conversation."""
    return (await find_item(call.hf, await _get(call, query), call.path["item_id"])).item


@routes.add("DELETE", _ITEM, "write")
async def delete_item(call: Call, query: SessionQuery) -> ConversationObject:
    """Delete an item from a conversation.

    The newest message is taken out of the conversation, and stays in the log as retired. An older one is erased. If the item is one of several
    of its message, such as one of parallel calls, the message is replaced by one with the other items. The calls of an older message stay
    together.
    """
    session, engine = await _get(call, query), call.hf.engine
    found = await find_item(call.hf, session, call.path["item_id"])
    last = await call.hf.store.entries(session.ref, limit=1, descending=True)
    others = [{name: value for name, value in item.items() if name != "id"} for item in found.others]
    rest = parse_items(others, "items")
    if last and last[0].seq == found.seq:
        now = call.hf.clock()
        entries = await make_entries(rest, [{}] * len(rest), timestamp=now)
        write = Append(entries=entries, timestamp=now, retire_from=found.seq, expect=session.version)
        session = (await append_to_log(engine, session.ref, write)).session
    elif rest and found.item["type"] in ("function_call", "custom_tool_call"):
        message = (
            "the item is one of several calls of an older message, which stay together: delete the newer items first"
        )
        raise InvalidRequest(message, param="item_id")
    elif rest:
        await replace_entry(engine, session.ref, found.seq, rest[0], {}, erase=True)
    else:
        await erase_everywhere(engine, session.ref, found.seq)
    return ConversationObject.from_session(session)


async def _get(call: Call, query: SessionQuery) -> Session:
    return await get_conversation(call.hf, call.path["conversation_id"], call.get_owner(query.user_id))


def _check_items(items: Any) -> None:
    if not isinstance(items, list) or len(items) > MOST_NEW:
        raise InvalidRequest(f"items must be a list of at most {MOST_NEW} items", param="items")


async def _parse(call: Call, items: list[Any]) -> list[Message]:
    messages = await run_cpu(parse_items, items, "items", long=call.body_size > INLINE_BODY_BYTES)
    if not messages:
        raise InvalidRequest("items has no message", param="items")
    return messages


async def _append(call: Call, session: Session, items: list[Any], messages: list[Message]) -> list[JsonObject]:
    """Append the messages that items were parsed to, and return the items as stored."""
    now = call.hf.clock()
    write = Append(
        entries=await make_entries(messages, [{}] * len(messages), timestamp=now),
        timestamp=now,
        idempotency_key=call.get_header("idempotency-key") or None,
        fingerprint=hashlib.blake2b(msgspec.json.encode(items, order="sorted"), digest_size=16).digest(),
    )
    written = await append_to_log(call.hf.engine, session.ref, write)
    return await make_log_items(call.hf, session, written.entries)
