"""Memories as the REST API and the command line show them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from msgspec import UNSET, UnsetType

from holdfast.domain.memory import Memory, MemoryType, Origin, Status
from holdfast.limits import MEMORY_CHARS, MEMORY_SOURCES, MEMORY_TAG_CHARS, MEMORY_TAGS
from holdfast.wire.objects import Answer, Count, Id, JsonObject, Share, Time, json_schema

MemoryId = Annotated[str, json_schema(description="`mem_` and 32 hexadecimal digits")]
Content = Annotated[str, json_schema(description=f"what it says, at most {MEMORY_CHARS} characters", minLength=1)]
Tags = Annotated[
    list[Annotated[str, json_schema(description=f"at most {MEMORY_TAG_CHARS} characters", minLength=1)]],
    json_schema(description=f"words that it is found by, at most {MEMORY_TAGS}"),
]
MemoryScope = Annotated[Literal["user", "agent", "app"], json_schema(description="whose it is")]
MemoryOrigin = Annotated[Origin, json_schema(description="where its words come from; the least trusted of them")]
Type = Annotated[MemoryType, json_schema(description="what kind of fact")]


class MemorySourceObject(Answer):
    """Messages that a memory was made from."""

    session_id: Id
    user_id: Id
    seqs: list[Count]
    """Which messages; none: it is not known."""
    origin: MemoryOrigin


class MemoryObject(Answer, kw_only=True):
    """What is remembered across sessions."""

    object: Literal["memory"] = "memory"
    id: MemoryId
    scope: MemoryScope
    user_id: str | None
    """Whose, of a user's."""
    agent: str | None
    """Whose, of an agent's; else which agent remembered it."""
    content: Content
    type: Type
    tags: Tags
    importance: Share
    """As whoever remembers it says; 0.5 unless given."""
    origin: MemoryOrigin
    trust: Share
    """The least of its sources'."""
    status: Status
    """`quarantined`: held for review; `superseded`: another one is in its place."""
    sources: Annotated[list[MemorySourceObject], json_schema(description=f"at most {MEMORY_SOURCES}")]
    created_at: Time
    updated_at: Time
    valid_from: Count | None
    """Milliseconds since the epoch, from when on it holds."""
    valid_until: Count | None
    """Until when."""
    supersedes: list[MemoryId]
    """In whose place it is."""
    superseded_by: MemoryId | None
    promoted_at: Time | None
    reviewed_at: Time | None
    metadata: JsonObject
    """Anything."""
    version: Count
    """For `If-Match`."""

    @classmethod
    def from_memory(cls, memory: Memory, *, reader: str | None = None, **more: Any) -> Self:
        """Show a memory.

        Args:
            memory: the memory.
            reader: a user who sees none of the sessions of others that it comes from; None: all of them are shown.
            more: fields of the subclass.
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
    """What became of something that was to be remembered."""

    outcome: Literal["new", "merged", "superseded"]
    """`merged`: it was there already; `superseded`: it is in place of others."""
    similar: list[MemoryObject]
    """Those that are alike, and stay as they are."""


class FoundMemory(MemoryObject, kw_only=True):
    """A memory in a list."""

    score: Share | UnsetType = UNSET
    """With `q`: how well it answers."""
    parts: dict[str, float] | UnsetType = UNSET
    """What the score is made of: `keyword`, `vector`, `relevance`, `recency`, `standing`."""
    age: Count | UnsetType = UNSET
    """Milliseconds since it was last said."""
