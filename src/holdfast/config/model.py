"""The configuration's shape: every key of `holdfast.yaml`, its type, range and default.

What a type cannot say stands in `mistakes()`. Keys that belong to later versions are here too, so that a file written
for them loads; `NOT_USED_YET` names them, and `holdfast config check` tells.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from holdfast.config.agents import Agent, Artifacts, McpServer
from holdfast.config.auth import Auth
from holdfast.config.dreaming import Dreaming
from holdfast.config.gateway import Gateway, Timeouts
from holdfast.config.hooks import Hooks
from holdfast.config.kinds import (
    Count,
    Duration,
    Free,
    Hidden,
    Mistake,
    Names,
    Secret,
    Settings,
    Size,
    Text,
    Timeout,
    Tokens,
    Url,
    header_mistakes,
    key_mistakes,
    url_mistakes,
)
from holdfast.config.python import Python
from holdfast.config.secrets import Redaction, SecretGuard
from holdfast.context.settings import ContextSettings
from holdfast.domain.budget import Budget
from holdfast.domain.memory import MemoryType
from holdfast.errors import InvalidRequest
from holdfast.limits import ARTIFACT_BYTES, ARTIFACTS_BYTES, FALLBACKS, HISTORY_TURNS, VECTOR_NUMBERS

NOT_USED_YET: Final = ("telemetry",)
"""Keys that load, and do nothing yet; `*` is any name."""


# -- models ----------------------------------------------------------------------


Inputs = Annotated[
    tuple[Literal["text", "image", "audio", "video", "file"], ...], Meta(min_length=1, extra={"form": "names"})
]
"""Kinds of content; one may stand without a list around it."""
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
    fallbacks: Names = ()
    """Names in `llms`, else models' names, that are asked in this order where this one does not answer; theirs are not."""
    max_connections: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Connections to it at once."""
    max_requests: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Calls at once; further ones wait. 0: any number."""

    def mistakes(self) -> list[Mistake]:
        found = [*url_mistakes("base_url", self.base_url), *key_mistakes("api_key", self.api_key)]
        found += header_mistakes(self.headers)
        found += [(f"params.{key}", f"set `{key}` beside params, not in it") for key in _OWN_KEYS if key in self.params]
        found += [(f"params.{key}", "belongs to the request") for key in _REQUEST_KEYS if key in self.params]
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


# -- storage ---------------------------------------------------------------------

SCHEMES: Final[dict[str, tuple[str, ...]]] = {
    "sqlite": ("sqlite",),
    "postgres": ("postgresql", "postgres"),
    "mysql": ("mysql",),
    "redis": ("redis", "rediss", "redis+cluster", "rediss+cluster"),
}


_SERVER_KEYS: Final = ("host", "port", "database", "user", "password")


class Database(Settings, frozen=True, kw_only=True):
    """A place to store things: a `driver` with its keys, or a `url`."""

    ALIASES: ClassVar[dict[str, str]] = {"username": "user"}

    driver: Literal["sqlite", "postgres", "mysql", "redis"] | None = None
    """Unset: what `url` begins with."""
    path: Text | None = None
    """SQLite: the file, relative to where the process runs; `:memory:` for none."""
    host: Text | None = None
    """Needed for all but SQLite."""
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    """Unset: the driver's usual one."""
    database: Text | None = None
    """Its name; for Redis its number."""
    user: Text | None = None
    """Any characters: they are encoded for you."""
    password: Secret | None = None
    """The same."""
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
    retention: Duration = 0.0
    """Seconds after its end after which a closed session is deleted; 0: never."""

    def mistakes(self) -> list[Mistake]:
        if self.backend == "inmemory" and self.database:
            return [("database", "backend 'inmemory' uses no database; remove one of the two")]
        if self.backend == "redis" and not self.database:
            return [("database", "missing; backend 'redis' needs one")]
        return []


class Chromem(Settings, frozen=True, kw_only=True):
    """The embedded vector index."""

    persist_path: Text | None = None
    """The folder that the index is in, `holdfast.index.db`; unset: beside the sessions."""
    compress: bool = False
    """Whether vectors take half the space; a search by them takes longer."""


class VectorProvider(Settings, frozen=True, kw_only=True):
    """Where vectors live."""

    type: Literal["chromem"] = "chromem"
    """The index that is built in."""
    chromem: Chromem | None = None

    @property
    def path(self) -> str | None:
        """The folder that is named."""
        return self.chromem.persist_path if self.chromem else None


