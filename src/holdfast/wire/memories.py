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
    """A memory, which persists across sessions."""

    object: Literal["memory"] = "memory"
    id: MemoryId
    scope: MemoryScope
    user_id: str | None
    """The user who owns it, for scope `user`."""
    agent: str | None
    """The agent that owns it, for scope `agent`; otherwise the agent that remembered it."""
    content: Content
    type: Type
    tags: Tags
    importance: Share
    """Importance as given when it was remembered; 0.5 by default."""
    origin: MemoryOrigin
    trust: Share
    """Trust in it: that of its least trusted source."""
    status: Status
    """`quarantined`: waits for review; `superseded`: replaced by another memory."""
    sources: Annotated[list[MemorySourceObject], json_schema(description=f"at most {MEMORY_SOURCES}")]
    created_at: Time
    updated_at: Time
    valid_from: Count | None
    """Time from which it is valid, in milliseconds since the epoch."""
    valid_until: Count | None
    """Time until which it is valid."""
    supersedes: list[MemoryId]
    """Memories that it replaces."""
    superseded_by: MemoryId | None
    promoted_at: Time | None
    reviewed_at: Time | None
    metadata: JsonObject
    """Any metadata."""
    version: Count
    """Version, for `If-Match`."""

    @classmethod
    def from_memory(cls, memory: Memory, *, reader: str | None = None, **more: Any) -> Self:
        """Create the object for a memory.

        Args:
            memory: The memory.
            reader: A user, who must not see sources in the sessions of other users. None shows all sources.
            more: Fields of the subclass.
        """
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
    """The result of remembering something."""

    outcome: Literal["new", "merged", "superseded"]
    """`merged`: it was known already; `superseded`: it replaces others."""
    similar: list[MemoryObject]
    """Similar memories, which stay unchanged."""


class FoundMemory(MemoryObject, kw_only=True):
    """A memory in a list or a search result."""

    score: Share | UnsetType = UNSET
    """With `q`: how well it matches the query."""
    parts: dict[str, float] | UnsetType = UNSET
    """Components of the score: `keyword`, `vector`, `relevance`, `recency`, `standing`."""
    age: Count | UnsetType = UNSET
    """Milliseconds since it was last mentioned."""
