"""The contract of an index, in prose: what every one promises. `tests/contract` checks every index.

An index is derived: from logs (and from memories) by `holdfast.recall.terms`, and it can be dropped and made anew at any time.
It keeps no text: terms, as the analysis gives them, and vectors. What a hit says is read from the log again, so nothing that
was erased can come out of an index that is behind.

**Spaces.** An `Index` is a handle made with a tenant, like a store. Everything belongs to a `Space` of it: a user's
conversations, or the memories of an owner. No method reads from more than one, and what a lookup costs, and the statistics that
it gives, depend on that space alone: neither results nor their order change with what others have.

**Sources.** A space has sources: sessions, or for memories one whose id is empty. A source is known by its `identity`: one of
the same name with another identity is another one, and writing to it drops what there was of the other. Of each the index knows
how far it is (`Progress`), which is written in the transaction that brings it there: so an interrupted feed goes on where it was,
and nothing is indexed twice.

**Documents.** One for each entry that is indexed, by `seq`. It stands in a `channel`, `talk` (user and assistant) or `tool`
(results of tools), at a `place` there: neighbours have neighbouring places, gaps are what was taken away. Putting one that is
there replaces it, its vector too unless its `digest` is the same. A place has one document: one that is put where another stands
takes that away. Dropping takes terms, counts and vectors away in one
transaction, off the disk as the store does with what is erased; a whole space is lost to everybody at once, and then goes in parts.

**Lookups.** A lookup names terms; its candidates have at least one of them, and all of them pass every filter, which the engine
applies. At most `CANDIDATES` are given, in a small space all: where more match, those of the rarest terms, the provisionally best
(by the rarity of what they match, their neighbours' included), ties to the newest. Order of the list: the source's number, place;
without terms the newest first. Frequencies and sizes are those of the whole space and channel, unfiltered.

**Vectors** are little-endian float32, of unit length, of a model named with each; those of one model have one dimension. `similar`
gives the inner products of the nearest documents that pass the filters, and of their neighbours up to `NEAR` places away. With an
engine that searches approximately the nearest may not all be found; the others are exact.

A model whose name ends with `CONTEXT` embeds a conversation's document together with the document at the place before. Its vectors are
derived from both texts, so a vector is kept only while both are unchanged: a write that puts, changes or drops a document also drops
the vector at the next place, in the same transaction. Memories are embedded alone.

**Reading** sees every write that was acknowledged before. **Foreign errors** do not leak: they are `StoreError`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, get_args

import msgspec
from msgspec import UNSET, UnsetType

SearchMode = Literal["keyword", "vector", "hybrid"]
"""What is looked up by: words, vectors, or both."""
SEARCH_MODES: Final[tuple[SearchMode, ...]] = get_args(SearchMode)
Channel = Literal["talk", "tool"]
SpaceKind = Literal["talk", "user", "agent", "app"]
SPACE_KINDS: Final[tuple[SpaceKind, ...]] = get_args(SpaceKind)

CANDIDATES: Final = 300
"""Most candidates of a lookup."""
SMALL: Final = 2_000
"""In a space with at most so many documents of the channel, every one that matches is a candidate."""
POSTINGS: Final = 4_000
"""Rows of the full-text engine that a lookup reads, more or less: terms are taken from the rarest on until that many are reached."""
NEAR: Final = 2
"""Places around a document that count as near."""
CONTEXT: Final = "+context"
"""The end of the name of a model that embeds each document of a conversation with the document before it."""
NEAREST: Final = 200
"""Most documents that a lookup by vector asks for, their neighbours not counted."""


class Space(NamedTuple):
    """Whose documents: a tenant's user, or an owner of memories."""

    kind: SpaceKind
    """`talk`: a user's conversations; the others: memories of such an owner, see `holdfast.domain.memory.Owner`."""
    name: str
    """The user's id, or the owner's."""


def has_context(model: str, space: Space) -> bool:
    """Return True if vectors of a model depend on the document before as well, in a space."""
    return space.kind == "talk" and model.endswith(CONTEXT)


class Source(NamedTuple):
    """One session of a space; of memories all, with empty fields."""

    id: str = ""
    identity: str = ""


