"""What is kept where: the keys `databases` and `storage`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import quote, urlencode

from msgspec import Meta

from holdfast.artifacts.settings import ArtifactSettings
from holdfast.domain.memory import MemoryType
from holdfast.limits import CACHE_BYTES
from holdfast.rerankers.settings import Rerank
from holdfast.settings import (
    Duration,
    Free,
    Mistake,
    Secret,
    Settings,
    Size,
    Text,
    Url,
)

SCHEMES: Final[dict[str, tuple[str, ...]]] = {
    "sqlite": ("sqlite",),
    "postgres": ("postgresql", "postgres"),
    "mysql": ("mysql",),
    "redis": ("redis", "rediss", "redis+cluster", "rediss+cluster"),
}


_PORTS: Final = {"postgres": 5432, "mysql": 3306, "redis": 6379}
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

    def find_mistakes(self) -> list[Mistake]:
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


def database_url(database: Database) -> str:
    """The URL of one database."""
    if database.url is not None:
        return database.url
    options = {key: str(value).lower() if isinstance(value, bool) else value for key, value in database.options.items()}
    clustered = database.driver == "redis" and options.pop("cluster", "false") == "true"
    query = f"?{urlencode(options)}" if options else ""
    if database.driver == "sqlite":
        return "sqlite://:memory:" if database.path == ":memory:" else f"sqlite:///{database.path}{query}"
    assert database.driver is not None
    assert database.host is not None
    user = quote(database.user or "", safe="")
    password = f":{quote(database.password, safe='')}" if database.password else ""
    host = f"[{database.host}]" if ":" in database.host else database.host
    port = database.port or _PORTS[database.driver]
    login = f"{user}{password}@" if user or password else ""
    name = quote(database.database or ("0" if database.driver == "redis" else ""), safe="")
    scheme = SCHEMES[database.driver][0] + ("+cluster" if clustered else "")
    return f"{scheme}://{login}{host}:{port}/{name}{query}"


class SessionStorage(Settings, frozen=True, kw_only=True):
    """Where sessions live."""

    backend: Literal["inmemory", "sql", "redis"] | None = None
    """Unset: what `database` is."""
    database: Text | None = None
    """A name in `databases`; unset: `main`."""
    retention: Duration = 0.0
    """Seconds after its end after which a closed session is deleted; 0: never."""
    cache_bytes: Size = CACHE_BYTES
    """How much a process remembers of sessions between turns, so that it need not read them again; one tenant fills at most half of it."""

    def find_mistakes(self) -> list[Mistake]:
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

    def find_mistakes(self) -> list[Mistake]:
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
    rerank: Rerank | None = None
    """Unset: hits stay in the order of the ranking."""

    def find_mistakes(self) -> list[Mistake]:
        found = [("embedder", f"missing; type {self.type!r} needs one")] if self._bare else []
        if self.database and self.vector_provider and self.vector_provider.path:
            found.append(
                ("database", "`vector_provider.chromem.persist_path` says where it lies; remove one of the two")
            )
        return found

    @property
    def _bare(self) -> bool:
        return self.enabled and self.type not in {None, "keyword"} and self.embedder is None


class Storage(Settings, frozen=True, kw_only=True):
    """What is kept where."""

    sessions: SessionStorage = SessionStorage()
    memory: MemoryStorage | None = None
    index: IndexStorage | None = None
    artifacts: ArtifactSettings = ArtifactSettings()
