"""Save, load, list and delete artifacts by name, and delete contents that belong to no artifact."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio.lowlevel
import msgspec

from holdfast import faults
from holdfast.artifacts.blobs import CHUNK, Blobs, make_key
from holdfast.artifacts.content import MeasuredStream, detect_type
from holdfast.artifacts.settings import ArtifactSettings
from holdfast.domain.artifact import USER, Artifact, ArtifactPage, NewArtifact, Scope, UserRef, check_name, get_scope
from holdfast.domain.session import SessionRef
from holdfast.errors import HoldfastError, InvalidRequest, SessionNotFound, StoreCorrupt, StoreError
from holdfast.limits import PAGE
from holdfast.numbers import check_whole
from holdfast.stores.base import Store
from holdfast.wire.sendable import check_text

Data = bytes | bytearray | memoryview | str | Path | AsyncIterable[bytes]
"""A content to save: bytes, a text (stored as UTF-8), the path of a file, or an async iterable of chunks."""
ORPHAN_AGE: Final = 3_600_000
"""Milliseconds since its last write after which a content without an artifact is considered unused. A new content gets its artifact much
sooner."""
_log = logging.getLogger("holdfast.artifacts")


class LoadedArtifact(msgspec.Struct, frozen=True):
    """An artifact, and its content or a part of the content."""

    artifact: Artifact
    data: bytes


class OpenedArtifact(msgspec.Struct, frozen=True):
    """An artifact, and its content (or a part) in chunks, which can be read only once."""

    artifact: Artifact
    chunks: AsyncIterator[bytes]


class DeletedArtifacts(msgspec.Struct, frozen=True):
    """The number of artifact versions and bytes that were deleted permanently, for a receipt."""

    artifacts: int = 0
    """Number of deleted versions of artifacts."""
    bytes: int = 0


class ArtifactService:
    """The artifacts of a tenant. Artifacts whose names have the prefix `user:` are shared by all sessions of a user.

    Args:
        store: stores names, versions and other metadata.
        blobs: stores the contents.
        clock: returns the time in milliseconds since the epoch.
        settings: allowed sizes and media types; None: the defaults.
        key: creates the keys of contents.
    """

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        clock: Callable[[], int],
        settings: ArtifactSettings | None = None,
        *,
        key: Callable[[], str] = make_key,
    ) -> None:
        self._store = store
        self.blobs = blobs
        self._clock = clock
        self._key = key
        self.settings = settings or ArtifactSettings()

    def with_store(self, store: Store) -> ArtifactService:
        """Return a service that uses another handle of the same store, for example one that checks whether sessions have expired."""
        return ArtifactService(store, self.blobs, self._clock, self.settings, key=self._key)

    def for_store(self, store: Store) -> ArtifactService:
        """Return the service of another tenant, with the same settings. `store` is the store of that tenant."""
        return ArtifactService(store, self.blobs.for_store(store), self._clock, self.settings, key=self._key)

    async def save(
        self,
        ref: Scope,
        name: str,
        data: Data,
        *,
        mime_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        author: str | None = None,
        expect: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        """Save an artifact. The other arguments and errors are those of `SessionArtifacts.save`.

        Args:
            ref: the session; or the user, if the name begins with `user:`.
            identity: `Session.identity` of the session. If another session has the same id now, `SessionNotFound` is raised. None: save the
                artifact in any case.
        """
        name = check_name(name)
        if expect is not None:
            check_whole(expect, "expect", -1)
        if not isinstance(metadata, Mapping | None):
            raise InvalidRequest(f"metadata must be an object, not {type(metadata).__name__}", param="metadata")
        scope = get_scope(ref, name)
        if isinstance(ref, SessionRef):
            # Checked before the content is sent, because it cannot be named without a session.
            known = (await self._store.get(ref)).identity
            if identity not in {None, known}:
                raise SessionNotFound(ref.id)
            identity = known
        key = self._key()
        async with aclosing(_split_data(data)) as chunks:
            content = MeasuredStream(chunks, self.settings.max_bytes)
            kind = detect_type(name, await content.read_head(), mime_type)
            await self.blobs.put(key, content)
        await faults.hit("after-content-stored")
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
        saved = await self._name_content(scope, new, expect=expect, room=self.settings.max_total, identity=identity)
        if saved.blob != key:
            await self._remove([key])
        return saved

    async def copy(self, artifact: Artifact, ref: SessionRef) -> Artifact:
        """Copy a version of an artifact, with its metadata, to the session `ref`.

        The copy becomes the next version of the artifact with the same name in that session.

        Raises:
            StoreCorrupt: the content is missing, or differs from the saved content.
            SessionNotFound: the session `ref` does not exist.
        """
        key = self._key()
        async with aclosing(self.read(artifact)) as chunks:
            await self.blobs.put(key, chunks)
        fields = {name: getattr(artifact, name) for name in NewArtifact.__struct_fields__}
        return await self._name_content(get_scope(ref, artifact.name), NewArtifact(**{**fields, "blob": key}))

    async def _name_content(self, scope: Scope, new: NewArtifact, **options: Any) -> Artifact:
        try:
            return await self._store.add_artifact(scope, new, **options)
        except StoreError:
            raise  # the content may have been named, so it must be kept; otherwise the sweep finds it
        except HoldfastError:
            await self._remove([new.blob])
            raise

    async def get(self, ref: Scope, name: str, version: int | None = None) -> Artifact:
        """Return an artifact without its content. Raise `ArtifactNotFound` or `SessionNotFound`."""
        name = check_name(name)
        if version is not None:
            check_whole(version, "version")
        return await self._store.artifact(get_scope(ref, name), name, version)

    @asynccontextmanager
    async def open(
        self, ref: Scope, name: str, version: int | None = None, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[OpenedArtifact]:
        """Open an artifact of the session `ref` for reading in chunks. The other arguments are those of `SessionArtifacts.load`."""
        check_whole(start, "start")
        if stop is not None:
            check_whole(stop, "stop", start)
        artifact = await self.get(ref, name, version)
        async with aclosing(self.read(artifact, start, stop)) as chunks:
            yield OpenedArtifact(artifact, chunks)

    async def read(self, artifact: Artifact, start: int = 0, stop: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the content of an artifact from `start` to before `stop`, in chunks.

        If the complete content is read, its hash is verified before the last chunk is yielded.

        Raises:
            StoreCorrupt: bytes are missing, or the hash differs.
        """
        stop = artifact.size if stop is None else min(stop, artifact.size)
        if start >= stop:
            return
        whole = (start, stop) == (0, artifact.size)
        found, left, pending = hashlib.sha256(), stop - start, b""
        async with aclosing(self.blobs.get(artifact.blob, start, stop)) as chunks:
            async for chunk in chunks:
                if pending:
                    yield pending
                pending, left = chunk, left - len(chunk)
                if whole:
                    found.update(chunk)
        if left or (whole and found.digest() != artifact.sha256):
            what = f"lacks {left} bytes" if left > 0 else "is not what was saved"
            raise StoreCorrupt(f"the content of version {artifact.version} of artifact {artifact.name!r} {what}")
        yield pending

    async def load(
        self, ref: Scope, name: str, version: int | None = None, *, start: int = 0, stop: int | None = None
    ) -> LoadedArtifact:
        """Return an artifact of the session `ref` with its content. The other arguments are those of `SessionArtifacts.load`."""
        async with self.open(ref, name, version, start=start, stop=stop) as opened:
            return LoadedArtifact(opened.artifact, b"".join([chunk async for chunk in opened.chunks]))

    async def page(self, ref: Scope, *, limit: int = 100, after: str | None = None) -> ArtifactPage:
        """Return the newest version of each artifact that a session can use.

        The session's own artifacts come first, then those that the user's sessions share.

        Args:
            ref: the session, or the user for shared artifacts only.
            limit: maximum number of artifacts, 1 to `PAGE`.
            after: name of the last artifact on the page before; None: return the first page.
        """
        after = None if after is None else check_name(after)
        found: tuple[Artifact, ...] = ()
        if isinstance(ref, SessionRef) and (after is None or not after.startswith(USER)):
            page = await self._store.artifacts(ref, limit=limit, after=after)
            found, after = page.artifacts, None
            if page.has_more:
                return page
        shared = await self._store.artifacts(UserRef(ref.user_id), limit=limit, after=after)
        both = (*found, *shared.artifacts)
        return ArtifactPage(both[:limit], shared.has_more or len(both) > limit)

    async def versions(self, ref: Scope, name: str, *, limit: int = PAGE, after: int | None = None) -> ArtifactPage:
        """Return the versions of an artifact, oldest first. Raise `ArtifactNotFound` or `SessionNotFound`.

        Args:
            ref: the session.
            name: name of the artifact.
            limit: maximum number of versions, 1 to `PAGE`.
            after: return only later versions than this one; None: return the first page.
        """
        name = check_name(name)
        return await self._store.artifact_versions(get_scope(ref, name), name, limit=limit, after=after)

    async def delete(self, ref: Scope, name: str, version: int | None = None) -> tuple[Artifact, ...]:
        """Delete an artifact of the session `ref`, or only one version, and return the deleted versions.

        Raises:
            ArtifactNotFound: there is no such artifact or version.
        """
        name = check_name(name)
        deleted = await self._store.drop_artifacts(get_scope(ref, name), name, version)
        await self._remove([one.blob for one in deleted])
        return deleted

    # -- cleaning up -------------------------------------------------------------

    async def list_all(self, scope: Scope) -> tuple[Artifact, ...]:
        """Return all versions of all artifacts of a session, or of all artifacts that a user's sessions share, depending on `scope`.

        If the session does not exist, return none.
        """
        try:
            return await self._store.all_artifacts(scope)
        except SessionNotFound:
            return ()

    async def discard(self, deleted: Iterable[Artifact]) -> None:
        """Delete the contents of artifacts that were deleted with their session.

        Contents that cannot be deleted now are left to the sweep.
        """
        await self._remove([one.blob for one in deleted])

    async def forget(self, scope: Scope) -> DeletedArtifacts:
        """Delete all artifacts of a session, or all that a user's sessions share, depending on `scope`. Return the amount of deleted data.

        Calling this again is safe. If the session does not exist, nothing is deleted. Contents that cannot be deleted now are left to the
        sweep.
        """
        try:
            deleted = await self._store.drop_artifacts(scope)
        except SessionNotFound:
            return DeletedArtifacts()
        await self._remove([one.blob for one in deleted])
        return DeletedArtifacts(len(deleted), sum(one.size for one in deleted))

    async def sweep(self, now: int, *, older_than: int = ORPHAN_AGE) -> int:
        """Delete contents that belong to no artifact, and return their number.

        Such contents come from processes that died while saving, from deleted sessions, and from deletions that failed.

        Args:
            now: current time, in milliseconds since the epoch.
            older_than: minimum age of deleted contents: milliseconds since the last write. A newer content may not have its artifact yet.
        """
        removed = 0
        keys: list[str] = []
        async with aclosing(self.blobs.list_old(now - older_than)) as found:
            async for key in found:
                keys.append(key)
                if len(keys) == PAGE:
                    removed += await self._delete_orphans(keys)
                    keys = []
        return removed + (await self._delete_orphans(keys) if keys else 0)

    async def _delete_orphans(self, keys: list[str]) -> int:
        used = await self._store.blobs_in_use(keys)
        orphans = [key for key in keys if key not in used]
        await self.blobs.delete(orphans)
        return len(orphans)

    async def _remove(self, keys: list[str]) -> None:
        """Delete contents that belong to no artifact. If that fails, leave them to the sweep, because no user can see these contents."""
        if not keys:
            return
        try:
            await self.blobs.delete(keys)
        except StoreError as exc:
            _log.warning("%d contents of artifacts are left to the sweep: %s", len(keys), exc)


