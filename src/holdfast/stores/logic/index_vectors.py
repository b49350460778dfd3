"""Store and search vectors of an index, and find documents without a vector. The functions are generators of statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Final

from holdfast.errors import InvalidRequest
from holdfast.recall.base import (
    NEAREST,
    Candidate,
    Lookup,
    Pending,
    Similar,
    Source,
    Space,
    Vectored,
)
from holdfast.recall.vectors import compute_similarities, pack, unpack
from holdfast.stores.logic.index_reads import LookupScope, list_neighbours, read_candidates, resolve_scope
from holdfast.stores.logic.index_rows import decode_document, make_counter, make_document_id, make_mark
from holdfast.stores.logic.index_writes import NONE, PART, get_or_create_model, read_models, read_source, read_space
from holdfast.stores.logic.rows import ENDLESS, decode_text, encode_array
from holdfast.stores.logic.steps import Many, Query, Steps

SCAN_VECTORS: Final = 1024
"""Number of vectors that one statement reads if the vectors are compared in Python."""
NUMBER_BYTES: Final = 4


def list_pending(tenant: str, model: str, space: Space | None, limit: int) -> Steps[list[Pending]]:
    """List documents without a vector of `model`: first documents without any vector, then documents with a vector of another model."""
    low, high = 0, ENDLESS
    if space is not None:
        row = yield from read_space(tenant, space)
        if row is None:
            return []
        low = high = row[0]
    found: list[Pending] = []
    for name, (number, _) in sorted((yield from read_models(tenant)).items()):
        if name != model and len(found) < limit:
            rows = yield Query("index_pending", (number, low, high, limit - len(found)))
            for kind, owner, id_, identity, seq, digest in rows:
                place = Space(decode_text(kind), decode_text(owner))  # type: ignore[arg-type]  # a stored kind
                source = Source(decode_text(id_), decode_text(identity))
                found.append(Pending(place, source, seq, bytes(digest)))
    return found


def put_vectors(
    tenant: str, space: Space, source: Source, model: str, vectors: Sequence[Vectored], *, compress: bool
) -> Steps[int]:
    """Store vectors of a source's documents; return the number of stored vectors.

    The vector of a document that has changed is not stored. `compress` applies if no vector of the model is stored yet: all vectors of
    the model are then stored as float16.
    """
    row = yield from read_space(tenant, space)
    known = None if row is None else (yield from read_source(row[0], source.id))
    if known is None or known.progress.identity != source.identity or not vectors:
        return 0
    numbers = len(vectors[0].vector) // NUMBER_BYTES
    models = yield from read_models(tenant)
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
    number, size = yield from get_or_create_model(tenant, model, -numbers if compress else numbers)
    _check_dimensions(model, size, numbers)
    rows = [
        (id_, make_mark(one.digest), pack(one.vector) if size < 0 else one.vector) for id_, one in sorted(kept.items())
    ]
    yield Many("index_vector_put", rows)
    yield Query("index_documents_model", (encode_array(sorted(kept)), number))
    return len(kept)


def _to_float32(data: bytes, dimensions: int) -> bytes:
    return unpack(bytes(data)) if dimensions < 0 else bytes(data)


def _check_dimensions(model: str, stored: int, given: int) -> None:
    if abs(stored) != given:
        raise InvalidRequest(
            f"the index has vectors of {model!r} with {abs(stored)} dimensions, not {given}:"
            " delete them with `drop_vectors` first",
            param="vectors",
        )


def read_vectors(tenant: str, model: str, digests: Sequence[bytes], space: Space) -> Steps[dict[bytes, bytes]]:
    """Return the stored vectors of `model` for documents with these digests, by digest."""
    row = yield from read_space(tenant, space)
    models = yield from read_models(tenant)
    if row is None or model not in models or not digests:
        return {}
    marks = encode_array(sorted({make_mark(digest) for digest in digests}))
    rows = yield Query("index_vectors_like", (models[model][0], row[0], marks))
    wanted = set(digests)
    size = models[model][1]
    return {bytes(digest): _to_float32(data, size) for digest, data in rows if bytes(digest) in wanted}


def drop_vectors(tenant: str, keep: str | None) -> Steps[int]:
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


# -- searching -----------------------------------------------------------------


def find_similar(tenant: str, lookup: Lookup, model: str, vector: bytes, *, engine: bool) -> Steps[list[Similar]]:
    """Return the documents whose vectors are most similar to `vector`, and the documents next to them, the most similar first.

    Args:
        tenant: the tenant of the index.
        lookup: space, channel, filters and limit.
        model: the model of the vectors.
        vector: the vector to compare with.
        engine: True if the database can compare vectors.
    """
    place = yield from resolve_scope(tenant, lookup)
    models = yield from read_models(tenant)
    if place is None or place.is_empty or model not in models:
        return []
    number, dimensions = models[model]
    _check_dimensions(model, dimensions, len(vector) // NUMBER_BYTES)
    limit = NEAREST if lookup.limit is None else lookup.limit
    if engine and dimensions > 0:
        rows = yield Query("index_nearest", (number, *place.prefix, *place.filters, vector, limit))
        near = {row[0]: float(row[1]) for row in rows}
    else:
        near = yield from _scan_vectors(place, number, vector, limit, half=dimensions < 0)
    around = sorted(set(list_neighbours(near)).difference(near))
    rows = yield Query("index_vectors_at", (encode_array(around), number))
    scores = compute_similarities(vector, [_to_float32(row[1], dimensions) for row in rows], abs(dimensions))
    near |= {row[0]: score for row, score in zip(rows, scores, strict=True)}
    found = yield from read_candidates(place, sorted(near), make_counter(()), place.filters)
    return _sort_similar(place, found, near)


def _sort_similar(place: LookupScope, found: Sequence[Candidate], near: Mapping[int, float]) -> list[Similar]:
    rated = [Similar(one, near[make_document_id(one.source, place.channel, one.place)]) for one in found]
    rated.sort(key=lambda one: (-one.similarity, -one.candidate.source, -one.candidate.place))
    return rated


def _scan_vectors(place: LookupScope, model: int, vector: bytes, limit: int, *, half: bool) -> Steps[dict[int, float]]:
    """Compare all vectors in Python. Return the similarity of the nearest documents, by document id."""
    best: list[tuple[float, int]] = []
    last, dimensions = -1, len(vector) // NUMBER_BYTES
    while True:
        rows = yield Query("index_vectors_read", (model, *place.prefix, *place.filters, last, SCAN_VECTORS))
        data = b"".join([bytes(row[1]) for row in rows])
        scores = compute_similarities(vector, unpack(data) if half else data, dimensions)
        best = nlargest(limit, [*best, *zip(scores, (row[0] for row in rows), strict=True)])
        if len(rows) < SCAN_VECTORS:
            return {id_: score for score, id_ in best}
        last = rows[-1][0]
