"""Read and write artifacts in SQL databases: their names, their versions, and the contents that the database keeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdfast.domain.artifact import Artifact, ArtifactPage, NewArtifact, Scope, UserRef, fold_name
from holdfast.errors import ArtifactNotFound, SessionNotFound, StaleArtifact
from holdfast.limits import BLOB_PART_BYTES
from holdfast.stores import checks
from holdfast.stores.logic.handle import Handle
from holdfast.stores.logic.reads import read_session_row
from holdfast.stores.logic.rows import (
    ENDLESS,
    decode_artifact,
    decode_session,
    decode_text,
    encode_array,
    encode_artifact,
)
from holdfast.stores.logic.steps import Many, Query, Row, Steps
from holdfast.stores.scope_changes import KnownName, add_version, check_artifact_room, check_name, is_same_content


class ArtifactMethods(Handle):
    """Implements the methods of `ArtifactStore` on a SQL database. `LogicStore` inherits from this class."""

    async def add_artifact(
        self,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        checks.check_artifact(scope, new)
        steps = partial(_add_artifact, self.tenant, scope, new, expect, room, identity=identity)
        return await self._write(steps, scope)

    async def artifact(self, scope: Scope, name: str, version: int | None = None) -> Artifact:
        checks.check_scope(scope, name)
        return await self._read(partial(_read_artifact, self.tenant, scope, name, version))

    async def artifacts(self, scope: Scope, *, limit: int = 100, after: str | None = None) -> ArtifactPage:
        checks.check_scope(scope, after)
        checks.check_limit(limit)
        return await self._read(partial(_list_artifacts, self.tenant, scope, limit, after))

    async def artifact_versions(
        self, scope: Scope, name: str, *, limit: int = 100, after: int | None = None
    ) -> ArtifactPage:
        checks.check_scope(scope, name)
        checks.check_limit(limit)
        return await self._read(partial(_list_versions, self.tenant, scope, name, limit, after))

    async def drop_artifacts(
        self, scope: Scope, name: str | None = None, version: int | None = None
    ) -> tuple[Artifact, ...]:
        checks.check_scope(scope, name)
        return await self._write(partial(_drop_artifacts, self.tenant, scope, name, version), scope, scrub=True)

    async def blobs_in_use(self, blobs: Sequence[str]) -> frozenset[str]:
        checks.check_blobs(blobs)
        return await self._read(partial(_find_blobs_in_use, self.tenant, blobs), single=True)

    async def put_blob(self, blob: str, part: int, data: bytes, *, timestamp: int) -> None:
        checks.check_blobs((blob,))
        checks.check_size(len(data), "data", BLOB_PART_BYTES)
        await self._write(partial(_put_blob, self.tenant, blob, part, data, timestamp))

    async def blob(self, blob: str, part: int) -> bytes | None:
        checks.check_blobs((blob,))
        return await self._read(partial(_read_blob_part, self.tenant, blob, part), single=True)

    async def delete_blobs(self, blobs: Sequence[str]) -> None:
        checks.check_blobs(blobs)
        await self._write(partial(_delete_blobs, self.tenant, blobs), scrub=True)

    async def blobs(self, *, before: int, after: str = "", limit: int = 100) -> tuple[str, ...]:
        checks.check_limit(limit)
        return await self._read(partial(_list_blobs, self.tenant, before, after, limit), single=True)


def _locate_scope(tenant: str, scope: Scope, identity: str | None = None) -> Steps[Row]:
    """Return the key columns that all rows of a scope share. Raises `SessionNotFound` if the session does not exist."""
    if isinstance(scope, UserRef):
        return 0, tenant, scope.user_id
    row = yield from read_session_row(tenant, scope)
    if identity not in {None, decode_session(row).identity}:
        raise SessionNotFound(scope.id)
    return row[0], tenant, scope.user_id


def _read_name(place: Row, name: str) -> Steps[KnownName]:
    """Return the stored name that equals `name` after folding (`fold_name`); an empty `KnownName` if there is none."""
    rows = yield Query("artifact_name_get", (*place, fold_name(name)))
    return KnownName(decode_text(rows[0][0]), *rows[0][1:]) if rows else KnownName()


def _require_name(place: Row, name: str, version: int | None = None) -> Steps[KnownName]:
    known = yield from _read_name(place, name)
    if known.name != name:
        raise ArtifactNotFound(name, version, called=known.name or None)
    return known


def _read_version(place: Row, name: str, version: int) -> Steps[Artifact]:
    rows = yield Query("artifact_get", (*place, fold_name(name), version))
    if not rows:
        raise ArtifactNotFound(name, version)
    return decode_artifact(rows[0])


# -- reading -----------------------------------------------------------------


def _read_artifact(tenant: str, scope: Scope, name: str, version: int | None) -> Steps[Artifact]:
    place = yield from _locate_scope(tenant, scope)
    known = yield from _require_name(place, name, version)
    return (yield from _read_version(place, name, known.newest if version is None else version))


def _list_artifacts(tenant: str, scope: Scope, limit: int, after: str | None) -> Steps[ArtifactPage]:
    place = yield from _locate_scope(tenant, scope)
    rows = yield Query("artifacts_newest", (*place, "" if after is None else fold_name(after), limit + 1))
    return ArtifactPage(tuple(decode_artifact(row) for row in rows[:limit]), len(rows) > limit)


def _list_versions(tenant: str, scope: Scope, name: str, limit: int, after: int | None) -> Steps[ArtifactPage]:
    place = yield from _locate_scope(tenant, scope)
    yield from _require_name(place, name)
    rows = yield Query("artifact_versions", (*place, fold_name(name), -1 if after is None else after, limit + 1))
    return ArtifactPage(tuple(decode_artifact(row) for row in rows[:limit]), len(rows) > limit)


def _find_blobs_in_use(tenant: str, blobs: Sequence[str]) -> Steps[frozenset[str]]:
    rows = yield Query("blobs_in_use", (tenant, encode_array(blobs)))
    return frozenset(decode_text(row[0]) for row in rows)


# -- naming ------------------------------------------------------------------


def _add_artifact(
    tenant: str, scope: Scope, new: NewArtifact, expect: int | None, room: int | None, *, identity: str | None
) -> Steps[Artifact]:
    # Checked before the session exists: an attempt with an unknown outcome may have succeeded and is run again.
    done = yield Query("artifact_of_blob", (tenant, new.blob))
    if done:
        return decode_artifact(done[0])
    place = yield from _locate_scope(tenant, scope, identity)
    known = yield from _read_name(place, new.name)
    check_name(known, new)
    if expect is not None and expect != known.newest:
        return (yield from _find_earlier_attempt(place, known, new, expect))
    names, versions, size = (yield Query("artifact_totals", place))[0]
    check_artifact_room(known, new, names=names, versions=versions, size=size, room=room)
    artifact, after = add_version(known, new)
    yield Query("artifact_insert", encode_artifact(place, fold_name(new.name), new, artifact.version))
    yield Query("artifact_name_put", (*place, fold_name(new.name), *after))
    return artifact


def _find_earlier_attempt(place: Row, known: KnownName, new: NewArtifact, expect: int) -> Steps[Artifact]:
    """Return the version `expect + 1` if it is the newest one and has the same content as `new`, which shows that this call is a retry.

    Raises:
        StaleArtifact: in all other cases.
    """
    if known.newest > expect:
        rows = yield Query("artifact_versions", (*place, fold_name(new.name), expect, 2))
        found = decode_artifact(rows[0])
        if len(rows) == 1 and is_same_content(found, new):
            return found
    raise StaleArtifact(new.name, newest=known.newest)


# -- dropping ----------------------------------------------------------------


def _drop_artifacts(tenant: str, scope: Scope, name: str | None, version: int | None) -> Steps[tuple[Artifact, ...]]:
    place = yield from _locate_scope(tenant, scope)
    if name is None:
        gone, names = yield from _lock_all_names(place)
        keys = [(*place, folded) for folded in names]
        if keys:
            yield Many("artifact_versions_delete", keys)
            yield Many("artifact_name_delete", keys)
        return gone
    key = fold_name(name)
    known = yield from _require_name(place, name, version)
    if version is None:
        rows = yield Query("artifact_versions", (*place, key, -1, ENDLESS))
        yield Query("artifact_versions_delete", (*place, key))
        yield Query("artifact_name_delete", (*place, key))
        return tuple(decode_artifact(row) for row in rows)
    found = yield from _read_version(place, name, version)
    yield Query("artifact_delete", (*place, key, version))
    if known.versions == 1:
        yield Query("artifact_name_delete", (*place, key))
    else:
        last = (yield Query("artifact_last", (*place, key)))[0][0]
        after = known._replace(newest=last, versions=known.versions - 1, bytes=known.bytes - found.size)
        yield Query("artifact_name_put", (*place, key, *after))
    return (found,)


def _lock_all_names(place: Row) -> Steps[tuple[tuple[Artifact, ...], Sequence[str]]]:
    """Lock all names of a scope, so that no other transaction adds a version of one. Return the versions, and the folded names.

    Until a name is locked, another transaction may add a version, or another name. So the versions are read again.
    """
    names: list[str] = []
    while True:
        found = tuple(decode_artifact(row) for row in (yield Query("artifacts_all", place)))
        new = sorted({fold_name(one.name) for one in found}.difference(names))
        if not new:
            return found, names
        for name in new:
            yield Query("artifact_name_get", (*place, name))
        names += new


# -- contents ----------------------------------------------------------------


def _put_blob(tenant: str, blob: str, part: int, data: bytes, timestamp: int) -> Steps[None]:
    yield Query("blob_put", (tenant, blob, part, timestamp, data))


def _read_blob_part(tenant: str, blob: str, part: int) -> Steps[bytes | None]:
    rows = yield Query("blob_get", (tenant, blob, part))
    return rows[0][0] if rows else None


def _delete_blobs(tenant: str, blobs: Sequence[str]) -> Steps[None]:
    yield Many("blob_delete", [(tenant, blob) for blob in blobs])


def _list_blobs(tenant: str, before: int, after: str, limit: int) -> Steps[tuple[str, ...]]:
    rows = yield Query("blobs_before", (tenant, before, after, limit))
    return tuple(decode_text(row[0]) for row in rows)
