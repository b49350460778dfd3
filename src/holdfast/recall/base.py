"""The contract of an index, which every implementation must fulfil. `tests/contract` checks every index.

An index is derived from logs and memories by `holdfast.recall.terms`, and can be dropped and rebuilt at any time. It stores no
text, only the terms that the analysis yields, and vectors. The text of a hit is read from the log again, so an outdated index
never reveals erased text.

**Spaces.** An `Index` is a handle of one tenant, like a store. All data belongs to one of its `Space`s: a user's conversations,
or the memories of an owner. No method reads from more than one space. The cost of a lookup and the statistics that it returns
depend on that space alone, so other users' data changes neither results nor their order.

**Sources.** A space has sources: its sessions, or for memories a single source with an empty id. A source has an `identity`. A
source with the same name and another identity is a different source, and writing it deletes the former one. The index stores its
`Progress` for each source in the same transaction as the documents, so an interrupted feed continues where it stopped, and
nothing is indexed twice.

**Documents.** An index has one document for each indexed entry, identified by `seq`. It belongs to a `channel`, `talk` (user and
assistant) or `tool` (tool results), and has a `place` there. Neighbours have neighbouring places; deleted documents leave gaps.
Putting a document replaces the one with the same `seq`; its vector is kept if the `digest` is the same. A place holds one
document: putting another one there deletes the former. Dropping a document deletes its terms, counts and vectors in one
transaction, and removes them from the disk in the way that the store removes erased data. A dropped space is hidden from all
readers at once and then deleted in parts.

**Lookups.** A lookup has terms. Its candidates contain at least one of them and pass all filters, which the engine applies. At
most `CANDIDATES` are returned; in a small space, all. If more match, the engine uses the rarest terms first and returns the
provisionally best documents (by the rarity of the matched terms, including those of their neighbours); ties go to the newest. The
list is ordered by the source's number and the place; without terms, newest first. Frequencies and sizes are computed over the
whole space and channel, without filters.

**Vectors** are little-endian float32, of unit length, stored under a model's name. All vectors of a model have the same
dimension. `similar` returns the inner products of the nearest documents that pass the filters, and of their neighbours up to
`NEAR` places away. An approximate engine may miss some of the nearest; the values it returns are exact.

A model whose name ends with `CONTEXT` embeds a document of a conversation together with the document at the previous place. Its
vector depends on both texts, so it is kept only while both are unchanged: a write that puts, changes or drops a document also
deletes the vector at the next place, in the same transaction. Memories are embedded alone.

**Reads** see every write that was acknowledged before. **Errors** of the database are raised as `StoreError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, get_args

import msgspec
from msgspec import UNSET, UnsetType

SearchMode = Literal["keyword", "vector", "hybrid"]
"""How to search: by words, by vectors, or by both."""
SEARCH_MODES: Final[tuple[SearchMode, ...]] = get_args(SearchMode)
Channel = Literal["talk", "tool"]
SpaceKind = Literal["talk", "user", "agent", "app"]
SPACE_KINDS: Final[tuple[SpaceKind, ...]] = get_args(SpaceKind)

CANDIDATES: Final = 300
"""Maximum number of candidates of a lookup."""
SMALL: Final = 2_000
"""In a space with at most this many documents in the channel, every match is a candidate."""
POSTINGS: Final = 4_000
"""The approximate number of rows that a lookup reads from the full-text engine: terms are added, rarest first, until it is
reached."""
NEAR: Final = 2
"""Neighbours up to this many places away count as near."""
CONTEXT: Final = "+context"
"""Name suffix of a model that embeds each document of a conversation together with the previous one."""
NEAREST: Final = 200
"""Maximum number of documents that a lookup by vector requests, not counting their neighbours."""


class Space(NamedTuple):
    """A set of documents: the conversations of a user, or the memories of an owner."""

    kind: SpaceKind
    """`talk`: a user's conversations; the others: memories of an owner of this kind, see `holdfast.domain.memory.Owner`."""
    name: str
    """The user's id, or the owner's."""


def has_context(model: str, space: Space) -> bool:
    """Return True if a model's vectors in this space also depend on the previous document."""
    return space.kind == "talk" and model.endswith(CONTEXT)


class Source(NamedTuple):
    """One session of a space; for memories, a single source with empty fields."""

    id: str = ""
    identity: str = ""


