"""The state is not what the call assumed: read again, then decide."""

from __future__ import annotations

from typing import Any

from holdfast.errors.base import HoldfastError


class Conflict(HoldfastError):
    """The state is not what the call assumed; read again, then decide."""

    code = "conflict"
    http_status = 409


class SessionExists(Conflict):
    """A session of that id exists already for this tenant and user."""

    code = "session_exists"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} exists already")


class AmbiguousSession(Conflict):
    """Several users of the tenant have a session of that id."""

    code = "ambiguous_session"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"several users have a session {session_id!r}: name one with user_id")


class StaleSession(Conflict):
    """`expect` is not the session's version: somebody appended in between."""

    code = "stale_session"
    http_status = 412

    def __init__(self, session_id: str, *, expected: int, version: int) -> None:
        super().__init__(f"session {session_id!r} is at version {version}, not at {expected}: read it again")
        self.expected = expected
        self.version = version


class SessionExpired(Conflict):
    """The session has been idle for longer than its ttl, and nobody has ended it yet: what is written to it has to wait.

    Args:
        session: as it stands, a `holdfast.domain.session.Session`.
    """

    code = "session_expired"

    def __init__(self, session: Any) -> None:
        super().__init__(f"session {session.id!r} has expired")
        self.session = session


class SessionBusy(Conflict):
    """A turn of the session is open elsewhere.

    Args:
        session_id: whose.
        until: milliseconds since the epoch: when its holder has to have renewed it.
    """

    code = "session_busy"

    def __init__(self, session_id: str, *, until: int) -> None:
        super().__init__(f"a turn of session {session_id!r} is running: try again when it has ended")
        self.until = until


class TurnInterrupted(Conflict):
    """Another turn asked for this one's place: what had arrived of the reply is in the log, marked as interrupted."""

    code = "turn_interrupted"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"another turn of session {session_id!r} interrupted this one: what had arrived of its reply is in the session"
        )


class TurnLost(Conflict):
    """Another server took the session over, because this one did not renew its claim in time.

    What came is in the log, and the reply, or what was added since the last write, is not: others have gone on from there.
    """

    code = "turn_lost"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"another server took session {session_id!r} over, since this turn was not heard of for too long: "
            "its reply is not in the session"
        )


class NoReply(Conflict):
    """There is no reply that could be interrupted, or the last one is of another turn."""

    code = "no_reply"


class CallsOpen(Conflict):
    """The session's last reply called tools whose results are not there yet: they come first."""

    code = "calls_open"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} waits for the results of tool calls: send them first, or speak with priority INTERRUPT, "
            "which drops the calls"
        )


class StaleArtifact(Conflict):
    """The newest version of an artifact is not the expected one: somebody saved it in between."""

    code = "stale_artifact"
    http_status = 412

    def __init__(self, name: str, *, newest: int) -> None:
        found = "there is none of that name" if newest < 0 else f"its newest version is {newest}"
        super().__init__(f"artifact {name!r} is not at the expected version: {found}")
        self.newest = newest


class StaleMemories(Conflict):
    """`expect` is not the version of the owner's memories: somebody changed them in between."""

    code = "stale_memories"
    http_status = 412

    def __init__(self, *, expected: int, version: int) -> None:
        super().__init__(f"the memories are at version {version}, not at {expected}: read them again")
        self.expected = expected
        self.version = version


class StaleState(Conflict):
    """State is not what the write expected: another version of its scope, or another value under a key.

    Args:
        message: which, and what is there.
        version: of the scope as it stands, or of the session for its own state.
        key: whose value it is, with its prefix; None: the version of the scope.
    """

    code = "stale_state"
    http_status = 412

    def __init__(self, message: str, *, version: int, key: str | None = None) -> None:
        super().__init__(message)
        self.version = version
        self.key = key


class IdempotencyConflict(Conflict):
    """The idempotency key was used before, with different content."""

    code = "idempotency_conflict"
    http_status = 422

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key!r} was used before with different content")
