"""Beta features of Anthropic's API, which requests name in the header `anthropic-beta`: what Holdfast does with each.

The rule is that a field is served, or passed on together with its header, or refused by name. A header without its field changes nothing.
docs/anthropic.md lists the features and their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.errors import InvalidRequest

HEADER: Final = "anthropic-beta"
_SERVED: Final = frozenset({"mid-conversation-tool-changes-2026-07-01", "inline-tools-2026-09-15"})
"""Features that Holdfast serves for every model. An Anthropic model gets the names of all others."""
_NATIVE: Final = frozenset(
    {
        *("billing_policy", "compaction", "container", "context_management", "fallback_credit_token", "fallbacks"),
        *("inference_geo", "mcp_servers"),
    }
)
"""Fields of Anthropic's API that change the answer or its handling, and that no other upstream has. Edits that Holdfast serves are not in the
field any more."""
_CONVERTED: Final = frozenset({"effort", "format"})
"""Keys of `output_config` that other upstreams have, too."""


def list_betas(header: str, given: Any = None) -> list[str]:
    """Return the names of beta features that an Anthropic model gets, from a header `anthropic-beta` and a list in the body."""
    listed = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    names = dict.fromkeys(name.strip() for text in (header, *listed) for name in text.split(","))
    return [name for name in names if name and name not in _SERVED]


class _ThreadUnsupported(InvalidRequest):
    """A request with `thread`. The code is the one at which Anthropic's client can go on without a thread."""

    code = "thread_unsupported_request"


def check_refused_fields(body: Mapping[str, Any]) -> None:
    """Check that a request has no field of a beta feature that Holdfast refuses for every model.

    Raises:
        InvalidRequest: The request has such a field. Without the field, the model would not get the conversation that the request means.
    """
    if body.get("thread") is not None:
        instead = "send the whole conversation without thread, or only new messages with session_id"
        raise _ThreadUnsupported(f"thread is not supported: {instead}", param="thread")
    if body.get("diagnostics") is not None:
        instead = "leave it out; usage has the tokens that the provider read from its cache"
        raise InvalidRequest(f"diagnostics is not supported: {instead}", param="diagnostics")


def check_native_fields(fields: Mapping[str, Any], llm: str) -> None:
    """Check that a request of Anthropic's API has no fields that only an Anthropic model can serve.

    Args:
        fields: Fields of the request, without those that Holdfast serves.
        llm: Name of the model, which is not Anthropic's.

    Raises:
        InvalidRequest: The request has such a field. The error names it.
    """
    given = fields.get("output_config")
    config = given if isinstance(given, Mapping) else {}
    names = [name for name in sorted(_NATIVE & fields.keys()) if fields[name]]
    names += ["speed"] if fields.get("speed") not in (None, "standard") else []
    names += [f"output_config.{key!s:.80}" for key in sorted(config.keys() - _CONVERTED) if config[key] is not None]
    if names:
        message = f"{names[0]} is not supported for the model {llm!r}, which is not Anthropic's; leave it out"
        raise InvalidRequest(message, param=names[0])
