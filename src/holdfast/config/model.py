"""The configuration's shape: every key of `holdfast.yaml`, its type, range and default.

What a type cannot say stands in `mistakes()`. Keys that belong to later versions are here too, so that a file written
for them loads; `NOT_USED_YET` names them, and `holdfast config check` tells.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.budget import Budget
from holdfast.config.values import MASK, is_secret_name
from holdfast.context.settings import ContextSettings
from holdfast.errors import InvalidRequest
from holdfast.limits import MESSAGE_BYTES, Limits

NOT_USED_YET: Final = (
    "agents.*.search",
    "agents.*.sub_agents",
    "agents.*.tools",
    "auth",
    "dreaming",
    "embedders",
    "gateway.match_system",
    "gateway.upstream_auth",
    "hooks",
    "short_term",
    "storage.artifacts",
    "storage.index",
    "storage.memory",
    "telemetry",
)
"""Keys that load, and do nothing yet; `*` is any name."""

DRIVERS_AVAILABLE: Final = frozenset({"sqlite", "postgres", "mysql"})
"""Database drivers that this version has; the others load, and are refused when they are opened."""

# -- types of values -------------------------------------------------------------

_YEARS_100: Final = 100 * 365 * 86_400

Duration = Annotated[float, Meta(ge=0, le=_YEARS_100, extra={"form": "duration"})]
"""Seconds; written `24h`, `1h30m`, `90s`, `250ms` or as a number of seconds."""

Timeout = Annotated[float, Meta(ge=0.001, le=86_400, extra={"form": "duration"})]
"""Seconds, at least a millisecond and at most a day."""

Size = Annotated[int, Meta(ge=1 << 10, le=1 << 32, extra={"form": "size"})]
"""Bytes; written `32MiB`, `1GB` or as a number of bytes."""

Secret = Annotated[str, Meta(min_length=1, extra={"form": "secret"})]
"""Never shown."""

Url = Annotated[str, Meta(min_length=1, extra={"form": "url"})]
"""Shown without its password and query."""

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Most = Annotated[int, Meta(ge=1, le=1_000_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]

Hidden = Annotated[dict[str, Any], Meta(extra={"form": "hidden"})]
"""Free for now; no text in it is shown, since any may be a secret."""

Free = dict[str, Any]
"""Handed on as it is; what stands under a name that sounds like a secret is not shown."""

Mistake = tuple[str, str]
"""A key, and what is wrong with it."""


_FREE: Final = frozenset(
    {"artifacts", "auth", "base_url", "dreaming", "headers", "hooks", "options", "params", "telemetry", "url"}
)
"""Fields in which anything may stand, a secret too."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping with these keys and no others."""

    ALIASES: ClassVar[dict[str, str]] = {}
    """Other spellings of keys."""

    def mistakes(self) -> list[Mistake]:
        """What is wrong with values that are right one by one."""
        return []

    def __repr__(self) -> str:
        # Settings end up in logs and tracebacks; secrets must not.
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={MASK if value and _hidden(name) else repr(value)}" for name, value in values)
        return f"{type(self).__name__}({', '.join(shown)})"


def _hidden(name: str) -> bool:
    return name in _FREE or is_secret_name(name)


# -- models ----------------------------------------------------------------------


class Timeouts(Settings, frozen=True, kw_only=True):
    """How long an upstream may take. A plain duration instead of the mapping is `total`."""

    connect: Timeout = 10.0
    """Seconds to reach it."""
    read: Timeout = 300.0
    """Seconds of silence, before the first token or between two."""
    total: Timeout = 1800.0
    """Seconds for the whole call."""


_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_KEYS: Final = ("max_tokens", "model", "temperature", "top_p")
_REQUEST_KEYS: Final = ("messages", "stream")


