"""Implement the index contract (`holdfast.recall.base`) for any database that runs named statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Self, TypeVar

from holdfast import faults
from holdfast.errors import InvalidRequest, StoreClosed, TooLarge
from holdfast.limits import NAMESPACE_BYTES, NAMESPACE_LABELS, RECORD_KEY_BYTES
from holdfast.recall.base import (
    PLACES,
    SPACE_KINDS,
    Batch,
    Candidate,
    Candidates,
    Document,
    IndexStatus,
    Lookup,
    Pending,
    Progress,
    Similar,
    Source,
    Space,
    Vectored,
)
from holdfast.stores import checks
from holdfast.stores.logic import index_reads, index_vectors, index_writes
from holdfast.stores.logic.index_rows import CHANNELS
from holdfast.stores.logic.steps import Database, Steps, do_nothing

T = TypeVar("T")
NOTE_BYTES: Final = 64 * 1024
SCANNING: Final = ("numpy", "python")
"""Vector engines that compare vectors in Python, because the database cannot."""
_DIGEST: Final = 16
NAME_BYTES: Final = NAMESPACE_BYTES + NAMESPACE_LABELS + 1 + RECORD_KEY_BYTES
"""Longest name of a document: the namespace and the key of a record, each label with a separator."""
_TRAITS: Final = 1 << 31
_NUMBER: Final = 1 << 62


class LogicIndex:
    """An index handle of one tenant (`holdfast.recall.base.Index`) on a SQL database.

    Its methods check arguments and run the generators of statements.
    """

    def __init__(
        self, database: Database, tenant: str, *, engine: str, compress: bool = False, owner: bool = True
    ) -> None:
        checks.check_id(tenant, "tenant")
        self.tenant = tenant
        self.database = database
        self._engine = engine
        self._compress = compress
        self._owner = owner
        self._closed = False

    def for_tenant(self, tenant: str) -> Self:
        return type(self)(self.database, tenant, engine=self._engine, compress=self._compress, owner=False)

    async def progress(self, space: Space, source_id: str) -> Progress | None:
        _check_source(space, source_id)
        return await self._read(partial(index_reads.read_progress, self.tenant, space, source_id))

    async def write(self, space: Space, batch: Batch) -> bool:
        _check_source(space, batch.source.id)
        _check_batch(batch)
        steps = partial(index_writes.write_batch, self.tenant, space, batch)
        written, removed = await self._write(steps, space, scrub=bool(batch.drop))
        if removed and not batch.drop:
            await self._write(do_nothing, scrub=True)
        return written

    async def list_digests(
        self, space: Space, source_id: str, *, start: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        _check_source(space, source_id)
        return await self._read(partial(index_reads.list_stored, self.tenant, space, source_id, start, limit))

    async def drop(self, space: Space, source_id: str, *, identity: str | None = None) -> int:
        _check_source(space, source_id)
        steps = partial(index_writes.drop_source, self.tenant, space, source_id, identity)
        return await self._write(steps, space, scrub=True)

    async def sources(
        self,
        *,
        space: Space | None = None,
        after: tuple[Space, str] | None = None,
        limit: int = 100,
        incomplete: bool = False,
    ) -> Sequence[tuple[Space, str, Progress]]:
        if space is not None:
            _check_space(space)
        steps = partial(index_reads.list_sources, self.tenant, space, after, limit, incomplete=incomplete)
        return await self._read(steps)

    async def lookup(self, lookup: Lookup) -> Candidates:
        _check_lookup(lookup)
        return await self._read(partial(index_reads.find_candidates, self.tenant, lookup))

    async def at(self, space: Space, source_id: str, seqs: Sequence[int]) -> Sequence[Candidate]:
        _check_source(space, source_id)
        return await self._read(partial(index_reads.read_at, self.tenant, space, source_id, seqs))

    async def near(self, lookup: Lookup, places: Sequence[tuple[int, int]]) -> Sequence[Candidate]:
        _check_lookup(lookup)
        return await self._read(partial(index_reads.read_near, self.tenant, lookup, places))

    async def pending(self, model: str, *, space: Space | None = None, limit: int = 100) -> Sequence[Pending]:
        if space is not None:
            _check_space(space)
        return await self._read(partial(index_vectors.list_pending, self.tenant, model, space, limit))

    async def put_vectors(self, space: Space, source: Source, model: str, vectors: Sequence[Vectored]) -> int:
        _check_source(space, source.id)
        for one in vectors:
            _check_vector(one.vector, len(vectors[0].vector))
        # An engine that compares vectors reads only uncompressed ones.
        compress = self._compress and self._engine in SCANNING
        steps = partial(index_vectors.put_vectors, self.tenant, space, source, model, vectors, compress=compress)
        return await self._write(steps, space)

    async def vectors(self, model: str, digests: Sequence[bytes], *, space: Space) -> Mapping[bytes, bytes]:
        _check_space(space)
        return await self._read(partial(index_vectors.read_vectors, self.tenant, model, digests, space))

    async def similar(self, lookup: Lookup, model: str, vector: bytes) -> Sequence[Similar]:
        _check_lookup(lookup)
        _check_vector(vector, len(vector))
        engine = self._engine not in SCANNING
        return await self._read(partial(index_vectors.find_similar, self.tenant, lookup, model, vector, engine=engine))

    async def drop_vectors(self, *, keep: str | None = None) -> int:
        count = 0
        while gone := await self._write(partial(index_vectors.drop_vectors, self.tenant, keep), scrub=True):
            count += gone
        return count

    async def note(self, name: str) -> bytes | None:
        return await self._read(partial(index_reads.read_note, self.tenant, name))

    async def keep_note(self, name: str, data: bytes | None, *, new: bool = False) -> None:
        if data is not None and len(data) > NOTE_BYTES:
            raise TooLarge(f"a note has {len(data)} bytes; the limit is {NOTE_BYTES}", param="data")
        await self._write(partial(index_reads.keep_note, self.tenant, name, data, new=new))

    async def status(self, space: Space | None = None) -> IndexStatus:
        if space is not None:
            _check_space(space)
        return await self._read(partial(index_reads.read_status, self.tenant, space, self._engine))

    async def close(self) -> None:
        self._closed = True
        if self._owner:
            await self.database.close()

    async def _read(self, steps: Callable[[], Steps[T]]) -> T:
        if self._closed:
            raise StoreClosed
        await faults.hit("before-index-read")
        return await self.database.read(steps)

    async def _write(self, steps: Callable[[], Steps[T]], space: Space | None = None, *, scrub: bool = False) -> T:
        if self._closed:
            raise StoreClosed
        await faults.hit("before-index-commit")
        written = await self.database.write(steps, scrub=scrub, queue=("index", self.tenant, space))
        await faults.hit("after-index-commit")
        return written


# -- checks --------------------------------------------------------------------


def _check_text(value: str, param: str) -> None:
    if value:
        checks.check_id(value, param)


def _check_space(space: Space) -> None:
    if space.kind not in SPACE_KINDS:
        raise InvalidRequest(f"kind must be one of {', '.join(SPACE_KINDS)}", param="space")
    _check_text(space.name, "space")


def _check_source(space: Space, source_id: str) -> None:
    _check_space(space)
    _check_text(source_id, "source")


def _check_lookup(lookup: Lookup) -> None:
    _check_space(lookup.space)
    for name in ("since", "until"):
        value = getattr(lookup.filters, name)
        if value is not None and not -_NUMBER <= value <= _NUMBER:
            raise InvalidRequest(f"{name} must be milliseconds since the epoch", param=name)


def _check_batch(batch: Batch) -> None:
    _check_text(batch.source.identity, "identity")
    if batch.progress.identity != batch.source.identity:
        raise InvalidRequest("progress must have the identity of the source", param="progress")
    for one in batch.put:
        _check_document(one)
    if len({one.seq for one in batch.put}) < len(batch.put):
        raise InvalidRequest("two documents of a batch have the same seq", param="put")
    if len({(one.channel, one.place) for one in batch.put}) < len(batch.put):
        raise InvalidRequest("two documents of a batch have the same place", param="put")


def _check_document(one: Document) -> None:
    if one.channel not in CHANNELS:
        raise InvalidRequest(f"channel must be one of {', '.join(CHANNELS)}", param="channel")
    if not (0 <= one.place < PLACES and 0 <= one.seq < _NUMBER):
        raise InvalidRequest(f"place must be 0 to {PLACES - 1}, and seq not negative", param="place")
    if len(one.digest) != _DIGEST:
        raise InvalidRequest(f"digest must have {_DIGEST} bytes, not {len(one.digest)}", param="digest")
    if not 0 <= one.traits < _TRAITS:
        raise InvalidRequest("traits must have at most 31 bits", param="traits")
    if not one.detail.isascii() or "|" in one.detail or "\0" in one.detail:
        raise InvalidRequest("detail must be ASCII without a bar or NUL", param="detail")
    if any(count < 1 for count in one.terms.values()):
        raise InvalidRequest("each term must have a count of at least 1", param="terms")
    checks.check_id(one.role, "role")
    if one.agent is not None:
        _check_text(one.agent, "agent")
    if one.name:
        checks.check_id(one.name, "name", longest=NAME_BYTES)


def _check_vector(vector: bytes, size: int) -> None:
    if not vector or len(vector) % index_vectors.NUMBER_BYTES or len(vector) != size:
        raise InvalidRequest(
            "a vector must consist of float32 numbers, and all vectors of a call need the same dimensions",
            param="vectors",
        )
