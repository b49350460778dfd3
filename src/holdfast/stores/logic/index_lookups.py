"""Look up documents in an index. The functions are generators of statements, see `steps`.

A posting list contains the ids of all documents with a term. A lookup reads the posting lists of its terms, rarest term first. It
ranks the documents provisionally, and reads the rows of the best. The cost depends on `POSTINGS` and `CANDIDATES`, not on the size of
the index: terms that occur in most documents are not searched for. They are only counted in the documents that the other terms find.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast.recall.base import CANDIDATES, NEAR, POSTINGS, SMALL, Candidate, Candidates, Filters, Lookup
from holdfast.recall.terms import to_key
from holdfast.stores.logic.index_rows import (
    CHANNELS,
    NO_FILTER,
    TermCounter,
    decode_candidate,
    encode_filters,
    encode_texts,
    make_counter,
    make_prefix,
)
from holdfast.stores.logic.index_writes import read_space
from holdfast.stores.logic.rows import ENDLESS, decode_text, encode_array
from holdfast.stores.logic.steps import Query, Row, Steps

NARROW: Final = 2000
"""If at most this many documents pass the filters, the lookup may read all of them instead of posting lists, which cover the
whole space.
"""
COSTLIER: Final = 2
"""Reading one document takes as long as reading this many rows of posting lists."""
FILTER_ROWS: Final = 4 * POSTINGS
"""Approximate maximum number of posting-list rows that are checked against filters. The rows of the rarest term are always all
checked.
"""
_AHEAD: Final = 16
"""Number of spaces whose sources one statement lists."""
_decode_ids: Final = msgspec.json.Decoder(list[int]).decode


class LookupScope(NamedTuple):
    """The part of the index that a lookup searches: one channel of a space, and a filter."""

    space: int
    channel: int
    documents: int
    length: int
    filters: Row
    """The filter as parameters of statements."""
    named: Sequence[int] | None = None
    """Numbers of the sources that the filter allows by id; None if it allows all sources."""
    size: int = 0
    """Number of documents in the sources of `named`."""

    @property
    def is_empty(self) -> bool:
        """True if the filter allows only sources that do not exist."""
        return self.named is not None and not self.named

    @property
    def prefix(self) -> Row:
        """The first parameters of each statement, before the parameters of the filter."""
        return self.space, self.channel


def resolve_scope(tenant: str, lookup: Lookup) -> Steps[LookupScope | None]:
    """Return the part of the index that a lookup searches; None if the space does not exist."""
    row = yield from read_space(tenant, lookup.space)
    if row is None:
        return None
    channel = CHANNELS.index(lookup.channel)
    documents, length = row[1 + 2 * channel : 3 + 2 * channel]
    filters, named, size = lookup.filters, None, 0
    if filters == Filters():
        return LookupScope(row[0], channel, documents, length, NO_FILTER)
    if filters.sessions:
        sources = yield from _count_documents(row[0], filters.sessions)
        named, size = list(sources), sum(sources.values())
    others = list((yield from _count_documents(row[0], filters.not_sessions))) if filters.not_sessions else None
    return LookupScope(row[0], channel, documents, length, encode_filters(filters, named, others), named, size)


def _count_documents(space: int, ids: Sequence[str]) -> Steps[dict[int, int]]:
    """Return the number of documents in each source with one of these ids, by the source's number."""
    rows = yield Query("index_sources_named", (space, encode_texts(ids)))
    return dict(sorted(tuple(row) for row in rows))


# -- lookups -------------------------------------------------------------------


def find_candidates(tenant: str, lookup: Lookup) -> Steps[Candidates]:
    """Return the documents that a lookup finds, and the document counts and term frequencies that are needed to rank them."""
    place = yield from resolve_scope(tenant, lookup)
    if place is None:
        return Candidates([], 0, 0, {})
    frequencies = yield from _read_frequencies(place, lookup.terms)
    known_terms = [term for term in lookup.terms if term in frequencies]
    if place.is_empty or (lookup.terms and not known_terms):
        candidates: list[Candidate] = []
    elif not lookup.terms:
        candidates = yield from _read_newest(place, _compute_limit(lookup, place), make_counter(()))
    else:
        candidates = yield from _find_matching(lookup, place, {term: frequencies[term] for term in known_terms})
    return Candidates(candidates, place.documents, place.length, frequencies)


