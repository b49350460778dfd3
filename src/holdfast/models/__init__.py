"""Models: whoever answers a Chat Completions request, over a network or not.

`base` is the contract, `openai` the client for any OpenAI-compatible upstream (with `sse`, which reads its event
streams, `failures`, which says what went wrong, and `overflow`, which knows when a prompt was too long), `offline` the model
that needs none. `collect` turns chunks into a completion and back. `counting` asks a provider for its count of a prompt, at
one of the `endpoints`.
"""

from __future__ import annotations

from holdfast.models.base import Model, closing
from holdfast.models.collect import Collector, as_chunks, collect, opening
from holdfast.models.counting import PromptCounter, ProviderCounter
from holdfast.models.endpoints import endpoint_of
from holdfast.models.failures import given_up
from holdfast.models.offline import OfflineModel
from holdfast.models.openai import OpenAIModel

__all__ = [
    "Collector",
    "Model",
    "OfflineModel",
    "OpenAIModel",
    "PromptCounter",
    "ProviderCounter",
    "as_chunks",
    "closing",
    "collect",
    "endpoint_of",
    "given_up",
    "opening",
]
