"""Refusals of prompts that are too long, in the words of many servers: the numbers that are read, and what is no such refusal."""

from __future__ import annotations

from typing import Any

from holdfast.testing import Reply, ScriptedUpstream, Tokenizer
from tests.behaviour.kit.claude import Row, ask, chat
from tests.behaviour.kit.exchanges import Exchange, exchange

WORDS = """
This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.
maximum context length is 8,192 tokens, however you requested 9,100 tokens (9000 in the messages, 100 in the completion)
maximum context length is 8192 tokens. You requested 9300 tokens (9000 in your messages, 100 in the functions, and 200 in the reply)
maximum context length of 255 tokens
maximum context length of 256 tokens
prompt is too long: 205000 tokens > 200000 maximum
input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again
The input token count (9000) exceeds the maximum number of tokens allowed (8192).
The model only supports up to 8192 tokens; the prompt token count is 9000
request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it
the request exceeds the available context size. try increasing the context size or enable context shift
prompt too long; exceeded max context length by 100 tokens
Trying to keep the first 9000 tokens when context the overflows. The model is loaded with context length of only 8192 tokens
n_keep: 9000 >= n_ctx: 8192
about 9200 tokens (9000 of text input, 50 of tool input, 150 of image input) exceed this endpoint's maximum context length 8192
Prompt contains 9000 tokens and 0 draft tokens, too large for model with 8192 maximum context length
`inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens and 100 `max_new_tokens`
The input (9000 tokens) is longer than the model's context length (8192 tokens).
The prompt is too long: 9000, model maximum context length: 8192
Input is too long for requested model.
Please reduce the length of the messages or completion.
Current length is 9000 while limit is 8192; too many tokens
Range of input length should be [1, 8192]
max_tokens must be at least 1, got -808.
You passed 9000 input tokens and requested 100 output tokens. However, the model's context length is only 8192 tokens
The decoder prompt (length 9000) is longer than the maximum model length of 8192.
Your request exceeded model token limit: 8192 (requested: 9000)
too many tokens: total number of tokens in the prompt cannot exceed 8192 - received 9000.
max input tokens: 8192, request input token count: 9000
Rate limit reached for tokens per min: context length 8192; try again in 5s
max_tokens is too large: 9000. This model supports at most 4096 completion tokens, context length 8192
maximum tokens you requested exceeds the context length limit 8192
This model's maximum context length is 128000 tokens. However, your messages resulted in 202868 tokens (202767 in the \
messages, 101 in the functions). Please reduce the length of the messages or functions.
This model's maximum context length is 8191 tokens, however you requested 10346 tokens (10346 in your prompt; 5 for \
the completion). Please reduce your prompt; or completion length.
This model's maximum context length is 8192 tokens. However, you requested 8213 tokens (6683 in the messages, 730 in \
the functions, and 800 in the completion). Please reduce the length of the messages, functions, or completion.
Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300001 tokens.
Your input exceeds the context window of this model. Please adjust your input and try again.
The input token count exceeds the maximum number of tokens allowed 1048576.
Unable to submit request because the input token count is 40000 but model only supports up to 32768. Reduce the input \
token count and try again.
Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input.
Too many input tokens. Max input tokens: 8192, request input token count: 9100
This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and your prompt \
contains at least 134145 input tokens, for a total of at least 262145 tokens.
This model's maximum context length is 131072 tokens. However, you requested 219523 tokens in the messages, Please \
reduce the length of the messages.
'max_tokens' or 'max_completion_tokens' is too large: 3000. This model's maximum context length is 4096 tokens and \
your request has 2100 input tokens (3000 > 4096 - 2100).
Input length (265330) exceeds model's maximum context length (262144).
Input length (9000 tokens) exceeds the maximum allowed length (8186 tokens). Use a shorter input.
the request exceeds the available context size, try increasing it
Context size has been exceeded.
the input length exceeds the context length
Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded with context length of \
only 4096 tokens, which is not enough.
Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)
The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a \
larger context length, or provide a shorter input
This endpoint's maximum context length is 131072 tokens. However, you requested about 141500 tokens (133404 of text \
input, 4000 of tool input, 4096 in the output). Please reduce the length of either one.
This endpoint's maximum context length is 131,072 tokens. However, you requested about 140000 tokens
Input validation error: `inputs` must have less than 4095 tokens. Given: 5000
This model's maximum prompt length is 131072 but the request contains 140000 tokens.
invalid params, context window exceeds limit (2013)
Prompt exceeds max length
prompt token count of 70000 exceeds the limit of 64000
Your input is too long. Max input length is 4096 tokens, but you supplied 5441 tokens.
Prompt has 2000 tokens, but the configured context size is 1000 tokens
unable to process request: the context window is full. Please reduce the input size
Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000.
Request too large for model `llama-3.3-70b` on tokens per minute (TPM): Limit 6000, Requested 14810, please reduce \
your message size and try again.
Rate limit reached: context length of all requests per minute
Too many tokens, please wait before trying again.
ThrottlingException: too many tokens
max_tokens is too large: 50000. This model supports at most 16384 completion tokens, whereas you provided 50000.
max_tokens: 21333 > 4096, which is the maximum allowed number of output tokens for claude-3-opus-20240229
The maximum tokens you requested exceeds the model limit of 10000. Try again with a maximum tokens value that is lower.
Invalid max_tokens value, the valid range of max_tokens is [1, 8192]
<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]
Unable to submit request because it has a maxOutputTokens value of 100000 but the supported range is from 1 to 8193.
`max_tokens` must be greater than `thinking.budget_tokens`.
This request requires more credits, or fewer max_tokens. You requested up to 8192 tokens, but can only afford 3000.
Invalid 'messages[0].content': string too long. Expected a string with maximum length 1048576.
max_tokens must be at least 1, got 0.
Unknown model
I do not like it.
"""
BODIES: list[tuple[int, Row]] = [
    (400, {"message": "no", "code": "context_length_exceeded"}),
    (413, {"message": "no", "type": "exceed_context_size_error", "n_ctx": 8192, "n_prompt_tokens": 9000}),
    (400, {"message": "rate limit", "status": "context_window"}),
    (400, {"message": "context length 8192", "n_ctx": 255}),
    (429, {"message": "maximum context length is 8192 tokens"}),
    (400, {"message": "Provider returned error", "metadata": {"raw": "prompt is too long: 9000 tokens > 8192 maximum"}}),
    (400, {"message": "Provider returned error", "metadata": {"raw": {"error": "prompt is too long: 9000 tokens > 8192 maximum"}}}),
    (400, {"message": "x " * 2100 + "prompt is too long: 9000 tokens > 8192 maximum"}),
    (400, {"message": ""}),
]  # fmt: skip


