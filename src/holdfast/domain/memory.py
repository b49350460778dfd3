"""Memories: facts that outlive the session they come from, with owner, sources and trust."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec

from holdfast.domain.objects import Count, Id, JsonObject, Share, Time, json_schema
from holdfast.limits import MEMORY_CHARS, MEMORY_TAG_CHARS, MEMORY_TAGS

OwnerKind = Literal["user", "agent", "app"]
Origin = Literal["user", "assistant", "tool", "web", "import", "summary"]
"""Origin of the text of a memory."""
MemoryType = Literal["semantic", "episodic", "procedural", "user", "feedback", "project", "reference"]
Status = Literal["active", "quarantined", "rejected", "superseded"]
"""Status of a memory:

- `active`: it is recalled, and may be promoted.
- `quarantined`: it awaits a review. It is recalled with its origin stated, but is not promoted.
- `rejected`: a review rejected it. It is never recalled.
- `superseded`: another memory replaced it. It is never recalled.
"""

MemoryId = Annotated[str, json_schema(description="`mem_` and 32 hexadecimal digits")]
Content = Annotated[str, json_schema(description=f"the text, at most {MEMORY_CHARS} characters", minLength=1)]
Tags = Annotated[
    tuple[Annotated[str, json_schema(description=f"at most {MEMORY_TAG_CHARS} characters", minLength=1)], ...],
    json_schema(description=f"keywords, at most {MEMORY_TAGS}"),
]
MemoryOrigin = Annotated[
    Origin, json_schema(description="where its text comes from; the least trusted of several sources")
]
Type = Annotated[MemoryType, json_schema(description="the kind of fact")]
TYPES: Final[tuple[MemoryType, ...]] = get_args(MemoryType)
ORIGINS: Final[tuple[Origin, ...]] = get_args(Origin)
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
TRUST: Final[dict[Origin, float]] = {
    "user": 1.0,
    "assistant": 0.7,
    "summary": 0.5,
    "import": 0.3,
    "tool": 0.2,
    "web": 0.1,
}
"""Trust in text of each origin, from 0 to 1."""
REVIEWED_ORIGINS: Final[frozenset[Origin]] = frozenset({"tool", "web", "import"})
"""Origins whose memories need a review before they can be promoted."""


class Owner(NamedTuple):
    """The owner of memories: a user, an agent, or the whole tenant. The id is empty for the tenant."""

    kind: OwnerKind
    id: str = ""


class SourceFields(msgspec.Struct, frozen=True, kw_only=True):
    """Messages from which a memory was made."""

    session_id: Id
    user_id: Id
    seqs: tuple[Count, ...] = ()
    """`seq` of the messages; empty if unknown."""
    origin: MemoryOrigin = "user"


class MemorySource(SourceFields, frozen=True, kw_only=True):
    """Entries of one session from which a memory was made."""

    identity: str = ""
    """Identity of the session. It distinguishes the session from earlier and later ones with the same id."""


class MemoryFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a memory that are the same in the library and in the REST API."""

    id: MemoryId
    agent: str | None = None
    """The agent that created the memory; this agent's workspace shows it. None: no agent created it."""
    content: Content
    type: Type = "semantic"
    tags: Tags = ()
    importance: Share = 0.5
    """Importance given when the memory was created; 0.5 by default."""
    origin: MemoryOrigin = "user"
    trust: Share = 1.0
    """Trust in the memory: the trust in its least trusted source."""
    status: Status = "active"
    """`quarantined`: awaits a review. `superseded`: replaced by another memory."""
    created_at: Time
    updated_at: Time
    valid_from: int | None = None
    """Time from which the memory is valid, in milliseconds since the epoch."""
    valid_until: int | None = None
    """Time until which the memory is valid, in milliseconds since the epoch."""
    supersedes: tuple[MemoryId, ...] = ()
    """Ids of the memories that this memory replaces."""
    superseded_by: MemoryId | None = None
    promoted_at: Time | None = None
    reviewed_at: Time | None = None
    metadata: JsonObject = {}
    """Metadata of any form."""
    version: Count = 0
    """Version of the memory, for `If-Match`."""


