"""A process that writes and indexes until it is killed: `python indexing_process.py feed|rebuild STORE NUMBER`; it prints a line for each step."""

from __future__ import annotations

import asyncio
import sys

from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast


async def feed(hf: Holdfast, number: int) -> None:
    """Write, edit, erase and delete, and have it indexed."""
    assert hf.engine.index is not None
    for at in range(1000):
        session = await hf.session(f"s{number}-{at}", user_id="ada")
        texts = [f"tea {at} {place}" for place in range(40)]
        roles = ("user", "assistant")
        await session.append([{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)])
        sys.stdout.write(f"{at}\n")
        sys.stdout.flush()
        await hf.engine.index.settled()
        await hf.erase(session.ref, at % 40)
        if at % 3 == 2:
            await hf.delete(SessionRef("ada", f"s{number}-{at - 1}"))
        if at % 3 == 1:
            await session.rewind(5)


async def rebuild(hf: Holdfast, number: int) -> None:
    """Write a little, then rebuild the index again and again."""
    assert hf.engine.index is not None
    for at in range(20):
        session = await hf.session(f"s{number}-{at}", user_id="ada")
        await session.append([{"role": "user", "content": f"tea {at} {place}"} for place in range(10)])
    while True:
        await hf.engine.index.rebuild(progress=_print_step)


def _print_step(done: int, total: int) -> None:
    sys.stdout.write(f"{done} {total}\n")
    sys.stdout.flush()


async def main() -> None:
    """Run what the arguments say."""
    what, store, number = sys.argv[1:]
    async with Holdfast(store, tenant="acme") as hf:
        await (feed if what == "feed" else rebuild)(hf, int(number))


if __name__ == "__main__":
    asyncio.run(main())
