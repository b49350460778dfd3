"""Reports on the use of a provider's prompt cache, in the formats of Anthropic's and OpenAI's API.

Follows Anthropic's API reference, "Create a Message" (beta `cache-diagnosis-2026-04-07`), and OpenAI's, "The response object"
(`prompt_cache_diagnostics`). Both describe the first difference between a request and an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.context.explain import Diagnosis
from holdfast.errors import InvalidRequest

DIAGNOSTICS: Final = "diagnostics"
OPTIONS: Final = "prompt_cache_options"
_ANTHROPIC: Final[Mapping[str, str]] = {
    "model": "model_changed",
    "system": "system_changed",
    "tools": "tools_changed",
    "format": "unavailable",
    "effort": "unavailable",
    "verbosity": "unavailable",
    "other": "unavailable",
    "messages": "messages_changed",
}
"""Anthropic's word for each part of a request, in the order in which a difference is reported. The API has no word for parameters."""
_OPENAI: Final[Mapping[str, str]] = {
    "model": "model_changed",
    "key": "prompt_cache_key_changed",
    "tier": "service_tier_changed",
    "tools": "tools_changed",
    "format": "text_format_changed",
    "effort": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
    "system": "input_changed",
    "compaction": "context_compacted",
    "messages": "input_changed",
}
"""OpenAI's word for each part of a request, in the order in which a difference is reported."""


def parse_diagnostics(given: Any) -> tuple[bool, str | None]:
    """Parse the field `diagnostics` of Anthropic's API.

    Returns:
        True if the request has the field, and the id of the earlier message or None.

    Raises:
        InvalidRequest: The field is not valid. The error names the place.
    """
    if given is None:
        return False, None
    where = f"{DIAGNOSTICS}.previous_message_id"
    if not isinstance(given, Mapping) or given.keys() - {"previous_message_id"}:
        raise InvalidRequest(f"{DIAGNOSTICS} must be an object with previous_message_id", param=DIAGNOSTICS)
    previous = given.get("previous_message_id")
    if not isinstance(previous, str | None):
        raise InvalidRequest(f"{where} must be the id of an earlier message, or null", param=where)
    return True, previous or None


def parse_comparison(given: Any) -> str | None:
    """Return the id of the response in `prompt_cache_options` of OpenAI's API with which the prompt is compared, or None.

    Raises:
        InvalidRequest: The field is not valid. The error names the place.
    """
    if given is None:
        return None
    where = f"{OPTIONS}.comparison_response_id"
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{OPTIONS} must be an object", param=OPTIONS)
    named = given.get("comparison_response_id")
    if not isinstance(named, str | None):
        raise InvalidRequest(f"{where} must be the id of a response", param=where)
    return named or None


def report_to_anthropic(found: Diagnosis | None) -> dict[str, Any] | None:
    """Return the field `diagnostics` of a message; None if the prompt begins with the earlier one, or there is no earlier one yet.

    Args:
        found: The comparison; None: it could not be made.
    """
    if found is not None and found.state == "none":
        return None
    if found is None or found.state != "compared":
        missing = found is not None and found.state == "not found"
        return {"cache_miss_reason": {"type": "previous_message_not_found" if missing else "unavailable"}}
    kind = next((word for part, word in _ANTHROPIC.items() if part in found.changed), None)
    if kind is None:
        return None
    tokens = {} if kind == "unavailable" else {"cache_missed_input_tokens": found.tokens}
    return {"cache_miss_reason": {"type": kind, **tokens}}


def report_to_openai(found: Diagnosis | None) -> dict[str, Any]:
    """Return the field `prompt_cache_diagnostics` of a response.

    Args:
        found: The comparison; None: it could not be made.
    """
    if found is None or found.state != "compared":
        missing = found is not None and found.state == "not found"
        return {"type": "comparison_response_not_found" if missing else "unavailable"}
    reason = next((word for part, word in _OPENAI.items() if part in found.changed), None)
    if reason is None:
        return {"type": "cache_hit"}
    missed = found.tokens - found.kept
    return {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": missed,
        "comparison_reusable_tokens": found.tokens,
    }
