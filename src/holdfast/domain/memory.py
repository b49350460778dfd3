"""Memories: facts that outlive their session, with owner, sources and trust."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

OwnerKind = Literal["user", "agent", "app"]
Origin = Literal["user", "assistant", "tool", "web", "import", "summary"]
"""The origin of the words of a memory."""
MemoryType = Literal["semantic", "episodic", "procedural", "user", "feedback", "project", "reference"]
Status = Literal["active", "quarantined", "rejected", "superseded"]
"""`active`: recalled, and may be promoted. `quarantined`: held for review; recalled with its origin stated, but not promoted.
`rejected` by a review: never recalled. `superseded` by another memory: never recalled."""

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
"""How far words of each origin can be trusted, from 0 to 1."""
REVIEWED_ORIGINS: Final[frozenset[Origin]] = frozenset({"tool", "web", "import"})
"""Origins that need a review before they can be promoted."""


class Owner(NamedTuple):
    """The owner of memories: a user, an agent, or the tenant, which has an empty id."""

    kind: OwnerKind
    id: str = ""


class MemorySource(msgspec.Struct, frozen=True, kw_only=True):
    """Entries that a memory was made from."""

    session_id: str
    user_id: str
    identity: str = ""
    """Identity of the session, to distinguish it from other sessions with its name."""
    seqs: tuple[int, ...] = ()
    origin: Origin = "user"


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory record, as a store keeps it."""

    id: str
    """`mem_` and 32 hexadecimal digits: unique in the tenant, and impossible to guess."""
    owner: Owner
    number: int = 0
    """Assigned by the store per owner, from 1, and never reused. 0: new."""
    version: int = 0
    """The owner's version at the last change of the memory, assigned by the store."""
    content: str
    type: MemoryType = "semantic"
    tags: tuple[str, ...] = ()
    importance: float = 0.5
    """0 to 1, as given when the memory was created."""
    origin: Origin = "user"
    """The least trusted of its origins."""
    trust: float = 1.0
    """0 to 1: the lowest trust of its sources."""
    sources: tuple[MemorySource, ...] = ()
    agent: str | None = None
    """The agent that created the memory, whose workspace shows it. None: no agent."""
    status: Status = "active"
    created_at: int
    updated_at: int
    """Milliseconds since the epoch."""
    valid_from: int | None = None
    """Milliseconds since the epoch; None: always."""
    valid_until: int | None = None
    """When the memory stops being valid, in milliseconds since the epoch; None: unknown."""
    supersedes: tuple[str, ...] = ()
    """Ids of the memories that it replaces."""
    superseded_by: str | None = None
    promoted_at: int | None = None
    """Milliseconds since the epoch; None: not promoted."""
    score: float | None = None
    """The score with which the memory was promoted."""
    reviewed_at: int | None = None
    """When a reviewer accepted or rejected the memory."""
    metadata: dict[str, Any] = {}

    @property
    def digest(self) -> bytes:
        """Digest of the content, to recognise duplicates; see `digest_content`."""
        return digest_content(self.content)

    @property
    def is_proposal(self) -> bool:
        """True if a model proposed it to replace others, and it was not accepted; see `holdfast.consolidation.proposals`."""
        return self.status in {"quarantined", "rejected"} and bool(self.merges)

    @property
    def merges(self) -> tuple[str, ...]:
        """Ids of the memories that a model proposed to replace with this one; empty if it is not a model's proposal."""
        if self.origin != "summary" or self.metadata.get("proposal") is not True:
            return ()
        named = self.metadata.get("supersedes")
        return tuple(one for one in named if isinstance(one, str)) if isinstance(named, list | tuple) else ()

    @property
    def words(self) -> str:
        """The text that searches match: content and tags."""
        return "\n".join((self.content, " ".join(self.tags))) if self.tags else self.content

    @property
    def is_recalled(self) -> bool:
        """True if the memory can be found: it is neither superseded nor rejected, and not a proposal."""
        return self.status in {"active", "quarantined"} and not self.is_proposal

    def is_valid_at(self, now: int) -> bool:
        """Return True if the memory is recalled at `now`, in milliseconds since the epoch."""
        if not self.is_recalled:
            return False
        return (self.valid_from or 0) <= now and (self.valid_until is None or now < self.valid_until)


class Signal(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One recall of a memory, on which consolidation is based."""

    memory_id: str
    at: int
    """Milliseconds since the epoch."""
    query: bytes
    """Digest of the query's terms: equal for the same question in another word order, case or inflection."""
    score: float
    """How well the memory matched the query, from 0 to 1."""
    session: str = ""
    """The session of the recall. Recalls in a session that is a source count less, see `holdfast.consolidation.promotion`."""


class DiaryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep over an owner's memories, with its decisions and their reasons. It refers to memories without quoting them."""

    id: str
    at: int
    """Milliseconds since the epoch."""
    report: dict[str, Any]
    """Built by `holdfast.consolidation.promotion`: candidates with their figures and outcomes, and themes."""


class MemoryDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic write to an owner's memories."""

    put: tuple[Memory, ...] = ()
    """New memories, with `number` 0, and changed memories, each of which replaces the stored memory with its id."""
    forget: tuple[str, ...] = ()
    """Ids of memories to delete with their signals; missing ones are ignored."""
    signals: tuple[Signal, ...] = ()
    """Signals; those of missing memories are ignored."""
    signals_before: int | None = None
    """Delete signals older than this, in milliseconds since the epoch; None: none."""
    diary: tuple[DiaryEntry, ...] = ()

    @property
    def changes(self) -> bool:
        """True if the write may change memories. The owner's version grows if it puts a memory, or forgets an existing one."""
        return bool(self.put or self.forget)


def digest_content(content: str) -> bytes:
    """Return 16 bytes that are equal for texts that differ only in white space and case."""
    return blake2b(" ".join(content.casefold().split()).encode(), digest_size=16).digest()


def find_least_trusted(origins: Iterable[Origin]) -> Origin:
    """Return the least trusted of some origins; `import` if there are none, because the origin is unknown."""
    return min(origins, key=lambda one: TRUST[one], default="import")


def is_awaiting_review(memory: Memory) -> bool:
    """Return True if a memory needs a review before promotion, because of its status or the origin of a source."""
    if memory.status == "quarantined":
        return True
    origins = {memory.origin, *(source.origin for source in memory.sources)}
    return memory.reviewed_at is None and bool(origins & REVIEWED_ORIGINS)
