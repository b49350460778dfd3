"""The routes of all pages."""

from __future__ import annotations

from typing import Final

from holdfast.server.inspector import (
    access,
    actions,
    administration,
    artifacts,
    compactions,
    forgotten,
    memories,
    overview,
    playground,
    prompt,
    session,
    session_files,
    sessions,
    state,
)
from holdfast.server.routes import Route

_SUBJECTS: Final = (
    *(access, actions, overview, session, session_files, sessions, playground, memories, prompt, state, artifacts),
    *(forgotten, compactions, administration),
)
PAGE_ROUTES: Final[tuple[Route, ...]] = tuple(route for subject in _SUBJECTS for route in subject.routes.all)
"""Every route of the inspector. The API description does not contain them."""
