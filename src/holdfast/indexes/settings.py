"""Which index a Holdfast has, and where it lies."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.recall.base import SEARCH_MODES, SearchMode

IN_MEMORY: Final = "sqlite://:memory:"
_SQLITE: Final = "sqlite:///"
HERE: Final = Path()
"""The folder of the index that belongs to a Redis."""
_FILE: Final = "holdfast.index.db"
_POOL: Final = 4
"""Connections of its own that an index has in a server's database."""


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which index there is."""

    url: str | None = None
    """Where it lies, like a store; None: see `place_of`."""
    folder: str | None = None
    """The folder of its SQLite file, in place of `url`."""
    mode: SearchMode = "keyword"
    """What is searched by where a search does not say."""
    embedder: Any = None
    """Makes vectors: see `holdfast.embedders.embedder_of`. None: there are none."""
    compress: bool = False
    """Whether vectors are kept in half the space, where the index is SQLite's."""
    rerank: Any = None
    """Orders the best hits of a search anew: `RerankSettings`, or what `holdfast.rerankers.make_reranker` takes. None: nothing does."""

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


def index_settings(given: object) -> IndexSettings | None:
    """Settings as people give them: a text is a URL, None is no index. Raises `InvalidRequest`."""
    if given is None or isinstance(given, IndexSettings):
        return given
    if isinstance(given, str) and given:
        return IndexSettings(url=given)
    raise InvalidRequest(
        f"index must be IndexSettings, a URL or None (no index), not {type(given).__name__}", param="index"
    )


def place_of(settings: IndexSettings, store: str | None) -> str:
    """The URL of the index that belongs to a store.

    Beside an SQLite file: `chat.index.db` beside `chat.db`. In the database of PostgreSQL and MySQL, with connections of its
    own. Of Redis in an SQLite file where the process runs, one for each store. Of a store that lives in memory, or was given
    open, in memory.

    Args:
        settings: which index.
        store: the store's URL; None: it was given open.
    """
    if settings.folder is not None:
        return f"{_SQLITE}{Path(settings.folder) / _FILE}"
    if settings.url is not None:
        return settings.url
    scheme = (store or IN_MEMORY).partition("://")[0]
    if store is None or not lasting(store):
        return IN_MEMORY
    if scheme == "sqlite":
        path = Path(store.removeprefix(_SQLITE))
        return f"{_SQLITE}{path.with_suffix('')}.index{path.suffix or '.db'}"
    if scheme.startswith("redis"):
        return f"{_SQLITE}{HERE / f'holdfast.{_mark_of(store)}.index.db'}"
    return _with_pool(store)


def file_of(place: str) -> Path | None:
    """The file of the index at a URL; None: it lies in memory, or with a server."""
    return Path(place.removeprefix(_SQLITE)) if place.startswith(_SQLITE) and lasting(place) else None


def as_it_is(settings: IndexSettings, store: str | None) -> IndexSettings:
    """The same, but in memory where there is no file yet, so that a look at it makes none; see `place_of`."""
    file = file_of(place_of(settings, store))
    if file is None or file.exists():
        return settings
    return msgspec.structs.replace(settings, url=IN_MEMORY, folder=None)


def _mark_of(url: str) -> str:
    """Of a store's address, without what is secret in it: two of them never share an index."""
    place = _without_pool(url).partition("://")[2].rpartition("@")[2]
    return blake2b(place.encode(), digest_size=4).hexdigest()


def _without_pool(url: str) -> str:
    base, _, query = url.partition("?")
    options = [one for one in query.split("&") if one and not one.startswith("pool=")]
    return f"{base}?{'&'.join(options)}" if options else base


def _with_pool(url: str) -> str:
    base = _without_pool(url)
    return f"{base}{'&' if '?' in base else '?'}pool={_POOL}"


def lasting(url: str) -> bool:
    """Whether what is in it outlives the process."""
    return url not in (IN_MEMORY, "sqlite:///:memory:")
