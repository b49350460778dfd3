"""Provide scripted upstreams: servers that replace models in tests of programs that use Holdfast.

    from holdfast.testing import Gate, Reply, ScriptedUpstream

upstream            a scripted server with OpenAI's Chat Completions API
anthropic_upstream  a scripted server with Anthropic's Messages API
gates               synchronization of tests
refusals            errors with which providers reject prompts that are too long

To add a database or an index, use the checks in `tests/contract` of the repository and the sdist (docs/stores.md). Each name of this
package is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.anthropic_upstream import AnthropicUpstream, PromptCache
    from holdfast.testing.gates import Bell, Gate
    from holdfast.testing.responses_upstream import ResponsesUpstream
    from holdfast.testing.upstream import Received, Reply, Script, ScriptedUpstream, Tokenizer

__all__ = [
    "AnthropicUpstream",
    "Bell",
    "Gate",
    "PromptCache",
    "Received",
    "Reply",
    "ResponsesUpstream",
    "Script",
    "ScriptedUpstream",
    "Tokenizer",
]

_MODULES = {
    "AnthropicUpstream": "anthropic_upstream",
    "Bell": "gates",
    "Gate": "gates",
    "PromptCache": "anthropic_upstream",
    "ResponsesUpstream": "responses_upstream",
}
"""Module that defines a name. Names that are not listed are defined in `upstream`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'upstream')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
