"""The routes of all pages."""

from __future__ import annotations

from typing import Final

from holdfast.server.inspector import (
    access,
    actions,
    agents,
    artifacts,
    compactions,
    forgotten,
    keys,
    memories,
    memory_reviews,
    overview,
    playground,
    prompt,
    records,
    retention,
    session,
    session_actions,
    session_bulk,
    session_files,
    session_list,
    session_live,
    state,
)
from holdfast.server.routes import Route

PAGE_ROUTES: Final[tuple[Route, ...]] = tuple(
    route
    for subject in (
        access.routes,
        actions.routes,
        overview.routes,
        session.routes,
        session_actions.routes,
        session_live.routes,
        session_files.routes,
        session_list.routes,
        session_bulk.routes,
        playground.routes,
        memories.routes,
        memory_reviews.routes,
        prompt.routes,
        state.routes,
        records.routes,
        artifacts.routes,
        forgotten.routes,
        agents.routes,
        keys.routes,
        retention.routes,
        compactions.routes,
    )
    for route in subject.all
)
"""Every route of the inspector. The API description does not contain them."""
