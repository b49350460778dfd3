"""A Redis server or cluster: what a crash may take, what a full memory may take, and who else has the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.cli.checkup.finding import Finding, ok, warn
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.stores.redis.health import Health

SCHEMES = ("redis:", "rediss:", "redis+cluster:", "rediss+cluster:")
NEARLY_FULL = 0.9
"""Of the memory that a server may use, from where on it is worth knowing."""
_SURE = ("always", "everysec")


def findings(url: str) -> Iterator[Finding]:
    """All about the servers at `url`, which can be reached; nothing of those that say nothing."""
    import anyio

    try:
        from holdfast.stores.redis.store import inspected

        found = anyio.run(inspected, url)
    except HoldfastError:
        return
    for one in found:
        yield _durability(one)
        yield _memory(one)
    yield _copies(found)


def _durability(one: Health) -> Finding:
    """What its settings mean, in words."""
    if one.appendonly:
        setting = f"appendonly yes, appendfsync {one.appendfsync or 'not told'}"
    elif one.appendonly is None:
        setting = "it does not say how it is set up"
    else:
        setting = f"appendonly no, save {one.save!r}"
    message = f"{one.place}: {setting}: a crash can take {one.loss}"
    if one.appendonly and one.appendfsync in _SURE:
        return ok("durability", message)
    return warn("durability", message, "set appendonly yes and appendfsync everysec, or always to lose nothing")


def _memory(one: Health) -> Finding:
    """What happens when it is full, and whether it is."""
    limit = f"maxmemory {one.maxmemory:,} bytes" if one.maxmemory else "no maxmemory"
    message = f"{one.place}: {limit}, policy {one.policy or 'not told'}, {one.used or 0:,} bytes used"
    if one.evicts:
        told = f"{message}: it throws sessions away when it is full"
        return warn("memory", told, "set maxmemory-policy noeviction, unless sessions may be lost")
    if one.maxmemory and (one.used or 0) > NEARLY_FULL * one.maxmemory:
        return warn("memory", message, "make room: a server that is full refuses every turn")
    return ok("memory", f"{message}: it refuses writes when it is full, and loses nothing")


def _copies(found: list[Health]) -> Finding:
    """Versions, nodes, replicas."""
    versions = ", ".join(sorted({one.version or "of an unknown version" for one in found}))
    nodes = f"a cluster of {len(found)} nodes with slots" if any(one.cluster for one in found) else "one server"
    replicas = min(one.replicas or 0 for one in found)
    told = f"{replicas} replicas" if replicas else "no replica: what its disk loses is lost"
    return ok("servers", f"Redis {versions}, {nodes}, {told}")