class Document(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One entry, analysed."""

    seq: int
    """Of the entry; of a memory its number."""
    channel: Channel = "talk"
    place: int
    """Among the source's documents of the channel, from 0, growing with `seq`."""
    role: str
    agent: str | None = None
    name: str | None = None
    """Who spoke, where several do."""
    at: int
    """Milliseconds since the epoch."""
    digest: bytes
    """Of the text that was analysed, 16 bytes. Not of the analysis: another version of it leaves vectors where they are."""
    length: int
    """Terms, each as often as it stands there."""
    terms: Mapping[str, int]
    """How often each term stands in it."""
    traits: int = 0
    """Bits that `holdfast.recall.terms` gives beside the terms (a question, a time, a number stands in it); kept and given back
    with candidates, never looked at by an engine. At most 31 bits."""
    detail: str = ""
    """What `holdfast.recall.details` writes: kept and given back with candidates, never looked at by an engine. ASCII, no bar."""


class Progress(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How far an index is with a source."""

    identity: str
    version: int
    """Of the session (or of the owner's memories) that it has taken in whole, up to which nothing need be looked at again. Less
    than 0: all has to be, something is about to change, or was when a process ended."""
    next_seq: int = 0
    """Entries from here on are not in it."""
    talk: int = 0
    tool: int = 0
    """The next place of each channel."""
    epoch: int = 0
    """Of the rebuild that it was last made anew in; see `Index.note`."""
    complete: bool = True
    """False: in the middle of being made anew, or brought up to `version`; `next_seq` tells how far."""


class Batch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One write: documents of a source that come and go, and how far it is then."""

    source: Source
    progress: Progress
    put: Sequence[Document] = ()
    drop: Sequence[int] = ()
    """`seq` of documents that go; one that is not there is fine."""
    expect: Progress | None | UnsetType = UNSET
    """What `progress` must give, else nothing is written and `write` gives False: two feeders of one source. None: the source must
    be unknown. Unset: any."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """What documents must be like; an empty filter lets all pass."""

    sessions: tuple[str, ...] = ()
    """Ids of sources."""
    not_sessions: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    since: int | None = None
    """Milliseconds since the epoch: from then on."""
    until: int | None = None
    """Before then."""


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for."""

    space: Space
    terms: tuple[str, ...] = ()
    """Distinct. None: every document that passes the filters, newest first."""
    channel: Channel = "talk"
    filters: Filters = Filters()
    limit: int | None = None
    """Most candidates. None: `CANDIDATES`, or in a space of at most `SMALL` documents all that match."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A document that may answer."""

    source: int
    """The source's number in the index: equal for equal sources."""
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
    """How often each of the lookup's terms stands in it, those that do."""
    traits: int = 0
    detail: str = ""


class Candidates(msgspec.Struct, frozen=True):
    """What a lookup gives."""

    found: Sequence[Candidate]
    documents: int
    """Of the space and channel, filters aside."""
    length: int
    """Terms of all of them."""
    frequencies: Mapping[str, int]
    """In how many documents each of the lookup's terms stands; filters aside."""


class Similar(msgspec.Struct, frozen=True, gc=False):
    """A document by vector."""

    candidate: Candidate
    """With empty `counts`."""
    similarity: float
    """The inner product, -1 to 1."""


class Vectored(NamedTuple):
    """A vector for a document."""

    seq: int
    digest: bytes
    """Of the document that it is of: it is not kept where that has changed."""
    vector: bytes
    before: bytes = b""
    """Digest of the document at the place before, if that was embedded too; empty: there was none. Only a model with `CONTEXT` has one,
    and the vector is not kept where that has changed."""


class Pending(NamedTuple):
    """A document that has no vector of a model yet."""

    space: Space
    source: Source
    seq: int
    digest: bytes
    before_seq: int = -1
    """Of the document at the place before; -1: there is none, or the model does not embed it."""
    before: bytes = b""
    """Its digest."""


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an index holds of a tenant, or of one space."""

    sources: int
    incomplete: int
    """Sources that are in the middle of being taken in."""
    documents: int
    vectors: Mapping[str, int] = {}
    """By model."""
    vector_engine: str = ""
    """What searches them: `pgvector-hnsw`, `numpy`, `vec1`, `python`."""


class Index(Protocol):
    """An index handle of one tenant. See the module for what all methods promise."""

    tenant: str

    def for_tenant(self, tenant: str) -> Index:
        """A handle of another tenant on the same opened index: cheap. Closing the first one closes all."""
        ...

    async def progress(self, space: Space, source_id: str) -> Progress | None:
        """How far it is with a source; None: it knows nothing of it."""
        ...

    async def write(self, space: Space, batch: Batch) -> bool:
        """Take documents in and away, in one transaction; False where `expect` does not hold, and then nothing was written."""
        ...

    async def held(
        self, space: Space, source_id: str, *, start: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        """`seq` and digest of a source's documents from `start` on, in order: to compare with the log."""
        ...

    async def drop(self, space: Space, source_id: str, *, identity: str | None = None) -> int:
        """Take a source away, whole; how many documents it had. With `identity` only the one that has it."""
        ...

    async def drop_space(self, space: Space) -> int:
        """Take all of a space away; how many documents it had."""
        ...

    async def clear(self) -> None:
        """Take all of the tenant away."""
        ...

    async def sources(
        self,
        *,
        space: Space | None = None,
        after: tuple[Space, str] | None = None,
        limit: int = 100,
        incomplete: bool = False,
    ) -> Sequence[tuple[Space, str, Progress]]:
        """Sources in order of space and id: of all spaces, or of one.

        With `incomplete` only those that are not `complete`, at the cost of these.
        """
        ...

    async def lookup(self, lookup: Lookup) -> Candidates:
        """What may answer."""
        ...

    async def at(self, space: Space, source_id: str, seqs: Sequence[int]) -> Sequence[Candidate]:
        """These documents, as candidates without counts; those that are not there are left out."""
        ...

    async def near(self, lookup: Lookup, places: Sequence[tuple[int, int]]) -> Sequence[Candidate]:
        """The documents at these places, each by a candidate's `source` and a place, as candidates without counts.

        For good neighbours that match no term themselves. Of the lookup space, channel and filters hold; those that are not
        there, or do not pass, are left out. At most a few hundred are asked for.
        """
        ...

    async def pending(self, model: str, *, space: Space | None = None, limit: int = 100) -> Sequence[Pending]:
        """Documents of `talk` channels and memories that have no vector of `model`. O(what it gives).

        Space by space, the oldest source and place of each first; those that have a vector of another model behind or before
        those that have none.
        """
        ...

    async def put_vectors(self, space: Space, source: Source, model: str, vectors: Sequence[Vectored]) -> int:
        """Keep vectors, in place of others of that document; how many were kept.

        One is not kept whose document has changed, or, for a model with `CONTEXT`, whose document before has.

        Raises:
            InvalidRequest: of another dimension than those of that model that are there.
        """
        ...

    async def vectors(self, model: str, digests: Sequence[bytes], *, space: Space) -> Mapping[bytes, bytes]:
        """Vectors of a model that documents with these digests have in the space, so that no text is embedded twice."""
        ...

    async def similar(self, lookup: Lookup, model: str, vector: bytes) -> Sequence[Similar]:
        """The nearest documents that pass the lookup's filters, at most its `limit`, and their neighbours; its terms are ignored."""
        ...

    async def drop_vectors(self, *, keep: str | None = None) -> int:
        """Take the tenant's vectors away, but for those of the model `keep`; how many."""
        ...

    async def note(self, name: str) -> bytes | None:
        """What the tenant keeps under a name beside its documents, like how far a rebuild is; None: nothing. `clear` leaves it."""
        ...

    async def keep_note(self, name: str, data: bytes | None, *, new: bool = False) -> None:
        """Keep at most 64 KiB under a name; None: nothing any more. With `new` what is kept there already stays, whoever came first."""
        ...

    async def status(self, space: Space | None = None) -> IndexStatus:
        """What it holds."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then let go of everything. Closing twice is fine."""
        ...
