"""What a memory is: a fact that outlives its session, whose it is, where it comes from, and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

OwnerKind = Literal["user", "agent", "app"]
Origin = Literal["user", "assistant", "tool", "web", "import", "summary"]
"""Where the words of a memory come from."""
MemoryType = Literal["semantic", "episodic", "procedural", "user", "feedback", "project", "reference"]
Status = Literal["active", "quarantined", "rejected", "superseded"]
"""`active`: recalled, and may be promoted. `quarantined`: recalled with its origin told, never promoted, until it is reviewed.
`rejected`: by a review; never recalled. `superseded`: another one stands in its place; never recalled."""

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
"""How far words of each origin can be trusted, 0 to 1."""
REVIEWED_ORIGINS: Final[frozenset[Origin]] = frozenset({"tool", "web", "import"})
"""Origins that are held for review instead of promoted."""


class Owner(NamedTuple):
    """Whose memories: a user's, an agent's, or the tenant's own, which has an empty id."""

    kind: OwnerKind
    id: str = ""


class MemorySource(msgspec.Struct, frozen=True, kw_only=True):
    """Entries that a memory was made from."""

    session_id: str
    user_id: str
    identity: str = ""
    """Of the session: another one of its name is not meant."""
    seqs: tuple[int, ...] = ()
    origin: Origin = "user"


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory record, as a store keeps it."""

    id: str
    """`mem_` and 32 hexadecimal digits: unique in the tenant, and not to be guessed."""
    owner: Owner
    number: int = 0
    """Per owner from 1, as the store gives them; never given again. 0: new."""
    version: int = 0
    """The owner's version with its last change; as the store gives it."""
    content: str
    type: MemoryType = "semantic"
    tags: tuple[str, ...] = ()
    importance: float = 0.5
    """0 to 1, as whoever remembered it said."""
    origin: Origin = "user"
    """The least trusted of where it comes from."""
    trust: float = 1.0
    """0 to 1: the least of its sources'."""
    sources: tuple[MemorySource, ...] = ()
    agent: str | None = None
    """Which agent remembered it: whose workspace tells of it. None: none did."""
    status: Status = "active"
    created_at: int
    updated_at: int
    """Milliseconds since the epoch."""
    valid_from: int | None = None
    """Milliseconds since the epoch; None: always was."""
    valid_until: int | None = None
    """Milliseconds since the epoch, from when on it does not hold any more; None: not known."""
    supersedes: tuple[str, ...] = ()
    """Ids of those in whose place it stands."""
    superseded_by: str | None = None
    promoted_at: int | None = None
    """Milliseconds since the epoch; None: it is not promoted."""
    score: float | None = None
    """What it was promoted with."""
    reviewed_at: int | None = None
    """When somebody took it out of quarantine, or rejected it."""
    metadata: dict[str, Any] = {}

    @property
    def digest(self) -> bytes:
        """Of what it says, so that the same is not told twice; see `digest_content`."""
        return digest_content(self.content)

    @property
    def is_proposal(self) -> bool:
        """Whether it is what a model proposes in place of others, and nobody has accepted: see `holdfast.consolidation.proposals`."""
        return self.status in {"quarantined", "rejected"} and bool(self.merges)

    @property
    def merges(self) -> tuple[str, ...]:
        """Ids of those in whose place a model proposed it; none: no model did."""
        if self.origin != "summary" or self.metadata.get("proposal") is not True:
            return ()
        named = self.metadata.get("supersedes")
        return tuple(one for one in named if isinstance(one, str)) if isinstance(named, list | tuple) else ()

    @property
    def words(self) -> str:
        """What it is found by: what it says, and its tags."""
        return "\n".join((self.content, " ".join(self.tags))) if self.tags else self.content

    @property
    def is_recalled(self) -> bool:
        """Whether it may be found at all, whenever it holds: neither superseded nor rejected, and no proposal."""
        return self.status in {"active", "quarantined"} and not self.is_proposal

    def is_valid_at(self, now: int) -> bool:
        """Whether it is recalled at `now`, milliseconds since the epoch."""
        if not self.is_recalled:
            return False
        return (self.valid_from or 0) <= now and (self.valid_until is None or now < self.valid_until)


class Signal(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One recall of a memory: what a dream goes by."""

    memory_id: str
    at: int
    """Milliseconds since the epoch."""
    query: bytes
    """Digest of what was asked, by its terms: the same question in other words' order, case or inflection is the same."""
    score: float
    """How well it matched, 0 to 1."""
    session: str = ""
    """Where it was recalled; the sources' own session counts for less, see `holdfast.consolidation.promotion`."""


class DiaryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep over an owner's memories: what it decided, and why. It names memories, and does not quote them."""

    id: str
    at: int
    """Milliseconds since the epoch."""
    report: dict[str, Any]
    """As `holdfast.consolidation.promotion` makes it: candidates, each with its figures and what became of it; themes."""


class MemoryDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One write to an owner's memories, all of it or nothing."""

    put: tuple[Memory, ...] = ()
    """New ones, with `number` 0, and what becomes of old ones, each in place of the one with its id."""
    forget: tuple[str, ...] = ()
    """Ids of those that go, with their signals; one that is not there is fine."""
    signals: tuple[Signal, ...] = ()
    """Those of memories that are not there are left out."""
    signals_before: int | None = None
    """Signals older than that go, milliseconds since the epoch; None: none."""
    diary: tuple[DiaryEntry, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether it may change memories: the owner's version grows if it puts one, or one that it forgets was there."""
        return bool(self.put or self.forget)


def digest_content(content: str) -> bytes:
    """16 bytes that stand for what a text says, white space and case aside."""
    return blake2b(" ".join(content.casefold().split()).encode(), digest_size=16).digest()


def find_least_trusted(origins: Iterable[Origin]) -> Origin:
    """The least trusted of some origins; of none `import`: nobody knows."""
    return min(origins, key=lambda one: TRUST[one], default="import")


def is_awaiting_review(memory: Memory) -> bool:
    """Whether it waits for a review instead of being promoted: by its status, or by where it or any of its sources comes from."""
    if memory.status == "quarantined":
        return True
    origins = {memory.origin, *(source.origin for source in memory.sources)}
    return memory.reviewed_at is None and bool(origins & REVIEWED_ORIGINS)
