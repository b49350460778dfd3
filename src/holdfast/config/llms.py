"""Define the key `llms`: models to call."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from holdfast.config.gateway import Timeouts
from holdfast.domain.budget import Budget
from holdfast.errors import InvalidRequest
from holdfast.limits import FALLBACKS
from holdfast.settings import (
    Free,
    Mistake,
    Names,
    Secret,
    Settings,
    Text,
    Tokens,
    Url,
    check_header_value,
    check_headers,
    check_url,
)
from holdfast.wire.exports import parse_system_messages

Inputs = Annotated[
    tuple[Literal["text", "image", "audio", "video", "file"], ...], Meta(min_length=1, extra={"form": "names"})
]
"""Kinds of content; a single one needs no list."""
Messages = Annotated[tuple[Any, ...], Meta(extra={"form": "names"})]
"""System messages; a single text needs no list."""
_OWN_KEYS: Final = ("max_tokens", "model", "temperature", "top_p")
_REQUEST_KEYS: Final = ("messages", "stream")


class LLM(Settings, frozen=True, kw_only=True):
    """A model at one address."""

    ALIASES: ClassVar[dict[str, str]] = {"vendor": "provider"}

    provider: Literal["openai", "anthropic", "custom", "offline"] = "openai"
    """`openai`: any service with OpenAI's Chat Completions; `anthropic`: Anthropic's Messages; `custom`: like `openai`, but it
    receives voice records (docs/voice.md); `offline`: built in.
    """
    model: Text | None = None
    """Name of the model upstream; unset: the name of this entry."""
    base_url: Url | None = None
    """URL up to and including `/v1`, which is optional for `anthropic`; unset: `OPENAI_BASE_URL`, or OpenAI's; for `anthropic`,
    `ANTHROPIC_BASE_URL`, or Anthropic's.
    """
    api_key: Secret | None = None
    """Unset: `OPENAI_API_KEY` or `ANTHROPIC_API_KEY`, but only if `base_url` is also unset."""
    context_window: Tokens | None = None
    """Tokens; unset: the known window of the model."""
    count: Literal["local", "provider"] = "local"
    """How prompts are counted: by Holdfast only, or also by the provider's count endpoint."""
    max_tokens: Tokens | None = None
    """Maximum tokens of a reply; unset: the upstream's own limit."""
    inputs: Inputs | None = None
    """Content that the model accepts; other media are described in words. Unset: all."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Unset: the upstream's default."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Unset: the upstream's default."""
    timeout: Timeouts | None = None
    """Unset: `gateway.upstream_timeout`."""
    headers: dict[str, Secret] = {}
    """Headers of every call."""
    params: Free = {}
    """Fields of the body of every call that does not set them itself."""
    system_messages: Messages = ()
    """Start of every prompt, before the agent's instruction: texts, or messages of role `system` or `developer`."""
    fallbacks: Names = ()
    """Names in `llms`, or models' names, that are called in this order if this model does not answer; their own fallbacks are not used."""
    max_connections: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Maximum concurrent connections."""
    max_requests: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Maximum concurrent calls; further ones wait. 0: no limit."""

    def find_mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        found += [
            (f"params.{key}", f"set `{key}` next to params, not in it") for key in _OWN_KEYS if key in self.params
        ]
        found += [(f"params.{key}", "belongs to the request") for key in _REQUEST_KEYS if key in self.params]
        try:
            parse_system_messages(list(self.system_messages))
        except InvalidRequest as error:
            found.append(("system_messages", str(error)))
        if len(self.fallbacks) > FALLBACKS:
            found.append(("fallbacks", f"at most {FALLBACKS}, got {len(self.fallbacks)}"))
        try:
            Budget.for_model(self.model or "", context_window=self.context_window, max_reply_tokens=self.max_tokens)
        except InvalidRequest as error:
            found.append(("context_window" if self.context_window else "max_tokens", str(error)))
        return found


class LLMSettings(LLM, frozen=True, kw_only=True):
    """A model to call, with all names resolved; `temperature` and `top_p` are in `params`."""

    name: str
    """Name by which it was requested."""
    origin: str
    """Origin: `llms.fast`, `environment` or `built-in`."""
    model: str
    base_url: str
    """Without a trailing slash; empty for `offline`."""
    timeout: Timeouts = Timeouts()
