"""Memories on a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.memory import Memory, MemorySource, MemoryType, Origin
from holdfast.errors import InvalidRequest
from holdfast.memory.lookup import RecalledMemories
from holdfast.memory.memories import Memories, Remembered, ReviewDecision
from holdfast.recall.base import SearchMode
from holdfast.remote.objects import decode, parse_page, parse_with, to_memory, to_recalled, to_remembered
from holdfast.remote.transport import Transport, leave_out, match
from holdfast.signatures import Arguments, like
from holdfast.stores.memories import OwnedMemories
from holdfast.wire.sendable import check_text

_PATH: Final = ("v1", "memories")
_parse_memory: Final = parse_with(to_memory)
_parse_memories: Final = parse_page(to_memory)


class RemoteMemories:
    """Facts that are remembered across sessions, available as `hf.memories`.

    Args:
        transport: the connections.
        user_id: user of calls that name no user; None: the key's user, else `default`.
    """

    def __init__(self, transport: Transport, user_id: str | None) -> None:
        self._transport, self._user_id = transport, user_id

    @like(Memories.remember)
    async def remember(self, given: Arguments) -> Remembered:
        """Remember a statement. The arguments and errors are those of `Memories.remember`, except that `held` must be False."""
        if given.pop("held"):
            raise InvalidRequest(
                "held is possible in the library only: a server decides it by the origin", param="held"
            )
        app = given.pop("app")
        body = {**given, "scope": "app" if app else None}
        body["user_id"] = None if app else given["user_id"] or (None if given["agent"] else self._user_id)
        body["sources"] = [_to_source(one) for one in given["sources"]]
        body |= {name: _to_list(given[name], name) for name in ("tags", "supersedes")}
        if given["metadata"] is not None:
            body["metadata"] = dict(given["metadata"])
        return await self._transport.call("POST", *_PATH, body=leave_out(None, body), parse=parse_with(to_remembered))

    async def recall(
        self,
        query: str,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        mode: SearchMode | None = None,
        limit: int = 5,
        type: MemoryType | None = None,  # noqa: A002 - what it is called
        tag: str | None = None,
        min_score: float = 0,
    ) -> RecalledMemories:
        """Return the memories of the user, the agent and the app that answer a question, best first.

        Args:
            query: the question, in plain words.
            user_id: the user; None: the user of the connection.
            agent: an agent whose memories are searched too; None: no agent's.
            mode: `keyword`, `vector` or `hybrid`; None: the server's mode.
            limit: maximum number of memories.
            type: only memories of this type.
            tag: only memories with this tag.
            min_score: minimum score of a match, 0 to 1.

        Raises:
            InvalidRequest: an argument is invalid.
        """
        check_text(query, "query")
        if not query.strip():
            raise InvalidRequest("query is empty: say what to recall", param="query")
        given: dict[str, Any] = {"q": query, "agent": agent, "mode": mode, "limit": limit, "type": type, "tag": tag}
        given |= {"user_id": user_id or self._user_id, "min_score": min_score or None}
        return await self._transport.call("GET", *_PATH, query=given, parse=parse_with(to_recalled))

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        scope: str | None = None,
        status: str | None = None,
        type: MemoryType | None = None,  # noqa: A002 - what it is called
        tag: str | None = None,
        after: str | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> OwnedMemories:
        """Return a page of the memories of one owner. Its `version` and `total` are not known, so they are 0.

        Args:
            user_id: the user; None: the user of the connection.
            agent: only memories that this agent remembered.
            scope: kind of the owner: `user`, `agent` or `app`; None: the user.
            status: only memories with this status.
            type: only memories of this type.
            tag: only memories with this tag.
            after: begin after the memory with this id.
            limit: maximum number of memories.
            descending: True: newest first.
        """
        given: dict[str, Any] = {"agent": agent, "scope": scope, "status": status, "type": type, "tag": tag}
        given |= {"user_id": user_id or self._user_id, "after": after, "limit": limit}
        given["order"] = "desc" if descending else "asc"
        page = await self._transport.call("GET", *_PATH, query=given, parse=_parse_memories)
        return OwnedMemories(0, page.items, has_more=page.has_more)

    async def get(self, memory_id: str) -> Memory:
        """Return a memory. Raises `MemoryNotFound` if there is no such memory."""
        return await self._transport.call("GET", *_PATH, memory_id, parse=_parse_memory)

    async def update(
        self,
        memory_id: str,
        *,
        expect: int | None = None,
        content: str | UnsetType = UNSET,
        type: MemoryType | UnsetType = UNSET,  # noqa: A002 - what it is called
        tags: Collection[str] | UnsetType = UNSET,
        importance: float | UnsetType = UNSET,
        valid_from: int | None | UnsetType = UNSET,
        valid_until: int | None | UnsetType = UNSET,
        metadata: Mapping[str, Any] | UnsetType = UNSET,
        origin: Origin = "user",
    ) -> Remembered:
        """Change a memory. The arguments and errors are those of `Memories.update`."""
        given: dict[str, Any] = {
            "content": content,
            "type": type,
            "importance": importance,
            "origin": origin,
            "metadata": metadata,
        }
        given |= {"tags": tags if isinstance(tags, UnsetType) else _to_list(tags, "tags")}
        body = leave_out(UNSET, {**given, "valid_from": valid_from, "valid_until": valid_until})
        return await self._transport.call(
            "PATCH", *_PATH, memory_id, body=body, headers=match(expect), parse=parse_with(to_remembered)
        )

    async def review(self, memory_id: str, decision: ReviewDecision) -> Memory:
        """Accept or reject a memory that is held for review, and return it. Raises the errors of `Memories.review`."""
        body = {"decision": decision}
        return await self._transport.call("POST", *_PATH, memory_id, "review", body=body, parse=_parse_memory)

    async def forget(self, memory_id: str) -> int:
        """Delete a memory and those that it replaced, and return how many. Raises `MemoryNotFound` if there is no such memory."""
        deleted = await self._transport.call("DELETE", *_PATH, memory_id, parse=decode)
        return int(deleted["memories"])


def _to_list(values: Collection[str], name: str) -> list[str]:
    if isinstance(values, str):
        raise InvalidRequest(f"{name} must be a list of strings, not a string", param=name)
    return [*values]


def _to_source(source: MemorySource) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(source)
    return {name: value for name, value in found.items() if name != "identity"}
