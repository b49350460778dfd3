"""Names of the request fields of providers, and detection of misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OPENAI_FIELDS: Final = frozenset(
    [
        "messages",
        "model",
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "metadata",
        "modalities",
        "moderation",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    ]
)
"""Fields from OpenAI's API reference, "Create chat completion"."""
ANTHROPIC_FIELDS: Final = frozenset(
    [
        "messages",
        "model",
        "max_tokens",
        "betas",
        "billing_policy",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "mcp_servers",
        "metadata",
        "output_config",
        "output_format",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    ]
)
"""Fields from Anthropic's API reference, "Create a Message", including those of its betas."""
OTHER_FIELDS: Final = frozenset(
    [
        "add_generation_prompt",
        "allowed_token_ids",
        "bad_words",
        "best_of",
        "cache_prompt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "dry_allowed_length",
        "dry_base",
        "dry_multiplier",
        "dry_penalty_last_n",
        "dry_range",
        "dry_sequence_breakers",
        "echo",
        "enable_search",
        "enable_thinking",
        "extra_body",
        "frequency_range",
        "grammar",
        "grammar_lazy",
        "guided_choice",
        "guided_decoding_backend",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "guided_whitespace_pattern",
        "ignore_eos",
        "include_reasoning",
        "include_stop_str_in_output",
        "interruptable",
        "keep_alive",
        "length_penalty",
        "logits_bias",
        "logits_processors",
        "logprobs_mode",
        "min_keep",
        "min_p",
        "min_tokens",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "mm_processor_kwargs",
        "models",
        "n_keep",
        "n_predict",
        "num_ctx",
        "options",
        "plugins",
        "prefix",
        "preset",
        "priority",
        "prompt_logprobs",
        "prompt_mode",
        "provider",
        "random_seed",
        "reasoning",
        "reasoning_format",
        "reasoning_budget",
        "reasoning_split",
        "repeat_last_n",
        "repeat_penalty",
        "repetition_penalty",
        "request_id",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "route",
        "safe_prompt",
        "sampling_strategy",
        "samplers",
        "search_parameters",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_token_ids",
        "structured_outputs",
        "suppress_tokens",
        "think",
        "thinking_budget",
        "tfs_z",
        "timestamp",
        "top_a",
        "top_k",
        "top_n_sigma",
        "transforms",
        "truncate_prompt_tokens",
        "turn_id",
        "typical_p",
        "use_beam_search",
        "video_fps",
        "web_search",
        "xtc_probability",
        "xtc_threshold",
    ]
)
"""Fields of other Chat Completions servers, and of Agora's requests to a custom model.

The servers are vLLM, llama.cpp, mistral.rs, Ollama, OpenRouter, Mistral, DeepSeek, Qwen and xAI.
"""
PROVIDER_FIELDS: Final = OPENAI_FIELDS | ANTHROPIC_FIELDS | OTHER_FIELDS
NEAR_LETTERS: Final = 7
"""Minimum length of a known name to be compared with misspelt names. Shorter names resemble too many others."""


def find_misspelt_name(name: str, ours: Iterable[str]) -> str | None:
    """Return the known name that a field probably means, or None.

    This is the known name that differs from the field's name by one edit, ignoring case.

    Args:
        name: Name of the field. It is neither a known name nor a provider's.
        ours: The known names.
    """
    for known in ours:
        if len(known) >= NEAR_LETTERS and _is_one_edit_away(name.lower(), known):
            return known
    return None


_SESSION_NAMES: Final = frozenset(
    {"session", "sessionid", "conversation", "conversationid", "thread", "threadid", "chatid"}
)


def is_session_name(name: str) -> bool:
    """Return True if other systems name a conversation by this field, in any spelling, such as `threadId`."""
    return name.lower().replace("_", "").replace("-", "") in _SESSION_NAMES


def _is_one_edit_away(one: str, other: str) -> bool:
    """Return True if the texts are equal after one letter is inserted, removed, changed, or swapped with its neighbour."""
    if abs(len(one) - len(other)) > 1:
        return False
    at = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    rest, known = one[at:], other[at:]
    swapped = rest[:2] == known[1::-1] and rest[2:] == known[2:]
    return rest[1:] == known[1:] or rest[1:] == known or rest == known[1:] or swapped


def check_keywords(names: Iterable[str]) -> None:
    """Reject keywords that are not fields of any provider, because they would have no effect.

    Raises:
        TypeError: A keyword is unknown.
    """
    for name in names:
        if name not in PROVIDER_FIELDS:
            raise TypeError(f"turn() got an unexpected keyword argument {name!r}")
