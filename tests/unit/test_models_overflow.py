"""Context-overflow errors of every provider are recognized with the numbers they contain."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ContextTooLong, ModelError, ModelRejected
from holdfast.models.answer import AnswerReader
from holdfast.models.failures import make_upstream_error

# Each: the words, the limit in them, the tokens of the prompt in them.
WORDINGS: list[tuple[str, int | None, int | None]] = [
    # OpenAI, Azure
    (
        (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. Please reduce"
            " the length of the messages."
        ),
        8_192,
        9_001,
    ),
    (
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 202868 tokens (202767 in"
            " the messages, 101 in the functions). Please reduce the length of the messages or functions."
        ),
        128_000,
        202_868,
    ),
    (
        (
            "This model's maximum context length is 8191 tokens, however you requested 10346 tokens (10346 in your prompt; 5"
            " for the completion). Please reduce your prompt; or completion length."
        ),
        8_191,
        10_346,
    ),
    (
        (
            "This model's maximum context length is 8192 tokens. However, you requested 8213 tokens (6683 in the messages, 730"
            " in the functions, and 800 in the completion). Please reduce the length of the messages, functions, or completion."
        ),
        8_192,
        7_413,
    ),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300001 tokens.",
        272_000,
        300_001,
    ),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", None, None),
    # Anthropic, also behind Bedrock and Vertex
    ("prompt is too long: 205001 tokens > 200000 maximum", 200_000, 205_001),
    (
        "The model returned the following errors: prompt is too long: 200049 tokens > 200000 maximum",
        200_000,
        200_049,
    ),
    (
        (
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens`"
            " and try again"
        ),
        200_000,
        190_000,
    ),
    # Gemini, Vertex
    (
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        1_048_576,
        1_200_000,
    ),
    ("The input token count exceeds the maximum number of tokens allowed 1048576.", 1_048_576, None),
    (
        (
            "Unable to submit request because the input token count is 40000 but model only supports up to 32768. Reduce the"
            " input token count and try again."
        ),
        32_768,
        40_000,
    ),
    # Bedrock
    ("Input is too long for requested model.", None, None),
    ("Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input.", None, None),
    ("Too many input tokens. Max input tokens: 8192, request input token count: 9100", 8_192, 9_100),
    # vLLM
    (
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5122 tokens (4122 in the messages, 1000"
            " in the completion). Please reduce the length of the messages or completion."
        ),
        4_096,
        4_122,
    ),
    (
        (
            "You passed 5001 input tokens and requested 1 output tokens. However, the model's context length is only 4096"
            " tokens, resulting in a maximum input length of 4095 tokens."
        ),
        4_096,
        5_001,
    ),
    (
        (
            "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and your prompt"
            " contains at least 134145 input tokens, for a total of at least 262145 tokens."
        ),
        262_144,
        None,
    ),
    (
        (
            "This model's maximum context length is 131072 tokens. However, you requested 219523 tokens in the messages, Please"
            " reduce the length of the messages."
        ),
        131_072,
        219_523,
    ),
    (
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 3000. This model's maximum context length is 4096 tokens and"
            " your request has 2100 input tokens (3000 > 4096 - 2100)."
        ),
        4_096,
        2_100,
    ),
    (
        (
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that"
            " `max_model_len` is no smaller than the number of text tokens."
        ),
        4_096,
        5_000,
    ),
    ("max_tokens must be at least 1, got -186.", None, None),
    # SGLang
    ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4_096, 5_000),
    (
        (
            "Requested token count exceeds the model's maximum context length of 64000 tokens. You requested a total of 71897"
            " tokens: 7897 tokens from the input messages and 64000 tokens for the completion."
        ),
        64_000,
        7_897,
    ),
    ("Input length (265330) exceeds model's maximum context length (262144).", 262_144, 265_330),
    ("Input length (9000 tokens) exceeds the maximum allowed length (8186 tokens). Use a shorter input.", 8_186, 9_000),
    # llama.cpp
    ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 4_096, 5_000),
    ("the request exceeds the available context size, try increasing it", None, None),
    ("Context size has been exceeded.", None, None),
    # Ollama: the number is what it is over by, no limit
    ("prompt too long; exceeded max context length by 100918 tokens", None, None),
    ("the input length exceeds the context length", None, None),
    # LM Studio
    (
        (
            "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded with context length"
            " of only 4096 tokens, which is not enough."
        ),
        4_096,
        15_857,
    ),
    ("Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)", 7_424, 15_028),
    (
        (
            "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model"
            " with a larger context length, or provide a shorter input"
        ),
        None,
        None,
    ),
    # OpenRouter
    (
        (
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 141500 tokens (133404 of"
            " text input, 4000 of tool input, 4096 in the output). Please reduce the length of either one."
        ),
        131_072,
        137_404,
    ),
    (
        "This endpoint's maximum context length is 131,072 tokens. However, you requested about 140000 tokens",
        131_072,
        None,
    ),
    # Groq, Cerebras
    ("Please reduce the length of the messages or completion.", None, None),
    (
        "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000",
        40_000,
        42_328,
    ),
    # Mistral
    (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        32_768,
        40_000,
    ),
    # DeepSeek
    (
        (
            "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the"
            " messages, 8192 in the completion). Please reduce the length of the messages or completion."
        ),
        131_072,
        122_942,
    ),
    # Together, Hugging Face TGI
    (
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 3000 `inputs` tokens and 2000"
            " `max_new_tokens`"
        ),
        4_097,
        3_000,
    ),
    ("Input validation error: `inputs` must have less than 4095 tokens. Given: 5000", 4_095, 5_000),
    # Fireworks
    ("The prompt is too long: 140000, model maximum context length: 131071", 131_071, 140_000),
    # xAI, Cohere, Moonshot, MiniMax, Qwen, Zhipu, GitHub Copilot, Replicate, others
    ("This model's maximum prompt length is 131072 but the request contains 140000 tokens.", 131_072, 140_000),
    ("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.", 4_081, 5_000),
    ("Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)", 262_144, 300_000),
    ("invalid params, context window exceeds limit (2013)", None, None),
    ("Range of input length should be [1, 30720]", 30_720, None),
    ("Prompt exceeds max length", None, None),
    ("prompt token count of 70000 exceeds the limit of 64000", 64_000, 70_000),
    ("Your input is too long. Max input length is 4096 tokens, but you supplied 5441 tokens.", 4_096, 5_441),
    ("Prompt has 2000 tokens, but the configured context size is 1000 tokens", 1_000, 2_000),
    ("unable to process request: the context window is full. Please reduce the input size", None, None),
]

OTHERS = [
    # tokens over time
    "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000.",
    (
        "Request too large for model `llama-3.3-70b` on tokens per minute (TPM): Limit 6000, Requested 14810, please reduce your"
        " message size and try again."
    ),
    "Rate limit reached: context length of all requests per minute",
    "Too many tokens, please wait before trying again.",
    "ThrottlingException: too many tokens",
    # the reply, not the prompt
    "max_tokens is too large: 50000. This model supports at most 16384 completion tokens, whereas you provided 50000.",
    "max_tokens: 21333 > 4096, which is the maximum allowed number of output tokens for claude-3-opus-20240229",
    "The maximum tokens you requested exceeds the model limit of 10000. Try again with a maximum tokens value that is lower.",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]",
    "Unable to submit request because it has a maxOutputTokens value of 100000 but the supported range is from 1 to 8193.",
    "`max_tokens` must be greater than `thinking.budget_tokens`.",
    "This request requires more credits, or fewer max_tokens. You requested up to 8192 tokens, but can only afford 3000.",
    # neither
    "Invalid 'messages[0].content': string too long. Expected a string with maximum length 1048576.",
    "max_tokens must be at least 1, got 0.",
    "Unknown model",
]


@pytest.mark.parametrize(("wording", "limit", "requested"), WORDINGS, ids=range(len(WORDINGS)))
@pytest.mark.parametrize("status", [400, 413, 422, 500, None])
def test_every_wording_is_recognised(
    wording: str, limit: int | None, requested: int | None, status: int | None
) -> None:
    error = make_upstream_error(status, {"message": wording}, where="http://model")
    assert isinstance(error, ContextTooLong)
    assert (error.context_limit, error.requested) == (limit, requested)


@pytest.mark.parametrize("wording", OTHERS)
def test_errors_that_a_shorter_prompt_cannot_fix_are_not_overflows(wording: str) -> None:
    assert type(make_upstream_error(400, {"message": wording}, where="http://model")) is ModelRejected


def test_rate_limits_are_not_overflows() -> None:
    assert not isinstance(make_upstream_error(429, {"message": WORDINGS[0][0]}, where="w"), ContextTooLong)


def test_overflows_forwarded_by_a_router_are_recognized() -> None:
    raw = msgspec.json.encode({"error": {"message": WORDINGS[0][0], "code": 400}}).decode()
    body = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw, "provider_name": "Nvidia"}}
    error = make_upstream_error(400, body, where="http://router")
    assert isinstance(error, ContextTooLong)
    assert (error.context_limit, error.requested) == (8_192, 9_001)


# -- inside a stream -------------------------------------------------------------------

MESSAGE = "prompt is too long: 205001 tokens > 200000 maximum"
EVENTS = [
    {"error": {"message": MESSAGE, "code": 400}},
    {"error": MESSAGE},
    {"type": "error", "error": {"type": "invalid_request_error", "message": MESSAGE}},
    {"object": "error", "message": MESSAGE, "type": "BadRequestError", "code": 400},
    {"id": "c", "choices": None, "error_type": "BadRequestError", "error_message": MESSAGE},
    {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded", "message": MESSAGE}}},
]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("streamed", [True, False])
def test_an_overflow_inside_a_successful_response_is_recognized(event: dict[str, Any], streamed: bool) -> None:
    data = msgspec.json.encode(event)
    reader = AnswerReader("http://model")
    with pytest.raises(ContextTooLong) as caught:  # noqa: PT012 - whichever of the two comes first
        list(reader.feed(b": waiting\n\ndata: " + data + b"\n\n" if streamed else data))
        list(reader.end())
    assert (caught.value.context_limit, caught.value.requested) == (200_000, 205_001)


@given(
    st.text(max_size=200),
    st.dictionaries(st.sampled_from(["code", "type", "n_ctx", "metadata"]), st.none() | st.text()),
)
def test_any_error_body_is_reported(words: str, body: dict[str, Any]) -> None:
    assert isinstance(make_upstream_error(400, {**body, "message": words}, where="w"), ModelError)


# -- the end of it -----------------------------------------------------------------------