class LLM(Settings, frozen=True, kw_only=True):
    """One model, reachable at one place."""

    ALIASES: ClassVar[dict[str, str]] = {"vendor": "provider"}

    provider: Literal["openai", "offline"] = "openai"
    """`openai` is anything that speaks OpenAI's Chat Completions; `offline` is built in."""
    model: Text | None = None
    """The model's name upstream; unset: the name of this entry."""
    base_url: Url | None = None
    """Up to and with `/v1`; unset: `OPENAI_BASE_URL`, else OpenAI's."""
    api_key: Secret | None = None
    """Unset: `OPENAI_API_KEY`, but only where `base_url` is unset too."""
    context_window: Tokens | None = None
    """Tokens; unset: what is known of the model."""
    count: Literal["local", "provider"] = "local"
    """Who counts the prompts that are sent: Holdfast alone, or the provider's count endpoint after it."""
    max_tokens: Tokens | None = None
    """Longest reply, tokens; unset: the upstream's own."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    timeout: Timeouts | None = None
    """Unset: `gateway.upstream_timeout`."""
    headers: dict[str, Secret] = {}
    """Sent with every call."""
    params: Free = {}
    """Sent in the body of every call that does not set them itself."""

    def mistakes(self) -> list[Mistake]:
        found = [*url_mistakes("base_url", self.base_url), *_key_mistakes("api_key", self.api_key)]
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                found.append((f"headers.{name}", "not the name of an HTTP header"))
            found += _key_mistakes(f"headers.{name}", value)
        found += [(f"params.{key}", f"set `{key}` beside params, not in it") for key in _OWN_KEYS if key in self.params]
        found += [(f"params.{key}", "belongs to the request") for key in _REQUEST_KEYS if key in self.params]
        try:
            Budget.for_model(self.model or "", context_window=self.context_window, max_reply_tokens=self.max_tokens)
        except InvalidRequest as error:
            found.append(("context_window" if self.context_window else "max_tokens", str(error)))
        return found


def url_mistakes(key: str, url: str | None) -> list[Mistake]:
    """What is wrong with the address of an HTTP service; None is fine."""
    if url is None or re.fullmatch(r"https?://[^/\s?#]+[^\s]*", url):
        return []
    return [(key, "expected a URL that begins with http:// or https://")]


def _key_mistakes(key: str, value: str | None) -> list[Mistake]:
    if value is None or _PRINTABLE.fullmatch(value):
        return []
    return [(key, "must be printable ASCII without line breaks")]


class LLMSettings(Settings, frozen=True, kw_only=True):
    """One model to call, with nothing left to look up."""

    name: str
    """What it was asked for by."""
    origin: str
    """Where it comes from: `llms.fast`, `environment` or `built-in`."""
    provider: str
    """`openai` or `offline`."""
    model: str
    base_url: str
    """Without a slash at the end; empty for `offline`."""
    api_key: str | None = None
    context_window: int | None = None
    """Tokens, as configured; None: what is known of the model."""
    count: str = "local"
    """`local` or `provider`."""
    max_tokens: int | None = None
    timeout: Timeouts = Timeouts()
    headers: dict[str, str] = {}
    params: dict[str, Any] = {}
    """Sent in every body that does not set them, `temperature` and `top_p` included."""


# -- storage ---------------------------------------------------------------------

SCHEMES: Final[dict[str, tuple[str, ...]]] = {
    "sqlite": ("sqlite",),
    "postgres": ("postgresql", "postgres"),
    "mysql": ("mysql",),
    "redis": ("redis", "rediss", "redis+cluster"),
}


_SERVER_KEYS: Final = ("host", "port", "database", "user", "password")


class Database(Settings, frozen=True, kw_only=True):
    """A place to store things: a `driver` with its keys, or a `url`."""

    driver: Literal["sqlite", "postgres", "mysql", "redis"] | None = None
    """Unset: what `url` begins with."""
    path: Text | None = None
    """SQLite: the file, relative to where the process runs; `:memory:` for none."""
    host: Text | None = None
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    """Unset: the driver's usual one."""
    database: Text | None = None
    """Its name; for Redis its number."""
    user: Text | None = None
    password: Secret | None = None
    url: Url | None = None
    """Instead of all the others but `driver`."""
    options: Free = {}
    """The URL's query: what the driver takes besides, for example `sslmode`."""

    @property
    def kind(self) -> str | None:
        """The driver, by name or by `url`."""
        scheme = (self.url or "").partition("://")[0]
        return self.driver or next((driver for driver, schemes in SCHEMES.items() if scheme in schemes), None)

    def mistakes(self) -> list[Mistake]:
        given = [key for key in (*_SERVER_KEYS, "path", "options") if getattr(self, key)]
        if self.url is not None:
            schemes = [scheme for driver in SCHEMES if self.driver in {driver, None} for scheme in SCHEMES[driver]]
            if not self.url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
                return [("url", f"expected a URL that begins with {', '.join(f'{scheme}://' for scheme in schemes)}")]
            return [(key, "`url` says it already; remove one of the two") for key in given]
        if self.driver is None:
            return [("driver", f"missing; one of {', '.join(SCHEMES)}, or give a `url`")]
        if self.driver == "sqlite":
            missing = [] if self.path else [("path", "missing; driver 'sqlite' needs it, or `url`")]
            return missing + [(key, "not for driver 'sqlite', which has `path`") for key in given if key != "path"]
        needs = ("host",) if self.driver == "redis" else ("host", "database")
        missing = [(key, f"missing; driver {self.driver!r} needs it, or `url`") for key in needs if key not in given]
        return missing + [("path", f"only for driver 'sqlite', not {self.driver!r}")] * ("path" in given)


