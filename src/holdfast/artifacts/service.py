"""Artifacts as a session's user has them: saved, loaded, listed and deleted by name; and what keeps the place clean."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio.lowlevel
import msgspec

from holdfast.artifacts.blobs import CHUNK, Blobs, new_key
from holdfast.artifacts.content import Measured, check_allowed, type_of
from holdfast.artifacts.settings import ArtifactSettings
from holdfast.domain.artifact import (
    USER,
    Artifact,
    ArtifactPage,
    NewArtifact,
    Scope,
    UserRef,
    check_name,
    scope_of,
)
from holdfast.domain.session import SessionRef
from holdfast.errors import ArtifactNotFound, HoldfastError, InvalidRequest, SessionNotFound, StoreCorrupt, StoreError
from holdfast.limits import PAGE
from holdfast.numbers import check_whole
from holdfast.stores.base import Store
from holdfast.wire.sendable import check_text

Data = bytes | bytearray | memoryview | str | Path | AsyncIterable[bytes]
"""A content: bytes, a text (UTF-8), a file's path, or chunks of bytes."""
ORPHANED: Final = 3_600_000
"""Milliseconds after which a content without a name is nobody's: saving one takes no such time behind its last byte."""
_log = logging.getLogger("holdfast.artifacts")


class Loaded(msgspec.Struct, frozen=True):
    """An artifact, and its content or a part of it."""

    artifact: Artifact
    data: bytes


class Opened(msgspec.Struct, frozen=True):
    """An artifact, and its content, or a part of it, to be read in chunks once."""

    artifact: Artifact
    chunks: AsyncIterator[bytes]


class Forgotten(msgspec.Struct, frozen=True):
    """What was removed for good, for a receipt."""

    artifacts: int = 0
    """Versions."""
    bytes: int = 0


