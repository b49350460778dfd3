"""Detect errors about a prompt that is too long, and read the provider's limit and token count from them.

The patterns cover errors of OpenAI, Azure, Anthropic, Gemini and Vertex, Bedrock, vLLM, SGLang, TGI, llama.cpp, Ollama, LM Studio,
OpenRouter, Groq, Cerebras, Mistral, DeepSeek, Together, Fireworks, xAI, Cohere, Moonshot, MiniMax, Qwen, Zhipu and GitHub Copilot. None of
these providers documents its wording, so a test quotes each wording that was observed. Two similar errors do not mean that the prompt is
too long: a requested reply above the model's maximum, and a limit on tokens per time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.numbers import is_whole

SMALLEST: Final = 256
"""Minimum number in an error that is read as the size of a context window. Smaller numbers are codes or counts."""


class Overflow(NamedTuple):
    """The numbers in an error about a prompt that is too long."""

    limit: int | None
    """Tokens of the context window, or of the part of it that the prompt may use. None if the error does not contain the number."""
    requested: int | None
    """Tokens of the prompt, without the reply. None if the error does not contain the number, or only a lower bound."""


_N = r"(\d[\d,_]{0,15})"

_LABELS: Final = ("context_length", "context_size", "context_window")
"""Parts of the code or type of an error that show that the prompt is too long. OpenAI, Azure, Groq, llama.cpp and Zhipu use them."""
_TOO_LONG: Final = re.compile(
    r"context[ _](?:length|size|window|limit)|maximum (?:model|prompt|input|allowed) (?:length|tokens)|model token limit"
    r"|(?:prompt|input) (?:is )?too long|(?:prompt|input) exceeds max(?:imum)? length|too many (?:input )?tokens"
    r"|input token count|prompt token count|number of input tokens exceeds|n_keep\b.{0,30}n_ctx"
    r"|tokens? exceeds? the (?:configured )?limit|reduce the length of the (?:messages|prompt|input)"
    r"|range of input length|max_new_tokens` must be|`inputs` must have less|maximum number of tokens allowed"
    r"|max_tokens must be at least 1, got -",  # vLLM: the prompt alone exceeds the window
    re.IGNORECASE,
)
_RATE: Final = re.compile(
    r"per (?:min|hour|day|sec)|rate[ _]limit|quota|throttl|please wait|try again (?:in|later)", re.IGNORECASE
)
"""Messages about a limit on tokens per time, which is not a context window."""
_REPLY: Final = re.compile(
    r"supports at most \d+ (?:completion|output) tokens|maximum allowed number of output tokens"
    r"|range (?:of max_tokens|is from)|maximum tokens you requested|max_tokens value|max_?output_?tokens value",
    re.IGNORECASE,
)
"""Messages about a requested reply that is longer than the model allows. A shorter prompt does not help."""

_LIMITS: Final = (
    # OpenAI, vLLM, DeepSeek, OpenRouter, xAI, SGLang; LM Studio and vLLM with "only"
    rf"(?:maximum )?(?:context|prompt|model) (?:length|window|size)(?: of the model)?(?: is| of|:)?(?: only)? {_N}",
    rf"> {_N}",  # Anthropic: "205000 tokens > 200000 maximum", "190000 + 20000 > 200000"
    rf"(?:context|allowed) (?:length|size|window) \({_N}",  # SGLang, Together: "context length (4096 tokens)"; llama.cpp
    rf"{_N} (?:maximum context|token context|context (?:length|window))",  # Mistral
    rf"maximum number of tokens allowed \(?{_N}",  # Gemini
    rf"only supports up to {_N}",  # Vertex
    rf"n_ctx[:( ]+{_N}",  # LM Studio
    rf"(?:must have less than|max(?:imum)? input (?:length is|tokens:)) {_N}",  # TGI; Bedrock, Replicate
    rf"(?:limit|must be <=|cannot exceed)(?: is| of|:)? {_N}",  # OpenAI, Copilot, Moonshot, Cerebras; TGI; Cohere
    rf"range of input length should be \[1, ?{_N}",  # Qwen
)
_REQUESTED: Final = (
    # OpenAI, DeepSeek, vLLM, with the parts of the prompt listed separately; OpenRouter
    rf"\({_N} in (?:the|your) (?:messages|prompt)(?:, (?:and )?{_N} in the functions)?",
    rf"\({_N} of text input(?:, {_N} of tool input)?(?:, {_N} of image input)?",
    rf"{_N} tokens from the input messages",  # SGLang
    rf"requested {_N} tokens in the messages",  # vLLM
    rf"(?:passed|request has|contains) {_N} input tokens",  # vLLM
    rf"messages resulted in {_N} tokens",  # OpenAI
    rf"(?:prompt|input) is too long: {_N}",  # Anthropic, Fireworks
    rf"exceed context limit: {_N} \+",  # Anthropic
    rf"token count (?:is |of |\(){_N}",  # Gemini; Vertex; Copilot
    rf"(?:request|input|prompt|input length) \((?:length )?{_N}",  # llama.cpp, Together, SGLang, vLLM
    rf"(?:prompt|request) (?:contains|has) {_N} tokens",  # Mistral, xAI
    rf"keep the first {_N} tokens|n_keep[:( ]+{_N}",  # LM Studio
    rf"current length is {_N}",  # Cerebras
    rf"given: {_N}",  # TGI
    rf"\(requested: {_N}\)",  # Moonshot
    rf"(?:received|supplied|request input token count:) {_N}",  # Cohere; Replicate; Bedrock
)
_LIMIT_PATTERNS: Final = tuple(re.compile(pattern, re.IGNORECASE) for pattern in _LIMITS)
_REQUESTED_PATTERNS: Final = tuple(re.compile(pattern, re.IGNORECASE) for pattern in _REQUESTED)


def parse_overflow(words: str, body: Mapping[str, Any]) -> Overflow | None:
    """Return the numbers of an error about a prompt that is too long, or None if the error has another reason.

    Args:
        words: Message of the error, on one line.
        body: The error object. Its code and type are examined, and the separate fields in which llama.cpp reports the numbers.
    """
    labels = [value for key in ("code", "type", "status") if isinstance(value := body.get(key), str)]
    if not any(known in label for label in labels for known in _LABELS):
        other = _RATE.search(words) or _REPLY.search(words)
        if other or not _TOO_LONG.search(words):
            return None
    limit = _to_number(body.get("n_ctx")) or _find_number(_LIMIT_PATTERNS, words, SMALLEST)
    return Overflow(limit, _to_number(body.get("n_prompt_tokens")) or _find_number(_REQUESTED_PATTERNS, words, 1))


def _to_number(value: Any) -> int | None:
    return value if is_whole(value, SMALLEST) else None


def _find_number(patterns: Sequence[re.Pattern[str]], words: str, least: int) -> int | None:
    """Return the first number of at least `least` that one of the patterns finds, or None.

    If an error lists the parts of a number separately, return the sum of the parts.
    """
    for pattern in patterns:
        for found in pattern.finditer(words):
            number = sum(int(part.replace(",", "").replace("_", "")) for part in found.groups() if part)
            if number >= least:
                return number
    return None
