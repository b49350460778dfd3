"""How an index is doing: what `holdfast index status` and `GET /v1/index` tell."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class LastError(msgspec.Struct, frozen=True):
    """What went wrong last: nothing of what was indexed is in it."""

    at: int
    """Milliseconds since the epoch."""
    doing: str
    """`indexing`, `embedding`, `walking`, `removing`, `rebuilding`."""
    error: str
    """The kind of error."""


class Rebuilding(msgspec.Struct, frozen=True):
    """A rebuild that was begun and is not over."""

    epoch: int
    user: str | None = None
    """Of this user's sessions only."""
    session: str | None = None
    """Of sessions of that name only."""


class IndexReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the index of a tenant is doing, as one process sees it."""

    mode: str
    model: str | None = None
    """Of the vectors; None: no embedder."""
    sources: int
    """Sessions that it has, and owners of memories."""
    incomplete: int
    """Those that are in the middle of being taken in, or were when a process ended."""
    documents: int
    vectors: Mapping[str, int] = {}
    """By model."""
    vector_engine: str = ""
    pending: int = 0
    """Documents that wait for a vector; counted up to 1,000."""
    unembedded: int = 0
    """Texts that have none, because embedding them failed each time; in this process."""
    waiting: int = 0
    """Sessions that this process was told of, and that are not in yet."""
    behind: int = 0
    """Sessions that have changed since they were taken in, of those changed since the last walk; counted up to 1,000."""
    entries_behind: int = 0
    """Their entries that are not in."""
    lag: int = 0
    """Milliseconds since the oldest of them was written to."""
    walked_at: int | None = None
    """When somebody last looked for what was not indexed, milliseconds since the epoch."""
    whole_at: int | None = None
    """When all sessions were looked at."""
    rebuilding: Rebuilding | None = None
    last_error: LastError | None = None
