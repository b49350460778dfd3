"""Store artifacts: named, versioned, typed contents of a session or a user.

A content is written completely before it gets a name, under a random key, so a name is never a path. Contents that never got a name or lost
it are found and removed by a sweep.
"""

from __future__ import annotations

from holdfast.artifacts.service import (
    ArtifactService,
    DeletedArtifacts,
    LoadedArtifact,
    OpenedArtifact,
    SessionArtifacts,
)
from holdfast.artifacts.settings import ArtifactSettings, open_blobs

__all__ = [
    "ArtifactService",
    "ArtifactSettings",
    "DeletedArtifacts",
    "LoadedArtifact",
    "OpenedArtifact",
    "SessionArtifacts",
    "open_blobs",
]
