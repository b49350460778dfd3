"""List the errors with which providers reject a prompt that is too long. The scripted upstream sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Refusal:
    """The response with which a provider rejects a prompt that is too long."""

    status: int
    words: str
    """Template of the message. It may contain these numbers of tokens: `{limit}`, `{prompt}`, `{reply}` (0 if the request does not limit the
    reply), `{total}` for prompt and reply, and `{over}` for the tokens above the limit.
    """
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the error object. A value such as `"limit"` is replaced by the number with that name."""

    def make_error(self, **numbers: int) -> dict[str, Any]:
        """Return the body of the response, with the numbers filled in."""
        values = {key: numbers.get(value, value) for key, value in self.fields.items()}
        return {"error": {"message": self.words.format(**numbers), **values}}


_OPENAI: Final = {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
_REQUESTED: Final = (
    "This model's maximum context length is {limit} tokens. However, you requested {total} tokens ({prompt} in the messages,"
    " {reply} in the completion). Please reduce the length of the messages or completion."
)

REFUSALS: Final[Mapping[str, Refusal]] = {
    "openai": Refusal(
        400,
        "This model's maximum context length is {limit} tokens. However, your messages resulted in {prompt} tokens. Please"
        " reduce the length of the messages.",
        _OPENAI,
    ),
    "openai-silent": Refusal(
        400, "Your input exceeds the context window of this model. Please adjust your input and try again.", _OPENAI
    ),
    "azure": Refusal(400, _REQUESTED, _OPENAI),
    "anthropic": Refusal(
        400, "prompt is too long: {prompt} tokens > {limit} maximum", {"type": "invalid_request_error"}
    ),
    "anthropic-reply": Refusal(
        400,
        "input length and `max_tokens` exceed context limit: {prompt} + {reply} > {limit}, decrease input length or"
        " `max_tokens` and try again",
        {"type": "invalid_request_error"},
    ),
    "gemini": Refusal(
        400,
        "The input token count ({prompt}) exceeds the maximum number of tokens allowed ({limit}).",
        {"code": 400, "status": "INVALID_ARGUMENT"},
    ),
    "vllm": Refusal(400, _REQUESTED, {"type": "BadRequestError", "code": 400}),
    "vllm-at-least": Refusal(
        400,
        "This model's maximum context length is {limit} tokens. However, you requested {reply} output tokens and your prompt"
        " contains at least 1 input tokens, for a total of at least {limit} tokens.",
        {"type": "BadRequestError", "code": 400},
    ),
    "llama.cpp": Refusal(
        400,
        "request ({prompt} tokens) exceeds the available context size ({limit} tokens), try increasing it",
        {"type": "exceed_context_size_error", "code": 400, "n_prompt_tokens": "prompt", "n_ctx": "limit"},
    ),
    "ollama": Refusal(400, "prompt too long; exceeded max context length by {over} tokens"),
    "lm-studio": Refusal(
        400,
        "Trying to keep the first {prompt} tokens when context the overflows. However, the model is loaded with context"
        " length of only {limit} tokens, which is not enough.",
    ),
    "openrouter": Refusal(
        400,
        "This endpoint's maximum context length is {limit} tokens. However, you requested about {total} tokens ({prompt} of"
        " text input, {reply} in the output). Please reduce the length of either one.",
        {"code": 400},
    ),
    "groq": Refusal(400, "Please reduce the length of the messages or completion.", _OPENAI),
    "mistral": Refusal(
        400,
        "Prompt contains {prompt} tokens and 0 draft tokens, too large for model with {limit} maximum context length",
        {"type": "invalid_request_prompt", "code": "3051"},
    ),
    "tgi": Refusal(
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {prompt} `inputs` tokens and"
        " {reply} `max_new_tokens`",
        {"type": "validation"},
    ),
    "together": Refusal(422, "The input ({prompt} tokens) is longer than the model's context length ({limit} tokens)."),
    "fireworks": Refusal(400, "The prompt is too long: {prompt}, model maximum context length: {limit}"),
    "bedrock": Refusal(400, "Input is too long for requested model."),
}
"""Observed response of each provider. Those of `openai-silent`, `ollama`, `groq` and `bedrock` contain neither the limit nor the size of the
prompt.
"""
