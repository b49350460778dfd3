"""Beta features of Anthropic's API, which requests name in the header `anthropic-beta`: what Holdfast does with each.

The rule is that a field is served, or passed on together with its header, or refused by name. A header without its field changes nothing.
docs/anthropic.md has the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

HEADER: Final = "anthropic-beta"
Handling = Literal["served", "per edit", "forwarded", "refused"]
"""`served`: Holdfast serves the fields for every model, and sends neither header nor fields. `per edit`: it serves some values, and passes on
others with the header. `forwarded`: an Anthropic model gets header and fields, and for other models the fields are refused. `refused`: the
fields are refused for every model."""


class Beta(NamedTuple):
    """One beta feature."""

    handling: Handling
    fields: tuple[str, ...]
    """Fields of the request that belong to it; for parts of messages, their path."""


BETAS: Final[Mapping[str, Beta]] = {
    "message-threads-2026-08-12": Beta("served", ("thread",)),
    "cache-diagnosis-2026-04-07": Beta("served", ("diagnostics",)),
    "mid-conversation-tool-changes-2026-07-01": Beta("served", ("messages[].content[].tool_addition",)),
    "inline-tools-2026-09-15": Beta("served", ("messages[].content[].tool_addition",)),
    "context-management-2025-06-27": Beta("per edit", ("context_management",)),
    "compact-2026-01-12": Beta("per edit", ("context_management",)),
    "compact-2026-09-04": Beta("forwarded", ("compaction",)),
    "model-context-window-exceeded-2025-08-26": Beta("forwarded", ()),
    "agent-memory-2026-07-22": Beta("forwarded", ()),
    "dreaming-2026-04-21": Beta("forwarded", ()),
    "managed-agents-2026-04-01": Beta("forwarded", ()),
    "mid-conversation-system-clear-at-2026-08-21": Beta("refused", ("messages[].clear_at",)),
    "mid-conversation-output-config-2026-07-01": Beta("refused", ("messages[].output_config",)),
}
"""Known betas by name. Others are forwarded, like their fields."""


def parse_betas(header: str) -> list[str]:
    """Return the names in a header `anthropic-beta` that an Anthropic model gets."""
    names = (name.strip() for name in header.split(","))
    return list(_drop_served(name for name in names if name))


def _drop_served(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name not in BETAS or BETAS[name].handling != "served")