class Document(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The analysis of one entry or memory."""

    seq: int
    """The entry's position, or the memory's number."""
    channel: Channel = "talk"
    place: int
    """Position among the source's documents of the channel, from 0, increasing with `seq`."""
    role: str
    agent: str | None = None
    name: str | None = None
    """The speaker's name, if there are several."""
    at: int
    """Milliseconds since the epoch."""
    digest: bytes
    """16-byte digest of the analysed text. It does not depend on the analysis: a new analysis version keeps the vectors."""
    length: int
    """Number of terms, counting repetitions."""
    terms: Mapping[str, int]
    """Number of occurrences of each term."""
    traits: int = 0
    """At most 31 bits, set by `holdfast.recall.terms` (the text has a question, a time, a number). They are stored and returned
    with candidates; engines ignore them."""
    detail: str = ""
    """ASCII text from `holdfast.recall.details` without a vertical bar. It is stored and returned with candidates; engines ignore
    it."""


class Progress(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The progress of indexing a source."""

    identity: str
    version: int
    """The version of the session (or of the owner's memories) that is fully indexed. Negative: everything has to be compared,
    because a change is pending or was pending when a process ended."""
    next_seq: int = 0
    """Entries from this position on are not indexed."""
    talk: int = 0
    tool: int = 0
    """The next free place of each channel."""
    epoch: int = 0
    """The rebuild that last analysed the whole source; see `Index.note`."""
    complete: bool = True
    """False while the source is being rebuilt or updated to `version`; `next_seq` is then the end of the finished part."""


class Batch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One write: documents to put and to drop in a source, and the progress after it."""

    source: Source
    progress: Progress
    put: Sequence[Document] = ()
    drop: Sequence[int] = ()
    """`seq` of documents to delete; missing ones are ignored."""
    expect: Progress | None | UnsetType = UNSET
    """The progress that the source must have. Otherwise another process has written, so `write` writes nothing and returns False.
    None: the source must be unknown. Unset: no condition."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on documents. An empty filter accepts all."""

    sessions: tuple[str, ...] = ()
    """Ids of sources."""
    not_sessions: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    since: int | None = None
    """Milliseconds since the epoch, inclusive."""
    until: int | None = None
    """Milliseconds since the epoch, exclusive."""


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """A query to an index."""

    space: Space
    terms: tuple[str, ...] = ()
    """Distinct terms. Empty: every document that passes the filters, newest first."""
    channel: Channel = "talk"
    filters: Filters = Filters()
    limit: int | None = None
    """Maximum number of candidates. None: `CANDIDATES`, or all matches in a space of at most `SMALL` documents."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A document that may answer the query."""

    source: int
    """The source's number in the index; equal for the same source."""
    place: int
    seq: int
    session: str
    """The source's id."""
    identity: str
    """The source's identity."""
    role: str
    agent: str | None
    name: str | None
    at: int
    length: int
    counts: Mapping[str, int]
    """Number of occurrences in the document, for each of the lookup's terms that it contains."""
    traits: int = 0
    detail: str = ""


class Candidates(msgspec.Struct, frozen=True):
    """The result of a lookup."""

    found: Sequence[Candidate]
    documents: int
    """Number of documents of the space and channel, regardless of filters."""
    length: int
    """Number of terms in all these documents."""
    frequencies: Mapping[str, int]
    """For each of the lookup's terms the number of documents that contain it, regardless of filters."""


class Similar(msgspec.Struct, frozen=True, gc=False):
    """A document found by its vector."""

    candidate: Candidate
    """The document; its `counts` are empty."""
    similarity: float
    """The inner product, -1 to 1."""


class Vectored(NamedTuple):
    """A vector for a document."""

    seq: int
    digest: bytes
    """The digest of the embedded document. The vector is not stored if the document has changed since."""
    vector: bytes
    before: bytes = b""
    """The digest of the previous document if it was embedded too; empty: there was none. Only for models with `CONTEXT`; the
    vector is not stored if that document has changed since."""


class Pending(NamedTuple):
    """A document that has no vector of a model yet."""

    space: Space
    source: Source
    seq: int
    digest: bytes
    before_seq: int = -1
    """`seq` of the document at the previous place; -1: there is none, or the model does not embed it."""
    before: bytes = b""
    """The digest of that document."""


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of an index for a tenant or one space."""

    sources: int
    incomplete: int
    """Number of sources that are not completely indexed."""
    documents: int
    vectors: Mapping[str, int] = {}
    """Number of vectors by model."""
    vector_engine: str = ""
    """The engine that searches vectors: `pgvector-hnsw`, `numpy`, `vec1` or `python`."""


class Index(Protocol):
    """An index handle of one tenant. The module docstring describes the promises of all methods."""

    tenant: str

    def for_tenant(self, tenant: str) -> Index:
        """Return a handle of another tenant on the same open index; this is cheap. Closing the first handle closes the others."""
        ...

    async def progress(self, space: Space, source_id: str) -> Progress | None:
        """Return the progress of a source; None if it is unknown."""
        ...

    async def write(self, space: Space, batch: Batch) -> bool:
        """Put and drop documents in one transaction. Return False and write nothing if `expect` does not hold."""
        ...

    async def list_digests(
        self, space: Space, source_id: str, *, start: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        """Return `seq` and digest of a source's documents from `start` on, in order, to compare them with the log."""
        ...

    async def drop(self, space: Space, source_id: str, *, identity: str | None = None) -> int:
        """Delete a source and return the number of its documents. With `identity`, delete it only if it has that identity."""
        ...

    async def drop_space(self, space: Space) -> int:
        """Delete a space and return the number of its documents."""
        ...

    async def clear(self) -> None:
        """Delete all documents of the tenant."""
        ...

    async def sources(
        self,
        *,
        space: Space | None = None,
        after: tuple[Space, str] | None = None,
        limit: int = 100,
        incomplete: bool = False,
    ) -> Sequence[tuple[Space, str, Progress]]:
        """Return sources in order of space and id, of one space or all.

        With `incomplete`, return only those that are not `complete`, at a cost proportional to their number.
        """
        ...

    async def lookup(self, lookup: Lookup) -> Candidates:
        """Return the candidates for a lookup."""
        ...

    async def at(self, space: Space, source_id: str, seqs: Sequence[int]) -> Sequence[Candidate]:
        """Return these documents as candidates without counts; missing ones are left out."""
        ...

    async def near(self, lookup: Lookup, places: Sequence[tuple[int, int]]) -> Sequence[Candidate]:
        """Return the documents at these places as candidates without counts. Each place is a pair of `source` and `place`.

        Used for neighbours of good matches, if they match no term themselves. The lookup's space, channel and filters apply.
        Missing documents, and those that do not pass the filters, are left out. Callers ask for at most a few hundred.
        """
        ...

    async def pending(self, model: str, *, space: Space | None = None, limit: int = 100) -> Sequence[Pending]:
        """Return documents of `talk` channels and memories that have no vector of `model`, in time proportional to their number.

        The order is by space, then oldest source and place first. Documents with a vector of another model come all
        before or all after those without a vector.
        """
        ...

    async def put_vectors(self, space: Space, source: Source, model: str, vectors: Sequence[Vectored]) -> int:
        """Store vectors, replacing those of the same documents; return the number stored.

        A vector is not stored if its document has changed or, for a model with `CONTEXT`, if the previous document has changed.

        Raises:
            InvalidRequest: the dimension differs from the model's stored vectors.
        """
        ...

    async def vectors(self, model: str, digests: Sequence[bytes], *, space: Space) -> Mapping[bytes, bytes]:
        """Return the model's vectors of documents in the space with these digests, so that no text is embedded twice."""
        ...

    async def similar(self, lookup: Lookup, model: str, vector: bytes) -> Sequence[Similar]:
        """Return the nearest documents that pass the filters, up to the lookup's `limit`, and their neighbours. Ignore terms."""
        ...

    async def drop_vectors(self, *, keep: str | None = None) -> int:
        """Delete the tenant's vectors, except those of the model `keep`; return the number deleted."""
        ...

    async def note(self, name: str) -> bytes | None:
        """Return the tenant's note with this name, such as the state of a rebuild; None if there is none. `clear` keeps notes."""
        ...

    async def keep_note(self, name: str, data: bytes | None, *, new: bool = False) -> None:
        """Store a note of at most 64 KiB under a name; None deletes it. With `new`, an existing note is kept."""
        ...

    async def status(self, space: Space | None = None) -> IndexStatus:
        """Return statistics of the tenant or one space."""
        ...

    async def close(self) -> None:
        """Finish accepted writes, then release all resources. Closing twice is fine."""
        ...
