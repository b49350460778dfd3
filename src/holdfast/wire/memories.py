"""Memories in the REST API and on the command line."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from msgspec import UNSET, UnsetType

from holdfast.domain.memory import Memory, MemoryType, Origin, Status
from holdfast.limits import MEMORY_CHARS, MEMORY_SOURCES, MEMORY_TAG_CHARS, MEMORY_TAGS
from holdfast.wire.objects import Answer, Count, Id, JsonObject, Share, Time, json_schema

MemoryId = Annotated[str, json_schema(description="`mem_` and 32 hexadecimal digits")]
Content = Annotated[str, json_schema(description=f"the text, at most {MEMORY_CHARS} characters", minLength=1)]
Tags = Annotated[
    list[Annotated[str, json_schema(description=f"at most {MEMORY_TAG_CHARS} characters", minLength=1)]],
    json_schema(description=f"keywords, at most {MEMORY_TAGS}"),
]
MemoryScope = Annotated[Literal["user", "agent", "app"], json_schema(description="the kind of owner")]
MemoryOrigin = Annotated[
    Origin, json_schema(description="where its text comes from; the least trusted of several sources")
]
Type = Annotated[MemoryType, json_schema(description="the kind of fact")]


class MemorySourceObject(Answer):
    """Messages from which a memory was made."""

    session_id: Id
    user_id: Id
    seqs: list[Count]
    """`seq` of the messages; empty if unknown."""
    origin: MemoryOrigin


class MemoryObject(Answer, kw_only=True):
    """A memory: a fact that persists across sessions."""

    object: Literal["memory"] = "memory"
    id: MemoryId
    scope: MemoryScope
    user_id: str | None
    """The user who owns the memory, for scope `user`."""
    agent: str | None
    """For scope `agent`: the agent that owns the memory. For other scopes: the agent that created it."""
    content: Content
    type: Type
    tags: Tags
    importance: Share
    """Importance given when the memory was created; 0.5 by default."""
    origin: MemoryOrigin
    trust: Share
    """Trust in the memory: the trust in its least trusted source."""
    status: Status
    """`quarantined`: awaits a review. `superseded`: replaced by another memory."""
    sources: Annotated[list[MemorySourceObject], json_schema(description=f"at most {MEMORY_SOURCES}")]
    created_at: Time
    updated_at: Time
    valid_from: int | None
    """Time from which the memory is valid, in milliseconds since the epoch."""
    valid_until: int | None
    """Time until which the memory is valid, in milliseconds since the epoch."""
    supersedes: list[MemoryId]
    """Ids of the memories that this memory replaces."""
    superseded_by: MemoryId | None
    promoted_at: Time | None
    reviewed_at: Time | None
    metadata: JsonObject
    """Metadata of any form."""
    version: Count
    """Version of the memory, for `If-Match`."""

    @classmethod
    def from_memory(cls, memory: Memory, *, reader: str | None = None, **more: Any) -> Self:
        owner = memory.owner
        sources = [MemorySourceObject.from_fields(one) for one in memory.sources if reader in (None, one.user_id)]
        return cls.from_fields(
            memory,
            scope=owner.kind,
            user_id=owner.id if owner.kind == "user" else None,
            agent=owner.id if owner.kind == "agent" else memory.agent,
            sources=sources,
            **more,
        )


class RememberedMemory(MemoryObject, kw_only=True):
    """A memory after a request to remember it, with the outcome and similar memories."""

    outcome: Literal["new", "merged", "superseded"]
    """`new`: the memory was stored. `merged`: it was known already. `superseded`: it replaces other memories."""
    similar: list[MemoryObject]
    """Similar memories. They stay unchanged."""


class FoundMemory(MemoryObject, kw_only=True):
    """A memory in a list or a search result."""

    score: Share | UnsetType = UNSET
    """For a search with `q`: how well the memory matches the query."""
    parts: dict[str, float] | UnsetType = UNSET
    """Components of the score: `keyword`, `vector`, `relevance`, `recency`, `standing`."""
    age: Count | UnsetType = UNSET
    """Milliseconds since the memory was last mentioned."""
