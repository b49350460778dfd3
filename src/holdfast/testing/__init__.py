"""For tests of what is built on Holdfast: a scripted upstream in place of a model, and the contract that stores keep.

`from holdfast.testing import ScriptedUpstream, Reply` is the one, `from holdfast.testing.contract import *` the other, which
needs `pip install 'holdfast[testing]'`. Each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.anthropic_upstream import AnthropicUpstream, PromptCache
    from holdfast.testing.upstream import (
        MAX_BODY_BYTES,
        PRIMING,
        Bell,
        Gate,
        Received,
        Reply,
        Script,
        ScriptedUpstream,
        Tokenizer,
    )

__all__ = [
    "MAX_BODY_BYTES",
    "PRIMING",
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

_OF_ANTHROPIC = ("AnthropicUpstream", "PromptCache")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    file = "anthropic_upstream" if name in _OF_ANTHROPIC else "upstream"
    value = getattr(import_module(f"holdfast.testing.{file}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
