"""Implement the index contract (`holdfast.recall.base`) for any database that runs named statements."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from heapq import nlargest
from typing import Any, Final, Self

from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import NAMESPACE_BYTES, NAMESPACE_LABELS, RECORD_KEY_BYTES
from holdfast.recall import base
from holdfast.recall.base import NEAREST, PLACES, Candidate, Document, Lookup, Pending, Progress, Similar, Source, Space
from holdfast.recall.vectors import compute_similarities, pack, unpack
from holdfast.stores import checks
from holdfast.stores.logic import index_lookups, index_writes
from holdfast.stores.logic.handle import Handle, reads, writes
from holdfast.stores.logic.index_lookups import LookupScope, list_neighbours, read_candidates, resolve_scope
from holdfast.stores.logic.index_rows import (
    CHANNELS,
    SOURCES,
    decode_candidate,
    decode_document,
    decode_source,
    make_counter,
    make_document_id,
    make_mark,
)
from holdfast.stores.logic.index_writes import NONE, PART, find_source, get_or_create_model, read_models, read_space
from holdfast.stores.logic.rows import ENDLESS, decode_text, encode_array
from holdfast.stores.logic.steps import Database, Many, Query, Row, Rows, Steps, do_nothing

NOTE_BYTES: Final = 64 * 1024
SCANNING: Final = ("numpy", "python")
"""Vector engines that compare vectors in Python, because the database cannot."""
SCAN_VECTORS: Final = 1024
"""Number of vectors that one statement reads if the vectors are compared in Python."""
_NUMBER_BYTES: Final = 4
_DIGEST: Final = 16
NAME_BYTES: Final = NAMESPACE_BYTES + NAMESPACE_LABELS + 1 + RECORD_KEY_BYTES
"""Longest name of a document: the namespace and the key of a record, each label with a separator."""
_TRAITS: Final = 1 << 31
_NUMBER: Final = 1 << 62
_AHEAD: Final = 16
"""Number of spaces whose sources one statement lists."""


class LogicIndex(Handle):
    """An index handle of one tenant (`holdfast.recall.base.Index`, which describes the methods) on a SQL database."""

    _points = ("before-index-read", "before-index-commit", "after-index-commit")

    def __init__(
        self, database: Database, tenant: str, *, engine: str, compress: bool = False, owner: bool = True
    ) -> None:
        super().__init__(database, tenant, owner=owner)
        self._engine = engine
        self._compress = compress

    def for_tenant(self, tenant: str) -> Self:
        return type(self)(self.database, tenant, engine=self._engine, compress=self._compress, owner=False)

    def _is_compared(self, dimensions: int) -> bool:
        """Return True if the database compares vectors with this number of dimensions; below 0, they are compressed."""
        return self._engine not in SCANNING and dimensions > 0

    def _get_queue(self, scope: Any) -> Hashable:
        return ("index", self.tenant, scope)

    @reads()
    def progress(self, space: Space, source_id: str) -> Steps[Progress | None]:
        _check_source(space, source_id)
        known = yield from find_source(self.tenant, space, source_id)
        return known.progress if known else None

    async def write(self, space: Space, batch: base.Batch) -> bool:
        _check_source(space, batch.source.id)
        _check_batch(batch)
        steps = partial(index_writes.write_batch, self.tenant, space, batch)
        written, removed = await self._write(steps, queue=self._get_queue(space), scrub=bool(batch.drop))
        if removed and not batch.drop:
            await self._write(do_nothing, scrub=True)
        return written

    @reads()
    def list_digests(
        self, space: Space, source_id: str, *, start: int = 0, limit: int = 1000
    ) -> Steps[Sequence[tuple[int, bytes]]]:
        _check_source(space, source_id)
        known = yield from find_source(self.tenant, space, source_id)
        rows = (yield Query("index_documents_held", (known.number, start, limit))) if known else ()
        return [(seq, bytes(digest)) for seq, digest in rows]

    @writes(scrub=True)
    def drop(self, space: Space, source_id: str, *, identity: str | None = None) -> Steps[int]:
        _check_source(space, source_id)
        return (yield from index_writes.drop_source(self.tenant, space, source_id, identity))

    @reads()
    def sources(
        self,
        *,
        space: Space | None = None,
        after: tuple[Space, str] | None = None,
        limit: int = 100,
        incomplete: bool = False,
    ) -> Steps[Sequence[tuple[Space, str, Progress]]]:
        if incomplete:
            bounds = yield from _bound_spaces(self.tenant, space)
            start, name = after if after is not None else (("", ""), None)
            params = (self.tenant, *(bounds or ()), *start, name, limit)
            rows = (yield Query("index_sources_incomplete", params)) if bounds else ()
        elif space is None:
            rows = yield from _list_sources_of_tenant(self.tenant, after, limit)
        elif after is not None and after[0] > space:
            rows = ()
        else:
            last = after[1] if after is not None and after[0] == space else None
            rows = yield from _list_sources_of_space(self.tenant, space, last, limit)
        return [decode_source(row) for row in rows]

    @reads()
    def lookup(self, lookup: Lookup) -> Steps[base.Candidates]:
        _check_lookup(lookup)
        return (yield from index_lookups.find_candidates(self.tenant, lookup))

    @reads()
    def at(self, space: Space, source_id: str, seqs: Sequence[int]) -> Steps[Sequence[Candidate]]:
        _check_source(space, source_id)
        known = yield from find_source(self.tenant, space, source_id)
        wanted = sorted({seq for seq in seqs if 0 <= seq < ENDLESS})
        rows = (yield Query("index_candidates_at", (known.number, encode_array(wanted)))) if known and wanted else ()
        return [decode_candidate(row, make_counter(())) for row in rows]

    @reads()
    def near(self, lookup: Lookup, places: Sequence[tuple[int, int]]) -> Steps[Sequence[Candidate]]:
        _check_lookup(lookup)
        place = yield from resolve_scope(self.tenant, lookup)
        if place is None or place.is_empty:
            return []
        there = {(source, at) for source, at in places if 0 < source < SOURCES and 0 <= at < PLACES}
        ids = sorted(make_document_id(source, place.channel, at) for source, at in there)
        return (yield from read_candidates(place, ids, make_counter(()), place.filters))

    @reads()
    def note(self, name: str) -> Steps[bytes | None]:
        rows = yield Query("item_get", (self.tenant, "note", name))
        return bytes(rows[0][0]) if rows else None

    @writes()
    def keep_note(self, name: str, data: bytes | None, *, new: bool = False) -> Steps[None]:
        if data is None:
            yield Query("item_delete", (self.tenant, "note", name))
        elif len(data) > NOTE_BYTES:
            raise TooLarge(f"a note has {len(data)} bytes; the limit is {NOTE_BYTES}", param="data")
        else:
            yield Query("item_add" if new else "item_put", (self.tenant, "note", name, 0, "", data))

    @reads()
    def status(self, space: Space | None = None) -> Steps[base.IndexStatus]:
        bounds = yield from _bound_spaces(self.tenant, space)
        if bounds is None:
            return base.IndexStatus(sources=0, incomplete=0, documents=0, vector_engine=self._engine)
        sources, incomplete, documents = (yield Query("index_sources_count", (self.tenant, *bounds)))[0]
        counts: dict[str, int] = {}
        for name, (number, _) in (yield from read_models(self.tenant)).items():
            counts[name] = (yield Query("index_model_count", (number, *bounds)))[0][0]
        return base.IndexStatus(
            sources=sources,
            incomplete=incomplete,
            documents=documents,
            vectors={name: count for name, count in counts.items() if count and name != NONE},
            vector_engine=self._engine,
        )

    # -- vectors ---------------------------------------------------------------

    @reads()
    def pending(self, model: str, *, space: Space | None = None, limit: int = 100) -> Steps[Sequence[Pending]]:
        bounds = yield from _bound_spaces(self.tenant, space)
        found: list[Pending] = []
        models = (yield from read_models(self.tenant)) if bounds else {}
        for name, (number, _) in sorted(
            models.items()
        ):  # those without any vector first: `NONE` sorts before other models
            if bounds and name != model and len(found) < limit:
                rows = yield Query("index_pending", (number, *bounds, limit - len(found)))
                for kind, owner, id_, identity, seq, digest in rows:
                    place = Space(decode_text(kind), decode_text(owner))  # type: ignore[arg-type]  # a stored kind
                    source = Source(decode_text(id_), decode_text(identity))
                    found.append(Pending(place, source, seq, bytes(digest)))
        return found

    @writes()
    def put_vectors(self, space: Space, source: Source, model: str, vectors: Sequence[base.Vectored]) -> Steps[int]:
        _check_source(space, source.id)
        for one in vectors:
            _check_vector(one.vector, len(vectors[0].vector))
        # An engine that compares vectors reads only uncompressed ones. This applies if no vector of the model is stored yet.
        compress = self._compress and self._engine in SCANNING
        known = yield from find_source(self.tenant, space, source.id)
        if known is None or known.progress.identity != source.identity or not vectors:
            return 0
        numbers = len(vectors[0].vector) // _NUMBER_BYTES
        models = yield from read_models(self.tenant)
        if model in models:
            _check_dimensions(model, models[model][1], numbers)
        rows = yield Query(
            "index_documents_at", (known.number, encode_array(sorted({one.seq for one in vectors})), encode_array(()))
        )
        there = {
            (stored.seq, stored.digest): stored.id for stored in map(decode_document, rows) if stored.model is not None
        }
        kept = {there[one.seq, one.digest]: one for one in vectors if (one.seq, one.digest) in there}
        if not kept:
            return 0
        number, size = yield from get_or_create_model(self.tenant, model, -numbers if compress else numbers)
        _check_dimensions(model, size, numbers)
        rows = [
            (id_, make_mark(one.digest), pack(one.vector) if size < 0 else one.vector)
            for id_, one in sorted(kept.items())
        ]
        yield Many("index_vector_put", rows)
        yield Query("index_documents_model", (encode_array(sorted(kept)), number))
        return len(kept)

    @reads()
    def vectors(self, model: str, digests: Sequence[bytes], *, space: Space) -> Steps[Mapping[bytes, bytes]]:
        _check_space(space)
        row = yield from read_space(self.tenant, space)
        models = yield from read_models(self.tenant)
        if row is None or model not in models or not digests:
            return {}
        marks = encode_array(sorted({make_mark(digest) for digest in digests}))
        number, size = models[model]
        rows = yield Query("index_vectors_like", (number, row[0], marks))
        wanted = set(digests)
        return {bytes(digest): _to_float32(data, size) for digest, data in rows if bytes(digest) in wanted}

    @reads()
    def similar(self, lookup: Lookup, model: str, vector: bytes) -> Steps[Sequence[Similar]]:
        _check_lookup(lookup)
        _check_vector(vector, len(vector))
        place = yield from resolve_scope(self.tenant, lookup)
        models = yield from read_models(self.tenant)
        if place is None or place.is_empty or model not in models:
            return []
        number, dimensions = models[model]
        _check_dimensions(model, dimensions, len(vector) // _NUMBER_BYTES)
        limit = NEAREST if lookup.limit is None else lookup.limit
        if self._is_compared(dimensions):
            rows = yield Query("index_nearest", (number, *place.prefix, *place.filters, vector, limit))
            near = {row[0]: float(row[1]) for row in rows}
        else:
            near = yield from _scan_vectors(place, number, vector, limit, half=dimensions < 0)
        around = sorted(set(list_neighbours(near)).difference(near))
        rows = yield Query("index_vectors_at", (encode_array(around), number))
        scores = compute_similarities(vector, [_to_float32(row[1], dimensions) for row in rows], abs(dimensions))
        near |= {row[0]: score for row, score in zip(rows, scores, strict=True)}
        found = yield from read_candidates(place, sorted(near), make_counter(()), place.filters)
        rated = [Similar(one, near[make_document_id(one.source, place.channel, one.place)]) for one in found]
        rated.sort(key=lambda one: (-one.similarity, -one.candidate.source, -one.candidate.place))
        return rated

    async def drop_vectors(self, *, keep: str | None = None) -> int:
        count, queue = 0, self._get_queue(None)
        while gone := await self._write(partial(_drop_vectors, self.tenant, keep), scrub=True, queue=queue):
            count += gone
        return count

    async def close(self) -> None:
        self._closed = True
        if self._owner:
            await self.database.close()


# -- sources -------------------------------------------------------------------


def _bound_spaces(tenant: str, space: Space | None) -> Steps[tuple[int, int] | None]:
    """Return the lowest and the highest number of the spaces: of all, or of one of them; None if that space does not exist."""
    if space is None:
        return 0, ENDLESS
    _check_space(space)
    row = yield from read_space(tenant, space)
    return None if row is None else (row[0], row[0])


def _list_sources_of_space(tenant: str, space: Space, after: str | None, limit: int) -> Steps[Rows]:
    """Return the rows of a space's sources with ids after `after`. If `after` is None, return all, even a source with an empty id."""
    row = yield from read_space(tenant, space)
    if row is None:
        return []
    return (yield Query("index_sources_of_after", (row[0], after or "", int(after is None), limit)))


