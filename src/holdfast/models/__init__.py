"""Models: whoever answers a Chat Completions request, over a network or not.

`base` is the contract, `client` what all clients of an upstream do, `openai` the one for any OpenAI-compatible upstream,
`anthropic` the one for Anthropic's Messages (with `answer` and `anthropic_stream`, which read what comes, `sse`, which reads
event streams, `failures`, which says what went wrong, and `overflow`, which knows when a prompt was too long), `offline` the model
that needs none. `limited` holds back calls of one that has enough to do, `health` knows how upstreams are doing.
`retiring` closes those that a new configuration leaves. `collect` turns chunks into a completion and back. `counting` asks a provider for its count of a prompt, at
one of the `endpoints`.
"""

from __future__ import annotations

from holdfast.models.anthropic import AnthropicModel
from holdfast.models.base import Model, closing
from holdfast.models.collect import Collector, as_chunks, collect, opening
from holdfast.models.counting import PromptCounter, ProviderCounter
from holdfast.models.endpoints import endpoint_of
from holdfast.models.failures import given_up
from holdfast.models.health import Call, Upstream
from holdfast.models.limited import Limited, origin_of
from holdfast.models.offline import OfflineModel
from holdfast.models.openai import OpenAIModel
from holdfast.models.retiring import retire

__all__ = [
    "AnthropicModel",
    "Call",
    "Collector",
    "Limited",
    "Model",
    "OfflineModel",
    "OpenAIModel",
    "PromptCounter",
    "ProviderCounter",
    "Upstream",
    "as_chunks",
    "closing",
    "collect",
    "endpoint_of",
    "given_up",
    "opening",
    "origin_of",
    "retire",
]
