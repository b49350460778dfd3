"""Models to call: the key `llms`."""

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
"""Kinds of content; one may stand without a list around it."""
Messages = Annotated[tuple[Any, ...], Meta(extra={"form": "names"})]
"""System messages; one text may stand without a list around it."""
_OWN_KEYS: Final = ("max_tokens", "model", "temperature", "top_p")
_REQUEST_KEYS: Final = ("messages", "stream")


class LLM(Settings, frozen=True, kw_only=True):
    """One model, reachable at one place."""

    ALIASES: ClassVar[dict[str, str]] = {"vendor": "provider"}

    provider: Literal["openai", "anthropic", "custom", "offline"] = "openai"
    """`openai` is anything that speaks OpenAI's Chat Completions, `anthropic` Anthropic's Messages; `custom` is an `openai` that is
    sent voice records (docs/voice.md); `offline` is built in."""
    model: Text | None = None
    """The model's name upstream; unset: the name of this entry."""
    base_url: Url | None = None
    """Up to and with `/v1`, which `anthropic` may leave out; unset: `OPENAI_BASE_URL`, else OpenAI's; with `anthropic`,
    `ANTHROPIC_BASE_URL`, else Anthropic's."""
    api_key: Secret | None = None
    """Unset: `OPENAI_API_KEY`, or `ANTHROPIC_API_KEY`, but only where `base_url` is unset too."""
    context_window: Tokens | None = None
    """Tokens; unset: what is known of the model."""
    count: Literal["local", "provider"] = "local"
    """Who counts the prompts that are sent: Holdfast alone, or the provider's count endpoint after it."""
    max_tokens: Tokens | None = None
    """Longest reply, tokens; unset: the upstream's own."""
    inputs: Inputs | None = None
    """What the model takes; other media are told to it in words. Unset: all of them."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Unset: the upstream's own."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Unset: the upstream's own."""
    timeout: Timeouts | None = None
    """Unset: `gateway.upstream_timeout`."""
    headers: dict[str, Secret] = {}
    """Sent with every call."""
    params: Free = {}
    """Sent in the body of every call that does not set them itself."""
    system_messages: Messages = ()
    """What every prompt for it begins with, before the agent's instruction: texts, or messages of the role `system` or `developer`."""
    fallbacks: Names = ()
    """Names in `llms`, else models' names, that are asked in this order where this one does not answer; theirs are not."""
    max_connections: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Connections to it at once."""
    max_requests: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Calls at once; further ones wait. 0: any number."""

    def find_mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        found += [(f"params.{key}", f"set `{key}` beside params, not in it") for key in _OWN_KEYS if key in self.params]
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
    """One model to call, with nothing left to look up; `temperature` and `top_p` are in `params`."""

    name: str
    """What it was asked for by."""
    origin: str
    """Where it comes from: `llms.fast`, `environment` or `built-in`."""
    model: str
    base_url: str
    """Without a slash at the end; empty for `offline`."""
    timeout: Timeouts = Timeouts()
