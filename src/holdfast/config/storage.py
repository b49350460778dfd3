"""Define the keys `databases` and `storage`, which configure where data is stored."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import quote, urlencode

from msgspec import Meta

from holdfast.artifacts.settings import ArtifactSettings
from holdfast.limits import CACHE_BYTES
from holdfast.rerankers.settings import Rerank
from holdfast.sections import Duration, Free, Mistake, Secret, Settings, Size, Text, Url

SCHEMES: Final[dict[str, tuple[str, ...]]] = {
    "sqlite": ("sqlite",),
    "postgres": ("postgresql", "postgres"),
    "mysql": ("mysql",),
}


_PORTS: Final = {"postgres": 5432, "mysql": 3306}
_SERVER_KEYS: Final = ("host", "port", "database", "user", "password")


class Database(Settings, frozen=True, kw_only=True):
    """A database, described by a `driver` and its keys, or by a `url`."""

    driver: Literal["sqlite", "postgres", "mysql"] | None = None
    """Kind of database. Unset: derived from `url`."""
    path: Text | None = None
    """File of an SQLite database, relative to the working directory. `:memory:`: the database is kept in memory, without a file."""
    host: Text | None = None
    """Host of the database server; required unless the driver is SQLite."""
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    """Port of the database server. Unset: the driver's default."""
    database: Text | None = None
    """Name of the database."""
    user: Text | None = None
    """User name. It may contain any characters, because it is encoded automatically."""
    password: Secret | None = None
    """Password. It may contain any characters, because it is encoded automatically."""
    url: Url | None = None
    """URL of the database, in place of all other keys except `driver`."""
    options: Free = {}
    """Options of the driver, for example `sslmode`. They become the query of the URL."""

    @property
    def kind(self) -> str | None:
        """The kind of database, from `driver` or `url`; None if both are missing or the scheme of `url` is unknown."""
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
        needed = [key for key in ("host", "database") if key not in given]
        missing = [(key, f"missing; driver {self.driver!r} needs it, or `url`") for key in needed]
        return missing + [("path", f"only for driver 'sqlite', not {self.driver!r}")] * ("path" in given)


def make_database_url(database: Database) -> str:
    """Return the URL of a database, including user and password."""
    if database.url is not None:
        return database.url
    options = {key: str(value).lower() if isinstance(value, bool) else value for key, value in database.options.items()}
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
    name = quote(database.database or "", safe="")
    return f"{SCHEMES[database.driver][0]}://{login}{host}:{port}/{name}{query}"


class SessionStorage(Settings, frozen=True, kw_only=True):
    """Storage of sessions."""

    backend: Literal["inmemory", "sql"] | None = None
    """Kind of storage. Unset: derived from `database`."""
    database: Text | None = None
    """A name in `databases`. Unset: `main`."""
    retention: Duration = 0.0
    """Seconds after which a closed session is deleted. 0: never."""
    cache_bytes: Size = CACHE_BYTES
    """Maximum size of the sessions that are cached in memory, so that they are not read again in each turn. One tenant uses at most half of
    this size.
    """

    def find_mistakes(self) -> list[Mistake]:
        if self.backend == "inmemory" and self.database:
            return [("database", "backend 'inmemory' uses no database; remove one of the two")]
        return []


class Chromem(Settings, frozen=True, kw_only=True):
    """The embedded vector index."""

    persist_path: Text | None = None
    """Folder of the index file, which is then called `holdfast.index.db`. Unset: the index is a file next to the sessions' SQLite file. For
    sessions in PostgreSQL or MySQL, it is in the same database.
    """
    compress: bool = False
    """Store vectors in half of the disk space. Vector search takes longer."""


class VectorProvider(Settings, frozen=True, kw_only=True):
    """Storage of the vectors of the search index."""

    type: Literal["chromem"] = "chromem"
    """Kind of vector storage. `chromem` is the built-in index."""
    chromem: Chromem | None = None

    @property
    def path(self) -> str | None:
        """Folder of the index file, or None if it is not set."""
        return self.chromem.persist_path if self.chromem else None


class MemoryStorage(Settings, frozen=True, kw_only=True):
    """Storage of long-term memory."""

    backend: Literal["keyword", "vector", "hybrid"] = "keyword"
    """Search of memories: by words (`keyword`), by meaning (`vector`), or by both (`hybrid`)."""
    embedder: Text | None = None
    """A name in `embedders`; required if `backend` is `vector` or `hybrid`."""
    vector_provider: VectorProvider | None = None

    def find_mistakes(self) -> list[Mistake]:
        needed = self.backend != "keyword" and self.embedder is None
        return [("embedder", f"missing; backend {self.backend!r} needs one")] if needed else []


class IndexStorage(Settings, frozen=True, kw_only=True):
    """The search index."""

    enabled: bool = True
    """False: there is no index, and search is unavailable."""
    type: Literal["keyword", "vector", "hybrid"] | None = None
    """Search of past conversations: by words (`keyword`), by meaning (`vector`), or by both (`hybrid`). Unset: `storage.memory.backend`,
    which is `keyword` by default.
    """
    embedder: Text | None = None
    """A name in `embedders`; required if `type` is `vector` or `hybrid`. Unset: `storage.memory.embedder`."""
    rerank: Rerank | None = None
    """Reranking of search results. Unset: results keep the order of the ranking."""

    def find_mistakes(self) -> list[Mistake]:
        needed = self.enabled and self.type not in {None, "keyword"} and self.embedder is None
        return [("embedder", f"missing; type {self.type!r} needs one")] if needed else []


class Storage(Settings, frozen=True, kw_only=True):
    """Storage of sessions, memories, the index and artifacts."""

    sessions: SessionStorage = SessionStorage()
    memory: MemoryStorage | None = None
    index: IndexStorage | None = None
    artifacts: ArtifactSettings = ArtifactSettings()
