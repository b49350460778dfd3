"""A process that appends to a store and says what was acknowledged: `python writer_process.py URL NAME COUNT`."""

from __future__ import annotations

import asyncio
import sys

from holdfast.messages import Message
from holdfast.session import NewEntry, SessionRef
from holdfast.stores import open_store
from holdfast.stores.base import Append

TASKS = 4


async def main(url: str, name: str, count: int) -> None:
    """Append `count` entries from several tasks, to one session; a line `seq text` for each that was acknowledged."""
    store = await open_store(url, tenant="acme")
    ref = SessionRef("ann", "s1")

    async def write(task: int) -> None:
        for at in range(task, count, TASKS):
            entry = NewEntry(message=Message(role="user", content=f"{name}.{at}"), tokens=1, timestamp=1)
            done = await store.append(ref, Append(entries=[entry], timestamp=1))
            sys.stdout.write(f"{done.entries[0].seq} {name}.{at}\n")
            sys.stdout.flush()

    await asyncio.gather(*(write(task) for task in range(TASKS)))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
