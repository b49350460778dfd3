"""The part of the store contract about artifacts: names, versions, and contents that the database keeps.

A name is unique in its scope: a session, or all sessions of a user. Versions of a name count from 0. The next version gets the
next number even if the newest was deleted, until the name has no versions left. Names are in Unicode form NFC; two names that
fold to the same (`holdfast.domain.artifact.fold_name`) cannot exist at the same time.

The caller stores the content first, under a key of its own. `blobs_in_use` finds contents that belong to no artifact, because it was
dropped, was deleted with its session, or was never named. Naming an artifact changes neither the session's version nor its times.
`remove` and `replace` delete a session's artifacts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.domain.artifact import Artifact, ArtifactPage, NewArtifact, Scope


class ArtifactStore(Protocol):
    """Name contents and their versions, and store contents. The module describes what all methods promise."""

    async def add_artifact(
        self,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        """Make a stored content the next version of a name.

        Calling it again with the same `blob` adds nothing and returns the same version.

        Args:
            scope: the session, or the user for a name that begins with `user:`.
            new: the version to add.
            expect: the newest version must have this number; `NOTHING`: the name must be free; None: any. If the version after it
                already exists with the same content and type, the call is a retry and returns that version.
            room: bytes that the scope may hold, this version included; None: any number.
            identity: the identity that the session must have, else `SessionNotFound`.

        Raises:
            SessionNotFound: no such session.
            Conflict: another name differs from this one only in case or Unicode form.
            StaleArtifact: the newest version is not `expect`.
            TooLarge: too many names, versions or bytes; the message says which.
        """
        ...

    async def artifact(self, scope: Scope, name: str, version: int | None = None) -> Artifact:
        """Return one version of a name, the newest by default. Raises `ArtifactNotFound`, `SessionNotFound`."""
        ...

    async def artifacts(self, scope: Scope, *, limit: int = 100, after: str | None = None) -> ArtifactPage:
        """Return the newest version of each name, ordered by name without case. Raises `SessionNotFound`.

        Args:
            scope: the session or user.
            limit: 1 to `PAGE`.
            after: continue after this name, whether or not it exists.
        """
        ...

    async def artifact_versions(
        self, scope: Scope, name: str, *, limit: int = 100, after: int | None = None
    ) -> ArtifactPage:
        """Return the versions of a name in order, after `after`. Raises `ArtifactNotFound`, `SessionNotFound`."""
        ...

    async def drop_artifacts(
        self, scope: Scope, name: str | None = None, version: int | None = None
    ) -> tuple[Artifact, ...]:
        """Delete a version, a name with all of its versions, or everything in a scope; return what was deleted.

        The caller deletes their contents. Raises `ArtifactNotFound` if there is no such name or version, `SessionNotFound`.
        """
        ...

    async def blobs_in_use(self, blobs: Sequence[str]) -> frozenset[str]:
        """Return those of some keys that artifacts of the tenant use. At most `PAGE` keys per call."""
        ...

    async def put_blob(self, blob: str, part: int, data: bytes, *, timestamp: int) -> None:
        """Store a part of a content, at most `BLOB_PART_BYTES`, replacing the same part if there is one.

        Args:
            blob: the content's key.
            part: its index, from 0.
            data: its bytes.
            timestamp: milliseconds since the epoch.
        """
        ...

    async def blob(self, blob: str, part: int) -> bytes | None:
        """Return a part of a content; None if there is none."""
        ...

    async def delete_blobs(self, blobs: Sequence[str]) -> None:
        """Delete contents; missing ones are ignored."""
        ...

    async def blobs(self, *, before: int, after: str = "", limit: int = 100) -> tuple[str, ...]:
        """Return keys of contents whose last write was before that time, in order, after `after`."""
        ...
