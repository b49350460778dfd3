"""Reads the configuration again while the server runs: what is safe holds for turns that begin from then on, the rest is named.

    kill -HUP $(pidof …)

A file with a mistake in it changes nothing. Turns under way end with the agents and models that they began with, and clients
that only they have are closed behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import anyio.to_thread
import msgspec

from holdfast.config import Config, ServerSettings
from holdfast.config.build import Clients, build_queue_settings, build_roster, build_tool_limits
from holdfast.config.gateway import Gateway
from holdfast.config.model import Document
from holdfast.errors import ConfigError, HoldfastError
from holdfast.holdfast import Holdfast
from holdfast.models import retire
from holdfast.repeating import given_up
from holdfast.server.intake import Intake
from holdfast.server.relay import Relays
from holdfast.server.requester import RequestRules
from holdfast.server.session_locator import Matching
from holdfast.settings import Settings, get_fields

SAFE: Final = ("agents", "context", "llms", "telemetry")
"""Sections that hold from the next turn on: those that the roster is made of. What the index and dreams are made of holds as it began."""
SAFE_GATEWAY: Final = (
    *(
        "allowed_strategies",
        "body_timeout",
        "keep_alive",
        "log_level",
        "match",
        "match_system",
        "max_body",
        "max_media",
        "max_media_count",
    ),
    *("max_message", "max_messages", "max_parts", "max_pixels", "max_speech", "max_tool_calls", "max_tool_result"),
    *(
        "max_tool_rounds",
        "max_tools",
        "on_disconnect",
        "pass_fields",
        "queue_timeout",
        "require_user",
        "session_headers",
        "session_mode",
        "session_queue",
        "single_user",
        "tool_timeout",
        "upstream_timeout",
        "user_headers",
    ),
)
"""Keys of `gateway` that hold from the next request on."""
_FROM_ENVIRONMENT: Final = ("environment", "anthropic", "fallback", "model")
"""What a configuration has beside its file that goes with `llms`."""
_log = logging.getLogger("holdfast.config")


class Dials(NamedTuple):
    """What requests go through, and can be set while they do."""

    intake: Intake
    relays: Relays
    matching: Matching
    rules: RequestRules
    log_level: Callable[[str], None]
    """Sets how much is logged."""

    def set(self, gateway: Gateway) -> None:
        """Have them as configured."""
        self.intake.take(gateway.limits)
        self.relays.keep_alive, self.relays.on_disconnect = gateway.keep_alive, gateway.on_disconnect
        self.matching.on, self.matching.system = gateway.match == "on", gateway.match_system
        self.rules.update(gateway)
        self.log_level(gateway.log_level)


class Reloading:
    """What a running server can be given anew.

    Args:
        hf: whose agents, models and limits.
        settings: what it began with.
        read: reads the configuration as at the start; raises `ConfigError`.
        clients: those of its models.
        check: refuses settings that cannot be served, with `ConfigError`.
        dials: what holds for each request by itself.
    """

    def __init__(
        self,
        hf: Holdfast,
        settings: ServerSettings,
        read: Callable[[], ServerSettings],
        *,
        clients: Clients,
        check: Callable[[ServerSettings], None],
        dials: Dials,
    ) -> None:
        self._hf = hf
        self._settings = settings
        self._read = read
        self._clients = clients
        self._check = check
        self._dials = dials
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def ask(self) -> None:
        """Read it soon; once more behind the reading that is under way, which may have begun too early."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        else:
            self._again = True

    async def close(self) -> None:
        """Give up what is under way."""
        await given_up(self._task)

    async def _run(self) -> None:
        try:
            await self.reload()
            while self._again:
                self._again = False
                await self.reload()
        finally:
            self._task = None

    async def reload(self) -> None:
        """Read the configuration and take what may be taken; what came of it is in the log."""
        try:
            found = await anyio.to_thread.run_sync(self._read)
            taken = self._settings._replace(config=merged(self._settings.config, found.config))
            self._check(taken)
            roster = build_roster(taken.config, self._clients)
        except HoldfastError as error:
            problems = error.problems if isinstance(error, ConfigError) else [str(error)]
            fields = {"file": self._settings.file, "problems": problems}
            _log.error("the configuration has mistakes; the one that holds stays", extra={"fields": fields})
            return
        changed = list(differing(self._settings.config, taken.config))
        kept = sorted({*_elsewhere(taken.config, found.config), *_places(self._settings, found)})
        gateway = taken.config.gateway
        left = self._hf.adopt(roster, tool_limits=build_tool_limits(gateway), queueing=build_queue_settings(gateway))
        self._settings = taken
        for client in left:
            retire(client)
        fields = {"file": found.file, "changed": changed, "kept": kept}
        _log.info("the configuration was read again", extra={"fields": fields})
        if kept:
            _log.warning("these keys have changed, and hold after a restart: %s", ", ".join(kept))
        self._dials.set(gateway)  # last: so much may not be logged from now on


def merged(old: Config, new: Config) -> Config:
    """What holds after `new` was read: its safe parts, and the rest of `old`."""
    safe = {name: getattr(new, name) for name in (*SAFE, *_FROM_ENVIRONMENT, "source", "lines", "spelt", "origins")}
    gateway = msgspec.structs.replace(old.gateway, **{name: getattr(new.gateway, name) for name in SAFE_GATEWAY})
    return msgspec.structs.replace(old, gateway=gateway, **safe)


def differing(one: Config, other: Config) -> Iterator[str]:
    """Paths of the keys that differ; their values may be secrets. Keys of the environment's upstream are `llms`."""
    yield from _differing(one, other, Document, "")
    yield from ["llms"] * any(getattr(one, name) != getattr(other, name) for name in _FROM_ENVIRONMENT)


def _differing(one: Any, other: Any, cls: type[Settings], path: str) -> Iterator[str]:
    for name in get_fields(cls):
        before, after = getattr(one, name), getattr(other, name)
        here = f"{path}.{name}".lstrip(".")
        if before == after:
            continue
        if isinstance(before, Settings) and type(before) is type(after):
            yield from _differing(before, after, type(before), here)
        elif isinstance(before, dict) and isinstance(after, dict):
            yield from _entries(before, after, here)
        else:
            yield here


def _entries(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if isinstance(one, Settings) and isinstance(other, Settings):
            yield from _differing(one, other, type(one), f"{path}.{name}")
        elif one != other:
            yield f"{path}.{name}"


def _elsewhere(one: Config, other: Config) -> Iterator[str]:
    """What differs of all that is not a matter of where the server listens and sessions live: flags may say that."""
    of_places = ("databases.", "gateway.host", "gateway.port", "storage.sessions.backend", "storage.sessions.database")
    yield from (path for path in differing(one, other) if not path.startswith(of_places))


def _places(old: ServerSettings, new: ServerSettings) -> Iterator[str]:
    """Where the server listens and sessions live, whoever says it."""
    yield from ["gateway.host"] * (old.host != new.host)
    yield from ["gateway.port"] * (old.port != new.port)
    yield from ["store"] * (old.store != new.store)
