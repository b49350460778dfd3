"""The part of the store contract about artifacts: their names, their versions, and the contents that the database keeps.

A name is unique in its scope, which is a session or all sessions of a user. The versions of a name are numbered from 0. A new
version gets the number after the highest one that the name ever had, deleted versions included. Numbering starts again at 0
when a name has no versions left. Names are in Unicode form NFC. Two names for which `holdfast.domain.artifact.fold_name`
returns the same text cannot exist at the same time.

The caller first stores a content under a key of its own, and then adds the artifact version that uses it. If that version is
dropped, is deleted with its session, or was never added, no artifact uses the content any more. `blobs_in_use` helps to find
such contents. A content is also called a blob; its key is a `blob` argument.

Adding an artifact changes neither the session's version nor its times. `remove` and `replace` delete a session's artifacts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.domain.artifact import Artifact, ArtifactPage, NewArtifact, Scope


class ArtifactStore(Protocol):
    """Store artifacts: named contents with versions. The module docstring describes what all methods promise."""

    async def add_artifact(
        self,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        """Add a version of a name, after the content of the version was stored.

        A second call with the same `blob` adds nothing and returns the version that the first call added.

        Args:
            scope: the session; the user if the name begins with `user:`.
            new: the version to add.
            expect: the number that the name's newest version must have; `NOTHING`: there must be no version; None: no check.
                If version `expect + 1` is the newest and has the same content and type, the call is a retry and returns that
                version.
            room: maximum bytes of all versions in the scope, this one included; None for no maximum.
            identity: the identity that the session must have, else `SessionNotFound`.

        Raises:
            SessionNotFound: no such session.
            Conflict: an existing name differs from this one only in case or Unicode form.
            StaleArtifact: the newest version is not `expect`.
            TooLarge: too many names, versions or bytes; the message says which.
        """
        ...

    async def artifact(self, scope: Scope, name: str, version: int | None = None) -> Artifact:
        """Return one version of a name, the newest by default.

        Raises:
            ArtifactNotFound: the name or the version does not exist.
            SessionNotFound: the scope is a session that does not exist.
        """
        ...

    async def artifacts(self, scope: Scope, *, limit: int = 100, after: str | None = None) -> ArtifactPage:
        """Return the newest version of each name, ordered by name without regard to case.

        Args:
            scope: the session or user.
            limit: maximum number of names, 1 to `PAGE`.
            after: return the names after this one, which need not exist.

        Raises:
            SessionNotFound: the scope is a session that does not exist.
        """
        ...

    async def artifact_versions(
        self, scope: Scope, name: str, *, limit: int = 100, after: int | None = None
    ) -> ArtifactPage:
        """Return the versions of a name that are higher than `after`, in order.

        Raises:
            ArtifactNotFound: the name does not exist.
            SessionNotFound: the scope is a session that does not exist.
        """
        ...

    async def drop_artifacts(
        self, scope: Scope, name: str | None = None, version: int | None = None
    ) -> tuple[Artifact, ...]:
        """Delete a version, a name with all its versions, or everything in a scope; return the deleted versions.

        Their contents stay stored; the caller deletes them with `delete_blobs`. Raises `ArtifactNotFound` if the name or
        version does not exist, and `SessionNotFound`.
        """
        ...

    async def blobs_in_use(self, blobs: Sequence[str]) -> frozenset[str]:
        """Return those of the given content keys that artifacts of the tenant refer to. A call accepts at most `PAGE` keys."""
        ...

    async def put_blob(self, blob: str, part: int, data: bytes, *, timestamp: int) -> None:
        """Store one part of a content, replacing the part with the same index if there is one.

        Args:
            blob: the content's key.
            part: the part's index, from 0.
            data: the part's bytes, at most `BLOB_PART_BYTES`.
            timestamp: milliseconds since the epoch.
        """
        ...

    async def blob(self, blob: str, part: int) -> bytes | None:
        """Return one part of a content; None if that part is not stored."""
        ...

    async def delete_blobs(self, blobs: Sequence[str]) -> None:
        """Delete contents; keys without a content are ignored."""
        ...

    async def blobs(self, *, before: int, after: str = "", limit: int = 100) -> tuple[str, ...]:
        """Return content keys in order. The keys come after `after`, and the last part of each content was written before `before`.

        `before` is in milliseconds since the epoch.
        """
        ...
