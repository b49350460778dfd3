"""The part of the store contract that is about artifacts, on top of any database: checks, and leaves the rest to the steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from holdfast.domain.artifact import Artifact, ArtifactPage, NewArtifact, Scope
from holdfast.limits import BLOB_PART_BYTES
from holdfast.stores import checks
from holdfast.stores.logic import artifacts
from holdfast.stores.logic.steps import Steps

T = TypeVar("T")


class ArtifactMethods(ABC):
    """The methods of `ArtifactStore` of a handle that runs steps."""

    tenant: str

    @abstractmethod
    async def _read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> T:
        """See `Database.read`."""

    @abstractmethod
    async def _write(self, steps: Callable[[], Steps[T]], scope: Scope | None = None, *, scrub: bool = False) -> T:
        """See `Database.write`; writes of one scope come one after the other."""

    async def add_artifact(
        self,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        """See `ArtifactStore.add_artifact`."""
        checks.check_artifact(scope, new)
        steps = partial(artifacts.add, self.tenant, scope, new, expect, room, identity=identity)
        return await self._write(steps, scope)

    async def artifact(self, scope: Scope, name: str, version: int | None = None) -> Artifact:
        """See `ArtifactStore.artifact`."""
        checks.check_scope(scope, name)
        return await self._read(partial(artifacts.artifact, self.tenant, scope, name, version))

    async def artifacts(self, scope: Scope, *, limit: int = 100, after: str | None = None) -> ArtifactPage:
        """See `ArtifactStore.artifacts`."""
        checks.check_scope(scope, after)
        checks.check_limit(limit)
        return await self._read(partial(artifacts.artifacts, self.tenant, scope, limit, after))

    async def artifact_versions(
        self, scope: Scope, name: str, *, limit: int = 100, after: int | None = None
    ) -> ArtifactPage:
        """See `ArtifactStore.artifact_versions`."""
        checks.check_scope(scope, name)
        checks.check_limit(limit)
        return await self._read(partial(artifacts.versions, self.tenant, scope, name, limit, after))

    async def drop_artifacts(
        self, scope: Scope, name: str | None = None, version: int | None = None
    ) -> tuple[Artifact, ...]:
        """See `ArtifactStore.drop_artifacts`."""
        checks.check_scope(scope, name)
        return await self._write(partial(artifacts.drop, self.tenant, scope, name, version), scope, scrub=True)

    async def blobs_in_use(self, blobs: Sequence[str]) -> frozenset[str]:
        """See `ArtifactStore.blobs_in_use`."""
        checks.check_blobs(blobs)
        return await self._read(partial(artifacts.blobs_in_use, self.tenant, blobs), single=True)

    async def put_blob(self, blob: str, part: int, data: bytes, *, timestamp: int) -> None:
        """See `ArtifactStore.put_blob`."""
        checks.check_blobs((blob,))
        checks.check_size(len(data), "data", BLOB_PART_BYTES)
        await self._write(partial(artifacts.put_blob, self.tenant, blob, part, data, timestamp))

    async def blob(self, blob: str, part: int) -> bytes | None:
        """See `ArtifactStore.blob`."""
        checks.check_blobs((blob,))
        return await self._read(partial(artifacts.blob_part, self.tenant, blob, part), single=True)

    async def delete_blobs(self, blobs: Sequence[str]) -> None:
        """See `ArtifactStore.delete_blobs`."""
        checks.check_blobs(blobs)
        await self._write(partial(artifacts.delete_blobs, self.tenant, blobs), scrub=True)

    async def blobs(self, *, before: int, after: str = "", limit: int = 100) -> tuple[str, ...]:
        """See `ArtifactStore.blobs`."""
        checks.check_limit(limit)
        return await self._read(partial(artifacts.blobs, self.tenant, before, after, limit), single=True)
