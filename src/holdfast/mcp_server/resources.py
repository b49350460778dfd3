"""Sessions and memories as MCP resources: `holdfast://sessions/{id}` and `holdfast://memories/{id}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from holdfast.context.recalled import format_time
from holdfast.errors import InvalidRequest
from holdfast.limits import MCP_PAGE
from holdfast.mcp_server.caller import McpCaller
from holdfast.mcp_server.results import MemoryItem
from holdfast.mcp_server.transcript import read_transcript
from holdfast.memory.checks import find_owners
from holdfast.stores.checks import check_id

TEMPLATES: Final[Mapping[str, str]] = {
    "holdfast://sessions/{id}": "The newest messages of a session, as many as fit into 8,000 tokens",
    "holdfast://memories/{id}": "A remembered fact",
}
"""Templates of the resources' URIs, with descriptions."""
_SESSIONS: Final = "holdfast://sessions/"
_MEMORIES: Final = "holdfast://memories/"
_READ: Final = 8_000
"""Maximum tokens of a session's messages in a resource."""
_NAME_CHARS: Final = 80


class ListedResource(NamedTuple):
    """A resource in a list."""

    uri: str
    name: str
    description: str


class ResourcePage(NamedTuple):
    """A page of resources."""

    resources: list[ListedResource]
    cursor: str | None
    """Cursor of the next page; None: this is the last one."""


async def list_resources(caller: McpCaller, cursor: str | None) -> ResourcePage:
    """Return a page of the list of the user's sessions, newest first, followed by the user's memories, newest first.

    Args:
        caller: the caller.
        cursor: the URI after which the page begins; None: the first page.

    Raises:
        InvalidRequest: the cursor does not come from a previous page.
        SessionNotFound, MemoryNotFound: the session or memory in the cursor was deleted. The list can be read again from its beginning.
    """
    if cursor is not None and cursor.startswith(_MEMORIES):
        return await _list_memories(caller, cursor.removeprefix(_MEMORIES) or None, MCP_PAGE)
    if cursor is not None and not cursor.startswith(_SESSIONS):
        raise InvalidRequest("cursor is not one of a previous page; leave it out to begin again", param="cursor")
    after = None if cursor is None else caller.refer_to(_decode(cursor.removeprefix(_SESSIONS)))
    page = await caller.hf.sessions(user_id=caller.user_id, limit=MCP_PAGE, after=after)
    found = [
        ListedResource(
            uri=_SESSIONS + quote(one.id, safe=""),
            name=f"session {one.id}"[:_NAME_CHARS],
            description=f"{one.messages} messages, {one.tokens} tokens, last changed {format_time(one.updated_at)}",
        )
        for one in page.sessions
    ]
    if page.has_more:
        return ResourcePage(found, found[-1].uri)
    if len(found) == MCP_PAGE:
        return ResourcePage(found, _MEMORIES)
    memories = await _list_memories(caller, None, MCP_PAGE - len(found))
    return ResourcePage([*found, *memories.resources], memories.cursor)


async def _list_memories(caller: McpCaller, after: str | None, limit: int) -> ResourcePage:
    page = await caller.hf.memories.page(caller.owner, status="active", after=after, limit=limit, descending=True)
    found = [
        ListedResource(
            uri=_MEMORIES + one.id,
            name=" ".join(one.content[:_NAME_CHARS].split()),
            description=f"{one.type} memory, origin {one.origin}, last changed {format_time(one.updated_at)}",
        )
        for one in page.memories
    ]
    return ResourcePage(found, found[-1].uri if page.has_more else None)


async def read_resource(caller: McpCaller, uri: str) -> str:
    """Return the text of a resource: messages of a session, or a memory, marked as data.

    Raises:
        InvalidRequest: the URI does not name a session or a memory.
        SessionNotFound, MemoryNotFound: there is no such session or memory, or it belongs to another user.
    """
    if uri.startswith(_SESSIONS):
        session_id = _decode(uri.removeprefix(_SESSIONS))
        return (await read_transcript(caller.hf, caller.refer_to(session_id), _READ)).to_text()
    if uri.startswith(_MEMORIES):
        owners = find_owners(caller.user_id, caller.agent)
        memory = await caller.hf.memories.get(uri.removeprefix(_MEMORIES), owners=owners)
        item = MemoryItem.from_memory(memory, format_time(memory.updated_at))
        return msgspec.json.encode({**msgspec.to_builtins(item), "status": memory.status}).decode()
    raise InvalidRequest(f"unknown resource {uri!r:.80}; use {' or '.join(TEMPLATES)}", param="uri")


def _decode(name: str) -> str:
    """Return the percent-decoded id. Raise `InvalidRequest` if it is not a valid id."""
    try:
        found = unquote(name, errors="strict")
    except UnicodeDecodeError as exc:
        raise InvalidRequest("the id in the URI is not percent-encoded UTF-8", param="uri") from exc
    check_id(found, "id")
    return found
