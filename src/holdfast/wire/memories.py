"""A memory as the API, exports and the command line tell it."""

from __future__ import annotations

from typing import Any

from holdfast.domain.memory import Memory


def memory_to(memory: Memory) -> dict[str, Any]:
    """A memory as an object that JSON can carry."""
    owner = memory.owner
    return {
        "object": "memory",
        "id": memory.id,
        "scope": owner.kind,
        "user_id": owner.id if owner.kind == "user" else None,
        "agent": owner.id if owner.kind == "agent" else memory.agent,
        "content": memory.content,
        "type": memory.type,
        "tags": list(memory.tags),
        "importance": memory.importance,
        "origin": memory.origin,
        "trust": memory.trust,
        "status": memory.status,
        "sources": [
            {"session_id": one.session_id, "user_id": one.user_id, "seqs": list(one.seqs), "origin": one.origin}
            for one in memory.sources
        ],
        "created_at": memory.created_at,
        "updated_at": memory.updated_at,
        "valid_from": memory.valid_from,
        "valid_until": memory.valid_until,
        "supersedes": list(memory.supersedes),
        "superseded_by": memory.superseded_by,
        "promoted_at": memory.promoted_at,
        "reviewed_at": memory.reviewed_at,
        "metadata": memory.metadata,
        "version": memory.version,
    }
