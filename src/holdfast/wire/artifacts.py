"""Artifacts in the REST API and in exports."""

from __future__ import annotations

from typing import Annotated, Literal

from holdfast.domain.artifact import Artifact
from holdfast.wire.objects import Answer, Count, JsonObject, Time, json_schema

ArtifactName = Annotated[
    str,
    json_schema(
        description="letters, digits, spaces and `._-()@+,`, at most 255 bytes; with the prefix `user:` it belongs to all sessions of the user",
        minLength=1,
    ),
]


class ArtifactObject(Answer, kw_only=True):
    """One version of an artifact, without its content."""

    object: Literal["artifact"] = "artifact"
    name: ArtifactName
    version: Count
    """Number of the version, counted from 0 for each name."""
    mime_type: str
    """Media type of the content."""
    size: Count
    """Size in bytes."""
    sha256: str
    """SHA-256 of the content, hexadecimal."""
    author: str | None
    """Agent that saved the version, if known."""
    metadata: JsonObject
    """Metadata given when the version was saved."""
    created_at: Time

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> ArtifactObject:
        """Create the object for a version of an artifact."""
        return cls.from_fields(artifact, sha256=artifact.sha256.hex())
