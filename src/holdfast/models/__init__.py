"""Models: whoever answers a Chat Completions request, over a network or not.

`base` is the contract, `openai` the client for any OpenAI-compatible upstream (with `sse`, which reads its event
streams, and `failures`, which says what went wrong), `offline` the model that needs none. `collect` turns chunks into a
completion and back.
"""

from __future__ import annotations

from holdfast.models.base import Model, closing
from holdfast.models.collect import Collector, as_chunks, collect
from holdfast.models.offline import OfflineModel
from holdfast.models.openai import OpenAIModel

__all__ = ["Collector", "Model", "OfflineModel", "OpenAIModel", "as_chunks", "closing", "collect"]
