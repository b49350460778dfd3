"""Define the key `llms`: models to call."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from holdfast.domain.budget import Budget
from holdfast.domain.profiles import ProfileName
from holdfast.limits import FALLBACKS
from holdfast.sections import (
    Free,
    Mistake,
    Names,
    Secret,
    Settings,
    Text,
    Timeout,
    Tokens,
    Url,
    catch_mistake,
    check_header_value,
    check_headers,
    check_url,
)
from holdfast.wire.exports import parse_system_messages

Inputs = Annotated[
    tuple[Literal["text", "image", "audio", "video", "file"], ...], Meta(min_length=1, extra={"form": "names"})
]
"""Kinds of content. A single kind may be written without a list."""
Messages = Annotated[tuple[Any, ...], Meta(extra={"form": "names"})]
"""System messages. A single text may be written without a list."""
_OWN_KEYS: Final = ("max_tokens", "model")
_REQUEST_KEYS: Final = ("messages", "stream")


class LLM(Settings, frozen=True, kw_only=True):
    """A model that Holdfast can call, and the address of its provider."""

    provider: Literal["openai", "anthropic", "custom", "offline"] = "openai"
    """`openai`: any service with OpenAI's Chat Completions API. `anthropic`: Anthropic's Messages API. `custom`: like `openai`, but the
    service receives messages as voice records (docs/voice.md). `offline`: the built-in model.
    """
    api: Literal["chat", "responses"] = "chat"
    """API of a provider `openai`: Chat Completions (`chat`), or the Responses API (`responses`), for models that offer more there."""
    model: Text | None = None
    """Name of the model at the provider. Unset: the name of this entry."""
    base_url: Url | None = None
    """URL of the API up to and including `/v1`, which is optional if the address has no path, and for `anthropic`. Unset: the variable
    `OPENAI_BASE_URL`, or else OpenAI's API; for `anthropic`, `ANTHROPIC_BASE_URL`, or else Anthropic's API.
    """
    api_key: Secret | None = None
    """API key of the provider. Unset: the variable `OPENAI_API_KEY` or `ANTHROPIC_API_KEY`, but only if `base_url` is also unset."""
    profile: ProfileName | None = None
    """Rules of the upstream (docs/upstreams.md). Unset: the profile of the address, or else `generic`. Only for the API `chat`."""
    context_window: Tokens | None = None
    """Size of the context window in tokens. Unset: the size that Holdfast knows for this model."""
    count: Literal["local", "provider"] = "local"
    """Token counting of prompts: by Holdfast only (`local`), or also by the provider's count endpoint (`provider`)."""
    max_tokens: Tokens | None = None
    """Maximum tokens of a reply. Unset: the provider's own limit."""
    inputs: Inputs | None = None
    """Kinds of content that the model accepts. Content of other kinds is described in words. Unset: all kinds."""
    timeout: Timeout = 300.0
    """Maximum seconds without data, before the first token or between two tokens. Connecting may take 10 seconds. A whole call may take 30
    minutes, or `timeout` if that is longer.
    """
    headers: dict[str, Secret] = {}
    """Headers of every call."""
    params: Free = {}
    """Default fields of the body of every call, such as `temperature`. Fields of the request take precedence."""
    system_messages: Messages = ()
    """Messages at the start of every prompt, before the agent's instruction: texts, or messages of role `system` or `developer`."""
    fallbacks: Names = ()
    """Models that are called in this order if this model does not answer: names in `llms`, or names of models. The fallbacks of a fallback
    are not used.
    """
    max_requests: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Maximum number of concurrent calls. Other calls wait, at most for `gateway.queue_timeout`. 0: no limit."""

    def find_mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        found += [
            (f"params.{key}", f"set `{key}` next to params, not in it") for key in _OWN_KEYS if key in self.params
        ]
        found += [(f"params.{key}", "belongs to the request") for key in _REQUEST_KEYS if key in self.params]
        found += catch_mistake("system_messages", parse_system_messages, list(self.system_messages))
        if self.profile and (self.provider != "openai" or self.api != "chat"):
            found.append(("profile", "applies only to `provider: openai` with `api: chat`"))
        if len(self.fallbacks) > FALLBACKS:
            found.append(("fallbacks", f"at most {FALLBACKS}, got {len(self.fallbacks)}"))
        key = "context_window" if self.context_window else "max_tokens"
        budget = {"context_window": self.context_window, "max_reply_tokens": self.max_tokens}
        return found + catch_mistake(key, Budget.for_model, self.model or "", **budget)


class LLMSettings(LLM, frozen=True, kw_only=True):
    """A model to call, after defaults and names have been resolved."""

    name: str
    """Name by which the model was requested."""
    origin: str
    """Source of these settings: an entry of the configuration such as `llms.fast`, `environment` or `built-in`."""
    model: str
    base_url: str
    """URL of the API without a trailing slash; empty for `offline`."""
