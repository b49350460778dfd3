"""Where contents are kept, and what is taken."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from holdfast.artifacts.blobs import POSSIBLE, Blobs, DatabaseBlobs, DiskBlobs, Home
from holdfast.errors import InvalidRequest
from holdfast.limits import ARTIFACT_BYTES, ARTIFACTS_BYTES
from holdfast.settings import Mistake, Secret, Settings, Size, Text, Url, check_url
from holdfast.stores.base import Store

Backend = Literal["disk", "s3", "database"]
BESIDE: Final = ".artifacts"
"""What the name of an SQLite file gets for the folder beside it."""


class ArtifactSettings(Settings, frozen=True, kw_only=True):
    """Where the contents of artifacts lie, and what is taken."""

    backend: Backend | None = None
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
    def kind(self) -> Backend | None:
        """Backend that is set, or follows from other keys; None: it depends on where sessions are."""
        return self.backend or ("s3" if self.bucket else "disk" if self.path else None)

    def find_mistakes(self) -> list[Mistake]:
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
        return found + check_url("endpoint", self.endpoint)


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
    # Other servers of the same database do not see this machine's disk.
    backend = settings.kind or ("disk" if beside and POSSIBLE else "database")
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


def _beside(url: str | None) -> str | None:
    """The folder beside an SQLite file; None for any other store."""
    if url is None or not url.startswith("sqlite:"):
        return None
    from holdfast.stores.sql.address import MEMORY, parse_path

    path = parse_path(url)
    return None if path == MEMORY else path + BESIDE