class ArtifactService:
    """The artifacts of a tenant. Names that begin with `user:` are those that all sessions of a user share.

    Args:
        store: keeps the names.
        blobs: keeps the contents.
        clock: milliseconds since the epoch.
        settings: how large they may be, and of which types.
        key: makes keys for contents.
    """

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        clock: Callable[[], int],
        settings: ArtifactSettings | None = None,
        *,
        key: Callable[[], str] = new_key,
    ) -> None:
        self._store = store
        self.blobs = blobs
        self._clock = clock
        self._key = key
        self.settings = settings or ArtifactSettings()

    def on(self, store: Store) -> ArtifactService:
        """The same with the names in another handle of the store: one that looks whether sessions have expired, say."""
        return ArtifactService(store, self.blobs, self._clock, self.settings, key=self._key)

    def of(self, store: Store) -> ArtifactService:
        """The artifacts of another tenant, in the same place: of the one that `store` is a handle of."""
        return ArtifactService(store, self.blobs.of(store), self._clock, self.settings, key=self._key)

    async def save(
        self,
        ref: SessionRef,
        name: str,
        data: Data,
        *,
        mime_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        author: str | None = None,
        expect: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        """See `SessionArtifacts.save`.

        `identity`: the session's that it is meant for; another one of its name is `SessionNotFound`. None: whichever there is.
        """
        name = check_name(name)
        if not isinstance(metadata, Mapping | None):
            raise InvalidRequest(f"metadata must be an object, not {type(metadata).__name__}", param="metadata")
        session = await self._store.get(ref)  # before its content is sent: there is nothing to name it in
        if identity not in {None, session.identity}:
            raise SessionNotFound(ref.id)
        key = self._key()
        async with aclosing(_chunks(data)) as chunks:
            content = Measured(chunks, self.settings.max_bytes)
            kind = type_of(name, await content.head(), mime_type)
            check_allowed(kind, self.settings.types)
            await self.blobs.put(key, content)
        new = NewArtifact(
            name=name,
            blob=key,
            mime_type=kind,
            size=content.size,
            sha256=content.sha256,
            created_at=self._clock(),
            author=author,
            metadata=dict(metadata or {}),
        )
        try:
            saved = await self._store.add_artifact(
                scope_of(ref, name), new, expect=expect, room=self.settings.max_total, identity=session.identity
            )
        except StoreError:
            raise  # it may have been named: then the content is needed, else the sweep finds it
        except HoldfastError:
            await self._remove([key])
            raise
        if saved.blob != key:
            await self._remove([key])
        return saved

    async def copy(self, artifact: Artifact, ref: SessionRef) -> Artifact:
        """Save a version again, as the next one of its name in another session, with all that is known of it.

        Raises:
            StoreCorrupt: its content is not what was saved.
            SessionNotFound: there is no session to save it in.
        """
        key = self._key()
        async with aclosing(self.read(artifact)) as chunks:
            await self.blobs.put(key, chunks)
        said = {name: getattr(artifact, name) for name in NewArtifact.__struct_fields__}
        try:
            return await self._store.add_artifact(scope_of(ref, artifact.name), NewArtifact(**{**said, "blob": key}))
        except StoreError:
            raise  # it may have been named: then the content is needed, else the sweep finds it
        except HoldfastError:
            await self._remove([key])
            raise

    async def get(self, ref: SessionRef, name: str, version: int | None = None) -> Artifact:
        """What is known of an artifact, without its content. Raises `ArtifactNotFound`, `SessionNotFound`."""
        name = check_name(name)
        return await self._store.artifact(scope_of(ref, name), name, version)

    @asynccontextmanager
    async def open(
        self, ref: SessionRef, name: str, version: int | None = None, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[Opened]:
        """See `SessionArtifacts.open`."""
        check_whole(start, "start")
        if stop is not None:
            check_whole(stop, "stop", start)
        artifact = await self.get(ref, name, version)
        async with aclosing(self.read(artifact, start, stop)) as chunks:
            yield Opened(artifact, chunks)

    async def read(self, artifact: Artifact, start: int = 0, stop: int | None = None) -> AsyncGenerator[bytes, None]:
        """An artifact's content from `start` to before `stop`, in chunks.

        Of a whole one the last chunk comes when its hash is right; `StoreCorrupt` otherwise, and when bytes are missing.
        """
        stop = artifact.size if stop is None else min(stop, artifact.size)
        if start >= stop:
            return
        whole = (start, stop) == (0, artifact.size)
        found, left, held = hashlib.sha256(), stop - start, b""
        async with aclosing(self.blobs.get(artifact.blob, start, stop)) as chunks:
            async for chunk in chunks:
                if held:
                    yield held
                held, left = chunk, left - len(chunk)
                if whole:
                    found.update(chunk)
        if left or (whole and found.digest() != artifact.sha256):
            what = f"lacks {left} bytes" if left > 0 else "is not what was saved"
            raise StoreCorrupt(f"the content of version {artifact.version} of artifact {artifact.name!r} {what}")
        yield held

    async def load(
        self, ref: SessionRef, name: str, version: int | None = None, *, start: int = 0, stop: int | None = None
    ) -> Loaded:
        """See `SessionArtifacts.load`."""
        async with self.open(ref, name, version, start=start, stop=stop) as opened:
            return Loaded(opened.artifact, b"".join([chunk async for chunk in opened.chunks]))

    async def page(self, ref: SessionRef, *, limit: int = 100, after: str | None = None) -> ArtifactPage:
        """The newest version of each name: the session's own first, then those that the user's sessions share.

        Args:
            ref: the session.
            limit: 1 to `PAGE`.
            after: continue behind this name.
        """
        after = None if after is None else check_name(after)
        found: tuple[Artifact, ...] = ()
        if after is None or not after.startswith(USER):
            page = await self._store.artifacts(ref, limit=limit, after=after)
            found, after = page.artifacts, None
            if page.has_more:
                return page
        shared = await self._store.artifacts(UserRef(ref.user_id), limit=limit, after=after)
        both = (*found, *shared.artifacts)
        return ArtifactPage(both[:limit], shared.has_more or len(both) > limit)

    async def versions(
        self, ref: SessionRef, name: str, *, limit: int = PAGE, after: int | None = None
    ) -> ArtifactPage:
        """The versions of an artifact, oldest first, behind `after`. Raises `ArtifactNotFound`, `SessionNotFound`."""
        name = check_name(name)
        return await self._store.artifact_versions(scope_of(ref, name), name, limit=limit, after=after)

    async def delete(self, ref: SessionRef, name: str, version: int | None = None) -> tuple[Artifact, ...]:
        """See `SessionArtifacts.delete`."""
        name = check_name(name)
        gone = await self._store.drop_artifacts(scope_of(ref, name), name, version)
        await self._remove([one.blob for one in gone])
        return gone

    # -- keeping clean -----------------------------------------------------

    async def held(self, scope: Scope) -> tuple[Artifact, ...]:
        """All versions of all artifacts of a session, or of those that a user's sessions share; none of a session that is gone."""
        found: list[Artifact] = []
        after: str | None = None
        try:
            while True:
                page = await self._store.artifacts(scope, limit=PAGE, after=after)
                for newest in page.artifacts:
                    found += await self._all_versions(scope, newest.name)
                if not page.has_more:
                    return tuple(found)
                after = page.artifacts[-1].name
        except SessionNotFound:
            return tuple(found)

    async def _all_versions(self, scope: Scope, name: str) -> list[Artifact]:
        found: list[Artifact] = []
        more = True
        while more:
            try:
                page = await self._store.artifact_versions(
                    scope, name, limit=PAGE, after=found[-1].version if found else None
                )
            except ArtifactNotFound:  # deleted since it was listed
                break
            found += page.artifacts
            more = page.has_more
        return found

    async def discard(self, gone: Iterable[Artifact]) -> None:
        """Remove contents whose names went with their session. What cannot be reached now is left to the sweep."""
        await self._remove([one.blob for one in gone])

    async def forget(self, scope: Scope) -> Forgotten:
        """Remove all artifacts of a session, or those that a user's sessions share, names and contents; how much it was.

        Again, or for a session that is not there, it removes nothing. A content that cannot be reached now is left to the sweep.
        """
        try:
            gone = await self._store.drop_artifacts(scope)
        except SessionNotFound:
            return Forgotten()
        await self._remove([one.blob for one in gone])
        return Forgotten(len(gone), sum(one.size for one in gone))

    async def sweep(self, now: int, *, older_than: int = ORPHANED) -> int:
        """Remove contents that no artifact has; how many there were.

        What a process left that died while it saved, what a deleted session had, and what could not be removed then.

        Args:
            now: milliseconds since the epoch.
            older_than: milliseconds since it was written last: what is being saved just now has no name yet.
        """
        removed = 0
        keys: list[str] = []
        async with aclosing(self.blobs.old(now - older_than)) as found:
            async for key in found:
                keys.append(key)
                if len(keys) == PAGE:
                    removed += await self._swept(keys)
                    keys = []
        return removed + (await self._swept(keys) if keys else 0)

    async def _swept(self, keys: list[str]) -> int:
        used = await self._store.blobs_in_use(keys)
        orphans = [key for key in keys if key not in used]
        await self.blobs.delete(orphans)
        return len(orphans)

    async def _remove(self, keys: list[str]) -> None:
        """Remove contents that have no name any more. What fails is left to the sweep: nobody can see them."""
        if not keys:
            return
        try:
            await self.blobs.delete(keys)
        except StoreError as exc:
            _log.warning("%d contents of artifacts are left to the sweep: %s", len(keys), exc)


class SessionArtifacts:
    """The artifacts of one session: `session.artifacts`.

    Args:
        service: those of its tenant.
        ref: which session.
        identity: its own; given, nothing is saved to another session that has taken its name.
        saved: called with what was saved by it.
    """

    def __init__(
        self,
        service: ArtifactService,
        ref: SessionRef,
        identity: str | None = None,
        saved: Callable[[Artifact], None] | None = None,
    ) -> None:
        self._service = service
        self._ref = ref
        self._identity = identity
        self._saved = saved

    async def save(
        self,
        name: str,
        data: Data,
        *,
        mime_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        author: str | None = None,
        expect: int | None = None,
    ) -> Artifact:
        """Save a content as the next version of a name.

        Args:
            name: letters, digits, spaces and `._-()@+,`; with `user:` before it, all of the user's sessions have it.
            data: bytes, a text, a path of a file to read, or an async iterable of bytes, of which little is in memory at
                a time.
            mime_type: None: what the name says, unless the first bytes say otherwise.
            metadata: anything that JSON can say, by name; at most `ARTIFACT_METADATA_BYTES`.
            author: an identifier.
            expect: the newest version there must be, else `StaleArtifact`; -1: none. Saving the same again with the same one
                answers what the first time did.

        Raises:
            InvalidRequest: the name or a field cannot be one.
            TooLarge: the content, or all of them together, or how many there are.
            UnsupportedType: the type is not allowed, or the content is plainly of another.
            Conflict: another name differs from this one in case or Unicode form alone.
            SessionNotFound: no such session.
        """
        artifact = await self._service.save(
            self._ref,
            name,
            data,
            mime_type=mime_type,
            metadata=metadata,
            author=author,
            expect=expect,
            identity=self._identity,
        )
        if self._saved is not None:
            self._saved(artifact)
        return artifact

    async def get(self, name: str, version: int | None = None) -> Artifact:
        """What is known of an artifact: version, type, size, hash, author, metadata. Raises `ArtifactNotFound`."""
        return await self._service.get(self._ref, name, version)

    async def load(self, name: str, version: int | None = None, *, start: int = 0, stop: int | None = None) -> Loaded:
        """An artifact with its content; the newest version unless told.

        Args:
            name: which.
            version: None: the newest.
            start: first byte.
            stop: the byte behind the last; None: all.

        Raises:
            ArtifactNotFound: no such name, or version.
            StoreCorrupt: the content is not what was saved.
        """
        return await self._service.load(self._ref, name, version, start=start, stop=stop)

    @asynccontextmanager
    async def open(
        self, name: str, version: int | None = None, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[Opened]:
        """An artifact to be read in chunks, for contents that need not be in memory whole; see `load`."""
        async with self._service.open(self._ref, name, version, start=start, stop=stop) as opened:
            yield opened

    async def list(self) -> tuple[Artifact, ...]:
        """The newest version of each artifact: the session's own, then those that the user's sessions share."""
        found: list[Artifact] = []
        more = True
        while more:
            page = await self._service.page(self._ref, limit=PAGE, after=found[-1].name if found else None)
            found += page.artifacts
            more = page.has_more
        return tuple(found)

    async def versions(self, name: str) -> tuple[Artifact, ...]:
        """All versions of an artifact, oldest first. Raises `ArtifactNotFound`."""
        return (await self._service.versions(self._ref, name)).artifacts

    async def delete(self, name: str, version: int | None = None) -> tuple[Artifact, ...]:
        """Delete an artifact, or one version of it; what was deleted. Raises `ArtifactNotFound`."""
        return await self._service.delete(self._ref, name, version)


async def _chunks(data: Any) -> AsyncGenerator[bytes, None]:
    """A content in chunks of a size that nobody has to wait long for."""
    if isinstance(data, Path):
        async with aclosing(_file(data)) as chunks:
            async for chunk in chunks:
                yield chunk
        return
    if isinstance(data, str):
        check_text(data, "data")
        data = data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data).cast("B")
        for at in range(0, len(view), CHUNK):
            yield bytes(view[at : at + CHUNK])
            await anyio.lowlevel.checkpoint()
        return
    if not isinstance(data, AsyncIterable):
        kinds = "bytes, a str, a pathlib.Path or an async iterable of bytes"
        raise InvalidRequest(f"data must be {kinds}, not {type(data).__name__}", param="data")
    async for chunk in data:
        yield chunk


async def _file(path: Path) -> AsyncGenerator[bytes, None]:
    try:
        async with await anyio.open_file(path, "rb") as file:
            while chunk := await file.read(CHUNK):
                yield chunk
    except OSError as exc:
        raise InvalidRequest(f"the file of an artifact cannot be read: {exc.strerror or exc}", param="data") from exc
