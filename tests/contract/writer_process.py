"""A process that appends to a store and says what was acknowledged: `python writer_process.py OPENER URL NAME COUNT`.

With `ROUNDS` as NAME it asks for a lease instead, once a round, and says the rounds in which it had it; with a NAME that begins
with `MEMORIES` it puts memories.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from importlib import import_module

from holdfast.domain.memory import Memory, MemoryDelta, Owner, Signal
from holdfast.domain.messages import Message
from holdfast.domain.session import NewCompaction, NewEntry, SessionRef
from holdfast.stores.base import Store
from holdfast.stores.log import Append

TASKS = 4


async def open_with(opener: str, url: str) -> Store:
    """The store at `url`, opened by the function `module:name`."""
    module, _, function = opener.partition(":")
    store: Store = await getattr(import_module(module), function)(url, tenant="acme")
    return store


async def write_all(store: Store, name: str, count: int) -> None:
    """Append `count` entries from several tasks, to one session; a line `seq text` for each that was acknowledged.

    Each comes with a compaction of the same text: so there are as many as entries.
    """
    ref = SessionRef("ann", "s1")

    async def write(task: int) -> None:
        for at in range(task, count, TASKS):
            entry = NewEntry(message=Message(role="user", content=f"{name}.{at}"), tokens=1, timestamp=1)
            new = NewCompaction(
                view="v",
                first=0,
                last=at,
                through=at,
                kind="digest",
                text=f"{name}.{at}",
                tokens=1,
                source_tokens=1,
                total=at,
                created_at=1,
            )
            done = await store.append(ref, Append(entries=[entry], compactions=[new], timestamp=1))
            sys.stdout.write(f"{done.entries[0].seq} {name}.{at}\n")
            sys.stdout.flush()

    await asyncio.gather(*(write(task) for task in range(TASKS)))


async def ask(store: Store, rounds: int) -> None:
    """Want a lease that is a round long, in each round; a line for each in which it was had."""
    for round_ in range(rounds):
        if await store.lease("sweep", str(os.getpid()), now=10 * round_, until=10 * round_ + 10):
            sys.stdout.write(f"{round_}\n")


async def remember(store: Store, name: str, count: int) -> None:
    """Put `count` memories of one user from several tasks, each with a recall; a line with the id of each."""
    ann = Owner("user", "ann")

    async def write(task: int) -> None:
        for at in range(task, count, TASKS):
            new = Memory(id=f"mem_{uuid.uuid4().hex}", owner=ann, content=f"{name}.{at}", created_at=1, updated_at=1)
            told = Signal(memory_id=new.id, at=1, query=b"q", score=0.5)
            await store.change_memories(ann, MemoryDelta(put=(new,), signals=(told,)), timestamp=1)
            sys.stdout.write(f"{new.id}\n")
            sys.stdout.flush()

    await asyncio.gather(*(write(task) for task in range(TASKS)))


async def run(opener: str, url: str, name: str, count: int) -> None:
    """Do what NAME says."""
    store = await open_with(opener, url)
    if name.startswith("MEMORIES"):
        await remember(store, name, count)
    else:
        await (ask(store, count) if name == "ROUNDS" else write_all(store, name, count))
    await store.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
