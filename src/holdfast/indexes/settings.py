"""The settings of an index, and the URL of the index that belongs to a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.recall.base import SEARCH_MODES, SearchMode

IN_MEMORY: Final = "sqlite://:memory:"
_SQLITE: Final = "sqlite:///"
_FILE: Final = "holdfast.index.db"
_POOL: Final = 4
"""Number of connections that the index opens, if it is in a database on a server."""


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a search index."""

    url: str | None = None
    """The URL of the index, in the format of a store URL; None: `resolve_index_url` chooses one."""
    folder: str | None = None
    """The folder of the index's SQLite file; an alternative to `url`."""
    mode: SearchMode = "keyword"
    """The default search mode."""
    embedder: Any = None
    """The embedder that makes vectors: a value that `holdfast.embedders.embedder_of` accepts. None: searches use words only."""
    compress: bool = False
    """True to compress vectors to half their size. This works only for an SQLite index."""
    rerank: Any = None
    """The reranker that reorders the best hits of a search: `RerankSettings`, or a value that `holdfast.rerankers.make_reranker`
    accepts. None: hits are not reordered."""

    def __post_init__(self) -> None:
        if self.mode not in SEARCH_MODES:
            raise InvalidRequest(
                f"mode must be one of {', '.join(SEARCH_MODES)}, not {self.mode!r}"[:300], param="index.mode"
            )
        if self.mode != "keyword" and self.embedder is None:
            raise InvalidRequest(
                f"mode {self.mode!r} needs an embedder: give one, or mode 'keyword'", param="index.embedder"
            )
        if self.url is not None and self.folder is not None:
            raise InvalidRequest("url says where it lies: leave out folder", param="index.folder")


def parse_index_settings(given: object) -> IndexSettings | None:
    """Return index settings for a URL or for settings. The result for None is None: no index.

    Raises:
        InvalidRequest: the value has another type, or is invalid.
    """
    if given is None or isinstance(given, IndexSettings):
        return given
    if isinstance(given, str) and given:
        return IndexSettings(url=given)
    raise InvalidRequest(
        f"index must be IndexSettings, a URL or None (no index), not {type(given).__name__}", param="index"
    )


def resolve_index_url(settings: IndexSettings, store: str) -> str:
    """Return the URL of the index for a store.

    If the settings give neither a folder nor a URL, the result depends on the store:

    - SQLite: `chat.index.db` next to `chat.db`.
    - PostgreSQL and MySQL: the same database, with a connection pool of its own.
    - A store in memory: in memory.

    Args:
        settings: the index settings.
        store: the URL of the store.
    """
    if settings.folder is not None:
        return f"{_SQLITE}{Path(settings.folder) / _FILE}"
    if settings.url is not None:
        return settings.url
    if not is_lasting(store):
        return IN_MEMORY
    if store.startswith(_SQLITE):
        path = Path(store.removeprefix(_SQLITE))
        return f"{_SQLITE}{path.with_suffix('')}.index{path.suffix or '.db'}"
    base = _remove_pool_option(store)
    return f"{base}{'&' if '?' in base else '?'}pool={_POOL}"


def get_index_file(place: str) -> Path | None:
    """Return the file of the index at a URL, or None if the index is in memory or on a server."""
    return Path(place.removeprefix(_SQLITE)) if place.startswith(_SQLITE) and is_lasting(place) else None


def avoid_creating_file(settings: IndexSettings, store: str) -> IndexSettings:
    """Return the settings. If the index file does not exist yet, return settings for an empty index in memory.

    Commands that only inspect the index use this, so that they do not create a file.
    """
    file = get_index_file(resolve_index_url(settings, store))
    if file is None or file.exists():
        return settings
    return msgspec.structs.replace(settings, url=IN_MEMORY, folder=None)


def _remove_pool_option(url: str) -> str:
    base, _, query = url.partition("?")
    options = [one for one in query.split("&") if one and not one.startswith("pool=")]
    return f"{base}?{'&'.join(options)}" if options else base


def is_lasting(url: str) -> bool:
    """Return True if data at this URL still exists after the process has ended."""
    return url not in (IN_MEMORY, "sqlite:///:memory:")
