"""The API's objects about artifacts, as JSON Schema."""

from __future__ import annotations

from typing import Final

from holdfast.server.shapes import TIME, Schema, free, nullable, page, record, text, whole

NAME: Final = text(
    "letters, digits, spaces and `._-()@+,`, at most 255 bytes; `user:` before it: that of all sessions of the user",
    minLength=1,
)
CONTENT: Final[Schema] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
"""Anything."""

ARTIFACT_COMPONENTS: Final[dict[str, Schema]] = {
    "Artifact": record(
        "One version of an artifact.",
        {
            "object": {"const": "artifact"},
            "name": NAME,
            "version": whole("from 0, by name"),
            "mime_type": text("its type"),
            "size": whole("bytes"),
            "sha256": text("of the content, hexadecimal"),
            "author": nullable(text("who saved it, if that was said")),
            "metadata": free("what was said of it"),
            "created_at": TIME,
        },
    ),
    "ArtifactList": page("Artifact", nullable(NAME)),
    "ArtifactVersions": page("Artifact", nullable(whole("a version"))),
    "DeletedArtifact": record(
        "It is gone.",
        {
            "object": {"const": "artifact"},
            "name": NAME,
            "deleted": {"const": True},
            "versions": whole("how many there were", 1),
            "bytes": whole("of all of them"),
        },
    ),
}
