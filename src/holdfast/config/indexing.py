"""Which index a configuration means."""

from __future__ import annotations

import msgspec

from holdfast.config.model import Config
from holdfast.config.reranking import Rerank
from holdfast.config.storage import IndexStorage, MemoryStorage, database_url
from holdfast.config.upstreams import embedder_settings
from holdfast.errors import ConfigError
from holdfast.indexes.settings import IndexSettings
from holdfast.rerankers import RerankSettings


def index_of(config: Config) -> IndexSettings | None:
    """The index of conversations and memories, as `storage.index` and `storage.memory` have it; None: there is none.

    Both speak of the same index. Where both say something, `storage.index` wins.

    Raises:
        ConfigError: it names an embedder or a database that is not there, or a database that cannot have it.
    """
    index, memory = config.storage.index or IndexStorage(), config.storage.memory or MemoryStorage()
    if not index.enabled:
        return None
    vectors = index.vector_provider or memory.vector_provider
    name = index.embedder or memory.embedder
    embedder = None if name is None else embedder_settings(config, name)
    folder = None if vectors is None or index.database else vectors.path
    return IndexSettings(
        url=None if index.database is None else _url(config, index.database),
        folder=folder,
        mode=index.type or memory.backend,
        embedder=embedder,
        compress=vectors is not None and vectors.chromem is not None and vectors.chromem.compress,
        rerank=None if index.rerank is None else _rerank(index.rerank),
    )


def _rerank(given: Rerank) -> RerankSettings:
    """Return the reranker of the configuration."""
    fields = msgspec.structs.asdict(given)
    return RerankSettings(**fields | {"base_url": (given.base_url or "").rstrip("/"), "model": given.model or ""})


def _url(config: Config, name: str) -> str:
    """Where a database of the configuration is."""
    where = config.place_of("storage.index.database")
    database = config.databases.get(name)
    if database is None:
        known = ", ".join(config.databases) or "none"
        raise ConfigError([f"{where}: no database {name!r}; known: {known}"])
    if database.kind == "redis":
        raise ConfigError([f"{where}: {name!r} is a Redis, which has no full-text engine; name another, or none"])
    return database_url(database)
