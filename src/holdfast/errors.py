"""Every error Holdfast raises, split by what the caller can do about it.

HoldfastError
├── UsageError                 the caller's input is wrong; the same call will fail again
│   ├── InvalidMessage         a message, entry or transcript that is not one (`where` says which)
│   ├── InvalidRequest         a parameter that is not one (`param` names it)
│   ├── ConfigError            configuration: every mistake at once, each with its place
│   ├── MissingExtra           a driver is not installed; names the extra to install
│   ├── TooLarge               a limit was passed; names the limit and its number
│   ├── SecretBlocked          a message holds a secret and `secret_guard` refuses it; names rule and place
│   └── UnsupportedType        a media type that is not taken, or that the content contradicts
├── NotFound                   nothing under that id for this tenant and user
│   ├── SessionNotFound
│   ├── EntryNotFound
│   ├── CompactionNotFound
│   ├── ArtifactNotFound
│   ├── UserNotFound
│   └── KeyNotFound
├── Conflict                   the state is not what the call assumed; read again, then decide
│   ├── SessionExists
│   ├── AmbiguousSession       several users have a session of that id; name the user
│   ├── StaleSession           `expect` is behind the log
│   ├── SessionExpired         idle for longer than its ttl, and not ended yet; only stores raise it
│   ├── SessionBusy            a turn of it is open; says until when at most
│   ├── TurnInterrupted        a newer turn took this one's place; what had arrived is in the log
│   ├── TurnLost               another server took the session over; nothing more of this turn is in the log
│   ├── StaleArtifact          the newest version of an artifact is not the expected one
│   └── IdempotencyConflict    the same key with different content
├── BudgetTooSmall             no legal working set fits; says what is needed
├── ModelError                 the upstream model; the user's message stays in the log
│   ├── ModelUnavailable       refused, unreachable, timed out, 5xx: try again later
│   ├── ModelRejected          the upstream said no (4xx): its own words in `body`
│   │   └── ContextTooLong     the prompt is over the model's window: send less; says the limit if known
│   └── ModelProtocolError     the upstream answered with something that is not an answer
├── HookFailed                 a hook could not do its work: it is told again
└── StoreError                 the store could not do its work
    ├── StoreUnavailable       cannot be opened or reached, disk full, read-only
    ├── StoreCorrupt           what is stored does not verify
    └── StoreClosed            used after close
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """Base of every error Holdfast raises on purpose.

    `code` is a stable machine-readable word, used as `error.code` on the wire.
    """

    code = "holdfast_error"


# -- the caller's input ------------------------------------------------------


class UsageError(HoldfastError):
    """The caller's input is wrong; the same call will fail again."""

    code = "invalid_request"


class InvalidRequest(UsageError):
    """A parameter is missing, of the wrong type or out of range.

    Args:
        message: what was wrong and what would be right.
        param: the parameter's name or path, for example `limit` or `messages[2].role`.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidMessage(InvalidRequest):
    """A message, entry or transcript is not one; `param` says where."""

    code = "invalid_message"


class ConfigError(UsageError):
    """The configuration has mistakes; all of them are told at once.

    Args:
        problems: one line a mistake, each beginning with its place.
    """

    code = "invalid_config"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class MissingExtra(UsageError):
    """A driver is not installed."""

    code = "missing_extra"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}: pip install 'holdfast[{extra}]'")
        self.extra = extra


class TooLarge(InvalidRequest):
    """A limit was passed; the message names the limit and its number."""

    code = "too_large"


class SecretBlocked(InvalidRequest):
    """A text holds a secret, and the secret guard refuses such: nothing was written.

    Args:
        found: rule and place of each secret, the text itself in none of them.
    """

    code = "secret_blocked"

    def __init__(self, found: list[tuple[str, str]]) -> None:
        shown = "; ".join(f"{place} (rule {rule})" for rule, place in found[:_SECRETS_TOLD])
        more = f" and {len(found) - _SECRETS_TOLD} more" if len(found) > _SECRETS_TOLD else ""
        super().__init__(
            f"refused because of a secret in {shown}{more}: take it out and try again; nothing was stored",
            param=found[0][1],
        )
        self.found = found


_SECRETS_TOLD = 5
"""Places of secrets that an error names."""


class UnsupportedType(InvalidRequest):
    """A media type that is not taken, or that the content plainly contradicts."""

    code = "unsupported_type"


# -- not there ---------------------------------------------------------------


class NotFound(HoldfastError):
    """Nothing under that id for this tenant and user."""

    code = "not_found"


class SessionNotFound(NotFound):
    """No such session for this tenant and user."""

    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r}")
        self.session_id = session_id


class EntryNotFound(NotFound):
    """No live entry with that `seq` in the session."""

    code = "message_not_found"

    def __init__(self, session_id: str, seq: int) -> None:
        super().__init__(f"session {session_id!r} has no live message with seq {seq}")
        self.seq = seq


class EndingNotFound(NotFound):
    """No end of a session with that id, of which hooks are still to be told."""

    code = "ending_not_found"

    def __init__(self, ending_id: str) -> None:
        super().__init__(f"there is no ending {ending_id!r} that is to be told of")


class CompactionNotFound(NotFound):
    """No compaction with that id in the session, or none that could be dropped."""

    code = "compaction_not_found"

    def __init__(self, session_id: str, compaction_id: int, such: str = "live or superseded ") -> None:
        super().__init__(f"session {session_id!r} has no {such}compaction {compaction_id}")
        self.compaction_id = compaction_id


class ArtifactNotFound(NotFound):
    """No artifact of that name, or not that version of it.

    Args:
        name: as it was asked for.
        version: None: any.
        called: the name that is there instead, and differs in case or Unicode form alone.
    """

    code = "artifact_not_found"

    def __init__(self, name: str, version: int | None = None, *, called: str | None = None) -> None:
        of = "" if version is None else f"version {version} of "
        super().__init__(f"no {of}artifact {name!r}" + (f"; there is {called!r}" if called else ""))
        self.name = name
        self.version = version


class UserNotFound(NotFound):
    """No such user, as far as whoever asks may know."""

    code = "user_not_found"

    def __init__(self, user_id: str) -> None:
        super().__init__(f"no user {user_id!r}")


class KeyNotFound(NotFound):
    """No API key of that id."""

    code = "key_not_found"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no API key {key_id!r}")


# -- conflicts ---------------------------------------------------------------


class Conflict(HoldfastError):
    """The state is not what the call assumed; read again, then decide."""

    code = "conflict"


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

    def __init__(self, session_id: str, *, expected: int, version: int) -> None:
        super().__init__(f"session {session_id!r} is at version {version}, not at {expected}: read it again")
        self.expected = expected
        self.version = version


class SessionExpired(Conflict):
    """The session has been idle for longer than its ttl, and nobody has ended it yet: what is written to it has to wait.

    Args:
        session: as it stands, a `holdfast.session.Session`.
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


