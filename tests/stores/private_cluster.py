"""A Redis Cluster of a test's own: nodes that may be killed, and slots that may be moved."""

from __future__ import annotations

import random
import socket
from typing import Any

import redis.asyncio as redis

from tests.stores.private import PrivateRedis
from tests.waits import until


async def execute(client: redis.Redis, *command: Any) -> Any:
    return await client.execute_command(*command)  # type: ignore[no-untyped-call]


async def count_redirects(client: redis.Redis) -> int:
    """How often a node has said that a key is elsewhere, or is being moved."""
    said = await client.info("errorstats")
    return sum(int(said.get(f"errorstat_{code}", {}).get("count", 0)) for code in ("ASK", "MOVED", "TRYAGAIN"))


class Cluster:
    """Three nodes of a test's own."""

    def __init__(self, nodes: list[PrivateRedis]) -> None:
        self.nodes = nodes
        self.clients = [redis.Redis(port=node.port) for node in nodes]

    @property
    def url(self) -> str:
        """One of them is enough to find the others."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    async def whole(self) -> None:
        """Return when every node says that all slots are served."""
        await until(self._whole)

    async def _whole(self) -> bool:
        return all([(await client.cluster("INFO"))["cluster_state"] == "ok" for client in self.clients])

    async def owner(self, slot: int) -> int:
        """Which node has a slot."""
        for first, last, (_, port, *_), *_ in await execute(self.clients[0], "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return [node.port for node in self.nodes].index(port)
        raise AssertionError(slot)


def low_port() -> int:
    """One that is free, as is the one 10,000 above it: there the nodes speak to each other."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")
