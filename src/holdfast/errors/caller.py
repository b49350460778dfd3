"""The caller's input is wrong: the same call will fail again."""

from __future__ import annotations

from holdfast.distribution import format_install_hint
from holdfast.errors.base import HoldfastError


class UsageError(HoldfastError):
    """The caller's input is wrong; the same call will fail again."""

    code = "usage_error"
    http_status = 400


class InvalidRequest(UsageError):
    """A parameter is missing, of the wrong type or out of range.

    Args:
        message: what was wrong and what would be right.
        param: the parameter's name or path, for example `limit` or `messages[2].role`.
    """

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidMessage(InvalidRequest):
    """A message, entry or transcript is not one; `param` says where."""

    code = "invalid_message"


class InvalidMetadata(InvalidMessage):
    """A message's voice fields are none: a source that its role cannot have, or fields of an interruption where there is none."""

    code = "invalid_metadata"
    http_status = 422


class HeardMismatch(InvalidRequest):
    """What is said to have been heard is no beginning of what was said."""

    code = "heard_mismatch"
    http_status = 422


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
    """A library of an optional extra is not installed.

    Args:
        what: what needs it, as the beginning of a sentence.
        extra: the extra to install.
    """

    code = "missing_extra"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs {format_install_hint(extra)}")
        self.extra = extra


class MissingState(InvalidRequest):
    """What an agent is told needs something of the state, or an artifact, that is not there.

    Args:
        name: as the template has it: a key with the prefix of its scope, or `artifact.` and a name.
        agent: whose template it is.
        what: which of its texts.
    """

    code = "missing_state"

    def __init__(self, name: str, *, agent: str, what: str = "instruction") -> None:
        kind = "artifact" if name.startswith("artifact.") else "state"
        shown = f"artifact {name.removeprefix('artifact.')!r}" if kind == "artifact" else f"state key {name!r}"
        super().__init__(
            f"the {what} of agent {agent!r} needs {shown}, and there is none: set it, write {{{name}?}} where it may be"
            f" missing, or {{{{{name}}}}} for the word in braces",
            param=kind,
        )
        self.name = name
        self.agent = agent


class TooLarge(InvalidRequest):
    """A limit was passed; the message names the limit and its number."""

    code = "too_large"
    http_status = 413


class SecretBlocked(InvalidRequest):
    """A text holds a secret, and the secret guard refuses such: nothing was written.

    Args:
        found: rule and place of each secret, the text itself in none of them.
    """

    code = "secret_blocked"
    http_status = 422

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
    http_status = 415