class SessionArtifacts:
    """The artifacts of one session, available as `session.artifacts`; or those of a user, as `hf.user_artifacts(user_id)`.

    Args:
        service: artifacts of the tenant.
        ref: the session, or the user.
        identity: `Session.identity` of the session. If another session has the same id now, saving raises `SessionNotFound`. None:
            artifacts are saved in any case.
        saved: function that is called with each saved artifact; None: no function.
    """

    def __init__(
        self,
        service: ArtifactService,
        ref: Scope,
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
        """Save a new version of an artifact, and return its description.

        Args:
            name: name of the artifact: letters, digits, spaces and `._-()@+,`. With the prefix `user:`, all sessions of the user share it.
            data: bytes, a text, the path of a file, or an async iterable of bytes, which is streamed.
            mime_type: media type of the content; None: derived from the name, or from the first bytes if they contradict the name.
            metadata: JSON values by name; at most `ARTIFACT_METADATA_BYTES`.
            author: identifier of the author.
            expect: required number of the newest version; -1: no version may exist; None: no requirement. If the requirement is not met,
                `StaleArtifact` is raised. If a save with the same `expect` is repeated, the result of the first save is returned.

        Raises:
            InvalidRequest: the name or a field is not valid.
            TooLarge: the content, the total size, or the number of artifacts exceeds its limit.
            UnsupportedType: the content is of another type.
            Conflict: the name differs from that of another artifact only in case or Unicode form.
            StaleArtifact: the newest version is not `expect`.
            SessionNotFound: the session does not exist.
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
        """Return an artifact without its content: version, media type, size, hash, author and metadata.

        Raises:
            ArtifactNotFound: there is no such artifact or version.
        """
        return await self._service.get(self._ref, name, version)

    async def load(
        self, name: str, version: int | None = None, *, start: int = 0, stop: int | None = None
    ) -> LoadedArtifact:
        """Return an artifact with its content.

        Args:
            name: name of the artifact.
            version: version of the artifact; None: the newest.
            start: offset of the first byte to return.
            stop: offset of the byte after the last byte to return; None: the end of the content.

        Raises:
            ArtifactNotFound: the artifact or the version does not exist.
            StoreCorrupt: the content is missing, or differs from the saved content.
        """
        return await self._service.load(self._ref, name, version, start=start, stop=stop)

    @asynccontextmanager
    async def open(
        self, name: str, version: int | None = None, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[OpenedArtifact]:
        """Open an artifact for reading in chunks, so that it need not fit into memory. Arguments and errors are those of `load`."""
        async with self._service.open(self._ref, name, version, start=start, stop=stop) as opened:
            yield opened

    async def list(self) -> tuple[Artifact, ...]:
        """Return the newest version of each artifact: first the session's own artifacts, then those that the user's sessions share."""
        found: list[Artifact] = []
        more = True
        while more:
            page = await self._service.page(self._ref, limit=PAGE, after=found[-1].name if found else None)
            found += page.artifacts
            more = page.has_more
        return tuple(found)

    async def versions(self, name: str) -> tuple[Artifact, ...]:
        """Return all versions of an artifact, oldest first. Raises `ArtifactNotFound` if there is no such artifact or version."""
        return (await self._service.versions(self._ref, name)).artifacts

    async def delete(self, name: str, version: int | None = None) -> tuple[Artifact, ...]:
        """Delete an artifact, or only one version, and return the deleted versions.

        Raises:
            ArtifactNotFound: there is no such artifact or version.
        """
        return await self._service.delete(self._ref, name, version)


async def _split_data(data: Any) -> AsyncGenerator[bytes, None]:
    """Yield a content in chunks. Bytes, texts and files are split into chunks that do not block the event loop for long."""
    if isinstance(data, Path):
        async with aclosing(_read_file(data)) as chunks:
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


async def _read_file(path: Path) -> AsyncGenerator[bytes, None]:
    try:
        async with await anyio.open_file(path, "rb") as file:
            while chunk := await file.read(CHUNK):
                yield chunk
    except OSError as exc:
        raise InvalidRequest(f"the file of an artifact cannot be read: {exc.strerror or exc}", param="data") from exc
