"""Beta features of Anthropic's API, which requests name in the header `anthropic-beta`: what Holdfast does with each.

The rule is that a field is served, or passed on together with its header, or refused by name. A header without its field changes nothing.
docs/anthropic.md has the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from holdfast.errors import InvalidRequest

HEADER: Final = "anthropic-beta"
Handling = Literal["served", "for others", "per edit", "forwarded", "refused"]
"""`served`: Holdfast serves the fields for every model, and sends neither header nor fields. `for others`: an Anthropic model gets header and
fields, and Holdfast serves them for other models. `per edit`: it serves some values, and passes on
others with the header. `forwarded`: an Anthropic model gets header and fields, and for other models the fields are refused. `refused`: the
fields are refused for every model."""


class Beta(NamedTuple):
    """One beta feature."""

    handling: Handling
    fields: tuple[str, ...]
    """Fields of the request that belong to it; for parts of messages, their path."""


BETAS: Final[Mapping[str, Beta]] = {
    "message-threads-2026-08-12": Beta("refused", ("thread",)),
    "cache-diagnosis-2026-04-07": Beta("refused", ("diagnostics",)),
    "mid-conversation-tool-changes-2026-07-01": Beta("served", ("messages[].content[].tool_addition",)),
    "inline-tools-2026-09-15": Beta("served", ("messages[].content[].tool_addition",)),
    "context-management-2025-06-27": Beta("per edit", ("context_management",)),
    "compact-2026-01-12": Beta("per edit", ("context_management",)),
    "compact-2026-09-04": Beta("for others", ("compaction",)),
    "model-context-window-exceeded-2025-08-26": Beta("forwarded", ()),
    "task-budgets-2026-03-13": Beta("forwarded", ("output_config.task_budget",)),
    "fast-mode-2026-02-01": Beta("forwarded", ("speed",)),
    "mcp-client-2025-11-20": Beta("forwarded", ("mcp_servers",)),
    "server-side-fallback-2026-07-01": Beta("forwarded", ("fallbacks",)),
    "agent-memory-2026-07-22": Beta("forwarded", ()),
    "dreaming-2026-04-21": Beta("forwarded", ()),
    "managed-agents-2026-04-01": Beta("forwarded", ()),
    "mid-conversation-system-clear-at-2026-08-21": Beta("refused", ("messages[].clear_at",)),
    "mid-conversation-output-config-2026-07-01": Beta("refused", ("messages[].output_config",)),
}
"""Known betas by name. Others are handled like `forwarded`."""


NATIVE_FIELDS: Final = frozenset(
    {
        *("billing_policy", "compaction", "container", "context_management", "fallback_credit_token", "fallbacks"),
        *("inference_geo", "mcp_servers"),
    }
)
"""Fields of Anthropic's API that change the answer or its handling, and that no other upstream has. Edits that Holdfast serves are not in the
field any more."""
_CONVERTED: Final = frozenset({"effort", "format"})
"""Keys of `output_config` that other upstreams have, too."""


def parse_betas(header: str, given: Any = None) -> list[str]:
    """Return the names of beta features that an Anthropic model gets, from a header `anthropic-beta` and a list in the body."""
    listed = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    names = dict.fromkeys(name.strip() for text in (header, *listed) for name in text.split(","))
    return [name for name in names if name and (name not in BETAS or BETAS[name].handling != "served")]


class _ThreadUnsupported(InvalidRequest):
    """A request with `thread`. The code is the one at which Anthropic's client can go on without a thread."""

    code = "thread_unsupported_request"


def check_refused_fields(body: Mapping[str, Any]) -> None:
    """Check that a request has no field of a beta feature that Holdfast refuses for every model.

    Raises:
        InvalidRequest: The request has such a field. Without the field, the model would not get the conversation that the request means.
    """
    if body.get("thread") is not None:
        message = (
            "thread is not supported: send the whole conversation without thread, or only new messages with session_id"
        )
        raise _ThreadUnsupported(message, param="thread")
    if body.get("diagnostics") is not None:
        message = (
            "diagnostics is not supported: leave it out; usage has the tokens that the provider read from its cache"
        )
        raise InvalidRequest(message, param="diagnostics")


def check_native_fields(fields: Mapping[str, Any], llm: str) -> None:
    """Check that a request of Anthropic's API has no fields that only an Anthropic model can serve.

    Args:
        fields: Fields of the request, without those that Holdfast serves.
        llm: Name of the model, which is not Anthropic's.

    Raises:
        InvalidRequest: The request has such a field. The error names it.
    """
    config = fields.get("output_config")
    keys = config.keys() - _CONVERTED if isinstance(config, Mapping) else ()
    names = [name for name in sorted(NATIVE_FIELDS & fields.keys()) if fields[name]]
    names += ["speed"] if fields.get("speed") not in (None, "standard") else []
    names += [
        f"output_config.{key!s:.80}" for key in sorted(keys) if isinstance(config, Mapping) and config[key] is not None
    ]
    if names:
        message = f"{names[0]} is not supported for the model {llm!r}, which is not Anthropic's; leave it out"
        raise InvalidRequest(message, param=names[0])
