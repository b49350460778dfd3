"""Define the settings of artifacts: where contents are stored, and their limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from holdfast.artifacts.blobs import IS_SUPPORTED, Blobs, DatabaseBlobs, DiskBlobs, TenantFolder
from holdfast.errors import InvalidRequest
from holdfast.limits import ARTIFACT_BYTES, ARTIFACTS_BYTES
from holdfast.sections import Mistake, Secret, Settings, Size, Text, Url, check_url
from holdfast.stores.base import Store

Backend = Literal["disk", "s3", "database"]
SUFFIX: Final = ".artifacts"
"""Suffix of the folder for contents next to an SQLite file."""


class ArtifactSettings(Settings, frozen=True, kw_only=True):
    """Settings of artifacts: where contents are stored, and their limits."""

    backend: Backend | None = None
    """Storage for the contents of artifacts. Unset: `s3` if `bucket` is set; `disk` if `path` is set or the sessions are in an SQLite file;
    otherwise `database`."""
    path: Text | None = None
    """Only for `disk`: folder for the contents; unset: the path of the SQLite file with the suffix `.artifacts`."""
    bucket: Text | None = None
    """Only for `s3`: name of an existing bucket, or `name/prefix` to store everything below a prefix in it."""
    endpoint: Url | None = None
    """Only for `s3`: URL of an S3-compatible service; unset: AWS."""
    region: Text | None = None
    """Only for `s3`: region of the bucket; unset: from the environment, or `us-east-1`."""
    access_key: Secret | None = None
    """Only for `s3`: id of the access key; unset: from the environment, as AWS's own tools do."""
    secret_key: Secret | None = None
    """Only for `s3`: secret of the access key, required if `access_key` is set."""
    max_bytes: Size = ARTIFACT_BYTES
    """Maximum size of one version of an artifact."""
    max_total: Annotated[int, Meta(ge=1 << 10, le=1 << 44, extra={"form": "size"})] = ARTIFACTS_BYTES
    """Maximum total size of a session's artifacts. The artifacts that a user's sessions share have the same limit, which is separate."""

    @property
    def kind(self) -> Backend | None:
        """The backend that the settings choose, directly or by `bucket` or `path`.

        None: the backend depends on the database of the sessions.
        """
        return self.backend or ("s3" if self.bucket else "disk" if self.path else None)

    def find_mistakes(self) -> list[Mistake]:
        mine = {"disk": ("path",), "s3": ("bucket", "endpoint", "region", "access_key", "secret_key")}
        given = [(kind, key) for kind, keys in mine.items() for key in keys if getattr(self, key)]
        but = f", not {self.kind!r}" if self.kind else ""
        found = [(key, f"only for backend {kind!r}{but}") for kind, key in given if kind != self.kind]
        if self.kind == "s3":
            found += [("bucket", "missing; backend 's3' needs one")] * (self.bucket is None)
            found += [("bucket", "a bucket's name must come before `/`")] * (self.bucket or "").startswith("/")
            alone = {"access_key", "secret_key"} & {key for _, key in given}
            found += [(key, "set access_key and secret_key together") for key in alone if len(alone) == 1]
        return found + check_url("endpoint", self.endpoint)


def open_blobs(settings: ArtifactSettings, url: str, store: Store, clock: Callable[[], int]) -> Blobs:
    """Create the backend that stores the contents of artifacts. No file or connection is created before the first content is stored.

    Args:
        settings: settings of the backend.
        url: URL of the sessions' database.
        store: store of the tenant.
        clock: returns the time in milliseconds since the epoch.

    Raises:
        InvalidRequest: a required setting is missing.
        MissingExtra: a library for the backend is not installed.
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
        endpoint=settings.endpoint,
        region=settings.region,
        access_key=settings.access_key,
        secret_key=settings.secret_key,
    )


def _get_folder_of_database(url: str) -> str | None:
    """Return the path of the default folder for contents, next to the SQLite file, or None if the sessions are not in an SQLite file."""
    if not url.startswith("sqlite:"):
        return None
    from holdfast.stores.sql.address import MEMORY, parse_path

    path = parse_path(url)
    return None if path == MEMORY else path + SUFFIX
