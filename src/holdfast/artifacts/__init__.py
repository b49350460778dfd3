"""Artifacts: named, versioned, typed contents of a session or a user, and the places that contents lie in.

A content is written whole before it is named, under a random key: a name never is a path. What was written and never
named, or lost its name, is found by a sweep and removed.
"""

from __future__ import annotations

from holdfast.artifacts.service import ArtifactService, Forgotten, Loaded, Opened, SessionArtifacts
from holdfast.artifacts.settings import ArtifactSettings, opened_blobs

__all__ = [
    "ArtifactService",
    "ArtifactSettings",
    "Forgotten",
    "Loaded",
    "Opened",
    "SessionArtifacts",
    "opened_blobs",
]
