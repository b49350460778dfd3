"""Write to an index. The functions are generators of statements, see `steps`.

Posting lists, counts and vectors change together with the documents, in one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET

from holdfast.recall.base import Batch, Document, Progress, Space
from holdfast.stores.logic.index_rows import (
    CHANNELS,
    StoredDocument,
    decode_document,
    decode_progress,
    encode_document,
    encode_progress,
    make_document_id,
    make_mark,
    make_prefix,
    make_words,
    pack_terms,
    unpack_keys,
)
from holdfast.stores.logic.rows import ENDLESS, encode_array
from holdfast.stores.logic.steps import Many, Query, Row, Steps

PART: Final = 1000
"""Maximum number of documents that one statement deletes."""
NONE: Final = ""
"""Name under which documents without a vector are stored, in place of a model."""


class KnownSource(NamedTuple):
    """A stored source: its number, its progress and the number of its documents."""

    number: int
    progress: Progress
    documents: int


# -- stored data ---------------------------------------------------------------


def read_space(tenant: str, space: Space) -> Steps[Row | None]:
    """Return the row of a space, with the columns of `index_space_get`; None if there is no such space."""
    rows = yield Query("index_space_get", (tenant, *space))
    return rows[0] if rows else None


def read_source(space: int, source_id: str) -> Steps[KnownSource | None]:
    """Return a source of a space; None if the index does not have the source."""
    rows = yield Query("index_source_get", (space, source_id))
    return KnownSource(rows[0][0], decode_progress(rows[0][2]), rows[0][1]) if rows else None


def find_source(tenant: str, space: Space, source_id: str) -> Steps[KnownSource | None]:
    """Return a source by the name of its space; None if the index does not have the space or the source."""
    row = yield from read_space(tenant, space)
    return None if row is None else (yield from read_source(row[0], source_id))


def read_models(tenant: str) -> Steps[dict[str, tuple[int, int]]]:
    """Return number and dimensions of each of the tenant's models, by name. `NONE` is included once there is a document.

    Negative dimensions mean that the model's vectors are stored as float16.
    """
    rows = yield Query("index_models", (tenant,))
    return {name if isinstance(name, str) else name.decode(): (number, size) for number, name, size in rows}


def get_or_create_model(tenant: str, name: str, dimensions: int = 0) -> Steps[tuple[int, int]]:
    """Return number and dimensions of a model; create the model if it is new.

    If another process has just created it, its dimensions may be others than `dimensions`.
    """
    models = yield from read_models(tenant)
    if name not in models:
        yield Query("index_model_new", (tenant, name, dimensions))
        models = yield from read_models(tenant)
    return models[name]


# -- writing -------------------------------------------------------------------


def write_batch(tenant: str, space: Space, batch: Batch) -> Steps[tuple[bool, bool]]:
    """Write a batch in one transaction.

    The batch is not written if the source's progress differs from `batch.expect`.

    Returns:
        True if the batch was written; then True if the write deleted documents.
    """
    row = yield from read_space(tenant, space)
    if row is None:
        if batch.expect not in (None, UNSET):
            return False, False
        yield Query("index_space_new", (tenant, *space))
        row = yield from read_space(tenant, space)
        assert row is not None  # created in this transaction
    number = row[0]
    known = yield from read_source(number, batch.source.id)
    if batch.expect is not UNSET and batch.expect != (known.progress if known else None):
        return False, False
    removed = 0
    if known is not None and known.progress.identity != batch.source.identity:
        removed = yield from _delete_source(number, known.number)
        known = None
    if known is None:
        progress = encode_progress(Progress(batch.source.identity))
        yield Query("index_source_new", (number, batch.source.id, batch.source.identity, 0, 0, progress))
        known = yield from read_source(number, batch.source.id)
        assert known is not None  # created in this transaction
    removed += yield from _apply_batch(tenant, number, known, batch)
    return True, removed > 0


def _apply_batch(tenant: str, space: int, known: KnownSource, batch: Batch) -> Steps[int]:
    """Put and delete documents of a source. Return the number of documents that were deleted or got other content.

    Args:
        tenant: the tenant of the index.
        space: the space's number.
        known: the source.
        batch: the documents to put and to delete.
    """
    put = {make_document_id(known.number, CHANNELS.index(one.channel), one.place): one for one in batch.put}
    affected = yield from _read_affected(known, put, batch.drop)
    by_id = {stored.id: stored for stored in affected}
    same = {id_ for id_, one in put.items() if _is_same(by_id.get(id_), one)}
    moved = yield from _read_kept_vectors(put, affected, same)
    change = _SpaceChange(space)
    gone = [stored for stored in affected if stored.id not in same]
    yield from _delete_documents(gone, change)
    model, _ = yield from get_or_create_model(tenant, NONE)
    rows = []
    for id_, one in put.items():
        kept = by_id[id_].model if id_ in same else moved[id_][0] if id_ in moved else model
        rows.append(encode_document(id_, space, known.number, one, kept if one.channel == "talk" else None))
    if rows:
        yield Many("index_document_put", rows)
    new = [row for row in rows if row[0] not in same]
    if new:
        yield Many("index_posting_put", [(row[0], change.add(row[2], row[6], row[13])) for row in new])
    if moved:
        yield Many("index_vector_put", [(id_, make_mark(put[id_].digest), data) for id_, (_, data) in moved.items()])
    yield from change.write_counts()
    progress = batch.progress
    yield Query("index_source_put", (known.number, int(progress.complete), change.documents, encode_progress(progress)))
    return len(gone)


def _is_same(stored: StoredDocument | None, new: Document) -> bool:
    return (
        stored is not None
        and stored.seq == new.seq
        and stored.digest == new.digest
        and stored.terms == pack_terms(new.terms, new.detail)
    )


def _read_affected(known: KnownSource, put: Mapping[int, Document], drop: Sequence[int]) -> Steps[list[StoredDocument]]:
    """Return the stored documents that a batch deletes or replaces, because they have the same `seq` or the same place."""
    seqs = {*(seq for seq in drop if 0 <= seq < ENDLESS), *(one.seq for one in put.values())}
    if not (known.documents and seqs):
        return []
    rows = yield Query("index_documents_at", (known.number, encode_array(sorted(seqs)), encode_array(sorted(put))))
    return [decode_document(row) for row in rows]


def _read_kept_vectors(
    put: Mapping[int, Document], affected: Sequence[StoredDocument], same: set[int]
) -> Steps[dict[int, tuple[int, bytes]]]:
    """Return the vectors of documents that are written again with the same `seq` and digest, so that their vectors can be kept.

    Returns:
        Number of the model and vector, by new id of the document.
    """
    before = {
        (stored.seq, stored.digest): stored for stored in affected if stored.id not in same and stored.model is not None
    }
    moved = {id_: before[one.seq, one.digest] for id_, one in put.items() if (one.seq, one.digest) in before}
    found: dict[int, tuple[int, bytes]] = {}
    for model in {stored.model for stored in moved.values()}:
        ids = [stored.id for stored in moved.values() if stored.model == model]
        rows = yield Query("index_vectors_at", (encode_array(ids), model))
        data = {row[0]: bytes(row[1]) for row in rows}
        found |= {
            id_: (stored.model, data[stored.id]) for id_, stored in moved.items() if stored.id in data and stored.model
        }
    return found


# -- counting ------------------------------------------------------------------


class _SpaceChange:
    """Collects the documents that are added to and removed from a space, so that its counts are updated only once."""

    def __init__(self, space: int) -> None:
        self._space = space
        self._prefixes = [make_prefix(space, channel) for channel in range(len(CHANNELS))]
        self._terms: list[Counter[str]] = [Counter() for _ in CHANNELS]
        self._documents = [0] * len(CHANNELS)
        self._length = [0] * len(CHANNELS)

    @property
    def documents(self) -> int:
        """Number of added documents minus number of removed ones."""
        return sum(self._documents)

    def add(self, channel: int, length: int, terms: str) -> str:
        """Add a document to the counts. Return its words for the full-text engine."""
        keys = unpack_keys(terms)
        self._terms[channel].update(keys)
        self._documents[channel] += 1
        self._length[channel] += length
        return make_words(self._prefixes[channel], keys)

    def remove(self, stored: StoredDocument) -> str:
        """Subtract a document from the counts. Return its words for the full-text engine."""
        keys = unpack_keys(stored.terms)
        self._terms[stored.channel].subtract(keys)
        self._documents[stored.channel] -= 1
        self._length[stored.channel] -= stored.length
        return make_words(self._prefixes[stored.channel], keys)

    def write_counts(self) -> Steps[None]:
        """Write the new counts. Terms are written in sorted order, so that concurrent writers cannot deadlock."""
        for channel, terms in enumerate(self._terms):
            pairs = sorted((term, count) for term, count in terms.items() if count)
            if pairs:
                yield Query("index_frequencies_add", (self._space, channel, encode_array(pairs)))
            fewer = [term for term, count in pairs if count < 0]
            if fewer:
                yield Query("index_frequencies_clean", (self._space, channel, encode_array(fewer)))
        if any((*self._documents, *self._length)):
            talk, tool = zip(self._documents, self._length, strict=True)
            yield Query("index_space_add", (self._space, *talk, *tool))


def _delete_documents(stored: Sequence[StoredDocument], change: _SpaceChange) -> Steps[None]:
    if stored:
        ids = encode_array(sorted(one.id for one in stored))
        yield Many(
            "index_posting_delete", [(one.id, change.remove(one)) for one in sorted(stored, key=lambda one: one.id)]
        )
        yield Query("index_vectors_delete", (ids,))
        yield Query("index_documents_delete", (ids,))


# -- deleting ------------------------------------------------------------------


def _delete_source(space: int, source: int) -> Steps[int]:
    change = _SpaceChange(space)
    while rows := (yield Query("index_documents_first", (source, PART))):
        yield from _delete_documents([decode_document(row) for row in rows], change)
    yield from change.write_counts()
    yield Query("index_source_delete", (source,))
    return -change.documents


def drop_source(tenant: str, space: Space, source_id: str, identity: str | None) -> Steps[int]:
    """Delete a source, and with the last source the space; return the number of the source's documents.

    If `identity` is given, do nothing unless the source has this identity.
    """
    row = yield from read_space(tenant, space)
    known = None if row is None else (yield from read_source(row[0], source_id))
    if row is None or known is None or identity not in {None, known.progress.identity}:
        return 0
    documents = yield from _delete_source(row[0], known.number)
    if not (yield Query("index_sources_of", (row[0], 1))):
        yield Query("index_space_delete", (row[0],))  # its name is the id of a user or owner
    return documents