class MemoryStorage(Settings, frozen=True, kw_only=True):
    """Where long-term memory lives."""

    backend: Literal["keyword", "vector", "hybrid"] = "keyword"
    """How memories are found."""
    embedder: Text | None = None
    """A name in `embedders`; needed for all but `keyword`."""
    vector_provider: VectorProvider | None = None
    half_life: dict[MemoryType, Duration] = {}
    """By type of memory, how old one is that counts half; 0 of a type: only what is new counts. Others keep the usual one: 10,000
    days; of `feedback` 365 days, of `project` and `episodic` 90."""

    def mistakes(self) -> list[Mistake]:
        needed = self.backend != "keyword" and self.embedder is None
        return [("embedder", f"missing; backend {self.backend!r} needs one")] if needed else []


class IndexStorage(Settings, frozen=True, kw_only=True):
    """What search looks things up in."""

    enabled: bool = True
    """False: there is no index, and nothing can be searched."""
    type: Literal["keyword", "vector", "hybrid"] | None = None
    """How past conversations are found; unset: as `storage.memory.backend` has it, else by `keyword`."""
    embedder: Text | None = None
    """A name in `embedders`; needed for all but `keyword`. Unset: that of `storage.memory`."""
    database: Text | None = None
    """A name in `databases`, any but a Redis; unset: beside the sessions."""
    vector_provider: VectorProvider | None = None
    """Unset: that of `storage.memory`."""

    def mistakes(self) -> list[Mistake]:
        found = [("embedder", f"missing; type {self.type!r} needs one")] if self._bare else []
        if self.database and self.vector_provider and self.vector_provider.path:
            found.append(
                ("database", "`vector_provider.chromem.persist_path` says where it lies; remove one of the two")
            )
        return found

    @property
    def _bare(self) -> bool:
        return self.enabled and self.type not in {None, "keyword"} and self.embedder is None


class ArtifactStorage(Settings, frozen=True, kw_only=True):
    """Where the contents of artifacts lie, and what is taken."""

    backend: Literal["disk", "s3", "database"] | None = None
    """Unset: `s3` with a `bucket`; `disk` with a `path`, or beside an SQLite file; else `database`."""
    path: Text | None = None
    """`disk`: the folder; unset: the SQLite file's name with `.artifacts` behind it."""
    bucket: Text | None = None
    """`s3`: made already."""
    prefix: Text | None = None
    """Of every key in the bucket."""
    endpoint: Url | None = None
    """Of what speaks like S3; unset: AWS."""
    region: Text | None = None
    """Unset: the environment's, else `us-east-1`."""
    access_key: Secret | None = None
    """With `secret_key`; unset: as AWS's own tools find them in the environment."""
    secret_key: Secret | None = None
    """With `access_key`."""
    max_bytes: Size = ARTIFACT_BYTES
    """Largest artifact."""
    max_total: Annotated[int, Meta(ge=1 << 10, le=1 << 44, extra={"form": "size"})] = ARTIFACTS_BYTES
    """All artifacts of a session together, and as much again that a user's sessions share."""
    types: tuple[Text, ...] = ()
    """Media types that are taken, like `image/*`; empty: all."""

    @property
    def kind(self) -> str | None:
        """The backend, as it is said or follows from what is; None: from where sessions are."""
        return self.backend or ("s3" if self.bucket else "disk" if self.path else None)

    def mistakes(self) -> list[Mistake]:
        mine = {"disk": ("path",), "s3": ("bucket", "prefix", "endpoint", "region", "access_key", "secret_key")}
        given = [(kind, key) for kind, keys in mine.items() for key in keys if getattr(self, key)]
        but = f", not {self.kind!r}" if self.kind else ""
        found = [(key, f"only for backend {kind!r}{but}") for kind, key in given if kind != self.kind]
        if self.kind == "s3":
            found += [("bucket", "missing; backend 's3' needs one")] * (self.bucket is None)
            alone = {"access_key", "secret_key"} & {key for _, key in given}
            found += [(key, "needs the other one of access_key and secret_key") for key in alone if len(alone) == 1]
        wrong = [one for one in self.types if not re.fullmatch(r"[^/\s;]+/[^/\s;]+", one)]
        found += [("types", f"expected media types like image/png or image/*, got {one!r}") for one in wrong]
        return found + url_mistakes("endpoint", self.endpoint)