def _list_sources_of_tenant(tenant: str, after: tuple[Space, str] | None, limit: int) -> Steps[Rows]:
    """Return the rows of a tenant's sources that come after `after`, which is given by space and id.

    The remaining sources of the space in `after` are read first. Later spaces follow, `_AHEAD` per statement, so that no space
    is read twice.
    """
    found = list[Row]()
    place: tuple[str, str] = ("", "")  # the empty kind sorts first
    if after is not None:
        place = after[0]
        found += yield from _list_sources_of_space(tenant, *after, limit)
    while len(found) < limit:
        rows = yield Query("index_sources_after", (tenant, *place, _AHEAD, limit + _AHEAD))
        if not rows:
            break
        found += [row for row in rows if row[2] is not None]
        place = (decode_text(rows[-1][0]), decode_text(rows[-1][1]))
    return found[:limit]


# -- vectors -------------------------------------------------------------------


def _to_float32(data: bytes, dimensions: int) -> bytes:
    return unpack(bytes(data)) if dimensions < 0 else bytes(data)


def _check_dimensions(model: str, stored: int, given: int) -> None:
    if abs(stored) != given:
        raise InvalidRequest(
            f"the index has vectors of {model!r} with {abs(stored)} dimensions, not {given}:"
            " delete them with `drop_vectors` first",
            param="vectors",
        )


