"""Define errors for wrong input of the caller. The same call will fail again."""

from __future__ import annotations

from holdfast.distribution import format_install_hint
from holdfast.errors.base import HoldfastError


class UsageError(HoldfastError):
    """The input of the caller is wrong. The same call will fail again."""

    code = "usage_error"
    http_status = 400


class InvalidRequest(UsageError):
    """A parameter is missing, of the wrong type or out of range.

    Args:
        message: what is wrong, and what is allowed.
        param: name or path of the parameter, for example `limit` or `messages[2].role`.
    """

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidMessage(InvalidRequest):
    """A message, entry or transcript is not valid. `param` names the invalid part."""

    code = "invalid_message"


class InvalidMetadata(InvalidMessage):
    """The voice fields of a message are not valid.

    A message of this role cannot have this source, or the message has fields of an interruption but was not interrupted.
    """

    code = "invalid_metadata"
    http_status = 422


class HeardMismatch(InvalidRequest):
    """The text that was reported as heard is not the beginning of the spoken text."""

    code = "heard_mismatch"
    http_status = 422


class ConfigError(UsageError):
    """The configuration has mistakes. The error lists all of them.

    Args:
        problems: one line for each mistake, beginning with its place, such as `holdfast.yaml:3`.
    """

    code = "invalid_config"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class WrongEventLoop(UsageError):
    """A `Holdfast` is used in another event loop than the one in which it was opened."""

    code = "wrong_event_loop"

    def __init__(self) -> None:
        super().__init__(
            "this Holdfast was opened in another event loop: use it there,"
            " open one in each loop, or share one between loops and threads with holdfast.Portal()"
        )


class MissingExtra(UsageError):
    """A library of an optional extra is not installed.

    Args:
        what: the feature that needs the library, as the subject of a sentence.
        extra: name of the extra that installs the library.
    """

    code = "missing_extra"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs {format_install_hint(extra)}")
        self.extra = extra


class MissingState(InvalidRequest):
    """A template of an agent needs state or an artifact that does not exist.

    Args:
        name: name in the template: a state key with the prefix of its scope, or `artifact.` followed by the name of an artifact.
        agent: name of the agent.
    """

    code = "missing_state"

    def __init__(self, name: str, *, agent: str) -> None:
        kind = "artifact" if name.startswith("artifact.") else "state"
        shown = f"artifact {name.removeprefix('artifact.')!r}" if kind == "artifact" else f"state key {name!r}"
        super().__init__(
            f"the instruction of agent {agent!r} needs {shown}, which does not exist: set it, write {{{name}?}} if it may be"
            f" missing, or {{{{{name}}}}} for the literal word in braces",
            param=kind,
        )
        self.name = name
        self.agent = agent


class TooLarge(InvalidRequest):
    """A limit was exceeded. The message names the limit and its value."""

    code = "too_large"
    http_status = 413


class SecretBlocked(InvalidRequest):
    """A text contains a secret, and the secret guard blocks it. Nothing was stored.

    Args:
        found: rule and place of each secret. The text of the secret is not included.
    """

    code = "secret_blocked"
    http_status = 422

    def __init__(self, found: list[tuple[str, str]]) -> None:
        shown = "; ".join(f"{place} (rule {rule})" for rule, place in found[:_LISTED_SECRETS])
        more = f" and {len(found) - _LISTED_SECRETS} more" if len(found) > _LISTED_SECRETS else ""
        super().__init__(
            f"blocked because of a secret in {shown}{more}: remove it and try again; nothing was stored",
            param=found[0][1],
        )
        self.found = found


_LISTED_SECRETS = 5
"""Maximum number of secrets that the message of a `SecretBlocked` lists."""


class UnsupportedType(InvalidRequest):
    """A media type is not accepted, or the content has another type than the one that was given."""

    code = "unsupported_type"
    http_status = 415