class Storage(Settings, frozen=True, kw_only=True):
    """What is kept where."""

    sessions: SessionStorage = SessionStorage()
    memory: MemoryStorage | None = None
    index: IndexStorage | None = None
    artifacts: ArtifactStorage = ArtifactStorage()


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
    """The model's name there; unset: `text-embedding-3-small` with `openai`. `local` has one."""
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
    """Tokens of a text that are sent; what is behind is left out. `local` looks at 256."""
    max_requests: Annotated[int, Meta(ge=1, le=1000)] = 4
    """Calls at once."""
    timeout: Timeout = 60.0
    """How long a call may take."""
    min_similarity: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Cosine below which texts have nothing to do with each other: where nothing said comes nearer to a question, vectors find nothing.
    0: something is always found. Unset: 0.3 with `local`, else 0, as it differs from model to model."""
    path: Text | None = None
    """`local`: the folder of `model.safetensors` and `vocab.txt`; unset: where `holdfast embeddings install` puts them."""

    def mistakes(self) -> list[Mistake]:
        found = [*url_mistakes("base_url", self.base_url), *key_mistakes("api_key", self.api_key)]
        found += header_mistakes(self.headers)
        if self.provider == LOCAL_EMBEDDER:
            elsewhere = [key for key in ("api_key", "base_url", "headers") if getattr(self, key)]
            found += [(key, "not for provider 'local', which calls nobody") for key in elsewhere]
            if self.model not in {None, "all-MiniLM-L6-v2"}:
                found.append(("model", f"provider 'local' has all-MiniLM-L6-v2 only, not {self.model!r}"))
            if self.dimension not in {None, 384}:
                found.append(("dimension", f"provider 'local' has 384, not {self.dimension}"))
            return found
        found += [("path", "only for provider 'local'")] * (self.path is not None)
        if self.provider != "openai":
            known = self.base_url or self.provider in EMBEDDER_URLS
            found += [] if known else [("base_url", f"missing; where {self.provider!r} is, is not known here")]
            found += [] if self.model else [("model", f"missing; provider {self.provider!r} has no usual one")]
        return found


class ShortTerm(Settings, frozen=True, kw_only=True):
    """The life of sessions."""

    max_history_turns: Annotated[int, Meta(ge=0, le=HISTORY_TURNS)] = 0
    """Messages that a policy may see, newest first; 0: all."""
    max_sessions: Count = 10_000
    """Active sessions of a tenant; past it the one that was idle longest goes; 0: no cap."""
    session_ttl: Duration = 86_400.0
    """Idle seconds after which a session ends; 0: never."""


# -- the whole ---------------------------------------------------------------------


class Document(Settings, frozen=True, kw_only=True):
    """Everything a file may say."""

    IGNORED: ClassVar[dict[str, str]] = {
        "name": "a server has no name; what is kept belongs to the tenant of the caller's key",
        "rate_limiting": "`auth.rate` and `auth.burst` bound the requests of a key",
        "version": "there is one form of this file",
    }

    context: ContextSettings = ContextSettings()
    """How the working set is made, for every agent that says nothing else."""
    llms: dict[str, LLM] = {}
    databases: dict[str, Database] = {}
    storage: Storage = Storage()
    short_term: ShortTerm = ShortTerm()
    agents: dict[str, Agent] = {}
    mcp_servers: dict[str, McpServer] = {}
    """Servers whose tools agents may have, by name."""
    artifacts: Artifacts = Artifacts()
    gateway: Gateway = Gateway()
    python: Python = Python()
    redaction: Redaction = Redaction()
    secret_guard: SecretGuard | None = None
    embedders: dict[str, Embedder] = {}
    auth: Auth = Auth()
    hooks: Hooks = Hooks()
    dreaming: Dreaming = Dreaming()
    telemetry: Hidden | None = None
    """Free for now; not shown."""
    preset: Literal["mistralrs"] | None = None
    """Defaults of `short_term` and `storage.sessions` as another system has them: what stands in the file wins."""


class Config(Document, frozen=True, kw_only=True):
    """A configuration that has been read and found right."""

    source: str = "defaults"
    """Name of the file it came from, for messages."""
    lines: dict[str, int] = {}
    """Line of each key that was given, by its path here and as the file spells it; 0: it was given elsewhere."""
    spelt: dict[str, str] = {}
    """How the file spells a key, by its path here, where that is another."""
    origins: dict[str, str] = {}
    """The variable that a value comes from which is not in the file, by its path."""
    variables: dict[str, str] = {}
    """Variables in a value of the file, and where they are set, by its path."""
    ignored: tuple[tuple[int, str, str], ...] = ()
    """Keys of other systems that do nothing here: line, path, why."""
    fallback: LLM = LLM(provider="offline")
    """The built-in `default` model: OpenAI's API when the environment names it, else Anthropic's, else `offline`."""
    environment: LLM = LLM()
    """`base_url` and `api_key` from the environment, for entries that leave both out."""
    anthropic: LLM = LLM(provider="anthropic")
    """The same for entries of provider `anthropic`."""
    model: str | None = None
    """`--model`: an llm or a model to use for `default`."""
