"""Where contents are kept, and what is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from holdfast.artifacts.blobs import Blobs, Home
from holdfast.artifacts.database import DatabaseBlobs
from holdfast.artifacts.disk import POSSIBLE, DiskBlobs
from holdfast.errors import InvalidRequest
from holdfast.limits import ARTIFACT_BYTES, ARTIFACTS_BYTES
from holdfast.stores.base import Store

Backend = Literal["disk", "s3", "database"]
BESIDE: Final = ".artifacts"
"""What the name of an SQLite file gets for the folder beside it."""


class ArtifactSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where contents are kept, and what is taken."""

    backend: Backend | None = None
    """None: S3 with a bucket; on disk with a path, or beside an SQLite file; else in the database."""
    path: str | None = None
    """Of `disk`: the folder; None: the SQLite file's name with `.artifacts` behind it."""
    bucket: str | None = None
    """Of `s3`, as are the next ones."""
    prefix: str | None = None
    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    max_bytes: int = ARTIFACT_BYTES
    """Largest artifact."""
    max_total: int = ARTIFACTS_BYTES
    """Bytes of all artifacts of a session together, and as many of those that a user's sessions share."""
    types: tuple[str, ...] = ()
    """Media types that are taken, like `image/*`; none: all."""

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "secret_key")
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown)})"


def opened_blobs(settings: ArtifactSettings, url: str | None, store: Store, clock: Callable[[], int]) -> Blobs:
    """The place that contents lie in; nothing is made or reached before something is kept.

    Args:
        settings: which.
        url: of the database that sessions are in; None: not known.
        store: the tenant's.
        clock: milliseconds since the epoch.

    Raises:
        InvalidRequest: what the place needs is not said.
        MissingExtra: its library is not installed.
    """
    beside = _beside(url)
    backend = settings.backend or _fitting(settings, beside)
    if backend == "database":
        return DatabaseBlobs(store, clock)
    if backend == "disk":
        path = settings.path or beside
        if path is None:
            raise InvalidRequest("artifacts on disk need a path: storage.artifacts.path", param="path")
        return DiskBlobs(Path(path), Home(store))
    if settings.bucket is None:
        raise InvalidRequest("artifacts in S3 need a bucket: storage.artifacts.bucket", param="bucket")
    from holdfast.artifacts.s3 import S3Blobs

    return S3Blobs(
        Home(store),
        settings.bucket,
        prefix=settings.prefix or "",
        endpoint=settings.endpoint,
        region=settings.region,
        access_key=settings.access_key,
        secret_key=settings.secret_key,
    )


def _fitting(settings: ArtifactSettings, beside: str | None) -> Backend:
    """What is meant where nothing is said: a disk is not there for the other servers of a database."""
    if settings.bucket is not None:
        return "s3"
    return "disk" if settings.path or (beside and POSSIBLE) else "database"


def _beside(url: str | None) -> str | None:
    """The folder beside an SQLite file; None for any other store."""
    if url is None or not url.startswith("sqlite:"):
        return None
    from holdfast.stores.sql.address import MEMORY, path_of

    path = path_of(url)
    return None if path == MEMORY else path + BESIDE