class SessionStorage(Settings, frozen=True, kw_only=True):
    """Where sessions live."""

    backend: Literal["inmemory", "sql", "redis"] | None = None
    """Unset: what `database` is."""
    database: Text | None = None
    """A name in `databases`; unset: `main`."""

    def mistakes(self) -> list[Mistake]:
        if self.backend == "inmemory" and self.database:
            return [("database", "backend 'inmemory' uses no database; remove one of the two")]
        if self.backend == "redis" and not self.database:
            return [("database", "missing; backend 'redis' needs one")]
        return []


class Chromem(Settings, frozen=True, kw_only=True):
    """The embedded vector index."""

    persist_path: Text | None = None
    compress: bool = False


class VectorProvider(Settings, frozen=True, kw_only=True):
    """Where vectors live."""

    type: Literal["chromem"] = "chromem"
    chromem: Chromem | None = None


class MemoryStorage(Settings, frozen=True, kw_only=True):
    """Where long-term memory lives."""

    backend: Literal["keyword", "vector", "hybrid"] = "keyword"
    embedder: Text | None = None
    vector_provider: VectorProvider | None = None

    def mistakes(self) -> list[Mistake]:
        needed = self.backend != "keyword" and self.embedder is None
        return [("embedder", f"missing; backend {self.backend!r} needs one")] if needed else []


class IndexStorage(Settings, frozen=True, kw_only=True):
    """What search looks things up in."""

    type: Literal["keyword", "vector", "hybrid"] = "keyword"
    embedder: Text | None = None
    vector_provider: VectorProvider | None = None

    def mistakes(self) -> list[Mistake]:
        needed = self.type != "keyword" and self.embedder is None
        return [("embedder", f"missing; type {self.type!r} needs one")] if needed else []


class Storage(Settings, frozen=True, kw_only=True):
    """What is kept where."""

    sessions: SessionStorage = SessionStorage()
    memory: MemoryStorage | None = None
    index: IndexStorage | None = None
    artifacts: Free | None = None


class Embedder(Settings, frozen=True, kw_only=True):
    """A model that makes vectors."""

    provider: Text = "openai"
    model: Text | None = None
    api_key: Secret | None = None
    base_url: Url | None = None
    dimension: Tokens | None = None
    batch_size: Tokens | None = None
    timeout: Timeout | None = None

    def mistakes(self) -> list[Mistake]:
        return [*url_mistakes("base_url", self.base_url), *_key_mistakes("api_key", self.api_key)]