class StaleArtifact(Conflict):
    """The newest version of an artifact is not the expected one: somebody saved it in between."""

    code = "stale_artifact"

    def __init__(self, name: str, *, newest: int) -> None:
        found = "there is none of that name" if newest < 0 else f"its newest version is {newest}"
        super().__init__(f"artifact {name!r} is not at the expected version: {found}")
        self.newest = newest


class IdempotencyConflict(Conflict):
    """The idempotency key was used before, with different content."""

    code = "idempotency_conflict"

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key!r} was used before with different content")


# -- the working set ---------------------------------------------------------


class BudgetTooSmall(HoldfastError):
    """No legal working set fits the budget.

    Args:
        budget: tokens allowed.
        needed: tokens the smallest legal working set takes.
        what: what takes them, in words.
    """

    code = "budget_too_small"

    def __init__(self, *, budget: int, needed: int, what: str) -> None:
        super().__init__(f"a working set needs at least {needed} tokens ({what}), the budget is {budget}")
        self.budget = budget
        self.needed = needed


# -- the model ---------------------------------------------------------------


class ModelError(HoldfastError):
    """The upstream model did not answer; the user's message stays in the log.

    Args:
        message: what happened.
        status: the upstream's HTTP status, if it gave one.
        body: the upstream's own error object, if it gave one.
        retry_after: seconds the upstream asked to wait, if it did.
    """

    code = "upstream_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.handed = False
        """Whether the model was called with the caller's own key."""


class ModelUnavailable(ModelError):
    """Refused, unreachable, timed out, overloaded or 5xx: try again later."""

    code = "upstream_unavailable"


class ModelRejected(ModelError):
    """The upstream refused the request (4xx); its own words are in `body`."""

    code = "upstream_rejected"


class ContextTooLong(ModelRejected):
    """The prompt, or prompt and reply together, do not fit the model's context window: send less.

    Args:
        message: what happened.
        context_limit: the window in tokens, where the upstream said it; None where it did not.
        requested: the prompt's tokens as the upstream counted them, without the reply, where it said so.
        status, body, retry_after: as in `ModelError`.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        context_limit: int | None = None,
        requested: int | None = None,
        status: int | None = None,
        body: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, status=status, body=body, retry_after=retry_after)
        self.context_limit = context_limit
        self.requested = requested


class ModelProtocolError(ModelError):
    """The upstream answered with something that is not an answer."""

    code = "upstream_protocol_error"


# -- hooks -------------------------------------------------------------------


class HookFailed(HoldfastError):
    """A hook could not do its work; whoever told it tells it again.

    Args:
        message: what happened; neither content nor secrets.
        retry_after: seconds it asks to be left alone for, if it does.
    """

    code = "hook_failed"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


# -- the store ---------------------------------------------------------------


class StoreError(HoldfastError):
    """The store could not do its work."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be opened or reached, is full or read-only."""

    code = "store_unavailable"


class StoreCorrupt(StoreError):
    """What is stored does not verify; the message says where."""

    code = "store_corrupt"


class StoreClosed(StoreError):
    """The store was used after it was closed."""

    code = "store_closed"

    def __init__(self) -> None:
        super().__init__("the store is closed")
