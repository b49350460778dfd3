"""Open Holdfast's services by URI, for ADK's command line."""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any, Final

import holdfast
from holdfast.adapters.adk.artifacts import HoldfastArtifactService
from holdfast.adapters.adk.memories import HoldfastMemoryService
from holdfast.adapters.adk.sessions import HoldfastSessionService

SCHEMES: Final = ("sqlite", "postgresql", "mysql")
"""Kinds of databases, as in the URLs of `holdfast.open`."""
_PREFIX: Final = "holdfast"


def register() -> None:
    """Register the session, artifact and memory services with ADK's command line.

    Call it in `services.py` of the folder with your agents. Then `--session_service_uri holdfast+sqlite:///chat.db` and the
    options for artifacts and memory open the services. Equal URIs share one database; `holdfast://` is
    `holdfast+sqlite:///holdfast.db`. Sessions do not end, and their number has no limit.
    """
    from google.adk.cli.service_registry import get_service_registry

    registry = get_service_registry()
    for scheme in (_PREFIX, *(f"{_PREFIX}+{database}" for database in SCHEMES)):
        registry.register_session_service(scheme, lambda uri, **_: HoldfastSessionService(open_portal(uri)))
        registry.register_artifact_service(scheme, lambda uri, **_: HoldfastArtifactService(open_portal(uri)))
        registry.register_memory_service(scheme, lambda uri, **_: HoldfastMemoryService(open_portal(uri)))


def open_portal(uri: str) -> holdfast.Portal:
    """Return the portal for a URI. The first call with this URI opens the portal."""
    return _open(uri.removeprefix(f"{_PREFIX}+") if uri.startswith(f"{_PREFIX}+") else "sqlite:///holdfast.db")


@cache
def _open(url: str) -> holdfast.Portal:
    settings: dict[str, Any] = {"session_ttl": None, "max_sessions": None}
    portal = holdfast.Portal(url, **settings).start()
    atexit.register(portal.close)
    return portal
