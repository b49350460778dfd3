"""The interface of a search index (`Index`) and the guarantees that every implementation gives. `tests/contract` tests them.

An index is derived from logs and memories by `holdfast.recall.terms`, and can be dropped and rebuilt at any time. It stores
terms and vectors, but no text. The text of a hit is read from the log again, so an outdated index never reveals erased text.

**Spaces.** An `Index` is a handle of one tenant, like a store. All data of a tenant is divided into `Space`s: the conversations
of a user, the memories of an owner, or the searchable records of a user and of the user's sessions. A search reads a single space. Its cost and the statistics that it returns depend on that
space alone, so other users' data changes neither the results nor their order.

**Sources.** A space consists of sources. In a user's space, each session is a source; a space of memories has a single source
with an empty id. In a space of records, each owner of records is a source: a session has its id, the user (or the tenant) an empty one. A source also has an `identity`. If a source is written with the same id but another identity, it is a new source
and replaces the old one, which is deleted. The index stores the `Progress` of each source in the same transaction as its
documents. So indexing that was interrupted continues where it stopped, and nothing is indexed twice.

**Documents.** The index has one document for each indexed entry, memory or record, identified by `seq` within its source. A document
belongs to a channel: `talk` (messages of user and assistant) or `tool` (tool results). Its `place` is its position in the source
and channel. Neighbours have consecutive places; deleted documents leave gaps.

- Putting a document replaces the document with the same `seq`. The old vector is kept if the `digest` is the same.
- A place holds one document: putting another document there deletes the old one.
- Dropping a document deletes its terms, their counts and its vector in one transaction. They are removed from the disk in the way
  that the store removes erased data.
- A dropped space is hidden from all readers at once and then deleted in parts.

**Lookups.** A lookup has terms and filters. Its candidates contain at least one of the terms and pass all filters; the engine
applies the filters. In a small space, all matches are returned; in a larger one, at most `CANDIDATES`. If more documents match, the
engine uses the rarest terms first and returns the documents that are best by a provisional score: the rarity of the terms that a
document and its neighbours match. Among equal scores, the newest win. Candidates are ordered by the source's number and the place;
for a lookup without terms, newest first. Frequencies and sizes are counted in the whole space and channel, regardless of filters.

**Vectors** are little-endian float32 of unit length, stored under a model's name. All vectors of a model have the same dimension.
`similar` returns the nearest documents that pass the filters, and their neighbours up to `NEAR` places away, each with its inner
product. An approximate engine may miss some of the nearest documents, but the values that it returns are exact.

**Reads** see every write that was acknowledged before. **Errors** of the database are raised as `StoreError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, get_args

import msgspec
from msgspec import UNSET, UnsetType

SearchMode = Literal["keyword", "vector", "hybrid"]
"""The kind of search: by words, by vectors, or by both."""
SEARCH_MODES: Final[tuple[SearchMode, ...]] = get_args(SearchMode)
Channel = Literal["talk", "tool"]
SpaceKind = Literal["talk", "user", "agent", "app", "record"]
SPACE_KINDS: Final[tuple[SpaceKind, ...]] = get_args(SpaceKind)

CANDIDATES: Final = 300
"""Default maximum number of candidates of a lookup in a space that is not small."""
SMALL: Final = 2_000
"""Maximum number of documents in the channel of a small space. In a small space, every match is a candidate."""
POSTINGS: Final = 4_000
"""Approximate number of rows that a lookup reads from the full-text engine. Terms are looked up, rarest first, until this number
is reached."""
PLACES: Final = 1 << 24
"""Maximum number of places in one channel of a source."""
NEAR: Final = 2
"""Maximum distance, in places, at which `Index.similar` still returns a document as a neighbour."""
NEAREST: Final = 200
"""Default maximum number of documents that a search by vector returns, not counting their neighbours."""


class Space(NamedTuple):
    """A set of documents: the conversations of a user, the memories of an owner, or records."""

    kind: SpaceKind
    """`talk`: a user's conversations. `user`, `agent` or `app`: memories of an owner of this kind (`holdfast.domain.memory.Owner`).
    `record`: records of a user and of the user's sessions, or of the tenant."""
    name: str
    """The id of the user or owner; empty for the tenant's records."""


class Source(NamedTuple):
    """One session of a space; for memories, and for records of a user or the tenant, a source with empty fields."""

    id: str = ""
    identity: str = ""


