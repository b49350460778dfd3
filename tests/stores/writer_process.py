"""A process that appends to a store and says what was acknowledged: `python writer_process.py URL NAME COUNT`.

With `ROUNDS` as NAME it asks for a lease instead, once a round, and says the rounds in which it had it.
"""

from __future__ import annotations

import asyncio
import os
import sys

from holdfast.messages import Message
from holdfast.session import NewCompaction, NewEntry, SessionRef
from holdfast.stores import open_store
from holdfast.stores.base import Append

TASKS = 4


async def main(url: str, name: str, count: int) -> None:
    """Append `count` entries from several tasks, to one session; a line `seq text` for each that was acknowledged.

    Each comes with a compaction of the same text: so there are as many as entries.
    """
    store = await open_store(url, tenant="acme")
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
    await store.close()


async def ask(url: str, rounds: int) -> None:
    """Want a lease that is a round long, in each round; a line for each in which it was had."""
    store = await open_store(url, tenant="acme")
    for round_ in range(rounds):
        if await store.lease("sweep", str(os.getpid()), now=10 * round_, until=10 * round_ + 10):
            sys.stdout.write(f"{round_}\n")
    await store.close()


if __name__ == "__main__":
    if sys.argv[2] == "ROUNDS":
        asyncio.run(ask(sys.argv[1], int(sys.argv[3])))
    else:
        asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
