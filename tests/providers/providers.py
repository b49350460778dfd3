"""Requests that LLM chat APIs refuse, for test upstreams that answer like real providers.

The facts come from public documentation and public reports only. They are written independently of any table in the
product, so that one mistake does not hide another. "Seen in public reports" marks a fact that documentation omits.

Only the issuer can verify real signatures and encrypted reasoning, so the checks look at their usual shape. A test
upstream must issue values from `make_signature`; a value of another family is then refused as foreign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tests.providers.chat_rules import (
    Fault,
    Faults,
    ImageLimits,
    Json,
    Provider,
    check_chat_pictures,
    check_messages,
    check_order,
    check_pairs,
    check_parameters,
    check_reasoning,
    check_text,
    check_tools,
    is_own_signature,
    make_signature,
    split_names,
)
from tests.providers.error_words import (
    ANTHROPIC_WORDS,
    BEDROCK_WORDS,
    DEEPSEEK_WORDS,
    GEMINI_WORDS,
    GROQ_WORDS,
    LLAMA_WORDS,
    MISTRAL_WORDS,
    RESPONSES_WORDS,
    TEMPLATE_WORDS,
    format_error,
)
from tests.providers.native_rules import check_anthropic, check_generate, check_responses

__all__ = ["PROVIDERS", "Fault", "Provider", "find_fault", "find_refusal", "is_own_signature", "make_signature"]

_MEBIBYTE = 1024 * 1024
_CHOICES = split_names("tool_choice parallel_tool_calls")
_PLAIN_ROLES = split_names("system user assistant tool")

_OPENAI = Provider(
    # Chat Completions API, create: `developer` replaces `system`; `function` is deprecated but accepted.
    roles=split_names("system developer user assistant tool function"),
    # Seen in public reports: ids of at most 40 characters ("string too long", calls and results alike).
    call_id_length=40,
    # Seen in public reports: pattern of participant names. API reference: function names have at most 64 characters.
    name=r"[a-zA-Z0-9_-]{1,64}",
    # API reference, assistant message: content is required unless tool_calls or function_call is given.
    accepts_null_content=True,
    # Seen in public reports: "expected a string, but got an object instead"; text that is not JSON is accepted.
    arguments="string",
    needs_call_type=True,
    accepts_empty_calls=False,
    # API reference, create: request fields; others are "Unrecognized request argument supplied" (public reports).
    parameters=split_names(
        "model messages audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens "
        "max_tokens metadata modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key "
        "prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed "
        "service_tier stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity "
        "web_search_options"
    ),
    # Reasoning guide: reasoning models take max_completion_tokens only.
    max_tokens_refused=r"o[1-9]|gpt-[5-9]",
    # API reference, content parts by role. Pictures in tool messages: "only allowed for messages with role 'user'".
    parts={
        "user": split_names("text image_url input_audio file"),
        "assistant": split_names("text refusal"),
        **dict.fromkeys(("system", "developer", "tool", "function"), split_names("text")),
    },
    # Function calling guide and public reports: an answer for each call directly after it, no answer without a call.
    checks_pairs=True,
    choice_parameters=_CHOICES,  # Seen in public reports: both parameters without `tools`.
    accepts_empty_tools=False,  # Seen in public reports: "[] is too short - 'tools'".
    max_tools=128,  # API reference, tools: "A max of 128 functions are supported."
    max_messages=2048,  # Seen in public reports; Azure documents the same number.
    max_stops=4,  # API reference, stop: "Up to 4 sequences".
    limits_metadata=True,  # API reference, metadata: 16 pairs, keys of 64 and values of 512 characters.
    schema="items",  # Seen in public reports: "array schema missing items".
    # Images and vision guide: 500 images and 50 MB in a request. The 20 MB per image of an earlier edition are kept.
    images=ImageLimits(count=500, bytes_each=20 * _MEBIBYTE),
    max_bytes=50 * _MEBIBYTE,
)

# Azure OpenAI quotas and limits: 128 tools, 2,048 messages, 50 pictures in a request for GPT-4o (10 in 2024).
_AZURE = replace(_OPENAI, images=ImageLimits(count=50, bytes_each=20 * _MEBIBYTE))

_MISTRAL = Provider(
    error_form="mistral",
    words=MISTRAL_WORDS,
    roles=_PLAIN_ROLES,  # Chat Completion API: discriminator of the message.
    # mistral-common, request validator: message order, last role, number of results, ids and names.
    followers={
        "system": split_names("user assistant system"),
        "user": split_names("user assistant system"),
        "assistant": split_names("user assistant tool"),
        "tool": split_names("assistant tool"),
    },
    last_roles=split_names("user tool"),
    call_id=r"[a-zA-Z0-9]{9}",
    text_required=split_names("assistant"),
    arguments="any",  # Chat Completion API, FunctionCall: arguments are an object or a string.
    # Chat Completion API: closed message objects. `name` of users is refused, as seen in public reports.
    fields={
        "system": split_names("role content"),
        "user": split_names("role content"),
        "assistant": split_names("role content tool_calls prefix"),
        "tool": split_names("role content tool_call_id name"),
    },
    call_fields=split_names("id type function index"),
    # Seen in public reports: store, max_completion_tokens, metadata and other fields are "extra_forbidden".
    refused_parameters=split_names(
        "store max_completion_tokens user seed logprobs top_logprobs logit_bias service_tier verbosity reasoning "
        "thinking"
    ),
    parts={
        "user": split_names("text image_url document_url file input_audio reference"),
        "assistant": split_names("text thinking reference"),
        "tool": split_names("text image_url document_url reference"),
    },
    checks_pairs=True,
    has_unique_results=True,
    # Vision guide, FAQ: 8 images in a request, 10 MB each.
    images=ImageLimits(count=8, bytes_each=10 * _MEBIBYTE),
)

_DEEPSEEK = Provider(
    error_form="deepseek",
    words=DEEPSEEK_WORDS,
    roles=_PLAIN_ROLES,  # Seen in public reports: "unknown variant `developer`"; `function` likewise.
    needs_content_field=True,  # Seen in public reports: "missing field `content`", next to calls as well.
    # Seen in public reports: "unknown variant `image_url`, expected `text`".
    parts=dict.fromkeys(_PLAIN_ROLES, split_names("text")),
    checks_pairs=True,
    max_tools=128,  # Create chat completion: "A max of 128 functions are supported."
    max_stops=16,  # Create chat completion, stop: up to 16 sequences.
    # Thinking mode guide: turns with calls must pass back reasoning_content in all later requests, or a 400 follows.
    reasoning_models=r"reasoner|deepseek-v[4-9]",
)

_GROQ = Provider(
    error_form="groq",
    words=GROQ_WORDS,
    statuses={"request_bytes": 413},
    roles=_PLAIN_ROLES | {"function"},
    # OpenAI compatibility guide: messages[].name is refused. Public reports: reasoning_content and unknown fields.
    fields={
        "system": split_names("role content"),
        "user": split_names("role content"),
        "assistant": split_names("role content tool_calls function_call reasoning"),
        "tool": split_names("role content tool_call_id"),
        "function": split_names("role content name"),
    },
    # API reference, create; public reports: others are "property 'x' is unsupported".
    parameters=split_names(
        "model messages citation_options compound_custom disable_tool_validation documents exclude_domains "
        "frequency_penalty function_call functions include_domains include_reasoning max_completion_tokens max_tokens "
        "metadata n parallel_tool_calls presence_penalty reasoning_effort reasoning_format response_format "
        "search_settings seed service_tier stop store stream stream_options temperature tool_choice tools top_p user "
        "logprobs top_logprobs logit_bias"
    ),
    # OpenAI compatibility guide: these result in a 400 error; N must be 1.
    refused_parameters=split_names("logprobs top_logprobs logit_bias"),
    max_choices=1,
    max_tools=128,  # API reference, tools: 128 functions.
    max_stops=4,  # API reference, stop: up to 4 sequences.
    parts={
        "user": split_names("text image_url"),
        **dict.fromkeys(("system", "assistant", "tool"), split_names("text")),
    },
    # Vision guide: 5 images of at most 33 megapixels; a request with base64 pictures has at most 4 MB (413).
    images=ImageLimits(count=5, total_pixels=33_177_600, total_base64=4 * _MEBIBYTE),
)

# OpenRouter and Together document no closed schema; the rules below hold for most models that they route to.
_OPENROUTER = Provider(error_form="openrouter", checks_pairs=True, tool_name=r"[a-zA-Z0-9_-]{1,64}")
_TOGETHER = Provider(roles=_PLAIN_ROLES | {"function"})

_GEMINI = Provider(
    error_form="gemini",
    words=GEMINI_WORDS,
    roles=_PLAIN_ROLES,
    # Seen in public reports: "Value is not a string: null", although OpenAI accepts null next to calls.
    accepts_null_content=False,
    text_required=split_names("user assistant"),  # Seen in public reports: "contents.parts must not be empty".
    arguments="object",  # Function calling guide: args is an object.
    # Seen in public reports: "Unknown name ...: Cannot find field."
    refused_parameters=split_names("store metadata reasoning frequency_penalty top_k web_search_options extra_body"),
    parts={
        "user": split_names("text image_url input_audio file"),
        **dict.fromkeys(("system", "assistant", "tool"), split_names("text")),
    },
    # Seen in public reports: number of responses equals number of calls, calls come after a user or response turn.
    checks_pairs=True,
    has_unique_results=True,
    followers={"call": split_names("user tool")},
    tool_name=r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}",  # FunctionDeclaration, name (and public reports).
    has_unique_tools=True,
    schema="items",
    # Thought signatures, OpenAI compatibility: the first call of each step of the current turn carries one.
    signature_models=r"gemini-([3-9]|\d\d)",
    images=ImageLimits(count=3600, formats=split_names("png jpeg jpg webp heic heif")),  # Image understanding.
    max_bytes=20 * _MEBIBYTE,  # Image understanding: 20 MB for a request with inline data (raised since).
)

_OLLAMA = Provider(
    # Source of the OpenAI compatibility layer: "invalid message content type". Null content next to calls is refused as
    # seen in public reports; the current source accepts it.
    accepts_null_content=False,
    arguments="object",  # Same source: arguments are decoded into an object ("invalid tool call arguments").
    parts=dict.fromkeys(_PLAIN_ROLES | {"developer", "function"}, split_names("text image_url")),
    images=ImageLimits(formats=split_names("png jpeg jpg webp"), needs_data_url=True),  # Same source.
    accepts_surrogates=True,  # Go's JSON decoder replaces them.
    words={
        "content_null": "invalid message content type: <nil>",
        "arguments": "invalid tool call arguments",
        "arguments_type": "json: cannot unmarshal {kind} into Go struct field .messages.tool_calls.function.arguments "
        "of type string",
        "part": "invalid message format",
        "image_format": "invalid image input",
    },
)

_VLLM = Provider(
    error_form="vllm",
    words=TEMPLATE_WORDS,
    # Chat templates of Mistral and Gemma: one optional system message, then user and assistant in turns.
    roles=_PLAIN_ROLES,
    alternation="template",
    max_system=1,
    is_system_first=True,
    is_user_first=True,
    arguments="object",  # Source of the chat utilities: json.loads; templates iterate over the items.
    # Seen in public reports: "Unsupported chat content part type: 'file'".
    parts=dict.fromkeys(_PLAIN_ROLES, split_names("text image_url input_audio audio_url video_url")),
    choice_parameters=frozenset(
        {"tool_choice"}
    ),  # Source of the protocol: "When using `tool_choice`, `tools` must be set."
)

_LLAMA_CPP = replace(
    _VLLM,
    error_form="llama.cpp",
    words=LLAMA_WORDS,
    # Public reports: errors of templates and of arguments have the status 500.
    statuses=dict.fromkeys(
        ("arguments", "call_type", "alternation", "system_count", "system_place", "role", "part"), 500
    ),
    needs_call_type=True,  # Source of the chat parser: "Missing tool call type".
    parts=dict.fromkeys(_PLAIN_ROLES, split_names("text image_url input_audio")),
    choice_parameters=frozenset(),
)

_BEDROCK = Provider(
    words=BEDROCK_WORDS,
    # Converse API, Message: role is user or assistant; gateways map system and tool messages.
    roles=_PLAIN_ROLES,
    is_user_first=True,
    call_id=r"[a-zA-Z0-9_-]+",  # Converse API, ToolUseBlock.
    call_id_length=64,
    arguments="object",  # Converse API, ToolUseBlock: input is JSON; Claude takes objects only.
    text_required=_PLAIN_ROLES,  # Seen in public reports: "The text field in the ContentBlock object ... is blank."
    parts={
        "user": split_names("text image_url file video_url"),
        "tool": split_names("text image_url"),
        **dict.fromkeys(("system", "assistant"), split_names("text")),
    },
    checks_pairs=True,
    has_unique_results=True,
    needs_tools_for_calls=True,  # Seen in public reports: "The toolConfig field must be defined ...".
    # Converse API, Message: 20 images of at most 3.75 MB, 8,000 pixels on each side.
    images=ImageLimits(count=20, bytes_each=3_750_000, pixels_per_side=8000),
)

# LiteLLM in front of Bedrock, without drop_params and modify_params (the defaults).
_LITELLM = Provider(
    error_form="litellm",
    words={
        "tools_needed": "litellm.UnsupportedParamsError: Bedrock doesn't support tool calling without `tools=` param "
        "specified. Pass `tools=` param OR set `litellm.modify_params = True`.",
        "parameter": "litellm.UnsupportedParamsError: bedrock does not support parameters: ['{name}']",
    },
    # Bedrock provider page: supported OpenAI parameters; others raise an error unless drop_params is set.
    refused_parameters=split_names("logprobs top_logprobs logit_bias n seed frequency_penalty presence_penalty"),
    arguments="object",  # Source of the prompt factory: json.loads into the input of tool_use.
    call_id=r"[a-zA-Z0-9_-]+",
    needs_tools_for_calls=True,  # Seen in public reports: UnsupportedParamsError without `tools=`.
    checks_pairs=True,
    has_unique_results=True,
)

_ANTHROPIC = Provider(
    api="messages",
    error_form="anthropic",
    words=ANTHROPIC_WORDS,
    statuses={"request_bytes": 413},
    # Messages API, create: body parameters; others are "Extra inputs are not permitted".
    parameters=split_names(
        "model messages max_tokens metadata stop_sequences stream system temperature thinking tool_choice tools top_k "
        "top_p service_tier container context_management mcp_servers output_config output_format inference_geo "
        "cache_control speed"
    ),
    tool_name=r"[a-zA-Z0-9_-]{1,128}",  # Messages API, tools; older models took 64 characters.
    has_unique_tools=True,
    # Vision guide: 100 images (models with 200,000 tokens), 5 MB each, 8,000 pixels, 2,000 in requests of more than 20.
    images=ImageLimits(
        count=100,
        bytes_each=5 * _MEBIBYTE,
        counts_base64=True,
        pixels_per_side=8000,
        many_count=20,
        many_pixels_per_side=2000,
    ),
    max_messages=100_000,  # Messages API, create, messages.
    max_bytes=32 * _MEBIBYTE,  # Errors, request size limits: 32 MB for the Messages API.
)

_RESPONSES = Provider(
    api="responses",
    words=RESPONSES_WORDS,
    statuses={"item_missing": 404},
    # Responses API, create: body parameters.
    parameters=split_names(
        "model input instructions background context_management conversation include max_output_tokens max_tool_calls "
        "metadata moderation parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_options "
        "prompt_cache_retention reasoning safety_identifier service_tier store stream stream_options temperature text "
        "tool_choice tools top_logprobs top_p truncation user messages max_tokens response_format"
    ),
    tool_name=r"[a-zA-Z0-9_-]{1,64}",
    max_tools=128,
    limits_metadata=True,
    images=_OPENAI.images,
    max_bytes=50 * _MEBIBYTE,
)

_GEMINI_NATIVE = replace(_GEMINI, api="generate", schema="gemini", refused_parameters=frozenset())

# The strictest sensible union: what an unknown OpenAI-compatible server may refuse, where strictness costs nothing.
_GENERIC = Provider(
    roles=_PLAIN_ROLES,
    alternation="neighbours",
    max_system=1,
    is_system_first=True,
    is_user_first=True,
    call_id=r"[a-zA-Z0-9_-]+",
    call_id_length=40,
    name=r"[a-zA-Z0-9_-]{1,64}",
    accepts_null_content=False,
    needs_content_field=True,
    text_required=split_names("system user assistant tool"),
    arguments="object",
    needs_call_type=True,
    accepts_empty_calls=False,
    fields={
        "system": split_names("role content"),
        "user": split_names("role content name"),
        "assistant": split_names("role content tool_calls name"),
        "tool": split_names("role content tool_call_id name"),
    },
    call_fields=split_names("id type function"),
    parts={
        "user": split_names("text image_url"),
        **dict.fromkeys(("system", "assistant", "tool"), split_names("text")),
    },
    checks_pairs=True,
    has_unique_results=True,
    choice_parameters=_CHOICES,
    accepts_empty_tools=False,
    has_unique_tools=True,
    max_tools=128,
    max_stops=4,
    schema="items",
    accepts_nul=False,
)

PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        "openai": _OPENAI,
        "azure": _AZURE,
        "mistral": _MISTRAL,
        "deepseek": _DEEPSEEK,
        "groq": _GROQ,
        "openrouter": _OPENROUTER,
        "together": _TOGETHER,
        "gemini": _GEMINI,
        "ollama": _OLLAMA,
        "vllm": _VLLM,
        "llama.cpp": _LLAMA_CPP,
        "litellm": _LITELLM,
        "bedrock": _BEDROCK,
        "anthropic": _ANTHROPIC,
        "responses": _RESPONSES,
        "gemini_native": _GEMINI_NATIVE,
        "generic": _GENERIC,
    }
)

_Check = Callable[[Provider, Json], Faults]
_COMMON: tuple[_Check, ...] = (check_text, check_parameters, check_tools)
_CHECKS: Mapping[str, tuple[_Check, ...]] = {
    "chat": (*_COMMON, check_messages, check_order, check_pairs, check_reasoning, check_chat_pictures),
    "messages": (*_COMMON, check_anthropic),
    "responses": (*_COMMON, check_responses),
    "generate": (check_text, check_generate),
}


def find_fault(provider: str, body: Mapping[str, Any]) -> Fault | None:
    """Return the first part of a decoded request that the provider refuses, or None."""
    facts = PROVIDERS[provider]
    for check in _CHECKS[facts.api]:
        for fault in check(facts, body):
            return fault
    return None


def find_refusal(provider: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | None:
    """Return the HTTP status and the error body with which the provider refuses a decoded request, or None.

    Google wraps the error body of its OpenAI-compatible endpoint in a list of one; this function does not.
    """
    fault = find_fault(provider, body)
    return None if fault is None else format_error(PROVIDERS[provider], fault)
