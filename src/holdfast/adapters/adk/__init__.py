"""Session, artifact and memory services for Google's Agent Development Kit, and a plugin that fits prompts into a token budget.

    runner = Runner(
        app=App(name="shop", root_agent=agent, plugins=[WorkingSetPlugin(budget=8_000)]),
        session_service=HoldfastSessionService(hf),
        artifact_service=HoldfastArtifactService(hf),
        memory_service=HoldfastMemoryService(hf),
    )

Each application of ADK has its own tenant in Holdfast, so the state scopes `app:` and `user:` mean the same in ADK and Holdfast.

Facts about google-adk 2.13 that this package relies on:

- Services are called with keyword arguments only, except `append_event`.
- `append_event` returns partial events without storing them. Keys with `temp:` stay in the session object.
- `append_event` raises `StaleSessionError` if the session object is older than the stored session. It compares
  `Session._storage_update_marker`.
- Sessions are listed by the time of their last event, oldest first.
- Before a model call, ADK removes the ids of its own function calls from the contents, so results are matched by order and name.
"""

from __future__ import annotations

from holdfast.adapters.adk.artifacts import HoldfastArtifactService
from holdfast.adapters.adk.memories import HoldfastMemoryService
from holdfast.adapters.adk.registry import register
from holdfast.adapters.adk.sessions import HoldfastSessionService
from holdfast.adapters.adk.working_set import WorkingSetPlugin, fit_contents

__all__ = [
    "HoldfastArtifactService",
    "HoldfastMemoryService",
    "HoldfastSessionService",
    "WorkingSetPlugin",
    "fit_contents",
    "register",
]
