"""What a call used, as its provider reports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.numbers import is_whole


class Used(NamedTuple):
    """Tokens of one call; what was not reported, or is nonsense, is 0."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Part of `prompt_tokens` that the provider read from its cache."""


def used(usage: object) -> Used:
    """What `usage` of a completion says, whatever it is."""
    if not isinstance(usage, Mapping):
        return Used()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    return Used(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached))


def _count(value: Any) -> int:
    return value if is_whole(value) else 0
