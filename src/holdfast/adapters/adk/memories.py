"""Search stored sessions and remembered facts as ADK's memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, zip_longest
from typing import Any, Final

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

import holdfast
from holdfast.adapters.adk.contents import EVENT, get_content, get_texts, prepare_event, read_event
from holdfast.adapters.adk.tenant import TenantService, ensure_session, is_stored_elsewhere
from holdfast.errors import EntryNotFound, InvalidRequest, MemoryNotFound, SessionNotFound

FOUND: Final = 10
"""Maximum number of memories that a search returns, as in ADK's own services."""
QUERY_CHARS: Final = 2_000
"""Maximum characters of a query that are used; the rest is ignored."""
UNKNOWN: Final = " memory"
"""Id of the session with copies of events whose session is unknown. No session of ADK has it, because ADK strips ids."""
PAGE: Final = 500
"""Maximum number of log entries that are read at a time."""
_OWN: Final = "adk"
"""Key in the metadata of a fact under which the other fields of its `MemoryEntry` are stored."""
_FORGOTTEN: Final = "adk-forgotten"
"""Namespace of a session's records that name the events which `delete_memory` removed from the memory, by their `seq`."""


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

        Of events with the same id in one session, only the first is copied. `custom_metadata` is ignored, as in ADK's own services.
        """

        async def add(hf: holdfast.Holdfast) -> None:
            copy = await ensure_session(hf, (session_id or "").strip() or UNKNOWN, user_id)
            if not is_stored_elsewhere(await copy.info()):
                return
            known = await _read_ids(copy)
            for event in events:
                if get_content(event) is not None and not event.partial and event.id not in known:
                    messages, _ = await prepare_event(event)
                    await copy.append(messages, idempotency_key=_make_key(event.id))
                    known.add(event.id)

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
                own = {"author": memory.author, "timestamp": memory.timestamp, "custom_metadata": metadata}
                await hf.memories.remember(text, user_id=user_id, origin="assistant", metadata={_OWN: own})

        await self._run(app_name, add)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return at most ten memories that answer a query: facts and events alternately, each best first."""
        query = query.strip()[:QUERY_CHARS]
        if not query or not user_id:
            return SearchMemoryResponse()

        async def search(hf: holdfast.Holdfast) -> list[MemoryEntry]:
            recalled = await hf.memories.recall(query, user_id=user_id, limit=FOUND)
            facts = [_make_entry(one.memory) for one in recalled.found]
            events = await _search_events(hf, user_id, query)
            both = chain.from_iterable(zip_longest(facts, events))
            return [one for one in both if one is not None][:FOUND]

        return SearchMemoryResponse(memories=await self._run(app_name, search))

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete a fact or the copy of an event for good. An unknown id changes nothing.

        An event of a session in this database is only removed from the memory: the session keeps it, and `hf.erase` erases it.
        """

        async def delete(hf: holdfast.Holdfast) -> None:
            session_id, is_event, number = (memory_id or "").rpartition("#")
            try:
                if not is_event:
                    await hf.memories.forget(str(memory_id), owners=[holdfast.Owner("user", user_id)])
                elif number.isdecimal():
                    await _delete_event(hf, holdfast.SessionRef(user_id, session_id), int(number))
            except (MemoryNotFound, SessionNotFound, EntryNotFound, InvalidRequest):  # the last: no id of Holdfast's
                pass

        if memory_id:
            await self._run(app_name, delete)


async def _delete_event(hf: holdfast.Holdfast, ref: holdfast.SessionRef, seq: int) -> None:
    session = await hf.get(ref)
    if is_stored_elsewhere(await session.info()):
        await hf.erase(ref, seq)
    else:
        await session.records(_FORGOTTEN).put(str(seq), True)


async def _read_ids(copy: holdfast.SessionHandle) -> set[str]:
    """Return the ids of all copied events."""
    known: set[str] = set()
    start = 0
    while page := await copy.entries(start, limit=PAGE):
        known.update(str(entry.metadata[EVENT]) for entry in page if entry.metadata and EVENT in entry.metadata)
        start = page[-1].seq + 1
    return known


def _make_key(event_id: str) -> str:
    """Return the idempotency key with which an event is copied. It makes sure that a deleted copy is not made again."""
    return f"adk-copy-{hashlib.blake2b(event_id.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


async def _search_events(hf: holdfast.Holdfast, user_id: str, query: str) -> list[MemoryEntry]:
    """Return the events that answer a query, best first, without those that were deleted from the memory."""
    found: list[MemoryEntry] = []
    cursor: str | None = None
    while len(found) < FOUND:
        page = await hf.search(query, user_id, limit=FOUND, after=cursor)
        by_session: dict[str, list[Any]] = {}
        for hit in page.hits:
            by_session.setdefault(hit.session_id, []).append(hit)
        read = await asyncio.gather(*(_read_hits(hf, user_id, name, hits) for name, hits in by_session.items()))
        entries = {str(entry.id): entry for some in read for entry in some}
        found += [entries[hit.id] for hit in page.hits if hit.id in entries]
        cursor = page.cursor
        if cursor is None:
            break
    return found


async def _read_hits(hf: holdfast.Holdfast, user_id: str, session_id: str, hits: Sequence[Any]) -> list[MemoryEntry]:
    """Return the events of a session that a search found, without those that were deleted from the memory."""
    try:
        session = await hf.get(session_id, user_id=user_id)
        forgotten = await session.records(_FORGOTTEN).get_many([str(hit.seq) for hit in hits])
        wanted = [hit for hit in hits if str(hit.seq) not in forgotten]
        read = [(hit, await session.entries(hit.seq, stop=hit.seq + 1)) for hit in wanted]
    except SessionNotFound:  # deleted since it was found
        return []
    return [_make_event_entry(hit, entries[0].message) for hit, entries in read if entries]


def _make_event_entry(hit: Any, message: holdfast.Message) -> MemoryEntry:
    event = read_event(message.origin)
    content = get_content(event) if event else None
    said = types.Content(role="user" if hit.role == "user" else "model", parts=[types.Part(text=message.text)])
    return MemoryEntry(
        id=hit.id,
        content=content or said,
        author=event.author if event else hit.role,
        timestamp=_format_time(event.timestamp if event else hit.timestamp / 1000),
    )


def _make_entry(memory: Any) -> MemoryEntry:
    own = memory.metadata.get(_OWN) or {}
    return MemoryEntry(
        id=memory.id,
        content=types.Content(role="user", parts=[types.Part(text=memory.content)]),
        author=own.get("author"),
        timestamp=own.get("timestamp") or _format_time(memory.updated_at / 1000),
        custom_metadata=own.get("custom_metadata", {}),
    )


def _format_time(seconds: float) -> str | None:
    """Format a time as ISO 8601, or return None for a time that is out of range, such as one in milliseconds."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None