def _drop_vectors(tenant: str, keep: str | None) -> Steps[int]:
    """Delete up to `PART` vectors of models other than `keep`; return how many were deleted. Repeat until it returns 0."""
    models = yield from read_models(tenant)
    for name, (number, _) in models.items():
        if name in (NONE, keep):
            continue
        rows = yield Query("index_model_of", (number, PART))
        if rows:
            ids = encode_array([row[0] for row in rows])
            yield Query("index_vectors_delete", (ids,))
            yield Query("index_documents_model", (ids, models[NONE][0]))
            return len(rows)
        yield Query("index_model_delete", (number,))
    return 0


def _scan_vectors(place: LookupScope, model: int, vector: bytes, limit: int, *, half: bool) -> Steps[dict[int, float]]:
    """Compare all vectors in Python. Return the similarity of the nearest documents, by document id."""
    best: list[tuple[float, int]] = []
    last, dimensions = -1, len(vector) // _NUMBER_BYTES
    while True:
        rows = yield Query("index_vectors_read", (model, *place.prefix, *place.filters, last, SCAN_VECTORS))
        data = b"".join([bytes(row[1]) for row in rows])
        scores = compute_similarities(vector, unpack(data) if half else data, dimensions)
        best = nlargest(limit, [*best, *zip(scores, (row[0] for row in rows), strict=True)])
        if len(rows) < SCAN_VECTORS:
            return {id_: score for score, id_ in best}
        last = rows[-1][0]


# -- checks --------------------------------------------------------------------


def _check_text(value: str, param: str) -> None:
    if value:
        checks.check_id(value, param)


def _check_space(space: Space) -> None:
    if space.kind not in base.SPACE_KINDS:
        raise InvalidRequest(f"kind must be one of {', '.join(base.SPACE_KINDS)}", param="space")
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


def _check_batch(batch: base.Batch) -> None:
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
    if not vector or len(vector) % _NUMBER_BYTES or len(vector) != size:
        raise InvalidRequest(
            "a vector must consist of float32 numbers, and all vectors of a call need the same dimensions",
            param="vectors",
        )
