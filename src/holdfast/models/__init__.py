"""Clients for language models: anything that answers a Chat Completions request, over a network or not.

base      the protocol of a model                     client            calls over HTTP, shared by all clients
openai    any OpenAI-compatible upstream              anthropic         Anthropic's Messages API
answer    parsing of OpenAI's responses               anthropic_stream  parsing of Anthropic's responses
http      headers, keys, addresses, the proxy         anthropic_access  address and headers of Anthropic's API
sse       event streams                               failures          upstream failures as Holdfast's errors
overflow  detection of prompts that are too long      health            cool-down of failing upstreams
limited   a limit on concurrent calls                 client_shutdown   closing of clients after a reload
counting  a provider's own count of a prompt          count_endpoints   addresses and request formats of such counts
collect   chunks into a completion, and back          offline           the model that needs no network
"""

from __future__ import annotations

from holdfast.models.anthropic import AnthropicModel
from holdfast.models.base import Model, closing
from holdfast.models.client_shutdown import retire
from holdfast.models.collect import Collector, TokenUsage, collect, has_content, read_usage, to_chunks
from holdfast.models.count_endpoints import find_count_endpoint
from holdfast.models.counting import PromptCounter, ProviderCounter
from holdfast.models.failures import make_too_long_error
from holdfast.models.health import Call, Upstream
from holdfast.models.limited import LimitedModel, get_upstream_origin
from holdfast.models.offline import OfflineModel
from holdfast.models.openai import OpenAIModel

__all__ = [
    "AnthropicModel",
    "Call",
    "Collector",
    "LimitedModel",
    "Model",
    "OfflineModel",
    "OpenAIModel",
    "PromptCounter",
    "ProviderCounter",
    "TokenUsage",
    "Upstream",
    "closing",
    "collect",
    "find_count_endpoint",
    "get_upstream_origin",
    "has_content",
    "make_too_long_error",
    "read_usage",
    "retire",
    "to_chunks",
]
