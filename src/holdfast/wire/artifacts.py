"""Artifacts in the REST API and in exports."""

from __future__ import annotations

from typing import Literal

from holdfast.domain.artifact import Artifact, ArtifactFields
from holdfast.domain.objects import Count, make_object


class ArtifactObject(ArtifactFields, frozen=True, kw_only=True):
    """One version of an artifact, without its content."""

    object: Literal["artifact"] = "artifact"
    version: Count
    """Number of the version, counted from 0 for each name."""
    sha256: str
    """SHA-256 of the content, hexadecimal."""

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> ArtifactObject:
        """Create the object for a version of an artifact."""
        return make_object(cls, artifact, sha256=artifact.sha256.hex())
