"""What a server's configuration means for the data: how durable it is, and whether it may be thrown away."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.stores.redis.connection import Endpoint, ErrorReply
from holdfast.stores.redis.nodes import Nodes

OLDEST: Final = (6, 2)
"""The first version that has what the scripts use."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it says it is; None: it does not say."""

    endpoint: Endpoint
    version: str | None
    policy: str | None
    """What it throws away when its memory is full."""
    maxmemory: int | None
    """Bytes; 0: as much as the machine has."""
    used: int | None
    """Bytes."""
    appendonly: bool | None
    appendfsync: str | None
    save: str | None
    """When it writes snapshots; empty: never."""
    replicas: int | None
    cluster: bool | None
    """Whether it is one of a cluster."""

    @property
    def can_evict(self) -> bool:
        """Whether it may throw away what has no expiry, which is everything here."""
        return (self.policy or "").startswith("allkeys")

    @property
    def is_too_old(self) -> bool:
        """Whether it lacks what the scripts use."""
        if self.version is None:
            return False
        return tuple(int(part) for part in self.version.split(".")[:2]) < OLDEST

    @property
    def possible_loss(self) -> str:
        """What a crash can take, in words."""
        if self.appendonly:
            return _LOSS.get(self.appendfsync or "", "what its system had not written yet")
        if self.appendonly is None:
            return "what it had not written yet; it does not say how it is set up"
        return f"everything since its last snapshot (save {self.save!r})" if self.save else "everything"


_LOSS: Final = {
    "always": "nothing that was acknowledged",
    "everysec": "the last second or two",
    "no": "what its system had not written yet, often half a minute",
}


async def load_health(nodes: Nodes) -> list[Health]:
    """Return every server that has data."""
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
    """Return a setting; None where the server does not say."""
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
    """Refuse servers that would lose data, or are not what they were taken for."""
    for one in found:
        problem = _find_problem(one, clustered=clustered, allow_eviction=allow_eviction)
        if problem is not None:
            raise StoreUnavailable(f"{name}: {problem}")


def _find_problem(one: Health, *, clustered: bool, allow_eviction: bool) -> str | None:
    if one.is_too_old:
        return f"it is Redis {one.version}; {'.'.join(map(str, OLDEST))} or later is needed"
    if one.cluster is not None and one.cluster != clustered:
        scheme = "redis://" if clustered else "redis+cluster://"
        return f"it is {'no' if clustered else 'one of a'} cluster: name it with {scheme}"
    if one.can_evict and not allow_eviction:
        return (
            f"it throws away data when its memory is full (maxmemory-policy {one.policy}): set noeviction, or say that"
            " sessions may be lost with ?allow_eviction=true"
        )
    return None
