"""The part of the store contract that is about artifacts: their names and versions, and contents kept in the database.

A name means one artifact in its scope: a session, or all sessions of a user. Its versions count from 0; the next one gets the
next number, also when the newest was deleted, until none is left. Names come in Unicode's form NFC; two that fold to the same
(`holdfast.domain.artifact.fold_name`) are not there at a time.

The caller stores the content first, under a key of its own. Contents of artifacts that went with their session, were dropped, or
were never named are found by `blobs_in_use`. Naming an artifact changes neither the session's version nor its times. A session's
artifacts go with it, by `remove` and `replace`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.domain.artifact import Artifact, ArtifactPage, NewArtifact, Scope


class ArtifactStore(Protocol):
    """Name contents and their versions, and keep contents. The module says what all methods promise."""

    async def add_artifact(
        self,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        """Give a content that is stored already the next version of a name.

        The same call again, with the same `blob`, adds nothing and answers the same.

        Args:
            scope: the session, or the user for a name that begins with `user:`.
            new: what is to be named.
            expect: the newest version there must be; `NOTHING`: the name must be free; None: any. When the version behind it
                is there already with the same content and type, that one is answered: it is a retry.
            room: bytes that the scope may hold with it; None: any number.
            identity: the session's that it is meant for; another one of its name is `SessionNotFound`.

        Raises:
            SessionNotFound: no such session.
            Conflict: another name differs from this one in case or Unicode form alone.
            StaleArtifact: the newest version is not `expect`.
            TooLarge: too many names, versions or bytes; says which.
        """
        ...

    async def artifact(self, scope: Scope, name: str, version: int | None = None) -> Artifact:
        """One version, the newest unless told. Raises `ArtifactNotFound`, `SessionNotFound`."""
        ...

    async def artifacts(self, scope: Scope, *, limit: int = 100, after: str | None = None) -> ArtifactPage:
        """The newest version of each name, in order of names without case. Raises `SessionNotFound`.

        Args:
            scope: whose.
            limit: 1 to `PAGE`.
            after: continue behind this name, whether or not it is there.
        """
        ...

    async def artifact_versions(
        self, scope: Scope, name: str, *, limit: int = 100, after: int | None = None
    ) -> ArtifactPage:
        """The versions of a name in order, behind `after`. Raises `ArtifactNotFound`, `SessionNotFound`."""
        ...

    async def drop_artifacts(
        self, scope: Scope, name: str | None = None, version: int | None = None
    ) -> tuple[Artifact, ...]:
        """Take away a version, a name with all of its versions, or everything in a scope; what was taken away.

        Their contents are the caller's to delete. Raises `ArtifactNotFound` when a name or version is not there,
        `SessionNotFound`.
        """
        ...

    async def blobs_in_use(self, blobs: Sequence[str]) -> frozenset[str]:
        """Those of some keys that an artifact of the tenant has. At most `PAGE` are asked for at once."""
        ...

    async def put_blob(self, blob: str, part: int, data: bytes, *, timestamp: int) -> None:
        """Keep a part of a content, at most `BLOB_PART_BYTES`, in place of the same part if there is one.

        Args:
            blob: the content's key.
            part: which, from 0.
            data: its bytes.
            timestamp: milliseconds since the epoch.
        """
        ...

    async def blob(self, blob: str, part: int) -> bytes | None:
        """A part of a content; None when there is none."""
        ...

    async def delete_blobs(self, blobs: Sequence[str]) -> None:
        """Remove contents; those that are not there are fine."""
        ...

    async def blobs(self, *, before: int, after: str = "", limit: int = 100) -> tuple[str, ...]:
        """Keys of contents that were written last before that time, in order, behind `after`."""
        ...