class Document(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One analysed entry, memory or record, as the index stores it."""

    seq: int
    """The entry's position, or the number of the memory or record."""
    channel: Channel = "talk"
    place: int
    """Position among the documents of the same source and channel, from 0. It increases with `seq`."""
    role: str
    agent: str | None = None
    name: str | None = None
    """The speaker's name, if there are several. For a record, its namespace and key, by which records are sorted."""
    at: int
    """Milliseconds since the epoch."""
    digest: bytes
    """16-byte digest of the analysed text. It does not depend on the version of the analysis, so a new version keeps the vectors."""
    length: int = 0
    """Number of terms, counting repetitions."""
    terms: Mapping[str, int] = {}
    """Number of occurrences of each term."""
    traits: int = 0
    """Bit flags from `holdfast.recall.terms`, at most 31 bits: for example, the text has a question, a time or a number. The index
    stores them and returns them with candidates, but does not use them."""
    detail: str = ""
    """Encoded details from `holdfast.recall.details`: ASCII text without a vertical bar. The index stores it and returns it with
    candidates, but does not use it."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """The part of a source that is indexed already."""

    identity: str
    version: int = 0
    """The version of the session, or of the owner's memories or records, up to which its changes are indexed."""
    next_seq: int = 0
    """The first position that is not indexed yet. For memories and records, the number after which the next page begins."""
    talk: int = 0
    tool: int = 0
    """The next free place in each of the channels `talk` and `tool`."""
    epoch: int = 0
    """The number of the rebuild that last analysed the whole source."""
    removals: int = 0
    """Number of times that documents were removed alone. An update that has read the source before a removal fails, and is repeated."""
    complete: bool = True
    """False while the source is being indexed. The part before `next_seq` is then finished."""


class Batch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One write to a source: documents to put, documents to drop, and the progress to store."""

    source: Source
    progress: Progress
    put: Sequence[Document] = ()
    drop: Sequence[int] = ()
    """`seq` of documents to delete; missing ones are ignored."""
    expect: Progress | None | UnsetType = UNSET
    """The progress that the source must have before the write. If it differs, another process has written in the meantime, so `write`
    writes nothing and returns False. None: the source must not exist. Unset: no condition."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on documents; all of them must hold. An empty condition accepts every document."""

    sessions: tuple[str, ...] = ()
    """Ids of sources (sessions)."""
    not_sessions: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    names: tuple[bytes, bytes] | None = None
    """Range of `Document.name` in UTF-8: the first name, inclusive, and the end, exclusive. None: any name, or none."""
    since: int | None = None
    """Milliseconds since the epoch, inclusive."""
    until: int | None = None
    """Milliseconds since the epoch, exclusive."""


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """A query to an index."""

    space: Space
    terms: tuple[str, ...] = ()
    """Distinct terms, of which a document must contain at least one. Empty: all documents that pass the filters match, newest first."""
    channel: Channel = "talk"
    filters: Filters = Filters()
    limit: int | None = None
    """Maximum number of candidates. None: `CANDIDATES`, or no limit if the channel has at most `SMALL` documents."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A document that matches a lookup. Fields without a text have the same meaning as in `Document`."""

    source: int
    """The source's number in the index. Documents of the same source have the same number."""
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
    """Number of occurrences of each of the lookup's terms in the document; terms that do not occur are missing."""
    traits: int = 0
    detail: str = ""


class Candidates(msgspec.Struct, frozen=True):
    """The result of a lookup."""

    found: Sequence[Candidate]
    documents: int
    """Number of documents in the space and channel, regardless of filters."""
    length: int
    """Total number of terms in these documents."""
    frequencies: Mapping[str, int]
    """For each of the lookup's terms, the number of these documents that contain it."""


class Similar(msgspec.Struct, frozen=True, gc=False):
    """A document found by its vector."""

    candidate: Candidate
    """The document; its `counts` are empty."""
    similarity: float
    """Inner product of the document's vector and the query's vector, -1 to 1."""


class Vectored(NamedTuple):
    """A vector to store for a document."""

    seq: int
    digest: bytes
    """The digest of the document when it was embedded. The vector is not stored if the document's digest has changed."""
    vector: bytes


class Pending(NamedTuple):
    """A document that has no vector of the model yet."""

    space: Space
    source: Source
    seq: int
    digest: bytes


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a tenant's index, or of one space of it."""

    sources: int
    incomplete: int
    """Number of sources that are not completely indexed."""
    documents: int
    vectors: Mapping[str, int] = {}
    """Number of vectors by model."""
    vector_engine: str = ""
    """The component that compares vectors: `pgvector-hnsw`, `numpy`, `vec1` or `python`."""


class Index(Protocol):
    """A search index, as seen by one tenant. The docstring of the module describes guarantees that hold for all methods."""

    tenant: str

    def for_tenant(self, tenant: str) -> Index:
        """Return a handle of another tenant on the same open index. The call is cheap.

        Closing the handle that was opened first closes all others.
        """
        ...

    async def progress(self, space: Space, source_id: str) -> Progress | None:
        """Return the progress of indexing a source, or None if the index does not have the source."""
        ...

    async def write(self, space: Space, batch: Batch) -> bool:
        """Write a batch in one transaction and return True. If the source's progress is not `batch.expect`, write nothing and return False."""
        ...

    async def list_digests(
        self, space: Space, source_id: str, *, start: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        """Return the `seq` and digest of a source's documents whose `seq` is at least `start`, in order, to compare with the log."""
        ...

    async def drop(self, space: Space, source_id: str, *, identity: str | None = None) -> int:
        """Delete a source and return the number of documents deleted.

        If `identity` is given and the source has another identity, nothing is deleted.
        """
        ...

    async def sources(
        self,
        *,
        space: Space | None = None,
        after: tuple[Space, str] | None = None,
        limit: int = 100,
        incomplete: bool = False,
    ) -> Sequence[tuple[Space, str, Progress]]:
        """Return sources in order of space and id, each with its space, id and progress.

        Args:
            space: only sources of this space; None: sources of all spaces.
            after: only sources after this space and id.
            limit: maximum number of sources to return.
            incomplete: return only sources whose progress is not `complete`. The cost is proportional to their number.
        """
        ...

    async def lookup(self, lookup: Lookup) -> Candidates:
        """Return the candidates for a lookup."""
        ...

    async def at(self, space: Space, source_id: str, seqs: Sequence[int]) -> Sequence[Candidate]:
        """Return the source's documents with these `seq`, as candidates whose `counts` are empty. Missing documents are left out."""
        ...

    async def near(self, lookup: Lookup, places: Sequence[tuple[int, int]]) -> Sequence[Candidate]:
        """Return the documents at these places, as candidates whose `counts` are empty.

        Used to read neighbours of good matches when the neighbours match no term themselves.

        Args:
            lookup: gives the space, the channel and the filters. Its terms are ignored. Documents that do not pass the filters are left out.
            places: pairs of a source's number and a place, at most a few hundred. Places without a document are left out.
        """
        ...

    async def pending(self, model: str, *, space: Space | None = None, limit: int = 100) -> Sequence[Pending]:
        """Return memories, records and documents of the `talk` channel that have no vector of `model`, in time proportional to their number.

        Documents without any vector form one group, documents with a vector of another model a second group; either group may
        come first. In each group, documents are ordered by space, then by source (oldest first), then by place.
        """
        ...

    async def put_vectors(self, space: Space, source: Source, model: str, vectors: Sequence[Vectored]) -> int:
        """Store vectors of documents, replacing their old vectors. Return the number of vectors stored.

        A vector is left out if its document has changed.

        Raises:
            InvalidRequest: the vectors do not have the same dimension as the model's stored vectors.
        """
        ...

    async def vectors(self, model: str, digests: Sequence[bytes], *, space: Space) -> Mapping[bytes, bytes]:
        """Return stored vectors of documents in the space that have one of these digests, by digest. They are vectors of this model.

        Callers use these vectors instead of embedding the same text again.
        """
        ...

    async def similar(self, lookup: Lookup, model: str, vector: bytes) -> Sequence[Similar]:
        """Return the documents nearest to a vector, and their neighbours up to `NEAR` places away.

        Args:
            lookup: gives the space, the channel and the filters. Its terms are ignored. Its `limit` (default `NEAREST`) is the maximum number
                of documents, not counting the neighbours.
            model: name of the model whose vectors are compared.
            vector: the query's vector.
        """
        ...

    async def drop_vectors(self, *, keep: str | None = None) -> int:
        """Delete the tenant's vectors, except those of the model `keep`; return the number deleted."""
        ...

    async def note(self, name: str) -> bytes | None:
        """Return the value of a note, or None if the tenant has no note with this name.

        A note is a small named value that background jobs store in the index, such as the state of a rebuild.
        """
        ...

    async def keep_note(self, name: str, data: bytes | None, *, new: bool = False) -> None:
        """Store or delete a note.

        Args:
            name: the name of the note.
            data: the value, at most 64 KiB; None deletes the note.
            new: if True and there is a note with this name already, keep that note unchanged.
        """
        ...

    async def status(self, space: Space | None = None) -> IndexStatus:
        """Return statistics of one space. If `space` is None, they cover all spaces of the tenant."""
        ...

    async def close(self) -> None:
        """Finish the writes that were accepted, then release all resources. Closing twice is allowed."""
        ...
