"""Reread the configuration while the server runs, and apply changes that are safe at run time.

    kill -HUP $(pidof …)

Safe changes apply to new turns. Changes that need a restart are logged. If the file has errors, nothing changes. Running turns keep
the agents and models with which they began. A model's HTTP client that only these turns still use is closed when they have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import anyio.to_thread
import msgspec

from holdfast.background import cancel_task
from holdfast.config.build import Clients, build_roster, build_tool_limits
from holdfast.config.gateway import Gateway
from holdfast.config.model import Config, Document
from holdfast.engine.session_lock import QueueSettings
from holdfast.errors import ConfigError, HoldfastError
from holdfast.holdfast import Holdfast
from holdfast.models.base import retire
from holdfast.sections import Settings, get_fields

SAFE: Final = ("agents", "context", "llms")
"""Sections that can change at run time, because they only define agents and models. The index and consolidation keep the models with
which they started."""
FIXED_GATEWAY: Final = frozenset(
    {"allowed_hosts", "cors_origins", "host", "port", "send_timeout", "shutdown_grace", "upstream_auth"}
)
"""Keys of `gateway` that need a restart. The others apply from the next request on."""
_FROM_ENVIRONMENT: Final = ("environment", "anthropic", "fallback", "model")
"""Attributes of `Config` that come from outside the file, and that a list of changes shows as `llms`."""
_log = logging.getLogger("holdfast.config")


class ConfigReloader:
    """Applies changes of the configuration to a running server.

    Args:
        hf: the `Holdfast` that gets the new agents, models and limits.
        config: the configuration at startup.
        read: reads the configuration from the same sources as at startup. It may raise `ConfigError`.
        clients: HTTP clients of the models.
        check: raises `ConfigError` for a configuration that cannot be served.
        apply: makes the server use the section `gateway` of the new configuration.
    """

    def __init__(
        self,
        hf: Holdfast,
        config: Config,
        read: Callable[[], Config],
        *,
        clients: Clients,
        check: Callable[[Config], None],
        apply: Callable[[Gateway], None],
    ) -> None:
        self._hf = hf
        self._config = config
        self._read = read
        self._clients = clients
        self._check = check
        self._apply = apply
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def ask(self) -> None:
        """Start a reload. If a reload is running, start another one after it, because the first may have read the file too early."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        else:
            self._again = True

    async def close(self) -> None:
        """Cancel a running reload."""
        await cancel_task(self._task)

    async def _run(self) -> None:
        try:
            await self.reload()
            while self._again:
                self._again = False
                await self.reload()
        finally:
            self._task = None

    async def reload(self) -> None:
        """Reread the configuration, apply safe changes, and log the result."""
        try:
            found = await anyio.to_thread.run_sync(self._read)
            taken = merge_configs(self._config, found)
            self._check(taken)
            roster = build_roster(taken, self._clients)
        except HoldfastError as error:
            problems = error.problems if isinstance(error, ConfigError) else [str(error)]
            fields = {"file": self._config.file, "problems": problems}
            _log.error("the configuration has errors and was not applied", extra={"fields": fields})
            return
        changed = list(list_differences(self._config, taken))
        kept = sorted(_list_kept_differences(taken, found))
        gateway = taken.gateway
        queueing = QueueSettings(mode=gateway.session_queue, timeout=gateway.queue_timeout)
        left = self._hf.replace_roster(roster, tool_limits=build_tool_limits(gateway), queueing=queueing)
        self._config = taken
        for client in left:
            retire(client)
        fields = {"file": found.file, "changed": changed, "kept": kept}
        _log.info("reloaded the configuration", extra={"fields": fields})
        if kept:
            _log.warning("changes of these keys need a restart: %s", ", ".join(kept))
        self._apply(gateway)  # last, because the new level may hide the lines above


def merge_configs(old: Config, new: Config) -> Config:
    """Return the configuration `old`, with the parts that can change at run time taken from `new`."""
    safe = {name: getattr(new, name) for name in (*SAFE, *_FROM_ENVIRONMENT, "source", "places")}
    names = set(Gateway.__struct_fields__) - FIXED_GATEWAY
    gateway = msgspec.structs.replace(old.gateway, **{name: getattr(new.gateway, name) for name in names})
    return msgspec.structs.replace(old, gateway=gateway, **safe)


def list_differences(one: Config, other: Config) -> Iterator[str]:
    """Yield the paths of configuration keys that differ. Values are not included, because they may be secrets.

    A difference in the environment variables is reported as `llms`.
    """
    yield from _compare(one, other, Document, "")
    yield from ["llms"] * any(getattr(one, name) != getattr(other, name) for name in _FROM_ENVIRONMENT)


def _compare(one: Any, other: Any, cls: type[Settings], path: str) -> Iterator[str]:
    for name in get_fields(cls):
        before, after = getattr(one, name), getattr(other, name)
        here = f"{path}.{name}".lstrip(".")
        if before == after:
            continue
        if isinstance(before, Settings) and type(before) is type(after):
            yield from _compare(before, after, type(before), here)
        elif isinstance(before, dict) and isinstance(after, dict):
            yield from _compare_entries(before, after, here)
        else:
            yield here


def _compare_entries(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if isinstance(one, Settings) and isinstance(other, Settings):
            yield from _compare(one, other, type(one), f"{path}.{name}")
        elif one != other:
            yield f"{path}.{name}"


def _list_kept_differences(one: Config, other: Config) -> Iterator[str]:
    """Yield the changed keys that need a restart. Keys that name the store are listed as `store`, because a flag may override them."""
    of_store = ("databases.", "storage.sessions.backend", "storage.sessions.database")
    yield from (path for path in list_differences(one, other) if not path.startswith(of_store))
    yield from ["store"] * (one.store != other.store)
