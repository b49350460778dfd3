"""Artifacts as the REST API and exports show them."""

from __future__ import annotations

from typing import Annotated, Literal

from holdfast.domain.artifact import Artifact
from holdfast.wire.objects import Answer, Count, JsonObject, Time, json_schema

ArtifactName = Annotated[
    str,
    json_schema(
        description="letters, digits, spaces and `._-()@+,`, at most 255 bytes; `user:` before it: that of all sessions of the user",
        minLength=1,
    ),
]


class ArtifactObject(Answer, kw_only=True):
    """One version of an artifact: all but where its content is."""

    object: Literal["artifact"] = "artifact"
    name: ArtifactName
    version: Count
    """From 0, by name."""
    mime_type: str
    """Its type."""
    size: Count
    """Bytes."""
    sha256: str
    """Of the content, hexadecimal."""
    author: str | None
    """Who saved it, if that was said."""
    metadata: JsonObject
    """What was said of it."""
    created_at: Time

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> ArtifactObject:
        """Show a version."""
        return cls.from_fields(artifact, sha256=artifact.sha256.hex())