class ShortTerm(Settings, frozen=True, kw_only=True):
    """The life of sessions."""

    max_history_turns: Count = 0
    """Messages that a policy may see, newest first; 0: all."""
    max_sessions: Count = 10_000
    """Active sessions; past it the one that was idle longest goes; 0: no cap."""
    session_ttl: Duration = 86_400.0
    """Idle seconds after which a session ends; 0: never."""


# -- agents ----------------------------------------------------------------------


class Search(Settings, frozen=True, kw_only=True):
    """An agent's search over past conversations."""

    enabled: bool = False
    max_results: Annotated[int, Meta(ge=1, le=100)] = 5


class Agent(Settings, frozen=True, kw_only=True):
    """One agent."""

    llm: Text | None = None
    """A name in `llms`, else a model's name; unset: `default`."""
    instruction: str | None = None
    """Its system prompt."""
    description: str | None = None
    """What it is for, told in `GET /v1/models`."""
    context: ContextSettings | None = None
    """Unset: the top-level `context`. Without a `strategy` its keys are added to those of the top level."""
    tools: tuple[Text, ...] = ()
    sub_agents: tuple[Text, ...] = ()
    search: Search | None = None


# -- the server --------------------------------------------------------------------


_LIMITS: Final = Limits()


class Gateway(Settings, frozen=True, kw_only=True):
    """The HTTP server."""

    host: Text = "127.0.0.1"
    port: Port = 8377
    """0: any free one."""
    max_body: Size = _LIMITS.body
    """Largest request, bytes."""
    max_message: Annotated[int, Meta(ge=1 << 10, le=MESSAGE_BYTES, extra={"form": "size"})] = _LIMITS.message
    """Largest message in it, bytes."""
    max_messages: Most = _LIMITS.messages
    """Messages in a request."""
    max_parts: Most = _LIMITS.parts
    """Parts of a message's content."""
    max_tool_calls: Most = _LIMITS.tool_calls
    """Tool calls of a message."""
    max_tools: Most = _LIMITS.tools
    """Tools in a request."""
    body_timeout: Timeout = _LIMITS.body_timeout
    """Seconds a request's body may take to arrive."""
    upstream_timeout: Timeouts = Timeouts()
    """For every llm that has no `timeout`."""
    shutdown_grace: Annotated[float, Meta(ge=0, le=86_400, extra={"form": "duration"})] = 10.0
    """Seconds that running turns get to end."""
    upstream_auth: Literal["server", "passthrough"] | None = None
    match_system: Literal["rank", "strict"] | None = None

    @property
    def limits(self) -> Limits:
        """What a request may bring."""
        return Limits(
            body=self.max_body,
            message=self.max_message,
            messages=self.max_messages,
            parts=self.max_parts,
            tool_calls=self.max_tool_calls,
            tools=self.max_tools,
            body_timeout=self.body_timeout,
        )


# -- the whole ---------------------------------------------------------------------


class Document(Settings, frozen=True, kw_only=True):
    """Everything a file may say."""

    context: ContextSettings = ContextSettings()
    llms: dict[str, LLM] = {}
    databases: dict[str, Database] = {}
    storage: Storage = Storage()
    short_term: ShortTerm = ShortTerm()
    agents: dict[str, Agent] = {}
    gateway: Gateway = Gateway()
    embedders: dict[str, Embedder] = {}
    auth: Hidden | None = None
    hooks: Hidden | None = None
    dreaming: Free | None = None
    telemetry: Hidden | None = None


class Config(Document, frozen=True, kw_only=True):
    """A configuration that has been read and found right."""

    source: str = "defaults"
    """Name of the file it came from, for messages."""
    lines: dict[str, int] = {}
    """Line of each key that was given, by its path."""
    fallback: LLM = LLM(provider="offline")
    """The built-in `default` model: OpenAI's API when the environment names it, else `offline`."""
    environment: LLM = LLM()
    """`base_url` and `api_key` from the environment, for entries that leave both out."""
    model: str | None = None
    """`--model`: an llm or a model to use for `default`."""
