"""What the checks of an index share: short ways to write documents, and to see what an index says of them."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import UNSET, UnsetType

from holdfast.recall.base import Batch, Candidate, Document, Index, Lookup, Progress, Source, Space

SPACE = Space("talk", "ann")
SOURCE = Source("s1", "i1")


async def clear(index: Index) -> None:
    """Delete all documents of a tenant."""
    while sources := await index.sources():
        for space, source_id, _ in sources:
            await index.drop(space, source_id)


def digest_of(text: str) -> bytes:
    """As whoever feeds an index makes one."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def document(seq: int, text: str, **fields: Any) -> Document:
    """An entry whose terms are the words of `text`."""
    terms = Counter(text.split())
    given = {
        "place": seq,
        "role": "user",
        "at": 1000 * seq,
        "digest": digest_of(text),
        "length": terms.total(),
        "terms": terms,
    }
    return Document(seq=seq, **{**given, **fields})


def progress_of(*documents: Document, identity: str = "i1", version: int = 1, **fields: Any) -> Progress:
    """How far an index is that has these documents of a source, and no others behind them."""
    behind = {
        channel: max((one.place + 1 for one in documents if one.channel == channel), default=0)
        for channel in ("talk", "tool")
    }
    given = {"next_seq": max((one.seq + 1 for one in documents), default=0), **behind}
    return Progress(identity=identity, version=version, **{**given, **fields})


def batch(
    *documents: Document,
    source: Source = SOURCE,
    drop: Sequence[int] = (),
    expect: Progress | None | UnsetType = UNSET,
    **progress: Any,
) -> Batch:
    """A write of these documents; the progress is theirs, unless told otherwise."""
    far = progress_of(*documents, identity=source.identity, **progress)
    return Batch(source=source, progress=far, put=documents, drop=drop, expect=expect)


async def feed(index: Index, *texts: str, space: Space = SPACE, source: Source = SOURCE, **fields: Any) -> None:
    """Take texts in, as the documents of a source from its first on."""
    assert await index.write(
        space, batch(*(document(at, text, **fields) for at, text in enumerate(texts)), source=source)
    )


async def look_up(index: Index, *terms: str, space: Space = SPACE, **asked: Any) -> list[tuple[str, int]]:
    """Sources and numbers of the candidates of a lookup."""
    return seqs((await index.lookup(Lookup(space=space, terms=terms, **asked))).found)


def seqs(candidates: Sequence[Candidate]) -> list[tuple[str, int]]:
    """Source and number of each."""
    return [(one.session, one.seq) for one in candidates]


def vector(*numbers: float) -> bytes:
    """One of unit length."""
    length = math.sqrt(sum(number * number for number in numbers))
    return array("f", [number / length for number in numbers]).tobytes()
