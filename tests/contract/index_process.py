"""A process that feeds an index and says what was acknowledged: `python index_process.py OPENER URL NAME COUNT`.

It goes on where the index is with the source NAME, and writes COUNT times; a line for each: how many documents there are.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

from holdfast.recall.base import Batch, Document, Index, Progress, Source, Space

SPACE = Space("talk", "ann")
WRITE = 5


async def run(opener: str, url: str, name: str, count: int) -> None:
    """Feed."""
    module, _, function = opener.partition(":")
    index: Index = await getattr(import_module(module), function)(url, tenant="acme")
    far = await index.progress(SPACE, name)
    for _ in range(count):
        first = far.next_seq if far else 0
        put = [_document(seq, name) for seq in range(first, first + WRITE)]
        behind = Progress(identity="i", version=first, next_seq=first + WRITE, talk=first + WRITE)
        if not await index.write(SPACE, Batch(source=Source(name, "i"), progress=behind, put=put, expect=far)):
            raise RuntimeError("somebody else feeds this source")
        far = behind
        sys.stdout.write(f"{behind.next_seq}\n")
        sys.stdout.flush()
    await index.close()


def _document(seq: int, name: str) -> Document:
    terms = {"x": 1, f"of{name}": 1, f"n{seq}": 2}
    return Document(seq=seq, place=seq, role="user", at=seq, digest=seq.to_bytes(16, "big"), length=4, terms=terms)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
