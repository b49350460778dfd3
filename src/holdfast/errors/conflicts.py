"""Define conflicts: errors that are raised if the state is not the one that a call expected. Read the state again, then decide."""

from __future__ import annotations

from typing import Any

from holdfast.errors.base import HoldfastError


class Conflict(HoldfastError):
    """The state is not the one that the call expected. Read it again, then decide."""

    code = "conflict"
    http_status = 409


class SessionExists(Conflict):
    """A session with that id already exists for this tenant and user."""

    code = "session_exists"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} exists already")


class AmbiguousSession(Conflict):
    """Several users of the tenant have a session with that id."""

    code = "ambiguous_session"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"several users have a session {session_id!r}: name one with user_id")


class StaleSession(Conflict):
    """Another write has changed the session: it is not at the expected version, or its log does not have the expected marker.

    Args:
        session_id: id of the session.
        expected: the expected version. None: a marker of the log was expected.
        version: the current version of the session.
    """

    code = "stale_session"
    http_status = 412

    def __init__(self, session_id: str, *, expected: int | None, version: int) -> None:
        if expected is None:
            super().__init__(f"the log of session {session_id!r} has changed since its marker was read: read it again")
        else:
            super().__init__(f"session {session_id!r} is at version {version}, not at {expected}: read it again")
        self.expected = expected
        self.version = version


class SessionExpired(Conflict):
    """The session has been idle longer than its ttl, but has not been ended yet. Writes to it must wait until it has been ended.

    Args:
        session: the current session, a `holdfast.domain.session.Session`.
    """

    code = "session_expired"

    def __init__(self, session: Any) -> None:
        super().__init__(f"session {session.id!r} has expired")
        self.session = session


class SessionBusy(Conflict):
    """Another turn of the session is running, or other work that excludes turns.

    Args:
        session_id: id of the session.
        until: time at which the claim of the running turn expires unless it is renewed, in milliseconds since the epoch.
        waited: seconds after which the caller stopped waiting, the setting `queue_timeout`; None: it did not wait.
    """

    code = "session_busy"

    def __init__(self, session_id: str, *, until: int, waited: float | None = None) -> None:
        if waited is None:
            message = f"a turn of session {session_id!r} is running: try again when it has ended"
        else:
            message = f"a turn of session {session_id!r} was still running after {waited:g} seconds (queue_timeout)"
        super().__init__(message)
        self.until = until


class TurnInterrupted(Conflict):
    """Another turn interrupted this one. The part of the reply that had arrived is in the log, marked as interrupted."""

    code = "turn_interrupted"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"another turn of session {session_id!r} interrupted this one: what had arrived of its reply is in the session"
        )


class TurnLost(Conflict):
    """Another server took over the session, because this server did not renew its claim in time.

    The request is in the log. The part of the turn after its last write is not, because other turns have already continued the log.
    """

    code = "turn_lost"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"another server took over session {session_id!r}, because this turn did not renew its claim in time: "
            "its reply is not in the session"
        )


class NoReply(Conflict):
    """There is no reply to interrupt, or the last reply belongs to another turn."""

    code = "no_reply"


class CallsOpen(Conflict):
    """Results of the tool calls in the session's last reply are missing. They must be sent first."""

    code = "calls_open"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} waits for the results of tool calls: send them first, or speak with priority INTERRUPT, "
            "which drops the calls"
        )


class StaleArtifact(Conflict):
    """The newest version of an artifact is not the expected one, because another write has saved the artifact."""

    code = "stale_artifact"
    http_status = 412

    def __init__(self, name: str, *, newest: int) -> None:
        state = "it does not exist" if newest < 0 else f"its newest version is {newest}"
        super().__init__(f"artifact {name!r} is not at the expected version: {state}")
        self.newest = newest


class StaleMemories(Conflict):
    """The memories of the owner are not at the expected version, because another write has changed them.

    Args:
        expected: the expected version.
        version: the current version.
    """

    code = "stale_memories"
    http_status = 412

    def __init__(self, *, expected: int, version: int) -> None:
        super().__init__(f"the memories are at version {version}, not at {expected}: read them again")
        self.expected = expected
        self.version = version


class StaleState(Conflict):
    """The state is not the one that the write expected: a scope has another version, or a key has another value.

    Args:
        message: the state that differs, and its current value or version.
        version: current version of the scope. For state of the session, it is the version of the session.
        key: key with another value, with the prefix of its scope. None: the scope has another version.
    """

    code = "stale_state"
    http_status = 412

    def __init__(self, message: str, *, version: int, key: str | None = None) -> None:
        super().__init__(message)
        self.version = version
        self.key = key


class StaleRecord(Conflict):
    """A record does not have the version that the write expects, because it was written or deleted in between."""

    code = "stale_record"
    http_status = 412

    def __init__(self, key: str, *, expected: int, version: int) -> None:
        actual = f"is at version {version}" if version else "does not exist"
        wanted = f"not at {expected}" if expected else "but must not exist"
        super().__init__(f"record {key!r:.80} {actual}, {wanted}: read it again")
        self.key = key
        self.expected = expected
        self.version = version
        """The record's version; 0 if there is none."""


class IdempotencyConflict(Conflict):
    """The idempotency key was used before with different content."""

    code = "idempotency_conflict"
    http_status = 422

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key!r} was used before with different content")


class TurnGone(Conflict):
    """The turn of an idempotency key is no longer part of the conversation: it was replaced, rewound or erased."""

    code = "turn_gone"

    def __init__(self, key: str) -> None:
        super().__init__(f"the turn of idempotency key {key!r:.100} is no longer part of the conversation")


class ResultExists(Conflict):
    """A tool call has another result already."""

    code = "result_exists"

    def __init__(self, call_id: str) -> None:
        super().__init__(f"call {call_id!r:.100} has another result already")
