"""A Redis Cluster under several workers: many users at once, each on a node of the cluster, and counts that add up.

Needs `pip install '.[redis]'` in a clone and `HOLDFAST_STORE=redis+cluster://…`; one node is enough to find the others. All sessions of
a user are in one slot, so that a write is one script, all or nothing; users are spread over the nodes. What a crash of a node can
take is what its configuration says: `holdfast doctor` tells for each of them.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from uuid import uuid4

import holdfast
from holdfast import Holdfast

USERS = 12
TURNS = 4


async def talk(workers: list[Holdfast], user: str) -> None:
    """A conversation whose turns go to one worker after the other, as behind a load balancer."""
    for turn in range(TURNS):
        hf = workers[turn % len(workers)]
        session = await hf.session("chat", user_id=user)  # each user's own: sessions belong to users
        await session.send(f"{user}, message {turn}")
        # Two counters that others write at the same time: the user's, beside the sessions, and everybody's, on another node.
        await session.state.increment("user:turns")
        await session.state.increment("app:turns")


async def main() -> None:
    """Talk, read it all again from a third opening, and delete the users."""
    if not os.environ.get("HOLDFAST_STORE", "").startswith("redis+cluster://"):
        raise SystemExit("set HOLDFAST_STORE=redis+cluster://host:7101,host:7102")
    users = [f"user-{uuid4().hex[:8]}" for _ in range(USERS)]

    async with AsyncExitStack() as stack:
        # Two openings stand for two processes: nothing is kept in them that is believed without asking. The index of a Redis is
        # a file beside the process (docs/indexing.md); nothing is searched here, so there is none.
        workers = [await stack.enter_async_context(holdfast.from_config(index=None)) for _ in range(2)]
        before = await workers[0].app_state().get("app:turns", 0)
        await asyncio.gather(*(talk(workers, user) for user in users))
        print(f"{USERS} users, {TURNS} turns each, over {len(workers)} workers, all at once")

    async with holdfast.from_config(index=None) as hf:
        whole = verified = counted = 0
        for user in users:
            session = await hf.session("chat", user_id=user)
            said = [message["content"] for message in await session.messages() if message["role"] == "user"]
            whole += said == [f"{user}, message {turn}" for turn in range(TURNS)]
            verified += await session.verify()  # order, totals and digest chain, derived anew
            counted += await session.state["user:turns"]
        print(f"whole and in order: {whole} of {USERS} sessions; {verified} messages verified")
        print(f"turns counted by user: {counted}, by everybody: {await hf.app_state().get('app:turns', 0) - before}")

        gone = [await hf.delete_user(user) for user in users]
        print(f"deleted: {sum(one.sessions for one in gone)} sessions, {sum(one.messages for one in gone)} messages")


if __name__ == "__main__":
    asyncio.run(main())
