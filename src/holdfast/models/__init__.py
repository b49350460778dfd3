"""Models: whoever answers a Chat Completions request, over a network or not.

base      the contract of a model                     client            what all clients of an upstream do
openai    any OpenAI-compatible upstream              anthropic         Anthropic's Messages
answer    what OpenAI's answer with, read             anthropic_stream  what Anthropic's answers with, read
http      headers, keys, addresses, the proxy         anthropic_access  where Anthropic's API is, and its headers
sse       event streams                               failures          what went wrong, as one of our errors
overflow  whether a prompt was too long               health            how upstreams are doing
limited   so many calls of a model at once            retiring          the end of clients that nobody needs
counting  a provider's own count of a prompt          count_endpoints   where it is asked for, and in which shape
collect   chunks into a completion, and back          offline           the model that needs no network
"""

from __future__ import annotations

from holdfast.models.anthropic import AnthropicModel
from holdfast.models.base import Model, closing
from holdfast.models.collect import Collector, Used, as_chunks, collect, read_usage, says_something
from holdfast.models.count_endpoints import endpoint_of
from holdfast.models.counting import PromptCounter, ProviderCounter
from holdfast.models.failures import make_too_long_error
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
    "Used",
    "as_chunks",
    "closing",
    "collect",
    "endpoint_of",
    "make_too_long_error",
    "origin_of",
    "read_usage",
    "retire",
    "says_something",
]
