"""Former names that still work: their replacements, and the warnings about those that Python can detect.

docs/deprecations.md lists all of them, and tests compare it with this table and with the code.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["name", "route", "field", "command"]
SINCE: Final = "0.2"
REMOVED: Final = "0.3"


class Deprecation(NamedTuple):
    """A former name."""

    kind: Kind
    """`name`: a Python name or parameter, whose use causes a warning. The use of a field cannot be detected."""
    old: str
    new: str
    since: str = SINCE
    """Version that deprecated the name."""
    removed: str = REMOVED
    """Version that removes the name."""


DEPRECATIONS: Final = (
    Deprecation("name", "holdfast.DreamingSettings", "holdfast.ConsolidationSettings"),
    Deprecation("name", "holdfast.open(dreaming=)", "holdfast.open(consolidation=)"),
    Deprecation("name", "Holdfast.dreams", "Holdfast.consolidation"),
    Deprecation("name", "Holdfast.consolidation.dream", "Holdfast.consolidation.consolidate"),
    Deprecation("name", "Context.tokens", "Context.conversation_tokens"),
    Deprecation("name", "Context.counted", "Context.provider_count"),
    Deprecation("name", "holdfast.config.config_check", "holdfast.config.check.check_config"),
    Deprecation("name", "holdfast.config.config_show", "holdfast.config.show.show_config"),
    Deprecation("name", "holdfast.config.context_of", "holdfast.config.resolve.resolve_context"),
    Deprecation("name", "holdfast.config.default", "holdfast.config.loader.load_default"),
    Deprecation("name", "holdfast.config.life_of", "holdfast.config.build.build_life_settings"),
    Deprecation("name", "holdfast.config.settings_from", "holdfast.config.loader.load_settings"),
    Deprecation("name", "holdfast.config.store_url", "holdfast.config.resolve.resolve_store_url"),
    Deprecation("name", "holdfast.config.upstream_of", "holdfast.config.resolve.resolve_llm"),
    Deprecation("name", "Config.dreaming", "Config.consolidation"),
    Deprecation("name", "Config.short_term", "Config.sessions"),
    Deprecation("name", "Config.sessions.session_ttl", "Config.sessions.ttl"),
    Deprecation("name", "Config.sessions.max_history_turns", "Config.sessions.max_messages"),
    Deprecation("name", "holdfast.domain.history.continued", "holdfast.domain.history.continue_log"),
    Deprecation("route", "POST /v1/memories/dream", "POST /v1/memories/consolidate"),
    Deprecation("field", "Context.tokens", "Context.conversation_tokens"),
    Deprecation("field", "Context.counted", "Context.provider_count"),
    Deprecation("field", "Build.policy", "Build.strategy"),
    Deprecation("field", "WorkingSetSize.tokens", "WorkingSetSize.conversation_tokens"),
    Deprecation("field", "WorkingSetSize.kept", "WorkingSetSize.tokens_by_decision"),
    Deprecation("command", "holdfast memories dream", "holdfast memories consolidate"),
)
"""All former names."""
_NAMES: Final = {one.old: one for one in DEPRECATIONS if one.kind == "name"}


def warn_renamed(old: str, *, depth: int = 1) -> Deprecation:
    """Warn that the program uses a former name, and return its entry.

    Args:
        old: the name, as in `DEPRECATIONS`.
        depth: number of frames between this call and the line of the program; 1: the caller was called by the program itself.
    """
    found = _NAMES[old]
    message = f"{old} is now {found.new}; the former name is removed in {found.removed}"
    warnings.warn(message, DeprecationWarning, stacklevel=depth + 2)
    return found


def load_renamed(module: str, name: str) -> Any:
    """Return the value of a module's former name, with a warning. For the function `__getattr__` of a module.

    Raises:
        AttributeError: the module has no such former name.
    """
    found = _NAMES.get(f"{module}.{name}")
    if found is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    # `from package import name` first asks the package whether it has the name, and then gets it: warn only once.
    if sys._getframe(2).f_globals.get("__name__") != "importlib._bootstrap":  # noqa: SLF001 - as `warnings` itself does
        warn_renamed(found.old, depth=2)
    home, _, attribute = found.new.rpartition(".")
    return getattr(import_module(home), attribute)