def _compute_limit(lookup: Lookup, place: LookupScope) -> int:
    """Return the maximum number of candidates: the lookup's limit, else all documents of a small space, else `CANDIDATES`."""
    return lookup.limit or (place.documents if place.documents <= SMALL else CANDIDATES)


def _read_frequencies(place: LookupScope, terms: Sequence[str]) -> Steps[dict[str, int]]:
    if not terms:
        return {}
    names = {to_key(term): term for term in terms}
    rows = yield Query("index_frequencies", (*place.prefix, encode_array(sorted(names))))
    return {names[key if isinstance(key, str) else key.decode()]: count for key, count in rows}


def _read_newest(place: LookupScope, limit: int, count: TermCounter) -> Steps[list[Candidate]]:
    rows = yield _query_newest(place, limit)
    return [decode_candidate(row, count) for row in rows]


def _query_newest(place: LookupScope, limit: int) -> Query:
    name = "index_candidates_newest" if place.named is None else "index_candidates_of"
    return Query(name, (limit, *place.prefix, *place.filters))


def _find_matching(lookup: Lookup, place: LookupScope, frequencies: Mapping[str, int]) -> Steps[list[Candidate]]:
    limit, count = _compute_limit(lookup, place), make_counter(frequencies)
    if (yield from _is_narrow(place, lookup.filters, sum(frequencies.values()))):
        rows = {row[0]: row for row in (yield _query_newest(place, NARROW))}
        lists: dict[str, Collection[int]] = {term: [] for term in frequencies}
        for id_, row in rows.items():
            for term in count(decode_text(row[-1])):
                lists[term].append(id_)  # type: ignore[attr-defined]  # they are lists here
        return [decode_candidate(rows[id_], count) for id_ in _choose_best(lists, frequencies, place.documents, limit)]
    lists = yield from _read_postings(place, frequencies, filtered=lookup.filters != Filters())
    ids = _choose_best(lists, frequencies, place.documents, limit)
    return (yield from read_candidates(place, ids, count, NO_FILTER))


def read_candidates(place: LookupScope, ids: Sequence[int], count: TermCounter, filters: Row) -> Steps[list[Candidate]]:
    """Return the documents with these ids that pass the filter, in order of source and place."""
    if not ids:
        return []
    rows = yield Query("index_candidates", (encode_array(ids), *place.prefix, *filters))
    found = [decode_candidate(row, count) for row in rows]
    found.sort(key=lambda one: (one.source, one.place))
    return found


