"""The API's object about the index, as JSON Schema."""

from __future__ import annotations

from typing import Final

from holdfast.recall.base import SEARCH_MODES
from holdfast.server.shapes import TIME, Schema, boolean, nullable, record, text, whole

_DOING: Final = ["indexing", "embedding", "walking", "removing", "rebuilding", "waiting"]
_FIELDS: Final[dict[str, Schema]] = {
    "mode": {
        "type": "string",
        "enum": list(SEARCH_MODES),
        "description": "what is searched by where a search does not say",
    },
    "model": nullable(text("of the vectors; null: no embedder")),
    "sources": whole("sessions that it has, and owners of memories"),
    "incomplete": whole("those that are in the middle of being taken in, or were when a process ended"),
    "documents": whole(),
    "vectors": {"type": "object", "description": "how many, by model", "additionalProperties": {"type": "integer"}},
    "vector_engine": text("what searches them"),
    "pending": whole("documents that wait for a vector; counted up to 1,000"),
    "unembedded": whole("texts that have none since embedding them failed each time, in this process"),
    "waiting": whole("sessions that this process was told of, and that are not in yet"),
    "behind": whole("sessions that changed since they were taken in; counted up to 1,000"),
    "entries_behind": whole("their entries that are not in"),
    "lag": whole("milliseconds since the oldest of them changed"),
    "walked_at": nullable(TIME),
    "whole_at": nullable(TIME),
    "rebuilding": nullable(
        record(
            "A rebuild that was begun and is not over.",
            {"epoch": whole(), "user": nullable(text("of this user only")), "session": nullable(text())},
        )
    ),
    "last_error": nullable(
        record(
            "What went wrong last in this process.",
            {"at": TIME, "doing": {"type": "string", "enum": _DOING}, "error": text("its kind")},
        )
    ),
}

INDEX_COMPONENTS: Final[dict[str, Schema]] = {
    "Index": record(
        "How the index is doing; where it is switched off, only that.",
        {"object": {"const": "index"}, "enabled": boolean(), **_FIELDS},
        optional=tuple(_FIELDS),
    ),
}
