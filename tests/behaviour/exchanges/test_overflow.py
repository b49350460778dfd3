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
