"""Check a server's configuration: its version, its durability, and that it does not evict data."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.stores.redis.connection import Endpoint, ErrorReply
from holdfast.stores.redis.nodes import Nodes

OLDEST: Final = (6, 2)
"""The oldest version of Redis that supports the commands in the scripts."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Version and configuration of a server. A field is None if the server does not report it."""

    endpoint: Endpoint
    version: str | None
    policy: str | None
    """`maxmemory-policy`: which keys the server evicts when its memory is full."""
    maxmemory: int | None
    """Memory limit in bytes; 0 means no limit."""
    used: int | None
    """Memory in use, in bytes."""
    appendonly: bool | None
    appendfsync: str | None
    save: str | None
    """The intervals at which the server writes snapshots; empty if it writes none."""
    replicas: int | None
    cluster: bool | None
    """True if the server belongs to a cluster."""

    @property
    def can_evict(self) -> bool:
        """True if the server may evict keys that have no expiry. The keys of a store have none."""
        return (self.policy or "").startswith("allkeys")

    @property
    def is_too_old(self) -> bool:
        """True if the server's version does not support the scripts."""
        if self.version is None:
            return False
        return tuple(int(part) for part in self.version.split(".")[:2]) < OLDEST

    @property
    def possible_loss(self) -> str:
        """Description of the data that can be lost in a crash."""
        if self.appendonly:
            return _LOSS.get(self.appendfsync or "", "everything that the operating system had not written yet")
        if self.appendonly is None:
            return "everything that it had not written yet; it does not report its configuration"
        return f"everything since its last snapshot (save {self.save!r})" if self.save else "everything"


_LOSS: Final = {
    "always": "nothing that was acknowledged",
    "everysec": "the last second or two",
    "no": "everything that the operating system had not written yet, often half a minute",
}


async def load_health(nodes: Nodes) -> list[Health]:
    """Return the health of each server that has data."""
    settings = {
        name: await nodes.call_all("CONFIG", "GET", name)
        for name in ("maxmemory-policy", "appendonly", "appendfsync", "save")
    }
    infos = await nodes.call_all("INFO")
    return [
        _make_health(
            endpoint, _parse_info(answer), {name: _parse_setting(found[endpoint]) for name, found in settings.items()}
        )
        for endpoint, answer in infos.items()
    ]


def _parse_setting(answer: Any) -> str | None:
    """Return the value in a reply to CONFIG GET. Return None if the server does not report the setting."""
    return None if isinstance(answer, ErrorReply) or len(answer) < 2 else answer[1].decode()


def _parse_info(answer: Any) -> dict[str, str]:
    text = "" if isinstance(answer, ErrorReply) else answer.decode("utf-8", "replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _make_health(endpoint: Endpoint, info: dict[str, str], settings: dict[str, str | None]) -> Health:
    numbers = {name: int(text) for name, text in info.items() if text.isdigit()}
    enabled = {"yes": 1, "no": 0}.get(settings["appendonly"] or "", numbers.get("aof_enabled"))
    clustered = numbers.get("cluster_enabled")
    return Health(
        endpoint=endpoint,
        version=info.get("redis_version"),
        policy=settings["maxmemory-policy"] or info.get("maxmemory_policy"),
        maxmemory=numbers.get("maxmemory"),
        used=numbers.get("used_memory"),
        appendonly=None if enabled is None else enabled == 1,
        appendfsync=settings["appendfsync"],
        save=settings["save"],
        replicas=numbers.get("connected_slaves"),
        cluster=None if clustered is None else clustered == 1,
    )


def check_health(found: list[Health], name: str, *, clustered: bool, allow_eviction: bool) -> None:
    """Raise `StoreUnavailable` if a server may evict data, is too old, or does not match the scheme of the URL.

    Args:
        found: health of the servers.
        name: name of the store, for messages.
        clustered: True if the URL names a cluster.
        allow_eviction: True if the URL allows servers that evict data.
    """
    for one in found:
        problem = _find_problem(one, clustered=clustered, allow_eviction=allow_eviction)
        if problem is not None:
            raise StoreUnavailable(f"{name}: {problem}")


def _find_problem(one: Health, *, clustered: bool, allow_eviction: bool) -> str | None:
    if one.is_too_old:
        return f"it is Redis {one.version}; {'.'.join(map(str, OLDEST))} or later is needed"
    if one.cluster is not None and one.cluster != clustered:
        if clustered:
            return "it is not a cluster: use redis:// in the URL"
        return "it belongs to a cluster: use redis+cluster:// in the URL"
    if one.can_evict and not allow_eviction:
        return (
            f"it evicts data when its memory is full (maxmemory-policy {one.policy}): set noeviction, or accept the loss of"
            " sessions with ?allow_eviction=true"
        )
    return None
