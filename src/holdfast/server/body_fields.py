"""Fields of a chat request's body: ours, those of providers, and those that nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast import errors
from holdfast.context.dialects import Dialect
from holdfast.server.requester import RequestRules
from holdfast.turns.turn_warnings import TurnWarning
from holdfast.wire.request_fields import PROVIDER_FIELDS, misspelt_name

OWN_FIELDS: Final = frozenset(
    {
        "session_id",
        "session_mode",
        "session_match",
        "session_queue",
        "session_user",
        "interrupt",
        "user_id",
        "on_disconnect",
        "agent",
        "strategy",
        "budget",
        "recall",
    }
)
"""Fields of the body that are Holdfast's own and do not travel upstream."""
_SHOWN: Final = 80
"""Characters of a field's name that messages quote."""


def without_own(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that travel upstream."""
    return {name: value for name, value in body.items() if name not in OWN_FIELDS}


def unknown_fields(body: Mapping[str, Any], rules: RequestRules) -> list[str]:
    """Return the fields that neither we nor any provider is known to have.

    Raises:
        InvalidRequest: one of them is one edit away from one of ours: it would be lost, and the session with it.
    """
    known = (OWN_FIELDS, PROVIDER_FIELDS, rules.pass_fields)
    unknown = [name for name in body if not any(name in names for names in known)]
    for name in unknown:
        if (ours := misspelt_name(name, OWN_FIELDS)) is not None:
            message = (
                f"unknown field {name[:_SHOWN]!r}: did you mean {ours!r}? If it is the provider's, list it in"
                " gateway.pass_fields of the server"
            )
            raise errors.InvalidRequest(message, param=name[:_SHOWN])
    return unknown


def warn_of_unknown(names: list[str], api: Dialect, upstream: Dialect) -> tuple[TurnWarning, ...]:
    """Return a warning for each unknown field.

    Args:
        names: the fields.
        api: whose API the request was written for.
        upstream: whose API the model has: fields of Anthropic's clients are not sent to others.
    """
    done = (
        "was not sent to the model, which has another API"
        if api != upstream == "openai"
        else "was passed to the provider"
    )
    text = "unknown field {name!r} {done}; gateway.pass_fields of the server ends this warning"
    return tuple(
        TurnWarning("unknown_field", text.format(name=name[:_SHOWN], done=done), param=name[:_SHOWN]) for name in names
    )
