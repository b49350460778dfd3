"""Provide scripted upstreams that replace models in tests of programs built on Holdfast.

    from holdfast.testing import Gate, Reply, ScriptedUpstream

upstream            a Chat Completions server that follows a script
anthropic_upstream  the same for Anthropic's Messages API
anthropic_rules     what that API rejects
gates               synchronization of tests
refusals            how providers reject a prompt

The checks for your own store or index are in `tests/contract` of the repository and the sdist (docs/stores.md). Each name is imported when
it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.anthropic_upstream import AnthropicUpstream, PromptCache
    from holdfast.testing.gates import Bell, Gate
    from holdfast.testing.upstream import Received, Reply, Script, ScriptedUpstream, Tokenizer

__all__ = [
    "AnthropicUpstream",
    "Bell",
    "Gate",
    "PromptCache",
    "Received",
    "Reply",
    "Script",
    "ScriptedUpstream",
    "Tokenizer",
]

_MODULES = {
    "AnthropicUpstream": "anthropic_upstream",
    "Bell": "gates",
    "Gate": "gates",
    "PromptCache": "anthropic_upstream",
}
"""Modules of names; all others are in `upstream`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'upstream')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
