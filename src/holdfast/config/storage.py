"""Define the keys `databases` and `storage`: where data is stored."""

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
    """A database: a `driver` with its keys, or a `url`."""

    ALIASES: ClassVar[dict[str, str]] = {"username": "user"}

    driver: Literal["sqlite", "postgres", "mysql", "redis"] | None = None
    """Unset: derived from `url`."""
    path: Text | None = None
    """SQLite: the file, relative to the working directory; `:memory:`: no file."""
    host: Text | None = None
    """Required except for SQLite."""
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    """Unset: the driver's default."""
    database: Text | None = None
    """Name of the database; number for Redis."""
    user: Text | None = None
    """May contain any characters: they are encoded automatically."""
    password: Secret | None = None
    """May contain any characters: they are encoded automatically."""
    url: Url | None = None
    """Replaces all other keys except `driver`."""
    options: Free = {}
    """Query of the URL: options of the driver, for example `sslmode`."""

    @property
    def kind(self) -> str | None:
        """The driver, from `driver` or `url`."""
        scheme = (self.url or "").partition("://")[0]
        return self.driver or next((driver for driver, schemes in SCHEMES.items() if scheme in schemes), None)

    def find_mistakes(self) -> list[Mistake]:
        given = [key for key in (*_SERVER_KEYS, "path", "options") if getattr(self, key)]
        if self.url is not None:
            schemes = [scheme for driver in SCHEMES if self.driver in {driver, None} for scheme in SCHEMES[driver]]
            if not self.url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
                return [("url", f"expected a URL that begins with {', '.join(f'{scheme}://' for scheme in schemes)}")]
            return [(key, "set together with `url`; remove one of the two") for key in given]
        if self.driver is None:
            return [("driver", f"missing; one of {', '.join(SCHEMES)}, or give a `url`")]
        if self.driver == "sqlite":
            missing = [] if self.path else [("path", "missing; driver 'sqlite' needs it, or `url`")]
            return missing + [(key, "not for driver 'sqlite', which uses `path`") for key in given if key != "path"]
        needs = ("host",) if self.driver == "redis" else ("host", "database")
        missing = [(key, f"missing; driver {self.driver!r} needs it, or `url`") for key in needs if key not in given]
        return missing + [("path", f"only for driver 'sqlite', not {self.driver!r}")] * ("path" in given)


def make_database_url(database: Database) -> str:
    """Return the URL of a database."""
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
    """Storage of sessions."""

    backend: Literal["inmemory", "sql", "redis"] | None = None
    """Unset: derived from `database`."""
    database: Text | None = None
    """A name in `databases`; unset: `main`."""
    retention: Duration = 0.0
    """Seconds after which a closed session is deleted; 0: never."""
    cache_bytes: Size = CACHE_BYTES
    """Size of the cache for sessions in memory, so that they are not read again each turn; one tenant fills at most half of it."""

    def find_mistakes(self) -> list[Mistake]:
        if self.backend == "inmemory" and self.database:
            return [("database", "backend 'inmemory' uses no database; remove one of the two")]
        if self.backend == "redis" and not self.database:
            return [("database", "missing; backend 'redis' needs one")]
        return []


class Chromem(Settings, frozen=True, kw_only=True):
    """The embedded vector index."""

    persist_path: Text | None = None
    """Folder of the index file `holdfast.index.db`; unset: next to the sessions."""
    compress: bool = False
    """Store vectors in half the space; vector search takes longer."""


class VectorProvider(Settings, frozen=True, kw_only=True):
    """Storage of vectors."""

    type: Literal["chromem"] = "chromem"
    """The built-in index."""
    chromem: Chromem | None = None

    @property
    def path(self) -> str | None:
        """Folder of the index, if set."""
        return self.chromem.persist_path if self.chromem else None


class MemoryStorage(Settings, frozen=True, kw_only=True):
    """Storage of long-term memory."""

    backend: Literal["keyword", "vector", "hybrid"] = "keyword"
    """How memories are searched."""
    embedder: Text | None = None
    """A name in `embedders`; required except for `keyword`."""
    vector_provider: VectorProvider | None = None
    half_life: dict[MemoryType, Duration] = {}
    """Age at which a memory counts half, by type; 0: only new ones count. Defaults: 365 days for `feedback`, 90 for `project` and
    `episodic`, 10,000 for others.
    """

    def find_mistakes(self) -> list[Mistake]:
        needed = self.backend != "keyword" and self.embedder is None
        return [("embedder", f"missing; backend {self.backend!r} needs one")] if needed else []


class IndexStorage(Settings, frozen=True, kw_only=True):
    """The search index."""

    enabled: bool = True
    """False: there is no index, and search is unavailable."""
    type: Literal["keyword", "vector", "hybrid"] | None = None
    """How past conversations are searched; unset: as `storage.memory.backend`, or else `keyword`."""
    embedder: Text | None = None
    """A name in `embedders`; required except for `keyword`. Unset: that of `storage.memory`."""
    database: Text | None = None
    """A name in `databases`, except Redis; unset: next to the sessions."""
    vector_provider: VectorProvider | None = None
    """Unset: that of `storage.memory`."""
    rerank: Rerank | None = None
    """Unset: hits keep the order of the ranking."""

    def find_mistakes(self) -> list[Mistake]:
        found = [("embedder", f"missing; type {self.type!r} needs one")] if self._lacks_embedder else []
        if self.database and self.vector_provider and self.vector_provider.path:
            found.append(
                ("database", "set together with `vector_provider.chromem.persist_path`; remove one of the two")
            )
        return found

    @property
    def _lacks_embedder(self) -> bool:
        return self.enabled and self.type not in {None, "keyword"} and self.embedder is None


class Storage(Settings, frozen=True, kw_only=True):
    """Storage of sessions, memories, the index and artifacts."""

    sessions: SessionStorage = SessionStorage()
    memory: MemoryStorage | None = None
    index: IndexStorage | None = None
    artifacts: ArtifactSettings = ArtifactSettings()
