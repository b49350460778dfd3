"""What the index tells about itself. `holdfast doctor` and `GET /v1/status` show the `IndexReport`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class LastError(msgspec.Struct, frozen=True):
    """The latest failure of work on the index, without indexed data."""

    at: int
    """Time of the failure, in milliseconds since the epoch."""
    doing: str
    """The activity that failed: `indexing`, `embedding`, `removing`, `walking` (searching for unreported changes), or `waiting`
    (the queue of sessions was full).
    """
    error: str
    """Name of the error's class."""


class Rebuilding(msgspec.Struct, frozen=True):
    """A rebuild that has started but is not finished yet."""

    epoch: int
    """The number of the rebuild."""
    user: str | None = None
    """The user whose data is rebuilt; None: all users."""
    session: str | None = None
    """The id of the session that is rebuilt; None: all sessions."""


class IndexReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a tenant's index, from the point of view of one process."""

    mode: str
    """The default search mode."""
    model: str | None = None
    """The model that makes the vectors; None: no embedder is configured."""
    sources: int
    """Number of indexed sessions, plus number of owners with indexed memories."""
    incomplete: int
    """Number of these sessions and owners that are being indexed, or whose indexing stopped when a process ended."""
    documents: int
    """Number of indexed entries, memories and records."""
    vectors: Mapping[str, int] = {}
    """Number of vectors by model."""
    vector_engine: str = ""
    """Name of the component that compares vectors."""
    pending: int = 0
    """Number of documents that have no vector yet; at most 1,000 are counted."""
    unembedded: int = 0
    """Number of texts that stay without a vector in this process, because embedding them has failed too often."""
    waiting: int = 0
    """Number of sessions in this process's queue that have writes which are not indexed yet."""
    behind: int = 0
    """Number of sessions that changed since the last backfill and are not fully indexed. At most 1,000 sessions are checked."""
    entries_behind: int = 0
    """Number of entries of the sessions in `behind` that are not indexed."""
    lag: int = 0
    """Age of the oldest change that is not indexed, in milliseconds: time since the earliest of the last writes to the sessions
    in `behind`.
    """
    walked_at: int | None = None
    """Start of the last backfill (search for unreported changes), in milliseconds since the epoch; None: there was none."""
    whole_at: int | None = None
    """Start of the last backfill that checked all sessions, in milliseconds since the epoch; None: there was none."""
    rebuilding: Rebuilding | None = None
    """The rebuild that is not finished yet; None: there is none."""
    last_error: LastError | None = None
    """The latest failure in this process; None: there was none."""