class Memory(MemoryFields, frozen=True, kw_only=True, omit_defaults=True):
    """A memory as it is stored.

    `version` is the owner's version when the memory was last changed. The store counts the versions of each owner.
    """

    owner: Owner
    number: int = 0
    """Number that the store assigns, from 1 for each owner. It is never reused. 0: not stored yet."""
    sources: tuple[MemorySource, ...] = ()
    score: float | None = None
    """The score with which the memory was promoted; None: never promoted."""

    @property
    def digest(self) -> bytes:
        """Digest of the content, as `digest_content` returns it. Memories with the same digest are duplicates."""
        return digest_content(self.content)

    @property
    def words(self) -> str:
        """The text in which searches look: content and tags."""
        return "\n".join((self.content, " ".join(self.tags))) if self.tags else self.content

    @property
    def is_recalled(self) -> bool:
        """True if searches can return the memory: it is neither superseded nor rejected."""
        return self.status in {"active", "quarantined"}

    def is_valid_at(self, now: int) -> bool:
        """Return True if searches can return the memory and it is valid at `now`, in milliseconds since the epoch."""
        if not self.is_recalled:
            return False
        return (self.valid_from or 0) <= now and (self.valid_until is None or now < self.valid_until)


class Signal(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A record that a memory was recalled once. Consolidation decides on the basis of these records."""

    memory_id: str
    at: int
    """Milliseconds since the epoch."""
    query: bytes
    """Digest of the query's terms. It is equal for the same question in another word order, case or inflection."""
    score: float
    """Similarity of the memory and the query, from 0 to 1."""
    session: str = ""
    """The session that recalled the memory.

    A recall has less weight if that session is a source of the memory; see `holdfast.consolidation.promotion`.
    """


class DiaryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A report on one consolidation of an owner's memories: the decisions and their reasons.

    It refers to memories without quoting them.
    """

    id: str
    at: int
    """Milliseconds since the epoch."""
    report: dict[str, Any]
    """The report of `holdfast.consolidation.promotion`: the candidates with their figures and outcomes, and the themes."""


class MemoryDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to an owner's memories that are written atomically."""

    put: tuple[Memory, ...] = ()
    """Memories to store. A new memory has `number` 0. A changed memory replaces the stored one with the same id."""
    forget: tuple[str, ...] = ()
    """Ids of memories to delete together with their signals. Ids of missing memories are ignored."""
    signals: tuple[Signal, ...] = ()
    """Signals to store. Signals of missing memories are ignored."""
    signals_before: int | None = None
    """Signals older than this time are deleted, in milliseconds since the epoch; None: no signals are deleted."""
    diary: tuple[DiaryEntry, ...] = ()

    @property
    def changes(self) -> bool:
        """True if the write may change memories.

        The owner's version grows if the write stores a memory or deletes an existing one.
        """
        return bool(self.put or self.forget)


def digest_content(content: str) -> bytes:
    """Return a digest of 16 bytes that is equal for texts that differ only in white space and case."""
    return blake2b(" ".join(content.casefold().split()).encode(), digest_size=16).digest()


def find_least_trusted(origins: Iterable[Origin]) -> Origin:
    """Return the least trusted of the origins.

    If there are none, the origin is unknown, and the return value is `import`.
    """
    return min(origins, key=lambda one: TRUST[one], default="import")


def is_awaiting_review(memory: Memory) -> bool:
    """Return True if a memory needs a review before promotion, because of its status or its origins."""
    if memory.status == "quarantined":
        return True
    origins = {memory.origin, *(source.origin for source in memory.sources)}
    return memory.reviewed_at is None and bool(origins & REVIEWED_ORIGINS)
