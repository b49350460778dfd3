"""Settings of artifacts: where contents are stored, and which are accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from holdfast.artifacts.blobs import IS_SUPPORTED, Blobs, DatabaseBlobs, DiskBlobs, TenantFolder
from holdfast.errors import InvalidRequest
from holdfast.limits import ARTIFACT_BYTES, ARTIFACTS_BYTES
from holdfast.settings import Mistake, Secret, Settings, Size, Text, Url, check_url
from holdfast.stores.base import Store

Backend = Literal["disk", "s3", "database"]
SUFFIX: Final = ".artifacts"
"""Suffix of the folder next to an SQLite file."""


class ArtifactSettings(Settings, frozen=True, kw_only=True):
    """Location of contents, and which are accepted."""

    backend: Backend | None = None
    """Unset: `s3` with a `bucket`; `disk` with a `path`, or next to an SQLite file; otherwise `database`."""
    path: Text | None = None
    """`disk`: the folder; unset: the name of the SQLite file with the suffix `.artifacts`."""
    bucket: Text | None = None
    """`s3`: an existing bucket."""
    prefix: Text | None = None
    """Prefix of every key in the bucket."""
    endpoint: Url | None = None
    """URL of an S3-compatible service; unset: AWS."""
    region: Text | None = None
    """Region; unset: from the environment, or `us-east-1`."""
    access_key: Secret | None = None
    """Used with `secret_key`; unset: found in the environment as by AWS's own tools."""
    secret_key: Secret | None = None
    """Used with `access_key`."""
    max_bytes: Size = ARTIFACT_BYTES
    """Maximum size of an artifact."""
    max_total: Annotated[int, Meta(ge=1 << 10, le=1 << 44, extra={"form": "size"})] = ARTIFACTS_BYTES
    """Maximum size of all artifacts of a session, and the same again for those shared by a user's sessions."""
    types: tuple[Text, ...] = ()
    """Accepted media types, like `image/*`; empty: all."""

    @property
    def kind(self) -> Backend | None:
        """Backend that is set or follows from other keys; None: it depends on the location of the sessions."""
        return self.backend or ("s3" if self.bucket else "disk" if self.path else None)

    def find_mistakes(self) -> list[Mistake]:
        mine = {"disk": ("path",), "s3": ("bucket", "prefix", "endpoint", "region", "access_key", "secret_key")}
        given = [(kind, key) for kind, keys in mine.items() for key in keys if getattr(self, key)]
        but = f", not {self.kind!r}" if self.kind else ""
        found = [(key, f"only for backend {kind!r}{but}") for kind, key in given if kind != self.kind]
        if self.kind == "s3":
            found += [("bucket", "missing; backend 's3' needs one")] * (self.bucket is None)
            alone = {"access_key", "secret_key"} & {key for _, key in given}
            found += [(key, "set access_key and secret_key together") for key in alone if len(alone) == 1]
        wrong = [one for one in self.types if not re.fullmatch(r"[^/\s;]+/[^/\s;]+", one)]
        found += [("types", f"expected media types like image/png or image/*, got {one!r}") for one in wrong]
        return found + check_url("endpoint", self.endpoint)


def open_blobs(settings: ArtifactSettings, url: str | None, store: Store, clock: Callable[[], int]) -> Blobs:
    """Open the place for contents. Nothing is created or connected before the first content is stored.

    Args:
        settings: which backend.
        url: URL of the sessions' database; None: unknown.
        store: store of the tenant.
        clock: milliseconds since the epoch.

    Raises:
        InvalidRequest: a required setting is missing.
        MissingExtra: a library is not installed.
    """
    default_path = _get_folder_of_database(url)
    # Other servers that use the same database cannot see this machine's disk.
    backend = settings.kind or ("disk" if default_path and IS_SUPPORTED else "database")
    if backend == "database":
        return DatabaseBlobs(store, clock)
    if backend == "disk":
        path = settings.path or default_path
        if path is None:
            raise InvalidRequest("artifacts on disk need a path: storage.artifacts.path", param="path")
        return DiskBlobs(Path(path), TenantFolder(store))
    if settings.bucket is None:
        raise InvalidRequest("artifacts in S3 need a bucket: storage.artifacts.bucket", param="bucket")
    from holdfast.artifacts.s3 import S3Blobs

    return S3Blobs(
        TenantFolder(store),
        settings.bucket,
        prefix=settings.prefix or "",
        endpoint=settings.endpoint,
        region=settings.region,
        access_key=settings.access_key,
        secret_key=settings.secret_key,
    )


def _get_folder_of_database(url: str | None) -> str | None:
    """Return the default folder next to an SQLite file, or None for any other store."""
    if url is None or not url.startswith("sqlite:"):
        return None
    from holdfast.stores.sql.address import MEMORY, parse_path

    path = parse_path(url)
    return None if path == MEMORY else path + SUFFIX
