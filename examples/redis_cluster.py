"""A Redis Cluster with several workers: many users at the same time, spread over the nodes, and counters that are exact.

Needs `pip install '.[redis]'` in a clone and `HOLDFAST_STORE=redis+cluster://…`; one node is enough to find the others. All sessions of
a user are in one slot, so that a write is one atomic script; users are spread over the nodes. The configuration of a node decides
how much its crash can lose: `holdfast doctor` shows it for each node.
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
    """Have a conversation whose turns alternate between the workers, as with a load balancer."""
    for turn in range(TURNS):
        hf = workers[turn % len(workers)]
        session = await hf.session("chat", user_id=user)  # sessions belong to users, so each user has a session `chat`
        await session.send(f"{user}, message {turn}")
        # Two counters with concurrent writes: the user's, in the slot of the sessions, and one for all users, on another node.
        await session.state.increment("user:turns")
        await session.state.increment("app:turns")


async def main() -> None:
    """Run the conversations, read everything from a third connection, and delete the users."""
    if not os.environ.get("HOLDFAST_STORE", "").startswith("redis+cluster://"):
        raise SystemExit("set HOLDFAST_STORE=redis+cluster://host:7101,host:7102")
    users = [f"user-{uuid4().hex[:8]}" for _ in range(USERS)]

    async with AsyncExitStack() as stack:
        # Two openings act like two processes: neither trusts its cache without asking the server. With Redis, the index is a
        # local file (docs/indexing.md); this program does not search, so it needs none.
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
        print(f"turns counted by user: {counted}, by all users: {await hf.app_state().get('app:turns', 0) - before}")

        gone = [await hf.delete_user(user) for user in users]
        print(f"deleted: {sum(one.sessions for one in gone)} sessions, {sum(one.messages for one in gone)} messages")


if __name__ == "__main__":
    asyncio.run(main())
