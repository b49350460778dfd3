"""Store artifacts: named, versioned, typed contents of a session or a user.

A content is written completely before it gets a name, under a random key, so a name is never a path. A sweep finds and removes
contents that have no name, or no name any more.
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
