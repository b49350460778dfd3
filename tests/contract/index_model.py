"""What an index promises, done the plain way: documents in dicts, gone through one by one for every answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import UNSET

from holdfast.recall.base import Batch, Document, Filters, Lookup, Progress, Source, Space


class Known(NamedTuple):
    """A source, how far it is, and its documents by number."""

    source: Source
    progress: Progress
    documents: dict[int, Document]


class Model:
    """An index of one tenant."""

    def __init__(self) -> None:
        self.spaces: dict[Space, dict[str, Known]] = {}

    def write(self, space: Space, batch: Batch) -> bool:
        """See `Index.write`."""
        sources = self.spaces.get(space, {})
        known = sources.get(batch.source.id)
        if batch.expect is not UNSET and batch.expect != (known.progress if known else None):
            return False
        same = known is not None and known.source.identity == batch.source.identity
        documents = dict(known.documents) if known is not None and same else {}
        taken = {(one.channel, one.place) for one in batch.put}
        gone = {seq for seq, one in documents.items() if (one.channel, one.place) in taken}
        for seq in gone.union(batch.drop):
            documents.pop(seq, None)
        documents |= {one.seq: one for one in batch.put}
        self.spaces.setdefault(space, {})[batch.source.id] = Known(batch.source, batch.progress, documents)
        return True

    def drop(self, space: Space, source_id: str) -> int:
        """See `Index.drop`."""
        known = self.spaces.get(space, {}).pop(source_id, None)
        return len(known.documents) if known else 0

    def list_documents(self, space: Space, channel: str) -> Iterator[tuple[str, Document]]:
        """All documents, each with its source's id."""
        for id_, known in self.spaces.get(space, {}).items():
            for one in known.documents.values():
                if one.channel == channel:
                    yield id_, one

    def sizes(self, asked: Lookup) -> tuple[int, int, Mapping[str, int]]:
        """Documents, their length, and the frequencies of the lookup's terms."""
        documents = [one for _, one in self.list_documents(asked.space, asked.channel)]
        counted = Counter(term for one in documents for term in one.terms if term in asked.terms)
        return len(documents), sum(one.length for one in documents), dict(counted)

    def matching(self, asked: Lookup) -> list[tuple[str, Document]]:
        """What passes the filters and has one of the terms, where there are any."""
        terms = set(asked.terms)
        return [
            (id_, one)
            for id_, one in self.list_documents(asked.space, asked.channel)
            if passes(id_, one, asked.filters) and (not terms or terms.intersection(one.terms))
        ]


def passes(source_id: str, one: Document, filters: Filters) -> bool:
    """Whether a filter lets a document pass."""
    return (
        (not filters.sessions or source_id in filters.sessions)
        and source_id not in filters.not_sessions
        and (not filters.agents or one.agent in filters.agents)
        and (not filters.roles or one.role in filters.roles)
        and (filters.names is None or (one.name is not None and _is_between(one.name, *filters.names)))
        and (filters.since is None or one.at >= filters.since)
        and (filters.until is None or one.at < filters.until)
    )


def _is_between(name: str, first: bytes, end: bytes) -> bool:
    return first <= name.encode() < end