@exchange(lambda body: Reply(status=400, error=body["messages"][-1]["content"]))
async def test_words(x: Exchange) -> None:
    """The error tells the window and the size of the prompt that the server told."""
    for at, words in enumerate(WORDS.strip().splitlines()):
        await chat(x, words, model=f"m-{at}")


@exchange([Reply(status=status, error={"error": body}) for status, body in BODIES])
async def test_bodies(x: Exchange) -> None:
    for at in range(len(BODIES)):
        await ask(x, model=f"m-{at}")


def counting(refusal: str, **more: Any) -> Any:
    """Return what makes a server that counts half as much again as Holdfast, and has a window of 1,000 tokens."""
    tokenizer = Tokenizer(window=1000, ratio=1.5, refusal=refusal, **more)
    return lambda: ScriptedUpstream(lambda _: "Yes.", tokenizer=tokenizer)


SERVERS = ("openai", "openai-silent", "ollama", "vllm-at-least", "gemini")


@exchange(
    lambda _: "Yes.",
    "context: {strategy: token_window}",
    models={
        **{name: (counting(name), {"context_window": 4000, "max_tokens": 50}) for name in SERVERS},
        "in_stream": (counting("anthropic", in_stream=True), {"context_window": 4000, "max_tokens": 50}),
    },
)
async def test_a_smaller_prompt_is_sent(x: Exchange) -> None:
    """Up to three times; what is learned holds for the next turn, and for other sessions of the model."""
    for name in (*SERVERS, "in_stream"):
        messages = [{"role": ("user", "assistant")[at % 2], "content": f"{at} " + "kelp, " * 60} for at in range(24)]
        await x.served.http.post("/v1/sessions", json={"id": name})
        await x.served.http.post(f"/v1/sessions/{name}/messages", json={"messages": messages})
        await chat(x, "So?", model=name, session_id=name)
        await chat(x, "And?", model=name, session_id=name, stream=True)
        await x.rows(f"/v1/sessions/{name}/calls", "id", "messages", "budget", "prompt_tokens")
    await chat(x, "kelp " * 3000, model="openai", session_id="long")
