"""Clients for language models. A model is any object that answers Chat Completions requests, over a network or not.

base      the protocol of a model and its request     client            base class of clients that use HTTP
deltas    models that yield deltas                    codecs            formats of requests and replies, one per API
openai    client for OpenAI-compatible upstreams      anthropic         client for Anthropic's Messages API
responses client for OpenAI's Responses API
answer    parser for OpenAI's responses               codecs            conversions between deltas, messages and APIs
http      headers, keys, URLs, the proxy
sse       parser for event streams                    failures          conversion of upstream errors to Holdfast's errors
overflow  detection of prompts that are too long      health            cool-down of failing upstreams
limited   a limit on concurrent calls                 count_endpoints   URLs and request formats of providers' token counts
counting  client for a provider's token count
collect   conversion of deltas to a completion        refusals          what refusals say about a profile
offline   the model that needs no network             codecs            requests and replies of each API
"""

from __future__ import annotations

from holdfast.models.anthropic import AnthropicModel
from holdfast.models.base import Model, ModelRequest, closing, retire
from holdfast.models.codecs.chat import decode_request, encode_request
from holdfast.models.collect import Collector, TokenUsage, read_usage, to_chunks
from holdfast.models.count_endpoints import find_count_endpoint
from holdfast.models.counting import PromptCounter, ProviderCounter
from holdfast.models.deltas import DeltaModel, stream_deltas
from holdfast.models.failures import make_too_long_error
from holdfast.models.health import Call, Upstream
from holdfast.models.limited import LimitedModel, get_upstream_origin
from holdfast.models.offline import OfflineModel
from holdfast.models.openai import OpenAIModel
from holdfast.models.responses import ResponsesModel

__all__ = [
    "AnthropicModel",
    "Call",
    "Collector",
    "DeltaModel",
    "LimitedModel",
    "Model",
    "ModelRequest",
    "OfflineModel",
    "OpenAIModel",
    "PromptCounter",
    "ProviderCounter",
    "ResponsesModel",
    "TokenUsage",
    "Upstream",
    "closing",
    "decode_request",
    "encode_request",
    "find_count_endpoint",
    "get_upstream_origin",
    "make_too_long_error",
    "read_usage",
    "retire",
    "stream_deltas",
    "to_chunks",
]
