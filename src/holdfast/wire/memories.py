"""Memories in the REST API and on the command line."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from msgspec import UNSET, UnsetType

from holdfast.domain.memory import Memory, MemoryFields, OwnerKind, SourceFields
from holdfast.domain.objects import Count, Share, json_schema, make_object
from holdfast.limits import MEMORY_SOURCES

MemoryScope = Annotated[OwnerKind, json_schema(description="the kind of owner")]


class MemorySourceObject(SourceFields, frozen=True, kw_only=True):
    """Messages from which a memory was made."""


class MemoryObject(MemoryFields, frozen=True, kw_only=True):
    """A memory: a fact that persists across sessions."""

    object: Literal["memory"] = "memory"
    scope: MemoryScope
    user_id: str | None
    """The user who owns the memory, for scope `user`."""
    agent: str | None = None
    """For scope `agent`: the agent that owns the memory. For other scopes: the agent that created it."""
    sources: Annotated[list[MemorySourceObject], json_schema(description=f"at most {MEMORY_SOURCES}")]

    @classmethod
    def from_memory(cls, memory: Memory, *, reader: str | None = None, **more: Any) -> Self:
        owner = memory.owner
        sources = [make_object(MemorySourceObject, one) for one in memory.sources if reader in (None, one.user_id)]
        return make_object(
            cls,
            memory,
            scope=owner.kind,
            user_id=owner.id if owner.kind == "user" else None,
            agent=owner.id if owner.kind == "agent" else memory.agent,
            sources=sources,
            **more,
        )


class RememberedMemory(MemoryObject, frozen=True, kw_only=True):
    """A memory after a request to remember it, with the outcome and similar memories."""

    outcome: Literal["new", "merged", "superseded"]
    """`new`: the memory was stored. `merged`: it was known already. `superseded`: it replaces other memories."""
    similar: list[MemoryObject]
    """Similar memories. They stay unchanged."""


class FoundMemory(MemoryObject, frozen=True, kw_only=True):
    """A memory in a list or a search result."""

    score: Share | UnsetType = UNSET
    """For a search with `q`: how well the memory matches the query."""
    parts: dict[str, float] | UnsetType = UNSET
    """Components of the score: `keyword`, `vector`, `relevance`, `recency`, `standing`."""
    age: Count | UnsetType = UNSET
    """Milliseconds since the memory was last mentioned."""
