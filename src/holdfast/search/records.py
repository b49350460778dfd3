"""Search the searchable records of one owner: look up a question in the index, rank the candidates, and read them from the store.

Records are ranked as memories are (`holdfast.memory.ranking`), without age, importance and trust. Every hit is read from the store
again, so a record that was deleted, has expired or has another text is never found by what the index still has of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast.domain.record import (
    Namespace,
    RecordInfo,
    RecordName,
    RecordOwner,
    SearchableRecord,
    check_namespace,
    check_record_key,
    decode_place,
    find_range,
)
from holdfast.domain.session import SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.indexes.service import IndexService
from holdfast.indexes.sources import to_record_source
from holdfast.limits import INDEX_FRESH_SECONDS, RECORD_CHANGES, SEARCH_SNIPPET_CHARS, SEARCH_VECTOR_SECONDS
from holdfast.memory.queries import PreparedQuery, prepare_query
from holdfast.memory.ranking import Match, rank_matches
from holdfast.recall.base import NEAREST, Candidate, Candidates, Filters, Lookup, SearchMode, Similar
from holdfast.recall.snippets import SnippetBudget, make_snippet
from holdfast.search.queries import check_question
from holdfast.wire.sendable import check_text

INCOMPLETE: Final = "the latest records are not indexed yet"
_UNEMBEDDED: Final = "some records have no vector yet: they are found by their words alone"


class FoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a search found."""

    record: RecordInfo
    """The record: a `Record` if values were requested, otherwise a `RecordInfo`."""
    score: float
    """The value by which hits are ranked, 0 to 1. Scores of different searches cannot be compared."""
    parts: dict[str, float]
    """The parts of the score that were computed: `keyword`, the share of the question that the words answer, and `vector`, the similarity."""
    snippet: str
    """The part of the searchable text that matches best. Each run of white space is one space."""
    highlights: tuple[tuple[int, int], ...]
    """Start and stop of each matching word in `snippet`."""


class FoundRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a search found, best first."""

    hits: tuple[FoundRecord, ...]
    mode: SearchMode
    """The search mode that was used."""
    notes: tuple[str, ...] = ()
    """Ways in which the search differs from the request."""


class RecordQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A search of records. `Records.search` describes the fields."""

    owner: RecordOwner
    namespace: Namespace
    text: str
    identity: str | None = None
    prefix: str = ""
    nested: bool = False
    limit: int = 10
    mode: SearchMode | None = None


async def search_records(engine: Engine, query: RecordQuery) -> FoundRecords:
    """Return the records that answer a question, best first, without their values.

    Args:
        engine: the tenant's engine.
        query: the question, and where to search.

    Raises:
        InvalidRequest: an argument is invalid, there is no index, or mode `vector` is requested without an embedder.
        SessionNotFound: the owner is a session that does not exist.
        StoreError: the index or the store cannot be read.
        EmbeddingFailed: mode `vector` is requested, and the embedder fails or takes too long.
    """
    check_text(query.text, "query")
    check_question(query.text, query.mode, query.limit)
    check_namespace(query.namespace, empty=query.nested)
    check_record_key(query.prefix, empty=True)
    if query.prefix and query.nested:
        raise InvalidRequest("prefix and nested cannot be combined: a prefix belongs to one namespace", param="prefix")
    service = engine.index
    if service is None:
        raise InvalidRequest("there is no index here, so nothing can be searched: see storage.index", param="index")
    if isinstance(query.owner, SessionRef):  # it must exist, even if nothing is found
        await engine.store.searchable_records(query.owner, now=engine.clock(), names=[], identity=query.identity)
    text = query.text if engine.guard is None else engine.guard.mask_text(query.text)
    prepared = await prepare_query(
        text,
        query.mode or service.mode,
        service.embedder,
        now=engine.clock(),
        patience=SEARCH_VECTOR_SECONDS,
        strict=query.mode == "vector",
    )
    notes = [prepared.note and f"keyword only: {prepared.note}"]
    if not await service.index_records(query.owner, INDEX_FRESH_SECONDS):
        notes.append(INCOMPLETE)
    looked = await _look_up(service, query, prepared)
    notes += looked.notes
    matches = rank_matches(prepared.question, looked.found, looked.similar, service.floor)
    found = await _read_matches(engine, query, matches, looked.names)
    hits = _make_hits(found, prepared)
    return FoundRecords(hits=tuple(hits), mode=prepared.mode, notes=tuple(filter(None, notes)))


class _Looked(NamedTuple):
    """The result of the lookups in the index."""

    found: Candidates | None
    similar: Sequence[Similar] | None
    names: dict[int, RecordName]
    """Names of the candidates by number."""
    notes: list[str]


async def _look_up(service: IndexService, query: RecordQuery, prepared: PreparedQuery) -> _Looked:
    space, source_id = to_record_source(query.owner)
    names = find_range(query.namespace, query.prefix, nested=query.nested)
    filters = Filters(sessions=(source_id,), names=names)
    notes: list[str] = []
    found = similar = None
    if prepared.mode != "vector" and prepared.question.terms:
        found = await service.index.lookup(Lookup(space=space, terms=prepared.question.terms, filters=filters))
    if prepared.vector is not None and service.embedder is not None:
        lookup = Lookup(space=space, filters=filters, limit=NEAREST)
        similar = await service.index.similar(lookup, service.embedder.name, prepared.vector)
        if await service.index.pending(service.embedder.name, space=space, limit=1):
            notes.append(_UNEMBEDDED)
    if found is None and similar is None:
        notes.append("the query has no word to search for")
    candidates: list[Candidate] = [*(found.found if found else ()), *(one.candidate for one in similar or ())]
    return _Looked(
        found, similar, {one.seq: decode_place(one.name.encode()) for one in candidates if one.name is not None}, notes
    )


async def _read_matches(
    engine: Engine, query: RecordQuery, matches: Sequence[Match], names: dict[int, RecordName]
) -> list[tuple[Match, SearchableRecord]]:
    """Read the best matches from the store, up to the limit. Records that have another number by now are other records."""
    found: list[tuple[Match, SearchableRecord]] = []
    gone: list[int] = []
    for at in range(0, len(matches), RECORD_CHANGES):
        some = [match for match in matches[at : at + RECORD_CHANGES] if match.number in names]
        wanted = list({names[match.number] for match in some})
        page = await engine.store.searchable_records(
            query.owner, now=engine.clock(), names=wanted, identity=query.identity
        )
        known = {one.number: one for one in page.records}
        found += [(match, known[match.number]) for match in some if match.number in known]
        gone += [match.number for match in some if match.number not in known]
        if len(found) >= query.limit:
            break
    if gone and engine.index is not None:
        await engine.index.check(to_record_source(query.owner), gone)
    return found[: query.limit]


def _make_hits(found: Sequence[tuple[Match, SearchableRecord]], prepared: PreparedQuery) -> list[FoundRecord]:
    budget = SnippetBudget()
    hits: list[FoundRecord] = []
    for match, one in found:
        snippet = make_snippet(one.text, prepared.question, SEARCH_SNIPPET_CHARS, budget=budget)
        parts = {"keyword": match.keyword, "vector": match.vector}
        info = RecordInfo(**{name: getattr(one, name) for name in RecordInfo.__struct_fields__})
        hits.append(
            FoundRecord(
                record=info,
                score=round(match.relevance, 6),
                parts={name: round(value, 6) for name, value in parts.items() if value is not None},
                snippet=snippet.text,
                highlights=snippet.highlights,
            )
        )
    return hits
