"""The token budget of a prompt: the model's context window minus the parts that must stay free.

    input = context window - reply - safety headroom - tool-result headroom

    >>> Budget(200_000, max_reply_tokens=4_096, safety_headroom=2_048, tool_result_headroom=8_192).input
    185664

The window comes from the first of these sources that knows it:

1. the configuration, unless an error of the provider named a smaller limit;
2. an error of the provider that named its limit;
3. the table of known models below;
4. the constant `UNKNOWN_WINDOW`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.numbers import check_whole

MAX_REPLY_TOKENS: Final = 4_096
"""Default number of tokens reserved for the reply. In a small window, the default is a quarter of the window."""

SAFETY_HEADROOM: Final = 2_048
"""Default number of tokens reserved for counting errors. In a small window, the default is a sixteenth of the window."""

TOOL_RESULT_HEADROOM: Final = 8_192
"""Default number of tokens reserved for the turn's tool results. In a small window, it is an eighth of the window."""

UNKNOWN_WINDOW: Final = 128_000
"""Context window in tokens that is assumed for a model that is not in the table.

Nearly every model today has 128k or more. If the guess is too large, the provider refuses the call and reports its
limit, which corrects the window. A guess that is too small would silently leave history out of every prompt.
"""

STEP_DOWN: Final = 10
"""Percent by which each call of `step_down` shrinks a prompt."""


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """The division of a model's context window for one call. All figures are tokens.

    A headroom that is not given gets its default size, but at most a fraction of the window: 1/4 for the reply, 1/16
    for safety, 1/8 for tool results. So by default at least 9/16 of any window is left for the input. Given headrooms
    are used unchanged.

        >>> Budget(8_192)
        Budget(context_window=8192, max_reply_tokens=2048, safety_headroom=512, tool_result_headroom=1024)
        >>> Budget(8_192).input
        4608

    Args:
        context_window: limit for prompt and reply together; at least 1.
        max_reply_tokens: reserved for the reply; by default 4,096.
        safety_headroom: reserved for counting errors; by default 2,048.
        tool_result_headroom: reserved for tool results of the same turn; by default 8,192.
        scale: number of the provider's tokens per token counted here, including a margin; measured by a calibration. It
            affects `counted`, but not `input`.

    Raises:
        InvalidRequest: a figure is negative or not a whole number, or no tokens are left for the input.
    """

    context_window: int
    max_reply_tokens: int
    safety_headroom: int
    tool_result_headroom: int
    scale: float = field(default=1.0, repr=False)

    # Written by hand: three defaults depend on the first argument, and the fields are plain `int`.
    def __init__(
        self,
        context_window: int,
        max_reply_tokens: int | None = None,
        safety_headroom: int | None = None,
        tool_result_headroom: int | None = None,
        scale: float = 1.0,
    ) -> None:
        _check("context_window", context_window, low=1)
        shares = {
            "max_reply_tokens": _choose_share(max_reply_tokens, MAX_REPLY_TOKENS, context_window // 4),
            "safety_headroom": _choose_share(safety_headroom, SAFETY_HEADROOM, context_window // 16),
            "tool_result_headroom": _choose_share(tool_result_headroom, TOOL_RESULT_HEADROOM, context_window // 8),
        }
        object.__setattr__(self, "context_window", context_window)
        object.__setattr__(self, "scale", scale)
        for name, tokens in shares.items():
            _check(name, tokens, low=0)
            object.__setattr__(self, name, tokens)
        if self.input <= 0:
            raise InvalidRequest(
                "context_window - max_reply_tokens - safety_headroom - tool_result_headroom must be above 0: "
                f"{context_window} - {' - '.join(map(str, shares.values()))} = {self.input}",
                param="context_window",
            )

    @classmethod
    def for_model(
        cls,
        model: str,
        *,
        context_window: int | None = None,
        max_reply_tokens: int | None = None,
        safety_headroom: int | None = None,
        tool_result_headroom: int | None = None,
        learned_window: int | None = None,
        scale: float = 1.0,
    ) -> Budget:
        """Return the budget of a model.

        Args:
            model: the name of the model, also with a prefix such as `openai/…` or `ft:…`.
            context_window: the window in tokens, if the configuration sets it.
            learned_window: the window in tokens that an error of the provider named. It takes precedence over the table
                of known models, and over `context_window` if it is smaller than that.
            max_reply_tokens: tokens reserved for the reply; if set, it is also sent as `max_tokens`.
            safety_headroom: tokens reserved for counting errors.
            tool_result_headroom: tokens reserved for tool results of the same turn.
            scale: number of the provider's tokens per token counted here.

        Raises:
            InvalidRequest: no tokens are left for the input.
        """
        known = window_of(model)
        learned = learned_window
        if known and known.max_input and learned == known.max_input:
            learned = None  # the error named the limit for prompts, which is also in the table
        window = learned or (known.context_window if known else UNKNOWN_WINDOW)
        if context_window:
            window = min(context_window, learned or context_window)
        if max_reply_tokens is None and known:
            max_reply_tokens = min(MAX_REPLY_TOKENS, known.max_output, window // 4)
        if context_window is None and known and known.max_input:
            # Some models have a separate limit for prompts, which a larger reply must not reduce.
            window = min(window, known.max_input + (max_reply_tokens or 0))
        return cls(window, max_reply_tokens, safety_headroom, tool_result_headroom, scale)

    @property
    def input(self) -> int:
        """Maximum tokens of the prompt, including system prompt and tool schemas, as the provider counts them."""
        return self.context_window - self.max_reply_tokens - self.safety_headroom - self.tool_result_headroom

    @property
    def counted(self) -> int:
        """Maximum tokens of the prompt as counted here: `input` divided by `scale`. Prompts are built up to this size."""
        return max(1, int(self.input / self.scale))

    def convert_reserves(self) -> tuple[int, int, int, int]:
        """Return the context window and the reserves for tool results, counting errors and the reply, as counted here."""
        sizes = (self.context_window, self.tool_result_headroom, self.safety_headroom, self.max_reply_tokens)
        window, results, safety, reply = (int(size / self.scale) for size in sizes)
        return window, results, safety, reply

    def list_larger(self, *, reply: bool) -> tuple[Budget, ...]:
        """Return the budget without headroom for tool results, without any headroom, and with a quarter of the tokens for the reply.

        Args:
            reply: False if the reply may have all its tokens. Then the last budget is left out.
        """
        spare = replace(self, tool_result_headroom=0)
        full = replace(spare, safety_headroom=0)
        return (spare, full, replace(full, max_reply_tokens=self.max_reply_tokens // 4))[: 3 if reply else 2]

    def cap_input(self, tokens: int) -> Budget:
        """Return a budget whose `input` is at most `tokens`. Its window is smaller by the same number of tokens."""
        return replace(self, context_window=self.context_window - max(0, self.input - tokens))


def step_down(tokens: int) -> int:
    """Return the size for the next prompt after the provider refused a prompt of `tokens` as too long.

    The size is a tenth smaller, but at least 1 token.
    """
    return max(1, tokens * (100 - STEP_DOWN) // 100)


def _choose_share(given: int | None, usual: int, cap: int) -> int:
    return min(usual, cap) if given is None else given


def _check(name: str, tokens: object, *, low: int) -> None:
    check_whole(tokens, name, low, kind="whole number of tokens")


# -- known models --------------------------------------------------------------


class ModelWindow(msgspec.Struct, frozen=True):
    """The limits of a model in tokens."""

    context_window: int
    """Limit for prompt and reply together."""
    max_output: int
    """Limit for the reply."""
    max_input: int | None = None
    """Limit for the prompt, if it is lower than the window."""


@lru_cache(maxsize=256)
def window_of(model: str) -> ModelWindow | None:
    """Return the limits of a model from the table of known models; None for an unknown model.

    The table contains prefixes of names; the longest one with which the name begins is used. Case is ignored, and so are
    a path, a provider's name or `ft:` before the model's name, and any suffix except one that sets the window, such as
    `[1m]` or `[200k]`.

        >>> window_of("openai/gpt-4o-mini").context_window, window_of("ft:gpt-3.5-turbo:acme::x1").context_window
        (128000, 16385)
        >>> window_of("claude-sonnet-4-5[1m]").context_window
        1000000
        >>> window_of("my-own-model") is None
        True
    """
    plain = model.strip().lower()
    named = _NAMED_WINDOW.search(plain)
    plain = _PROVIDER.sub("", plain[: named.start()] if named else plain)
    if plain.startswith("claude"):
        plain = plain.replace(".", "-")  # some routers write claude-sonnet-4.5
    prefix = max((prefix for prefix in _WINDOWS if _is_of_family(plain, prefix)), key=len, default=None)
    if prefix is None:
        return None
    known = _WINDOWS[prefix]
    if named is None:
        return known
    return ModelWindow(int(named["number"]) * _UNITS[named["unit"]], known.max_output)


def describe_unknown_window(model: str) -> str | None:
    """Return a warning if the context window of the model is only a guess; None if the window is known."""
    if window_of(model) is not None:
        return None
    return f"the context window of {model!r} is not known: {UNKNOWN_WINDOW:,} tokens are assumed; set context_window"


def _is_of_family(model: str, prefix: str) -> bool:
    """Return True if the model belongs to the family that the prefix names.

    The family `gpt-4` includes neither `gpt-4o` nor `gpt-4.1`. The family `gpt-` includes every model `gpt-…`.
    """
    if not model.startswith(prefix):
        return False
    following = model[len(prefix) : len(prefix) + 1]
    return prefix[-1] in "-." or not (following.isalnum() or following == ".")


_NAMED_WINDOW: Final = re.compile(r"\s*\[(?P<number>[1-9]\d{0,6})(?P<unit>[km])\]$")
"""A context window at the end of a model's name, in the notation of coding agents: `claude-opus-4-7[1m]`."""
_UNITS: Final = {"k": 1_000, "m": 1_000_000}


# `openai/gpt-4o`, `openrouter/openai/gpt-4o`, `openai:gpt-4o`, `ft:gpt-4o:acme::id`, `us.anthropic.claude-…`
_PROVIDER: Final = re.compile(
    r"^(?:.*/)?(?:(?:ft|openai|azure|anthropic):)*"
    r"(?:(?:[a-z-]+\.)?(?:anthropic|meta|mistral|deepseek|qwen)\.)?(?:meta-(?=llama))?"
)

_K128 = ModelWindow(131_072, 131_072)
_GPT_5 = ModelWindow(400_000, 128_000, 272_000)
_O_SERIES = ModelWindow(200_000, 100_000)
_CLAUDE_1M = ModelWindow(1_000_000, 128_000)
_GEMINI = ModelWindow(1_048_576, 65_536)

# From the providers' model pages. If the hosts of a model differ, or a name moved to a larger model over time, the table
# has the smaller figure, which no host refuses. Open models have their native window, without extension (YaRN).
_WINDOWS: Final[dict[str, ModelWindow]] = {
    "offline": ModelWindow(128_000, 4_096),  # the built-in one
    # OpenAI
    "gpt-": ModelWindow(128_000, 16_384),
    "gpt-5": _GPT_5,
    "gpt-5.": _GPT_5,
    "gpt-5-chat": ModelWindow(128_000, 16_384),
    "gpt-5.1-chat": ModelWindow(128_000, 16_384),
    "gpt-5.2-chat": ModelWindow(128_000, 16_384),
    "gpt-5.4": ModelWindow(1_050_000, 128_000, 922_000),
    "gpt-5.4-mini": _GPT_5,
    "gpt-5.4-nano": _GPT_5,
    "gpt-4.1": ModelWindow(1_047_576, 32_768),
    "gpt-4.5": ModelWindow(128_000, 16_384),
    "gpt-4o": ModelWindow(128_000, 16_384),
    "gpt-4o-2024-05-13": ModelWindow(128_000, 4_096),
    "chatgpt-4o": ModelWindow(128_000, 16_384),
    "gpt-4-turbo": ModelWindow(128_000, 4_096),
    "gpt-4-1106": ModelWindow(128_000, 4_096),
    "gpt-4-0125": ModelWindow(128_000, 4_096),
    "gpt-4-vision": ModelWindow(128_000, 4_096),
    "gpt-4": ModelWindow(8_192, 8_192),
    "gpt-4-32k": ModelWindow(32_768, 8_192),
    "gpt-3.5-turbo": ModelWindow(16_385, 4_096),
    "gpt-35-turbo": ModelWindow(16_385, 4_096),
    "gpt-3.5-turbo-0301": ModelWindow(4_096, 4_096),
    "gpt-3.5-turbo-0613": ModelWindow(4_096, 4_096),
    "gpt-3.5-turbo-instruct": ModelWindow(4_096, 4_096),
    "gpt-oss": _K128,
    "o1": _O_SERIES,
    "o1-preview": ModelWindow(128_000, 32_768),
    "o1-mini": ModelWindow(128_000, 65_536),
    "o3": _O_SERIES,
    "o4": _O_SERIES,
    # Anthropic
    "claude-": ModelWindow(200_000, 4_096),
    "claude-2": ModelWindow(100_000, 4_096),
    "claude-2-1": ModelWindow(200_000, 4_096),
    "claude-instant": ModelWindow(100_000, 4_096),
    "claude-3-5": ModelWindow(200_000, 8_192),
    "claude-3-7": ModelWindow(200_000, 64_000),
    "claude-opus-4": ModelWindow(200_000, 32_000),
    "claude-opus-4-5": ModelWindow(200_000, 64_000),
    "claude-opus-4-6": _CLAUDE_1M,
    "claude-opus-4-7": _CLAUDE_1M,
    "claude-opus-4-8": _CLAUDE_1M,
    "claude-opus-5": _CLAUDE_1M,
    "claude-sonnet-4": ModelWindow(200_000, 64_000),
    "claude-sonnet-4-6": _CLAUDE_1M,
    "claude-sonnet-5": _CLAUDE_1M,
    "claude-haiku-4": ModelWindow(200_000, 64_000),
    "claude-fable-5": _CLAUDE_1M,
    # Google: the window is for the prompt alone; the reply has a limit of its own
    "gemini-": ModelWindow(1_048_576, 8_192),
    "gemini-1.0": ModelWindow(32_760, 2_048),
    "gemini-1.5-pro": ModelWindow(2_097_152, 8_192),
    "gemini-2.5": _GEMINI,
    "gemini-3": _GEMINI,
    "gemini-3.": _GEMINI,
    "gemma": ModelWindow(8_192, 8_192),
    "gemma2": ModelWindow(8_192, 8_192),
    "gemma-3": ModelWindow(131_072, 8_192),
    "gemma-3-1b": ModelWindow(32_768, 8_192),
    "gemma3": ModelWindow(131_072, 8_192),
    "gemma3:1b": ModelWindow(32_768, 8_192),
    # Mistral
    "mistral": ModelWindow(32_768, 8_192),
    "open-mistral-7b": ModelWindow(32_768, 8_192),
    "open-mistral-nemo": ModelWindow(128_000, 8_192),
    "mistral-nemo": ModelWindow(128_000, 8_192),
    "mistral-large": ModelWindow(128_000, 8_192),
    "mistral-large-2402": ModelWindow(32_768, 8_192),
    "mistral-medium": ModelWindow(128_000, 8_192),
    "mistral-medium-2312": ModelWindow(32_768, 8_192),
    "mistral-small": ModelWindow(128_000, 8_192),
    "mistral-small-2402": ModelWindow(32_768, 8_192),
    "mistral-small-2409": ModelWindow(32_768, 8_192),
    "ministral-": ModelWindow(128_000, 8_192),
    "magistral-": ModelWindow(40_000, 40_000),
    "devstral-": ModelWindow(128_000, 8_192),
    "codestral": ModelWindow(128_000, 8_192),
    "codestral-2405": ModelWindow(32_768, 8_192),
    "codestral-22b": ModelWindow(32_768, 8_192),
    "pixtral-": ModelWindow(128_000, 8_192),
    "mixtral": ModelWindow(32_768, 8_192),
    "mixtral-8x22b": ModelWindow(65_536, 8_192),
    "open-mixtral-8x7b": ModelWindow(32_768, 8_192),
    "open-mixtral-8x22b": ModelWindow(65_536, 8_192),
    # Meta
    "llama-2": ModelWindow(4_096, 4_096),
    "llama2": ModelWindow(4_096, 4_096),
    "codellama": ModelWindow(16_384, 16_384),
    "llama-3": ModelWindow(8_192, 8_192),
    "llama3": ModelWindow(8_192, 8_192),
    "llama-3.": _K128,
    "llama3.": _K128,
    "llama3-1": _K128,
    "llama3-2": _K128,
    "llama3-3": _K128,
    "llama-4": ModelWindow(1_000_000, 8_192),
    "llama4": ModelWindow(1_000_000, 8_192),
    "llama-4-scout": ModelWindow(10_000_000, 8_192),
    # Qwen
    "qwen": ModelWindow(32_768, 8_192),
    "qwen-": ModelWindow(32_768, 8_192),
    "qwen-plus": ModelWindow(131_072, 8_192),
    "qwen-turbo": ModelWindow(131_072, 8_192),
    "qwen-long": ModelWindow(1_000_000, 8_192),
    "qwen2": ModelWindow(32_768, 8_192),
    "qwen2.": ModelWindow(32_768, 8_192),
    "qwen3": ModelWindow(32_768, 32_768),
    "qwen3-": ModelWindow(32_768, 32_768),
    "qwen3-coder": ModelWindow(262_144, 65_536),
    "qwen3-max": ModelWindow(262_144, 32_768),
    "qwen3-next": ModelWindow(262_144, 32_768),
    "qwen3-4b-instruct-2507": ModelWindow(262_144, 32_768),
    "qwen3-30b-a3b-instruct-2507": ModelWindow(262_144, 32_768),
    "qwen3-235b-a22b-instruct-2507": ModelWindow(262_144, 32_768),
    "qwen3-235b-a22b-thinking-2507": ModelWindow(262_144, 32_768),
    "qwq": ModelWindow(131_072, 32_768),
    # DeepSeek
    "deepseek-": ModelWindow(128_000, 8_192),
    "deepseek-reasoner": ModelWindow(128_000, 32_768),
    "deepseek-r1": ModelWindow(128_000, 32_768),
    "deepseek-coder": ModelWindow(16_384, 4_096),
    "deepseek-coder-v2": ModelWindow(128_000, 8_192),
    "deepseek-llm": ModelWindow(4_096, 4_096),
}
