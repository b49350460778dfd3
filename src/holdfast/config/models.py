"""Models to call: the keys `llms` and `embedders`, and `rerank` of `storage.index`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from holdfast.config.gateway import Timeouts
from holdfast.config.values import (
    Free,
    Mistake,
    Names,
    Secret,
    Settings,
    Text,
    Timeout,
    Tokens,
    Url,
    check_header_value,
    check_headers,
    check_url,
)
from holdfast.domain.budget import Budget
from holdfast.embedders.settings import LOCAL_MODELS
from holdfast.errors import InvalidRequest
from holdfast.limits import FALLBACKS, RERANK_CHARS, RERANK_TEXTS, VECTOR_NUMBERS
from holdfast.wire.exports import system_messages_from

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

    def mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        found += [(f"params.{key}", f"set `{key}` beside params, not in it") for key in _OWN_KEYS if key in self.params]
        found += [(f"params.{key}", "belongs to the request") for key in _REQUEST_KEYS if key in self.params]
        try:
            system_messages_from(list(self.system_messages))
        except InvalidRequest as error:
            found.append(("system_messages", str(error)))
        if len(self.fallbacks) > FALLBACKS:
            found.append(("fallbacks", f"at most {FALLBACKS}, got {len(self.fallbacks)}"))
        try:
            Budget.for_model(self.model or "", context_window=self.context_window, max_reply_tokens=self.max_tokens)
        except InvalidRequest as error:
            found.append(("context_window" if self.context_window else "max_tokens", str(error)))
        return found


class LLMSettings(Settings, frozen=True, kw_only=True):
    """One model to call, with nothing left to look up."""

    name: str
    """What it was asked for by."""
    origin: str
    """Where it comes from: `llms.fast`, `environment` or `built-in`."""
    provider: str
    """As in `LLM.provider`."""
    model: str
    base_url: str
    """Without a slash at the end; empty for `offline`."""
    api_key: str | None = None
    context_window: int | None = None
    """Tokens, as configured; None: what is known of the model."""
    count: str = "local"
    """`local` or `provider`."""
    max_tokens: int | None = None
    inputs: tuple[str, ...] | None = None
    """Kinds that the model takes; None: all."""
    timeout: Timeouts = Timeouts()
    headers: dict[str, str] = {}
    params: dict[str, Any] = {}
    """Sent in every body that does not set them, `temperature` and `top_p` included."""
    fallbacks: tuple[str, ...] = ()
    max_connections: int = 1000
    max_requests: int = 0
    """Calls at once; 0: any number."""
    system_messages: tuple[Any, ...] = ()
    """As in `LLM.system_messages`."""


LOCAL_EMBEDDER: Final = "local"
EMBEDDER_URLS: Final = {"ollama": "http://127.0.0.1:11434/v1"}
"""Where providers are that need no key, unless `base_url` says otherwise."""


class Embedder(Settings, frozen=True, kw_only=True):
    """A model that makes vectors of texts."""

    ALIASES: ClassVar[dict[str, str]] = {"dimensions": "dimension", "vendor": "provider"}

    provider: Text = "openai"
    """`openai`; `local`, a small model that is computed here (`holdfast embeddings install`); or any other name, of what speaks
    OpenAI's API at `base_url`. It is a part of the name that is kept with each vector."""
    model: Text | None = None
    """The model's name there; unset: `text-embedding-3-small` with `openai`, `all-MiniLM-L6-v2` with `local`, which also has
    `multilingual-e5-small`."""
    api_key: Secret | None = None
    """Unset: `OPENAI_API_KEY`, but only with `openai` and where `base_url` is unset too."""
    base_url: Url | None = None
    """Up to and with `/v1`; unset: `OPENAI_BASE_URL`, else OpenAI's; with `ollama`, this machine."""
    headers: dict[str, Secret] = {}
    """Sent with every call."""
    dimension: Annotated[int, Meta(ge=1, le=VECTOR_NUMBERS)] | None = None
    """Numbers in a vector; others are refused. Unset: what comes first. `text-embedding-3-…` makes them of any size."""
    batch_size: Annotated[int, Meta(ge=1, le=2048)] = 64
    """Most texts in a call."""
    max_input: Annotated[int, Meta(ge=1, le=1_000_000)] = 8000
    """Tokens of a text that are sent; the rest is left out. `local` looks at 256, or with `multilingual-e5-small` at 512."""
    max_requests: Annotated[int, Meta(ge=1, le=1000)] = 4
    """Calls at once."""
    timeout: Timeout = 60.0
    """How long a call may take."""
    min_similarity: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Cosine below which texts have nothing to do with each other: where nothing said comes nearer to a question, vectors find nothing.
    0: something is always found. Unset: that of the local model, else 0, as it differs from model to model."""
    query_prefix: str = ""
    """Put before each question, where the model wants that: `"query: "`, for example. White space at its end counts."""
    passage_prefix: str = ""
    """Put before each message or memory: `"passage: "`. Another one is another model: everything is embedded again."""
    context: bool | None = None
    """Embed each message with its speaker and the end of the message before. Unset: true with `multilingual-e5-small`, else false."""
    path: Text | None = None
    """`local`: the folder of `model.safetensors` and `vocab.txt`, or of `_engine*.so` and `e5-small-q4.bin`; unset: where `holdfast embeddings install` puts them."""

    def mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        if self.provider == LOCAL_EMBEDDER:
            elsewhere = [key for key in ("api_key", "base_url", "headers") if getattr(self, key)]
            found += [(key, "not for provider 'local', which calls nobody") for key in elsewhere]
            prefixes = [key for key in ("query_prefix", "passage_prefix") if getattr(self, key)]
            found += [(key, "not for provider 'local', which has those of its models") for key in prefixes]
            if self.model not in {None, *LOCAL_MODELS}:
                found.append(("model", f"provider 'local' has {' and '.join(LOCAL_MODELS)}, not {self.model!r}"))
            if self.dimension not in {None, 384}:
                found.append(("dimension", f"provider 'local' has 384, not {self.dimension}"))
            return found
        found += [("path", "only for provider 'local'")] * (self.path is not None)
        if self.provider != "openai":
            known = self.base_url or self.provider in EMBEDDER_URLS
            found += [] if known else [("base_url", f"missing; where {self.provider!r} is, is not known here")]
            found += [] if self.model else [("model", f"missing; provider {self.provider!r} has no usual one")]
        return found


class Rerank(Settings, frozen=True, kw_only=True):
    """A model that reads a question and each of the best hits together: at `base_url`, or in the folder `path`."""

    ALIASES: ClassVar[dict[str, str]] = {"top_n": "top"}

    base_url: Url | None = None
    """Of an HTTP reranker, up to and with the version: `/rerank` is added. The texts of the best hits are sent there."""
    path: Text | None = None
    """In place of `base_url`: the folder of a cross-encoder that is computed here, `model.onnx` and `tokenizer.json`."""
    model: Text | None = None
    """The model's name there; only `tei` has none."""
    api_key: Secret | None = None
    """Sent as bearer token. Unset: none is sent; none is taken from the environment."""
    headers: dict[str, Secret] = {}
    """Sent with every call."""
    form: Literal["cohere", "voyage", "tei"] = "cohere"
    """How it is asked: `cohere` also for Jina, vLLM and LiteLLM; `tei` for Text Embeddings Inference."""
    top: Annotated[int, Meta(ge=2, le=RERANK_TEXTS)] = 50
    """Hits that it orders, the first ones of the ranking; the others follow."""
    max_chars: Annotated[int, Meta(ge=100, le=RERANK_CHARS)] = RERANK_CHARS
    """Characters of each of them that it reads, around what answers best. Set it lower for a model that takes less."""
    timeout: Annotated[float, Meta(ge=0.001, le=60, extra={"form": "duration"})] = 1.0
    """How long a search waits for it; then its order stays. A prompt waits for a quarter of a second at most."""
    prompts: bool = False
    """Whether it also orders what comes into prompts by itself."""

    def mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        if self.path is None:
            if self.base_url is None:
                return [*found, ("base_url", "missing; a reranker needs it, or `path`")]
            unnamed = self.model is None and self.form != "tei"
            return found + [("model", f"missing; form {self.form!r} needs one")] * unnamed
        elsewhere = [key for key in ("base_url", "model", "api_key", "headers") if getattr(self, key)]
        return found + [(key, "not with `path`, which calls no server") for key in elsewhere]
