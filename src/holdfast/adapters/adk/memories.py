"""Search stored sessions and remembered facts as ADK's memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, zip_longest
from typing import Any, Final

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

import holdfast
from holdfast.adapters.adk.contents import EVENT, get_texts, prepare_event, read_event
from holdfast.adapters.adk.sessions import MEMORY
from holdfast.adapters.adk.tenant import TenantService, ensure_session
from holdfast.errors import EntryNotFound, MemoryNotFound, SessionNotFound

FOUND: Final = 10
"""Maximum number of memories that a search returns, as in ADK's own services."""
QUERY_CHARS: Final = 2_000
"""Maximum characters of a query that are used; the rest is ignored."""
_PREFIX: Final = "mem_"


class HoldfastMemoryService(TenantService, BaseMemoryService):
    """Searches the conversations of a user, and facts that were added with `add_memory`.

    Sessions of a `HoldfastSessionService` on the same database are searched directly. Events of other sessions are copied once.
    """

    async def add_session_to_memory(self, session: Session) -> None:
        """Make a session searchable. Do nothing for a session of a `HoldfastSessionService` on this database."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store copies of events, so that searches find them. Events of a session in this database are not copied again.

        `custom_metadata` is ignored, as in ADK's own services.
        """

        async def add(hf: holdfast.Holdfast) -> None:
            if session_id is not None:
                try:
                    await hf.get(session_id, user_id=user_id)
                except SessionNotFound:
                    pass
                else:
                    return
            copy = await ensure_session(hf, f"{MEMORY}{session_id or ''}", user_id)
            for event in await _list_new(copy, events):
                messages, idempotency_key = await prepare_event(event)
                await copy.append(messages, idempotency_key=idempotency_key)

        await self._run(app_name, add)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember facts for a user, as words of the assistant.

        Raises:
            ValueError: a memory has no text. The memories before it are stored.
        """

        async def add(hf: holdfast.Holdfast) -> None:
            for memory in memories:
                text = "\n".join(get_texts(memory.content))
                if not text.strip():
                    raise ValueError("a memory needs text: give it a content with a text part")
                metadata = {**memory.custom_metadata, **(custom_metadata or {})}
                own = {"author": memory.author, "timestamp": memory.timestamp, "custom_metadata": metadata or None}
                await hf.memories.remember(
                    text,
                    user_id=user_id,
                    origin="assistant",
                    metadata={name: value for name, value in own.items() if value is not None},
                )

        await self._run(app_name, add)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return at most ten memories that answer a query: facts and events alternately, each best first."""
        query = query.strip()[:QUERY_CHARS]
        if not query or not user_id:
            return SearchMemoryResponse()

        async def search(hf: holdfast.Holdfast) -> list[MemoryEntry]:
            recalled = await hf.memories.recall(query, user_id=user_id, limit=FOUND)
            facts = [_make_entry(one.memory) for one in recalled.found]
            events = [one async for one in _iter_events(hf, user_id, query)]
            both = chain.from_iterable(zip_longest(facts, events))
            return [one for one in both if one is not None][:FOUND]

        return SearchMemoryResponse(memories=await self._run(app_name, search))

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete a fact, or the copy of an event. An unknown id changes nothing.

        Raises:
            NotImplementedError: the memory is an event of a session in this database. Erase such an event with `hf.erase`.
        """
        if not memory_id:
            return

        async def delete(hf: holdfast.Holdfast) -> None:
            if memory_id.startswith(_PREFIX):
                try:
                    await hf.memories.forget(memory_id, owners=[holdfast.Owner("user", user_id)])
                except MemoryNotFound:
                    pass
                return
            session_id, is_event, seq = memory_id.rpartition("#")
            if not is_event:
                return
            if not session_id.startswith(MEMORY):
                raise NotImplementedError(
                    f"{memory_id} is an event of a stored session: erase it with `hf.erase`, or delete the session"
                )
            try:
                await hf.erase(holdfast.SessionRef(user_id, session_id), int(seq))
            except (SessionNotFound, EntryNotFound):
                pass

        await self._run(app_name, delete)


async def _list_new(copy: holdfast.SessionHandle, events: Sequence[Event]) -> list[Event]:
    """Return the events with content that follow the newest copied event, or all of them if that event is not in `events`."""
    with_content = [event for event in events if event.content and event.content.parts and not event.partial]
    newest = await copy.entries(limit=1, descending=True)
    known = (newest[0].metadata or {}).get(EVENT) if newest else None
    at = next((at for at, event in enumerate(with_content) if event.id == known), -1)
    return with_content[at + 1 :]


async def _iter_events(hf: holdfast.Holdfast, user_id: str, query: str) -> AsyncIterator[MemoryEntry]:
    for hit in (await hf.search(query, user_id, limit=FOUND)).hits:
        try:
            session = await hf.get(hit.session_id, user_id=user_id)
            entries = await session.entries(hit.seq, stop=hit.seq + 1)
        except SessionNotFound:  # deleted since it was found
            continue
        for entry in entries:
            event = read_event(entry.message.origin)
            content = event.content if event else None
            yield MemoryEntry(
                id=hit.id,
                content=content or types.Content(role="user", parts=[types.Part(text=hit.snippet)]),
                author=event.author if event else hit.role,
                timestamp=_format_time(event.timestamp if event else hit.timestamp / 1000),
            )


def _make_entry(memory: Any) -> MemoryEntry:
    return MemoryEntry(
        id=memory.id,
        content=types.Content(role="user", parts=[types.Part(text=memory.content)]),
        author=memory.metadata.get("author"),
        timestamp=memory.metadata.get("timestamp") or _format_time(memory.updated_at / 1000),
        custom_metadata=memory.metadata.get("custom_metadata", {}),
    )


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