def _is_narrow(place: LookupScope, filters: Filters, postings: int) -> Steps[bool]:
    """Return True if reading all documents that pass the filters costs less than reading `postings` rows of posting lists."""
    most = min(NARROW, postings // COSTLIER)
    if place.named is not None:
        return place.size <= most
    if filters.since is None and filters.until is None:
        return False
    rows = yield Query("index_documents_counted", (*place.prefix, *place.filters[-2:], most + 1))
    return bool(rows[0][0] <= most)


# -- posting lists -------------------------------------------------------------


def _read_postings(
    place: LookupScope, frequencies: Mapping[str, int], *, filtered: bool
) -> Steps[dict[str, Collection[int]]]:
    """Return the ids of documents that contain each term, rarest term first.

    Posting lists are read until `POSTINGS` ids are reached; in a small space all are read.
    """
    terms = sorted(frequencies, key=lambda term: (frequencies[term], term))
    prefix = make_prefix(place.space, place.channel)
    words = {term: prefix + to_key(term) for term in terms}
    room = POSTINGS if place.documents > SMALL else ENDLESS
    if filtered:
        return (yield from _read_filtered_lists(place, words, frequencies, room))
    chosen: dict[str, str] = {}
    for term in terms:
        room -= frequencies[term]
        if room < 0:
            break
        chosen[term] = words[term]
    if not chosen:
        return (yield from _read_common_terms(words))
    return (yield from _read_whole_lists(chosen))


def _read_whole_lists(words: Mapping[str, str]) -> Steps[dict[str, Collection[int]]]:
    """Return the whole posting list of each term."""
    rows = yield Query("index_postings_read", (encode_array(words.values()),))
    lists: list[list[int]] = [[] for _ in words]
    for at, ids in rows:
        if type(ids) is int:
            lists[at].append(ids)
        else:  # some dialects return all ids of a word in one row, because that is faster
            lists[at] = _decode_ids(ids)
    return dict(zip(words, lists, strict=True))


def _read_common_terms(words: Mapping[str, str]) -> Steps[dict[str, Collection[int]]]:
    """Return the newest documents with the rarest term, and the newest documents with both of the two rarest terms.

    Used if even the rarest term occurs in too many documents to read its whole posting list.
    """
    first, *others = words
    found: dict[str, Collection[int]] = {}
    rows = yield Query("index_postings_newest", (words[first], words[first], POSTINGS // 2))
    newest = {row[0] for row in rows}
    if others:
        rows = yield Query("index_postings_newest", (words[first], words[others[0]], POSTINGS // 2))
        found[others[0]] = both = {row[0] for row in rows}
        newest |= both
    return {first: newest, **found}


def _read_filtered_lists(
    place: LookupScope, words: Mapping[str, str], frequencies: Mapping[str, int], room: int
) -> Steps[dict[str, Collection[int]]]:
    """Return the ids of documents that contain each term and pass the filter, at most `room` ids in all."""
    found: dict[str, Collection[int]] = {}
    seen = 0
    for term, word in words.items():
        seen += frequencies[term]
        if room <= 0 or (found and seen > FILTER_ROWS and place.documents > SMALL):
            break
        rows = yield Query("index_postings_passing", (word, word, room, *place.filters))
        found[term] = [row[0] for row in rows]
        room -= len(rows)
    return found


# -- the provisional order -----------------------------------------------------


def _choose_best(
    lists: Mapping[str, Collection[int]], frequencies: Mapping[str, int], documents: int, limit: int
) -> list[int]:
    """Return the ids of at most `limit` documents with the highest provisional scores, in order of id.

    A document's score is computed from the rarity of the terms that it contains. If there are more than `limit` documents, the scores of
    neighbouring documents are added with a lower weight, because the turn next to a match may be the answer.
    """
    scores: dict[int, float] = {}
    for term, ids in lists.items():
        more = dict.fromkeys(ids, math.log1p(documents / frequencies[term]))
        for id_ in scores.keys() & more.keys():
            more[id_] += scores[id_]
        scores |= more
    if len(scores) <= limit:
        return sorted(scores)
    foremost = _choose_highest(scores, 2 * limit)
    rated = {id_: scores[id_] for id_ in foremost}
    get_score = scores.get
    for id_ in foremost:
        if (
            id_ - 1 in scores or id_ + 1 in scores or id_ - 2 in scores or id_ + 2 in scores
        ):  # rare, so this check comes first
            first, second = (
                get_score(id_ - 1, 0.0) + get_score(id_ + 1, 0.0),
                get_score(id_ - 2, 0.0) + get_score(id_ + 2, 0.0),
            )
            rated[id_] = rated[id_] + 0.5 * first + 0.25 * second
    foremost.sort(reverse=True)  # the newest first among equal scores
    foremost.sort(key=rated.__getitem__, reverse=True)
    return sorted(foremost[:limit])


def _choose_highest(scores: Mapping[int, float], most: int) -> list[int]:
    if len(scores) <= most:
        return list(scores)
    often = Counter(scores.values())  # all documents that match the same terms have the same score
    room, least = most, 0.0
    for least in sorted(often, reverse=True):
        if often[least] >= room:
            break
        room -= often[least]
    better = [id_ for id_, score in scores.items() if score > least]
    equal = sorted([id_ for id_, score in scores.items() if score == least], reverse=True)
    return better + equal[:room]


_NEIGHBOURS: Final = tuple(step for step in range(-NEAR, NEAR + 1) if step)


def list_neighbours(ids: Iterable[int]) -> list[int]:
    """Return the ids of documents up to `NEAR` places away from the given ones, in the same source and channel."""
    return [id_ + step for id_ in ids for step in _NEIGHBOURS if (id_ + step) >> 24 == id_ >> 24]
